"""What a client learns of its models' confidence is kept on the way and at its end, and no store costs an answer."""

from __future__ import annotations

import logging

import httpx2
import pytest
from defects.asking import client, create, device
from scripted_server import chunk, sse

from disco import AsyncDisco, ConfigurationError, Disco, LocalServer
from disco.candidate import Candidate
from disco.dispatch.answer_judging import RequestJudge
from disco.dispatch.presets import CascadeSection
from disco.judging import FileStore, HistoryKey, JudgeBook

pytestmark = pytest.mark.anyio

KEY = HistoryKey("triage", "device/m", "weakest")


@pytest.fixture
def anyio_backend() -> str:
    """The file is written in a thread, and a clock that jumps would not wait for it."""
    return "asyncio"


def here():
    return device(answer_tokens=1)


async def test_a_file_has_them_after_a_hundred_scores_and_after_the_end(tmp_path):
    path = tmp_path / "histories.json"
    async with client(local=here(), histories=path) as one:
        history = one.with_options(timeout=3.0).router.judging.book.history(KEY, 1_000)
        await create(one)
        assert not path.exists()
        for _ in range(100):
            history.push(0.5)
        await create(one)
        history.push(0.25)
    assert FileStore(path).load()[KEY].scores == (*[0.5] * 100, 0.25)
    with Disco(local=here(), histories=str(path)) as again:
        assert again.router.judging.book.history(KEY, 1_000).seen == 101
        again.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
        again.router.judging.book.history(KEY, 1_000).push(0.75)
    assert FileStore(path).load()[KEY].seen == 102


async def test_a_client_that_is_closed_while_it_saves_loses_nothing():
    store = Stored()
    async with client(local=here(), histories=store) as one:
        history = one.router.judging.book.history(KEY, 1_000)
        for _ in range(100):
            history.push(0.5)
        await create(one)  # its end begins to save
    assert store[KEY].seen == 100


class Stored(dict):
    """A store in memory."""

    def load(self):
        return self

    def save(self, histories):
        self.update(histories)


async def test_a_local_server_that_names_its_model_later_has_one_history():
    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            found = request.url.path.endswith("/v1/models")
            return httpx2.Response(200 if found else 404, json={"data": [{"id": "qwen3:4b"}]})
        said = chunk("Wide.")
        said["choices"][0]["logprobs"] = {"content": [{"token": "Wide.", "logprob": -0.5}]}
        head = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=head, content=sse(said, chunk(finish="stop")))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(reply))
    home = LocalServer(base_url="http://attic:1/v1", reach="own", http_client=http)
    async with client(local=home, tiers=[here()], policy="cascade") as one:
        verdicts = [(await create(one)).route.judgements[0] for _ in range(2)]
    assert [(v.model, v.history) for v in verdicts] == [("local/qwen3-4b", 0), ("local/qwen3-4b", 1)]


class Broken:
    """A store of an application, which is out of order."""

    def load(self):
        return {}

    def save(self, histories):
        raise RuntimeError(f"cannot save {len(histories)}")


async def test_a_store_that_raises_ends_nothing(caplog):
    with caplog.at_level(logging.ERROR, "disco"):
        async with client(local=here(), histories=Broken()) as one:
            for _ in range(3):
                for _ in range(100):
                    one.router.judging.book.history(KEY, 1_000).push(0.5)
                assert (await create(one)).choices
    assert "histories of scores could not be saved: RuntimeError" in caplog.text


def test_what_is_no_store_is_refused(tmp_path):
    for wrong, message in (
        (3, "histories is a int"),
        (tmp_path, "not the path of a file"),
        ("", "not the path"),
    ):
        for kind in (AsyncDisco, Disco):
            with pytest.raises(ConfigurationError, match=message):
                kind(api_key="k", histories=wrong)


def test_rules_that_score_an_answer_differently_have_a_history_each():
    """Under "exact" the score by "mean" is the lowest so far at a checkpoint; the paper's is that of the whole."""
    book, kinds = JudgeBook(), []
    for confidence in ("mean", "sum"):
        for rule in ("exact", "paper"):
            settings = CascadeSection(rule=rule, confidence=confidence)
            judge = RequestJudge(book, settings, "triage", 0.3, (), str, leaves_early=False)
            kinds.append(judge.of(Candidate("device", "device"), is_highest=False).kind)
    assert kinds == ["lowest_mean", "mean", "sum", "sum"]
    assert {key.kind for key in book._histories} == set(kinds)
