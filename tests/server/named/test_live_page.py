"""The live page without a browser: what its data hold, who gets them, and that it stays small.

That they hold no text: tests/security/test_live_texts.py. In a browser: test_live_browser.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import types
from itertools import pairwise

import anyio
import pytest
from asgi import ask, simulated
from hypothesis import given
from hypothesis import strategies as st
from serving import HELLO
from watched import virtually

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind
from disco.server import LiveBoard, Metrics, NamedModel, NamedModels, make_app
from disco.server.live_page import live_board
from disco.server.live_page.answer_text import LONGEST_ANSWER, LONGEST_PROMPT, AnswerText, prompt_text
from disco.server.live_page.live_board import ANSWERS
from disco.server.live_page.page_route import FRESH_S

CHATS, LIVE = "/v1/chat/completions", "/v1/disco/live"
CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}
KEY = "a-key-of-many-characters"
KEYED = {"authorization": f"Bearer {KEY}"}
ODD = "<img src=x onerror=alert(1)>"


def app_of(client: AsyncDisco, board: LiveBoard, **options):
    return make_app(client, page=board, **options)


async def live(app, after: int = 0, **headers: str) -> dict:
    """The data, as a page gets them that has seen the changes up to `after`."""
    answer = await ask(app, LIVE, query=f"after={after}".encode(), **headers)
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    return answer.json


def test_an_answer_is_shown_while_it_is_written_and_then_with_its_costs():
    async def main():
        board = LiveBoard()
        async with simulated(gap_s=1.0, tokens=10, on_route=board.answered) as client:
            app = app_of(client, board)
            assert (await live(app))["finished"] == []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, app, CHATS, {**CHAT, "stream": True})
                await anyio.sleep(5.5)
                seen = await live(app)
                (running,) = seen["running"]
                assert (running["model"], running["writer"], running["state"]) == ("m", "device", "running")
                assert 0 < running["tokens"] < 10
                (lane,) = running["lanes"]
                assert lane["spans"][-1][0] == "writing"
                assert lane["spans"][-1][2] == pytest.approx(running["total_s"])
                assert (seen["busy"], seen["answers"], seen["finished"]) == (1, 0, [])
            seen = await live(app)
            (done,) = seen["finished"]
            assert (done["n"], done["state"], done["finish_reason"]) == (running["n"], "done", "stop")
            assert done["wrote"].keys() == done["spent"].keys() == {"device"}
            assert any(why.startswith("device starts") for why in done["why"])
            assert (done["bill_usd"], done["device_energy_j"]) == (
                0.0,
                None,
            )  # a simulated device's is not known
            assert done["spent"]["device"] == {"bill_usd": 0.0, "device_energy_j": None}
            assert (done["tokens"], done["tps"]) == (10, pytest.approx(1.0, rel=0.2))
            (model,) = seen["models"]
            (endpoint,) = model["endpoints"]
            assert (model["name"], endpoint["answers"], endpoint["tokens"]) == (None, 1, 10)
            assert (endpoint["bill_usd"], endpoint["device_energy_j"]) == (0.0, 0.0)
            assert (await live(app, after=seen["change"]))["finished"] == []
            assert (await live(app, after=seen["change"]))["began"] == seen["began"]

    virtually(main)


def test_a_failure_is_shown_with_who_took_over_and_what_was_lost():
    async def main():
        board = LiveBoard()
        good = SimulatedProfile(gap_s=0.01, answer_tokens=6)
        bad = SimulatedProfile(
            gap_s=0.01, answer_tokens=9, fault=Fault(after_tokens=3, kind=FailureKind.CRASHED)
        )
        first = SimulatedEndpoint("device", bad, place="device")
        second = SimulatedEndpoint("attic", good, place="device")
        async with AsyncDisco(
            local=first, tiers=[second], preset="private", on_route=board.answered
        ) as client:
            app = app_of(client, board)
            assert (await ask(app, CHATS, {**CHAT, "stream": True})).status == 200
            seen = await live(app)
        (done,) = seen["finished"]
        assert [lane["endpoint"] for lane in done["lanes"]] == ["device", "attic"]
        assert [mark["kind"] for mark in done["marks"]] == ["failed", "taken_over"]
        assert "crashed" in done["marks"][0]["text"]
        assert list(done["wrote"]) == ["device", "attic"]
        assert sum(e["losers_usd"] for e in seen["models"][0]["endpoints"]) == pytest.approx(
            done["losers_usd"]
        )
        assert seen["failed"] == 0

    virtually(main)


def test_what_is_refused_leaves_nothing_and_what_fails_is_counted():
    async def main():
        board = LiveBoard()
        fault = Fault(after_tokens=0, kind=FailureKind.CRASHED)
        broken = SimulatedEndpoint("device", SimulatedProfile(fault=fault), place="device")
        async with AsyncDisco(
            local=broken, preset="private", max_retries=0, on_route=board.answered
        ) as client:
            app = app_of(client, board)
            assert (await ask(app, CHATS, {**CHAT, "disco": {"nonsense": 1}})).status == 400
            assert (await ask(app, CHATS, CHAT)).status == 502
            seen = await live(app)
        assert (seen["busy"], seen["answers"], seen["failed"]) == (0, 1, 1)
        assert [answer["state"] for answer in seen["finished"]] == ["failed"]

    virtually(main)


def test_it_keeps_the_last_answers_only_and_long_names_and_texts_are_cut():
    async def main():
        board = LiveBoard(answers=3, text=True)
        async with simulated(on_route=board.answered) as client:
            app = app_of(client, board, key=KEY)
            for number in range(5):
                asks = {**CHAT, "model": f"{number}" * 1000, "stream": bool(number % 2)}
                asks["messages"] = [{"role": "user", "content": "x" * 50_000}]
                assert (await ask(app, CHATS, asks, **KEYED)).status == 200
            seen = await live(app, **KEYED)
            assert [answer["n"] for answer in seen["finished"]] == [3, 4, 5]
            assert {len(answer["model"]) for answer in seen["finished"]} == {live_board.LONGEST_NAME}
            assert {len(answer["text"]["prompt"]) for answer in seen["finished"]} == {LONGEST_PROMPT}
            assert all(answer["text"]["answer"] for answer in seen["finished"])
            assert (seen["answers"], seen["kept"], len(board.sums)) == (5, 3, 1)
        assert board._running == {}

    virtually(main)
    assert LiveBoard()._finished.maxlen == ANSWERS
    with pytest.raises(ValueError, match="1 to 1000"):
        LiveBoard(answers=0)


def test_many_watchers_have_the_states_computed_once(monkeypatch):
    async def main():
        board = LiveBoard()
        async with simulated(on_route=board.answered) as client:
            app = app_of(client, board)
            looked: list = []
            real = client.router.health.watch
            watch = types.SimpleNamespace(watch=lambda *given: looked.append(1) or real(*given))
            monkeypatch.setattr(client.router, "health", watch)
            for _ in range(20):
                await live(app)
            assert len(looked) == 1
            await anyio.sleep(FRESH_S)
            await live(app)
            assert len(looked) == 2

    virtually(main)


def test_the_page_needs_no_key_and_holds_no_data_and_its_data_need_it():
    async def main():
        board = LiveBoard()
        async with simulated(on_route=board.answered) as client:
            app = app_of(client, board, key=KEY, metrics=Metrics())
            page = await ask(app, "/")
            assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert (await ask(app, "/", method="HEAD")).status == 200
            assert (await ask(app, "/", {})).status == 405
            for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
                refused = await ask(app, LIVE, **given)
                assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
            assert (await ask(app, LIVE, query=f"key={KEY}".encode())).status == 401
            assert (await ask(app, LIVE, {}, **KEYED)).status == 405
            for headers in (
                {"origin": "http://evil.test"},
                {"origin": "null"},
                {"sec-fetch-site": "cross-site"},
            ):
                for path in ("/", LIVE):
                    assert (await ask(app, path, **KEYED, **headers)).error["code"] == "origin_not_allowed"
            for path in ("/", LIVE):
                assert (await ask(app, path, host="evil.test", **KEYED)).error["code"] == "host_not_allowed"
            for odd in ("x", "-1", "9" * 99, "１"):
                assert (await ask(app, LIVE, query=f"after={odd}".encode(), **KEYED)).status == 200
            assert b'path="/v1/disco/live"' in (await ask(app, "/metrics", **KEYED)).body

    virtually(main)


def test_texts_are_on_no_page_that_needs_no_key():
    client = AsyncDisco(
        local=SimulatedEndpoint("device", SimulatedProfile(), place="device"), preset="private"
    )
    with pytest.raises(ConfigurationError, match=r"no key is set\. Set a key in DISCO_SERVER_KEY"):
        app_of(client, LiveBoard(text=True))


def test_the_page_may_run_only_its_own_code_and_loads_nothing():
    async def main():
        async with simulated() as client:
            page = await ask(app_of(client, LiveBoard()), "/")
            none = await ask(make_app(client), "/")
            assert none.status == (await ask(make_app(client), LIVE)).status == 404
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert (
            policy["default-src"]
            == policy["base-uri"]
            == policy["form-action"]
            == policy["frame-ancestors"]
            == "'none'"
        )
        assert (policy["connect-src"], policy["trusted-types"]) == ("'self'", "'none'")
        text = page.body.decode()
        for kind in ("script", "style"):
            (inline,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
        assert not re.search(r"\son\w+=|style=|innerHTML|outerHTML|document\.write|eval\(|https?://", text)
        assert page.headers["x-frame-options"] == "DENY"

    virtually(main)


def test_models_are_shown_by_name_with_their_budgets():
    async def main():
        board = LiveBoard()
        async with (
            simulated() as one,
            simulated(budget={"device_tokens": 900, "window_s": 60, "account": "x"}) as two,
        ):
            models = NamedModels([NamedModel(ODD, one, "a"), NamedModel("b", two, "b")], default="b")
            seen = await live(make_app(models, page=board))
        first, second = seen["models"]
        assert (first["name"], first["budgets"], second["default"]) == (ODD, [], True)
        (budget,) = second["budgets"]
        assert (budget["limit"], budget["left"], budget["window_s"], budget["account"]) == (
            "device_tokens",
            900,
            60,
            "x",
        )

    virtually(main)


# ---------------------------------------------------------------------- texts

KEYS = ("messages", "content", "text", "input", "choices", "delta", "message", "output", "type", "x")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)


@given(JSON, st.lists(st.integers(0, 200), max_size=5))
def test_any_body_and_any_answer_however_cut_is_read_without_an_error(value, cuts):
    assert isinstance(prompt_text(value if isinstance(value, dict) else {"messages": value}), str)
    data = b"data: " + json.dumps(value).encode() + b"\n\ndata: [DONE]\n\n"
    whole, pieces = AnswerText("", stream=True), AnswerText("", stream=True)
    whole.feed(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        pieces.feed(data[begin:end])
    assert whole.answer == pieces.answer
    document = AnswerText("", stream=False)
    document.feed(json.dumps(value).encode())
    assert isinstance(document.answer, str)


def test_a_text_has_a_longest_length_and_so_has_what_waits_for_its_end():
    text = AnswerText("", stream=True)
    for _ in range(40):
        text.feed(b'data: {"choices": [{"delta": {"content": "' + b"y" * 1000 + b'"}}]}\n\n')
    assert text.answer == "y" * LONGEST_ANSWER
    text.feed(b"x" * 3_000_000)
    text.close()
    short = AnswerText("", stream=True)
    short.feed(b"x" * 3_000_000)
    assert text._rest == short._rest == b""
    assert text.is_whole
