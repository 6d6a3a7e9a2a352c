"""The text that is cut: an exact continuation where an endpoint can, else an error at once, with all that arrived."""

from __future__ import annotations

import json
from typing import Any

import anyio
import moved_clock
import openai
import pytest
from answers.two_servers import MODEL, good, told, two
from faults.in_memory import DROPPED, RESET, Reply, continuing
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import chunk, sse

from disco import Timeouts

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

WORDS = [f" word{n}" for n in range(60)]
TEXT = "".join(WORDS)
SAID = [sse(chunk(word), done=False) for word in WORDS]
ENDS: dict[str, Any] = {
    "close": DROPPED,
    "reset": RESET,
    "end": b"",
    "stall": 1e6,
    "bad line": b"data: {oops\n\n",
    "half a line": b'data: {"choices": [{"ind',
    "error": b'data: {"error": {"message": "boom", "code": 502}}\n\n',
    "error in a chunk": sse({**chunk(), "choices": [], "error": {"message": "boom"}}, done=False),
}
cut = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())


def begun(end: Any, words: int = 40) -> Reply:
    return Reply([*SAID[:words], end])


@cut
async def test_where_nobody_continues_the_error_comes_at_once(end):
    client, server = two(begun(end), good(), timeouts=Timeouts(gap_s=1.0))
    async with client:
        at = anyio.current_time()
        got = await told(client, stream=True)
        assert (got.text, got.error.partial_text) == (TEXT[: len(got.text)], got.text)
        assert got.text == "".join(WORDS[:40])
        assert isinstance(got.error, openai.OpenAIError)
        assert (len(server.requests), anyio.current_time() - at) <= (1, 1.1)
        assert got.tried[0][1] in ("connection", "incomplete", "stalled", "garbage", "server")


@cut
@both
async def test_where_one_can_it_goes_on_exactly(end, stream):
    client, server = two(begun(end), continuing(TEXT), timeouts=Timeouts(gap_s=1.0), continuation="trailing")
    async with client:
        got = await told(client, stream=stream)
        assert (got.text, got.error, len(server.requests)) == (TEXT, None, 2)


@cut
async def test_proofs_are_few(end):
    """Nobody has said how the backup continues: it is asked to prove it, once, and whoever broke off is not."""
    client, server = two(begun(end), good(), timeouts=Timeouts(gap_s=1.0), continuation="auto")
    async with client:
        at = anyio.current_time()
        got = await told(client, stream=True)
        assert (got.text, got.error.partial_text) == ("".join(WORDS[:40]), got.text)
        assert [name for name, _ in got.tried] == ["server", "good"] + ["good"] * (len(got.tried) - 2)
        assert sum(asked.get("model") == MODEL for asked in server.requests) == 1
        assert (len(server.requests), anyio.current_time() - at) <= (7, 1.1)


async def test_a_target_that_writes_nothing_costs_no_second_word():
    """It was to write the last word again. Whoever is asked after it is to write that word, not the one before it."""
    own = [begun(DROPPED, 3), begun(DROPPED, 1), Reply([b"{}"], 500)]
    paced = {"pace_tps": 5.0}
    client, _ = two(own, Reply([DROPPED]), continuation="trailing", max_retries=1, default_options=paced)
    async with client:
        got = await told(client, stream=True)
        assert (got.text, got.error.partial_text) == (" word0 word1 word0", got.text)


WAYS = ("stream", "whole", "helper", "events")


async def read(client: Any, way: str) -> tuple[str, Exception | None]:
    """What a reader sees, in one of the SDK's ways."""
    text, asked = "", {"model": MODEL, "messages": [{"role": "user", "content": "Rhine?"}]}
    try:
        if way == "whole":
            return (await client.chat.completions.create(**asked)).choices[0].message.content, None
        if way == "helper":
            async with client.chat.completions.stream(**asked) as events:
                async for event in events:
                    text += event.delta if event.type == "content.delta" else ""
        elif way == "events":
            async with await client.responses.create(model=MODEL, input="Rhine?", stream=True) as events:
                async for event in events:
                    text += event.delta if event.type == "response.output_text.delta" else ""
        else:
            async with await client.chat.completions.create(stream=True, **asked) as chunks:
                async for each in chunks:
                    text += "".join(choice.delta.content or "" for choice in each.choices)
    except Exception as error:  # noqa: BLE001
        return text, error
    return text, None


def arrived(pieces: list[bytes]) -> str:
    """The text of the whole events in these bytes."""
    whole = b"".join(pieces).rpartition(b"\n\n")[0]
    return "".join(word for word in WORDS if json.dumps(word).encode() in whole)


def pieces_of(data: Any, *, most: int = 12) -> tuple[list[bytes], Any]:
    """Some words in pieces that end anywhere, and how they end."""
    body = b"".join(SAID[: data.draw(st.integers(0, most))])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=4)))
    end = data.draw(st.sampled_from(["close", "end", "stall", "bad line", "error"]))
    return [body[a:b] for a, b in zip([0, *cuts], cuts, strict=False)], ENDS[end]


@given(st.sampled_from(WAYS), st.booleans(), st.sampled_from(["none", "trailing"]), st.data())
def test_no_text_that_arrived_is_lost(way, has_pace, continuation, data):
    """Whatever came of it is in what the reader saw; of a whole answer, the longest of it is in the error."""
    own, (other, other_end) = [pieces_of(data) for _ in range(3)], pieces_of(data)
    text, error, came = "", None, []

    async def asked() -> None:
        nonlocal text, error, came
        client, server = two(
            [*(Reply([*pieces, end]) for pieces, end in own), Reply([b"{}"], 500)],
            Reply([*other, other_end]),
            timeouts=Timeouts(gap_s=1.0, first_content_s=1.0),
            continuation=continuation,
            max_retries=data.draw(st.integers(0, 2)),
            default_options={"pace_tps": 5.0 if has_pace else "off"},
        )
        async with client:
            text, error = await read(client, way)
        left = iter([arrived(pieces) for pieces, _ in own])
        came = [next(left, "") if each["model"] == MODEL else arrived(other) for each in server.requests]

    run_virtually(asked)
    assert isinstance(error, openai.OpenAIError), text
    if way == "whole":
        assert len(error.partial_text) >= max(map(len, came))
    else:
        assert error.partial_text == text
        wrote = [each for each in came if each]
        # Who goes on writes the last word again, where the reader does not have it yet.
        assert text.startswith(
            wrote[0] if wrote and len(came) == 1 else "".join(wrote[:1]).rpartition(" ")[0]
        )


def run_virtually(function: Any) -> None:
    name, options = moved_clock.virtual("asyncio")
    anyio.run(function, backend=name, backend_options=options)
