"""Who is called with route records: one or several, in order, and none of them can harm an answer."""

from __future__ import annotations

import pytest
from watched import CANARY, answer, endpoint, preset

from disco import AsyncDisco, Disco, RouteLog
from disco.errors import ConfigurationError

ASK = {"model": "m", "messages": [{"role": "user", "content": CANARY}], "max_tokens": 3}


def watched(on_route):
    return answer(endpoint("device"), None, preset("device_only"), on_route=on_route)


def test_one_or_several_are_called_with_the_same_record(tmp_path):
    first, second = [], []
    with RouteLog(tmp_path / "routes.jsonl") as log:
        live = watched([first.append, log, second.append])
    assert first == second == [live.record]
    assert len(log.path.read_text(encoding="utf-8").splitlines()) == 1
    assert watched(first.append).record is first[1]


def test_none_at_all():
    assert watched(None).record.finish_reason == watched([]).record.finish_reason == "stop"


def test_what_one_raises_reaches_neither_the_answer_nor_the_others(caplog):
    def fails(route):
        raise RuntimeError(f"cannot store {CANARY}")

    seen = []
    live = watched([fails, seen.append])
    assert live.error is None
    assert live.done
    assert CANARY in live.session.transcript.text
    assert seen == [live.record]
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "fails raised RuntimeError at " in said
    assert "test_on_route.py:" in said, "where to look"
    assert CANARY not in caplog.text


@pytest.mark.anyio
async def test_a_stream_ends_as_if_nothing_were_behind_a_callback_that_fails():
    device = endpoint("device", ttft_s=0.01, decode_tps=1000.0)
    async with AsyncDisco(local=device, policy="private", on_route=[lambda route: 1 / 0]) as client:
        for _ in range(2):
            stream = await client.chat.completions.create(**ASK, stream=True)
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "length"
            assert stream.route.finish_reason == "length"
        answer = await client.chat.completions.create(**ASK)
        assert answer.route.finish_reason == "length"


def test_the_synchronous_client_takes_several_too():
    seen = []
    device = endpoint("device", ttft_s=0.01, decode_tps=1000.0)
    with Disco(local=device, policy="private", on_route=[lambda route: 1 / 0, seen.append]) as client:
        route = client.chat.completions.create(**ASK).route
    assert seen == [route]


async def later(route):
    """Nobody would await it."""


class Later:
    async def __call__(self, route):
        """Neither this."""


@pytest.mark.parametrize("on_route", [later, [print, later], Later()])
def test_what_would_have_to_be_awaited_is_refused_at_once(on_route):
    with pytest.raises(ConfigurationError, match=r"[Ll]ater.* is a coroutine function"):
        AsyncDisco(local=endpoint("device"), on_route=on_route)


@pytest.mark.parametrize("on_route", [3, "routes.jsonl", [print, None]])
def test_what_cannot_be_called_is_refused_at_once(on_route):
    with pytest.raises(ConfigurationError, match="on_route takes a callable, or a sequence of callables"):
        AsyncDisco(local=endpoint("device"), on_route=on_route)
