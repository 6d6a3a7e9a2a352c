"""An empty 200: an answer without content is a failure of its endpoint, wherever another endpoint may answer."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from answers.two_servers import GOOD, MODEL, TOOLS, called, document, good, stub, told, two
from faults.in_memory import MemoryServer, Reply
from scripted_server import chunk, sse

from disco import AsyncDisco

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

EMPTY = {
    "a role, then stop": stub({"role": "assistant"}, finish="stop"),
    "nothing but stop": stub(finish="stop"),
    "an empty text": stub({"role": "assistant", "content": ""}, finish="stop"),
    "the end of another API": stub({"role": "assistant"}, finish="end_turn"),
    "calls without a call": stub({"role": "assistant"}, finish="tool_calls"),
    "a document with null": document({"content": None}),
    "a document with an empty text": document({"content": ""}),
    "a document without a message": document({}),
}
empty = pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY.keys())


@both
@empty
async def test_another_endpoint_answers(reply, stream):
    client, server = two(reply, good())
    async with client:
        got = await told(client, stream=stream)
        assert (got.text, got.finish, got.tried) == (GOOD, "stop", [("server", "incomplete"), ("good", None)])
        # The stream may be what the server cannot, where the application did not ask for one: once more without.
        is_streamed = reply.headers["content-type"] == "text/event-stream"
        assert len(server.requests) == 2 + (is_streamed and not stream)


async def test_who_has_not_streamed_is_not_asked_again_without_a_stream():
    client, server = two(document({"content": None}, finish=None), good())
    async with client:
        assert (await told(client, stream=False)).text == GOOD
        assert len(server.requests) == 2


@both
async def test_the_breaker_counts_it(stream):
    """An endpoint that answers with nothing again and again is asked last."""
    client, server = two(EMPTY["a role, then stop"], good())
    async with client:
        for _ in range(6):
            assert (await told(client, stream=stream)).text == GOOD
        asked = len(server.requests)
        assert (await told(client, stream=stream)).tried == [("good", None)]
        assert len(server.requests) == asked + 1


@both
@empty
async def test_it_is_an_error_where_all_are_empty(reply, stream):
    client, _ = two(reply, reply, max_retries=0)
    async with client:
        got = await told(client, stream=stream)
        assert isinstance(got.error, openai.OpenAIError)
        assert "answered without any content (finish reason" in str(got.error)
        assert got.tried == [("server", "incomplete"), ("good", "incomplete")]


@both
@pytest.mark.parametrize("more", [{}, {"budget": {"usd": 5, "per": "month"}}], ids=["alone", "with a budget"])
async def test_alone_it_is_what_the_sdk_gives(stream, more, tmp_path):
    server = MemoryServer(EMPTY["a role, then stop"])
    http = httpx2.AsyncClient(transport=server)
    async with AsyncDisco(
        base_url=server.base_url, api_key="secret-key-1234", http_client=http, price=(1, 1), **more
    ) as client:
        if not stream:
            server.replies[1001] = [EMPTY["a document with null"]]
        got = await told(client, stream=stream)
        assert (got.text, got.finish, got.error, len(server.requests)) == ("", "stop", None, 1)


@both
@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (stub({"role": "assistant"}, finish="content_filter"), {}),
        (stub({"role": "assistant"}, finish="length"), {"max_tokens": 5}),
        (stub({"reasoning_content": "Hm, let me think."}, finish="length"), {}),
        (stub({"refusal": "No."}, finish="stop"), {}),
        (
            stub({"audio": {"id": "a", "data": "UklG", "expires_at": 1, "transcript": "No."}}, finish="stop"),
            {},
        ),
        (stub({"images": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}, finish="stop"), {}),
        (stub(called("{}", name="weather"), finish="tool_calls"), {"tools": TOOLS}),
        (stub({"role": "assistant"}, finish="stop"), {"stop": ["\n"]}),
        (stub({"role": "assistant"}, finish="stop"), {"max_tokens": 1}),
    ],
    ids=[
        *("filter", "limit", "limit used on thoughts", "refusal", "sound", "image", "call"),
        *("stop string", "one token"),
    ],
)
async def test_what_has_content_or_is_explained_is_an_answer(reply, asked, stream):
    client, server = two(reply, good())
    async with client:
        got = await told(client, stream=stream, **asked)
        assert (got.error, got.tried, len(server.requests)) == (None, [("server", None)], 1)


@pytest.mark.parametrize(
    "pieces", [{"content": "\n\n"}, {"reasoning_content": "Hm."}], ids=["blank", "thoughts"]
)
async def test_blank_text_and_thoughts_alone_are_no_answer_until_there_is_no_better(pieces):
    nothing = stub(pieces, finish="stop")
    client, _ = two(nothing, good())
    async with client:
        assert (await told(client, stream=False)).text == GOOD
        # A reader who has them keeps them: nobody can begin anew, and an error would be worse.
        got = await told(client, stream=True)
        assert (got.text.strip(), got.finish, got.error) == ("", "stop", None)
    client, _ = two(nothing, nothing, max_retries=0)
    async with client:
        got = await told(client, stream=False)
        assert (got.finish, got.error) == ("stop", None)


async def test_an_empty_race_loser_does_not_end_the_race():
    """The other endpoint is asked at once, although its turn has not come."""
    client, server = two(EMPTY["a role, then stop"], good(), preset="fast")
    async with client:
        got = await told(client, stream=True)
        assert (got.text, len(server.requests)) == (GOOD, 2)


# ------------------------------------------------------------------ the Responses API


def _events(*events: dict[str, Any]) -> Reply:
    made = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return Reply([sse(*made, done=False)])


def _response(output: list[Any], status: str = "completed") -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 0, "total_tokens": 5}
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True}
    return {**base, "status": status, "output": output, "tools": [], "tool_choice": "auto", "usage": usage}


def _text_of(response: Any) -> str:
    return str(response.output_text)


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": GOOD, "annotations": []}],
}


@both
@pytest.mark.parametrize("whole", [True, False], ids=["document", "events"])
async def test_a_response_without_output(whole, stream):
    body = _response([])
    reply = _events({"type": "response.completed", "response": body})
    if whole:
        reply = Reply([json.dumps(body).encode()], headers={"content-type": "application/json"})
    client, server = two(reply, good())
    async with client:
        made = await client.responses.create(model=MODEL, input="Rhine?", stream=stream)
        if stream:
            events = [event async for event in made]
            assert events[-1].type == "response.completed"
            assert _text_of(events[-1].response) == GOOD
        else:
            assert _text_of(made) == GOOD
        assert len(server.requests) == 2 + (not whole and not stream)


@both
async def test_output_that_only_the_last_event_has_is_an_answer(stream):
    client, server = two(_events({"type": "response.completed", "response": _response([MESSAGE])}), good())
    async with client:
        made = await client.responses.create(model=MODEL, input="Rhine?", stream=stream)
        if stream:
            made = [event async for event in made][-1].response
        assert (_text_of(made), len(server.requests)) == (GOOD, 1)


async def test_a_chunk_after_the_role_may_come_late():
    """What is empty is known only at the end."""
    late = Reply(
        [sse(chunk(role="assistant"), done=False), 0.5, sse(chunk("The Rhine."), chunk(finish="stop"))]
    )
    client, server = two(late, good())
    async with client:
        assert ((await told(client, stream=True)).text, len(server.requests)) == ("The Rhine.", 1)
