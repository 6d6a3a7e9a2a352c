"""A silence within a tool call: the call comes out as it was written, and whoever has a whole one first is heard."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from answers.two_servers import TOOLS, called, told, two
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
