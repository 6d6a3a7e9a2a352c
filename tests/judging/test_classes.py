"""A request with classes gets one of them from every tier: by label scores, else by what the text names."""

from __future__ import annotations

import random

import httpx2
import pytest
from defects.asking import client, create, question, tried
from faults.in_memory import RESET, MemoryServer, Reply, anyio_backend, no_thread, spoken  # noqa: F401
from faults.rising import DOUBTED, TRUSTED
from scripted_server import chunk, sse

from disco import AsyncDisco, Tier
from disco.judging import HistoryKey, StoredHistory
from disco.judging.answer_judges import named_class
from disco.replay.verdicts import read_verdicts, replay_verdicts

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_thread")]

CLASSES = ("positive", "negative")
OPTIONS = {"task": "triage", "classes": list(CLASSES)}
LOWER = HistoryKey("triage", "lower/small", "class")


class Stored(dict):
    """A store in memory."""

    def load(self):
        return self

    def save(self, histories):
        self.update(histories)


def scored(first="pos", *, finish="stop", then=(), **logp):
    """A server that lists what its first token could have been."""
    made = chunk(first)
    listed = [{"token": token, "logprob": value, "bytes": None} for token, value in logp.items()]
    made["choices"][0]["logprobs"] = {"content": [{"token": first, "logprob": -0.1, "top_logprobs": listed}]}
    return Reply([sse(made, done=False), *then, sse(chunk(finish=finish))])


def tier(server, *replies, **more):
    http = httpx2.AsyncClient(transport=server)
    at = {"api_key": "k", "continuation": "trailing", "http_client": http}
    return Tier(base_url=server.also(*replies), **at, **more)


def on(server, *lower, kept=TRUSTED):
    """A client of a tier and of a server above it. What the tier is compared with makes its verdict certain."""
    store = Stored({LOWER: StoredHistory(kept, len(kept))})
    tiers = [tier(server, *lower, model="small", name="lower")]
    return client(server, tiers=tiers, policy="cascade", histories=store)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("positive", "positive"),
        (' "Positive."\n', "positive"),
        ("“NEGATIVE”.", "negative"),
        ("It is positive", None),
        ("pos", None),
        (" ", None),
    ],
)
def test_what_a_text_names(text, named):
    assert named_class(text, CLASSES) == named


def test_what_could_be_several_classes_is_none_of_them():
    assert named_class("yes", ("Yes", "yes.", "no")) is None
    assert named_class("yes.", ("Yes", "yes.", "no")) == "yes."
    assert named_class("", (".", "no")) is None
    assert named_class("STRASSE", ("straße", "weg")) == "straße"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_highest_tier_is_not_judged_and_gives_a_class_where_its_text_names_one(stream):
    for pieces, expected, judged in (
        ([' "Posi', 'tive."'], "positive", []),
        (["It is ", "positive."], "It is positive.", [("server", "not_judged", "no_class")]),
    ):
        server = MemoryServer(spoken(pieces))
        async with on(server, scored("Neg", Neg=-0.1, Pos=-2.0), kept=DOUBTED) as one:
            got = await create(one, disco=OPTIONS, stream=stream)
            if stream:
                text = "".join([c.choices[0].delta.content or "" async for c in got if c.choices])
            else:
                text = got.choices[0].message.content
            assert text == expected
            first, *rest = got.route.judgements
            assert (first.endpoint, first.outcome) == ("lower", "handed_up")
            assert [(j.endpoint, j.outcome, j.why) for j in rest] == judged
            assert (got.route.segments[-1].end_char, got.route.seamless) == (len(expected), True)
            assert "logprobs" not in server.requests[-1]  # a server that is itself a cascade would not judge


async def test_a_response_holds_the_class_in_every_event():
    server = MemoryServer(spoken(["Positive", "."]))
    async with on(server, scored("Neg", Neg=-0.1, Pos=-2.0), kept=DOUBTED) as one:
        whole = await one.responses.create(model="m", input="?", extra_body={"disco": OPTIONS})
        stream = await one.responses.create(model="m", input="?", stream=True, extra_body={"disco": OPTIONS})
        events = [event async for event in stream]
    assert whole.output_text == "positive"
    done = [event.text for event in events if event.type == "response.output_text.done"]
    assert (done, events[-1].response.output_text) == (["positive"], "positive")


