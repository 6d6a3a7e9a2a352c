"""A silence within a tool call: the call comes out as it was written, and whoever has a whole one first is heard."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from answers.two_servers import TOOLS, called, stub, told, two
from faults.in_memory import SILENCE, Reply, Step
from scripted_server import chunk, sse

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

ROME = '{"city":"Rome"}'
NAME = called("", name="weather")


def said(*steps: dict[str, Any] | Step) -> Reply:
    """These deltas, with seconds between them, and the end of an answer that makes calls."""
    bodies = [sse(chunk(**step), done=False) if isinstance(step, dict) else step for step in steps]
    return Reply([*bodies, sse(chunk(finish="tool_calls"))])


def in_pieces(text: str, count: int) -> list[dict[str, Any] | Step]:
    """Pieces of a call's arguments, one after the other."""
    size = -(-len(text) // count)
    return [step for at in range(0, len(text), size) for step in (called(text[at : at + size]), 0.05)]


BEGUN: dict[str, tuple[list[Any], str]] = {
    "half a call": ([NAME, called('{"ci'), 4.0], '{"ci'),
    "a name": ([NAME, 4.0], ""),
    "a role": ([{"role": "assistant"}, 4.0, NAME], ""),
    "a thought": ([{"reasoning_content": "hm"}, 4.0, NAME], ""),
    "two silences": ([NAME, called('{"ci'), 4.0, called("ty"), 4.0], '{"city'),
}
OTHERS = {"is silent": Reply([SILENCE]), "fails": Reply([b"{}"], 500, before=[1.2])}


@both
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(("begun", "so_far"), BEGUN.values(), ids=BEGUN)
async def test_what_comes_behind_a_silence_stays_behind_what_came_before(
    begun, so_far, other, pieces, stream
):
    client, server = two(said(*begun, *in_pieces(ROME[len(so_far) :], pieces)), other)
    async with client:
        began_at = anyio.current_time()
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, got.error) == ({0: ROME}, "tool_calls", None)
        assert anyio.current_time() - began_at < 4.5 * begun.count(4.0)
        assert sum(endpoint == "server" for endpoint, _ in got.tried) == 1
        assert len(server.requests) <= 4


FINE = [NAME, *map(called, ['{"', "ci"])]  # the same half in more pieces
LONG = [*FINE, 4.0, *in_pieces(ROME[4:], 2)]
RESTS: dict[str, list[Any]] = {
    "after half a call": [NAME, called('{"ci'), 4.0, called(ROME[4:])],
    "after a name": [NAME, 4.0, called(ROME)],
    "for long": [NAME, called('{"ci'), 20.0, called(ROME[4:])],
    "twice": [NAME, called('{"ci'), 4.0, called("ty"), 4.0, called(ROME[6:])],
}


@both
@pytest.mark.parametrize("other", [None, LONG], ids=["alike", "in more pieces"])
@pytest.mark.parametrize("steps", RESTS.values(), ids=RESTS)
async def test_a_server_that_is_silent_in_a_call_is_not_given_up_for_half_of_anothers(steps, other, stream):
    client, server = two(said(*steps), said(*(other or steps)))
    async with client:
        began_at = anyio.current_time()
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, got.error) == ({0: ROME}, "tool_calls", None)
        alone_s = sum(step for step in steps if isinstance(step, float))
        assert anyio.current_time() - began_at <= min(alone_s, 20.0) + 0.2
        assert len(server.requests) == 2


@both
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
async def test_half_a_call_that_is_said_to_be_whole_replaces_nobody(finish, stream):
    broken = stub(*FINE, called("ty"), finish=finish)
    client, server = two(said(NAME, called('{"ci'), 4.0, called(ROME[4:])), broken)
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, got.error) == ({0: ROME}, "tool_calls", None)
        assert {failure for endpoint, failure in got.tried if endpoint == "good"} == {"incomplete"}
        assert len(server.requests) <= 4


@both
async def test_the_first_whole_call_is_heard(stream):
    client, server = two(
        said(NAME, called('{"ci'), 8.0, called(ROME[4:])), said(*FINE, 4.0, called(ROME[4:]))
    )
    async with client:
        began_at = anyio.current_time()
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, len(server.requests)) == ({0: ROME}, "tool_calls", 2)
        assert anyio.current_time() - began_at < 7.5
        assert [endpoint for endpoint, failure in got.tried if failure is None] == ["good"]


@both
async def test_where_the_silent_server_says_that_half_a_call_is_whole_its_heir_goes_on(stream):
    client, _ = two(said(NAME, called('{"ci'), 4.0), said(NAME, 2.0, called(ROME)))
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, got.error) == ({0: ROME}, "tool_calls", None)
        assert got.tried == [("server", "incomplete"), ("good", None)]