async def test_the_highest_tier_chooses_by_its_scores_where_it_is_known_to_give_them(monkeypatch):
    """Without its label prior, which is kept like that of the others; its choice gets no verdict."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server, store = MemoryServer(), Stored()
    replies = [scored("Pos", Pos=-0.1, Neg=-9.0)] * 5 + [scored("Pos", Pos=-1.0, Neg=-2.0)]
    big = tier(server, *replies, model="big", name="big", logp=True)
    async with client(tiers=[big], policy="cascade", histories=store) as one:
        answers = [await create(one, disco=OPTIONS) for _ in range(6)]
    assert [a.choices[0].message.content for a in answers] == [*["positive"] * 5, "negative"]
    assert all(a.route.judgements == () for a in answers)
    kept = store[HistoryKey("triage", "big/big", "class")]
    assert (kept.scores, kept.seen, len(kept.labels)) == ((), 0, 6)


async def test_recorded_choices_replay_to_the_same_verdicts(monkeypatch, tmp_path):
    """Also where the highest tier chooses by scores, which are not those of a history."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    draw, path, server = random.Random(0), tmp_path / "routes.jsonl", MemoryServer()
    tiers = [
        tier(server, lambda _: scored("Pos", Pos=-draw.random(), Neg=-2 * draw.random()), **who)
        for who in ({"model": "small"}, {"model": "big", "logp": True})
    ]
    with path.open("w") as file:
        write = lambda route: file.write(route.to_json() + "\n")  # noqa: E731
        async with AsyncDisco(tiers=tiers, preset="cascade", on_route=write) as one:
            for number in range(30):
                options = {"disco": {**OPTIONS, **({"judge": "off"} if number % 5 == 0 else {})}}
                await one.chat.completions.create(model="m", messages=question(), extra_body=options)
    (lower,) = replay_verdicts(read_verdicts(path)[0])
    assert (lower.key.model, lower.identical, lower.different, lower.unknown) == ("tier-1/small", 24, 0, 0)
    assert 0 < sum(v.rises for v in lower.verdicts) < 24


@pytest.mark.parametrize("options", [{"judge": "off"}, {"budget_class": "background"}])
async def test_a_class_is_chosen_also_where_the_answer_may_not_rise(options):
    server = MemoryServer(spoken(["never"]))
    async with on(server, spoken([" Negative", "."]), kept=DOUBTED) as one:
        answer = await create(one, disco={**OPTIONS, **options})
    assert answer.choices[0].message.content == "negative"
    assert answer.route.judgements == ()


async def test_a_client_of_one_server_chooses_too():
    async with client(MemoryServer(spoken(["Positive."])), policy="cascade") as one:
        answer = await create(one, disco=OPTIONS)
    assert answer.choices[0].message.content == "positive"


async def test_a_limit_behind_the_class_does_not_keep_it_from_being_judged():
    server = MemoryServer(spoken(["positive"]))
    async with on(server, scored("Neg", finish="length", Neg=-0.1, Pos=-2.0), kept=DOUBTED) as one:
        answer = await create(one, disco=OPTIONS, max_tokens=1)
    assert answer.choices[0].message.content == "positive"
    assert [j.outcome for j in answer.route.judgements] == ["handed_up"]


async def test_blanks_before_the_scored_token_are_no_part_of_the_class():
    server = MemoryServer(spoken(["never"]))
    blank = Reply([sse(chunk("\n"), done=False), *scored("Neg", Neg=-0.1, Pos=-2.0).steps])
    async with on(server, blank) as one:
        answer = await create(one, disco=OPTIONS)
    assert answer.choices[0].message.content == "negative"
    assert [j.outcome for j in answer.route.judgements] == ["kept"]


async def test_a_tier_that_dies_within_a_class_is_replaced_from_the_beginning():
    server = MemoryServer(spoken(["positive"]))
    dies = Reply([sse(chunk("nega"), done=False), RESET])
    async with on(server, dies) as one:
        answer = await create(one, disco=OPTIONS)
    assert tried(answer) == [("lower", "connection"), ("server", None)]
    assert answer.choices[0].message.content == "positive"
    assert [m["role"] for m in server.requests[-1]["messages"]] == ["user"]


async def test_classes_beside_tools_are_not_chosen():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    server = MemoryServer(spoken(["never"]))
    async with on(server, spoken(["Negative."]), kept=DOUBTED) as one:
        answer = await create(one, disco=OPTIONS, tools=tools)
    assert answer.choices[0].message.content == "Negative."
    assert answer.route.judgements == ()
    assert "logprobs" not in server.requests[0]
