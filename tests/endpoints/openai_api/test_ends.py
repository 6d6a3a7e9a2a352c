"""What ends an answer, what is its error, and what a body is: with the routed ways, streamed and whole."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest
from defects.asking import client, create, tried
from faults.in_memory import (  # noqa: F401 - fixtures
    RESET,
    SILENCE,
    MemoryServer,
    Reply,
    anyio_backend,
    no_thread,
    spoken,
)
from scripted_server import chunk, sse, usage
from server.asgi import ask

from disco import Backup
from disco.server import make_app

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
WHOLE = "Rhine and Rhone"
CALL = [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def event(content: str | None = None, *, finish: Any = None, **delta: Any) -> bytes:
    return sse(chunk(content, finish=finish, **delta), done=False)


def asking(*steps: Any, by: str = "budget", **of_reply: Any):
    """A client of a server that says `steps`, with a budget, or with a backup that says another thing."""
    server = MemoryServer(Reply(steps, **of_reply))
    if by == "budget":
        return client(server, budget={"usd": 1.0, "window_s": 60.0}), server
    http = httpx2.AsyncClient(transport=server)
    at = server.also(spoken(["from the backup"]))
    other = Backup(
        base_url=at, api_key="k" * 12, model="b", price=(1.0, 1.0), http_client=http, continuation="none"
    )
    return client(server, backups=[other]), server


async def outcome(one: Any, *, stream: bool, **params: Any) -> tuple[str, Any, Any]:
    """Text, finish reason and usage of an answer."""
    if not stream:
        got = await create(one, **params)
        return got.choices[0].message.content or "", got.choices[0].finish_reason, got.usage
    text, reason, counted = "", None, None
    options = {"include_usage": True}
    async with await create(one, stream=True, stream_options=options, **params) as chunks:
        async for each in chunks:
            counted = each.usage or counted
            for choice in each.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
    return text, reason, counted


ENDS: dict[str, tuple[list[Any], str]] = {
    "an empty reason in every chunk": (
        [event("Rhine ", finish=""), event("and Rhone", finish=""), event(finish="stop"), DONE],
        "stop",
    ),
    "no reason at all": ([event("Rhine and "), event("Rhone"), DONE], "stop"),
    "only empty reasons": ([event("Rhine and ", finish=""), event("Rhone", finish=""), DONE], "stop"),
    "false": ([event(WHOLE, finish=False), DONE], "stop"),
    "zero": ([event(WHOLE, finish=0), DONE], "stop"),
    "null as text": ([event("Rhine and ", finish="null"), event("Rhone", finish="length"), DONE], "length"),
    "a reason in every chunk, slowly": (
        [
            event("Rhine ", finish="stop"),
            1.3,
            event("and ", finish="stop"),
            2.5,
            event("Rhone", finish="stop"),
            DONE,
        ],
        "stop",
    ),
    "a reason in every chunk, then the body ends": (
        [event("Rhine ", finish="stop"), event("and Rhone", finish="stop")],
        "stop",
    ),
    "text behind the reason": (
        [event("Rhine "), event(finish="stop"), 1.1, event("and Rhone"), DONE],
        "stop",
    ),
    "a second reason": ([event(WHOLE), event(finish="length"), event(finish="stop"), DONE], "length"),
    "a reset behind the reason": ([event("Rhine "), event("and Rhone", finish="stop"), RESET], "stop"),
    "garbage behind the reason": ([event(WHOLE), event(finish="stop"), b"data: {oops\n\n"], "stop"),
    "silence behind the reason": ([event(WHOLE), event(finish="stop"), SILENCE], "stop"),
    "pings behind the reason": ([event(WHOLE), event(finish="stop"), *[0.5, b": ping\n\n"] * 100], "stop"),
    "blank data and null": (
        [event("Rhine "), b"data:     \n\n", b"data: null\n\n", event("and Rhone"), DONE],
        "stop",
    ),
    "a document as an event": (
        [
            sse(
                {**chunk(), "choices": [{"message": {"content": WHOLE}, "finish_reason": "stop"}]}, done=False
            ),
            DONE,
        ],
        "stop",
    ),
    "a document behind the text": (
        [
            event(WHOLE),
            sse(
                {**chunk(), "choices": [{"message": {"content": WHOLE}, "finish_reason": "stop"}]}, done=False
            ),
            DONE,
        ],
        "stop",
    ),
    "empty data": (
        [b"data:\n\n", event("Rhine "), b"data: \n\n", b"data:\r\n\r\n", event("and Rhone"), DONE],
        "stop",
    ),
    "named pings": ([event(WHOLE), b"event: ping\ndata: alive\n\n", event(finish="stop"), DONE], "stop"),
    "null and empty errors": (
        [sse({**chunk("Rhine "), "error": None}, {**chunk("and Rhone"), "error": {}}, done=False), DONE],
        "stop",
    ),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("by", ["budget", "backup"])
@pytest.mark.parametrize("what", ENDS)
async def test_an_answer_ends_where_its_server_ends_it(what, by, stream):
    steps, reason = ENDS[what]
    one, server = asking(*steps, by=by)
    began_at = anyio.current_time()
    async with one:
        text, given, _ = await outcome(one, stream=stream)
        assert (text, given) == (WHOLE, reason)
        assert len(server.requests) == 1
    assert anyio.current_time() - began_at < (16.0 if what.startswith("pings") else 6.0)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_usage_that_comes_late_is_counted(stream):
    for steps in (
        [event("Rhine "), event(finish="stop"), 1.1, sse(usage(900, 40))],
        [event("Rhine "), event(finish="stop"), 2.5, sse(usage(9, 4), done=False), 2.5, sse(usage(900, 40))],
        [event("Rhine "), event(finish="stop"), *[2.0, b": ping\n\n"] * 5, sse(usage(900, 40))],
    ):
        one, _ = asking(*steps)
        async with one:
            _, _, counted = await outcome(one, stream=stream)
        assert (counted.prompt_tokens, counted.completion_tokens) == (900, 40)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_calls_without_a_reason_end_as_calls(stream):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    older = {"function_call": {"name": "f", "arguments": "{}"}}
    for delta, reason in (({"tool_calls": CALL}, "tool_calls"), (older, "function_call")):
        one, _ = asking(event(**delta), DONE)
        async with one:
            assert (await outcome(one, stream=stream, tools=tools))[1] == reason


async def test_a_server_that_gives_fewer_choices_than_asked_has_answered():
    one, _ = asking(event(WHOLE), event(finish="length"), DONE)
    async with one:
        assert (await outcome(one, stream=True, n=2))[:2] == (WHOLE, "length")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "steps",
    [
        [event("Rhine ", finish=""), RESET],
        [event("Rhine ", finish="stop"), RESET],
        [event("Rhine ", finish="stop"), event("and ", finish="stop"), RESET],
        [event("Rhine "), event(finish="stop"), event("and "), RESET],
        [event("Rhine ", finish="stop"), event("and ", finish="stop")[:40]],
    ],
    ids=["empty reason", "at once", "reason in every chunk", "text behind the reason", "half an event"],
)
async def test_a_cut_answer_is_no_complete_one(steps, stream):
    one, _ = asking(*steps)
    async with one:
        with pytest.raises(openai.APIConnectionError) as caught:
            await outcome(one, stream=stream)
    assert caught.value.partial_text.startswith("Rhine ")
    one, server = asking(*steps, by="backup")
    async with one:
        answer = await create(one)
        assert len(server.requests) > 1
        assert tried(answer)[0][1] is not None


FAILED = {"message": "upstream provider disconnected", "code": 502}
ERRORS: dict[str, bytes] = {
    "no choices": sse({**chunk(), "choices": [], "error": FAILED}, done=False),
    "an empty delta": sse({**chunk(), "error": FAILED}, done=False),
    "with a reason": sse({**chunk(finish="stop"), "error": FAILED}, done=False),
    "in the choice": sse(
        {**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": FAILED}]},
        done=False,
    ),
    "behind the reason": event(finish="stop") + sse({"error": FAILED}, done=False),
    "a text": sse({**chunk(), "error": FAILED["message"], "code": 502}, done=False),
    "beside the code": sse({"error": {"message": FAILED["message"]}, "code": 502}, done=False),
    "alone": sse({"object": "error", **FAILED}, done=False),
    "a list": sse([{"error": FAILED}], done=False),  # type: ignore[arg-type]
    "detail": sse({"detail": FAILED["message"]}, done=False),
    "an error event": b"event: error\n" + sse(FAILED, done=False),
    "an error event of text": b"event: error\ndata: upstream provider disconnected\n\n",
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("what", ERRORS)
async def test_an_error_in_any_chunk_at_any_place_is_the_providers(what, stream):
    one, server = asking(event("Rhine "), ERRORS[what], DONE)
    async with one:
        with pytest.raises(openai.APIError) as caught:
            await outcome(one, stream=stream)
    error = caught.value
    assert type(error) is openai.APIError
    assert "disconnected" in str(error.body)
    assert str(error.body.get("code") if isinstance(error.body, dict) else 502) in ("502", "None")
    one, server = asking(ERRORS[what], DONE, by="backup")
    async with one:
        assert (await outcome(one, stream=stream))[0] == "from the backup"
    assert len(server.requests) == 2


HEAD = {"content-type": "application/json"}
PAGE = {"content-type": "text/html"}
STREAM = {"content-type": "text/event-stream"}
DOCUMENT = json.dumps(
    {
        **chunk(),
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": WHOLE}, "finish_reason": None}],
    }
).encode()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("by", ["budget", "backup"])
async def test_the_body_says_what_it_is(by, stream):
    events = [event("Rhine "), event("and Rhone"), event(finish="stop"), DONE]
    for headers in (HEAD, PAGE, {}, {"content-type": "application/octet-stream"}):
        for steps in (
            events,
            [b"\xef\xbb\xbf" + events[0], *events[1:]],
            [b": hi\n\n", *events],
            [b"da", b"ta: ", b"{}\n\n", *events],
        ):
            one, _ = asking(*steps, by=by, headers=headers)
            async with one:
                assert (await outcome(one, stream=stream))[:2] == (WHOLE, "stop")
    for headers in (HEAD, PAGE, STREAM, {}):
        one, _ = asking(b"\n  ", DOCUMENT[:9], DOCUMENT[9:], by=by, headers=headers)
        async with one:
            assert (await outcome(one, stream=stream))[:2] == (WHOLE, "stop")


async def test_a_web_page_and_other_documents_are_no_answer_under_any_type():
    for body in (b"<html>Log in</html>", b"\n<!doctype html>", b'{"object": "list", "data": []}', b"{oops"):
        for headers in (HEAD, PAGE, STREAM, {}):
            one, server = asking(body, by="backup", headers=headers)
            async with one:
                answer = await create(one)
            assert answer.choices[0].message.content == "from the backup"
            assert tried(answer) == [("server", "garbage"), ("backup-1", None)]
            assert len(server.requests) == 3  # the first server twice: in a stream, and as a whole


@pytest.mark.parametrize(
    "body", [b"data: " + b"x" * (65 << 20), b"data: x\n" * 30_000 + b"\n"], ids=["bytes", "lines"]
)
async def test_a_huge_event_is_an_error_that_names_the_limit(body):
    one, _ = asking(event("Rhine "), body)
    async with one:
        with pytest.raises(openai.APIResponseValidationError, match=r"more than (64 MiB|20000 lines)"):
            await create(one)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("line", [b"\n", b"a\n\n", b"data: {}\n\n", b": ping\n\n"])
async def test_what_a_few_compressed_bytes_become_stops_neither_the_loop_nor_the_clocks(line):
    """20 MiB of it, in one read."""
    small = gzip.compress(line * ((20 << 20) // len(line)))
    headers = {**STREAM, "content-encoding": "gzip"}
    server = MemoryServer(Reply([small, SILENCE], headers=headers))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            at = time.thread_time()
            await anyio.lowlevel.checkpoint()
            longest = max(longest, time.thread_time() - at)

    async with (
        client(server, budget={"usd": 1.0, "window_s": 60.0}, timeout=0.3) as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch)
        with pytest.raises(openai.APITimeoutError):
            await create(one)
        tasks.cancel_scope.cancel()
    assert longest < 0.15  # with other tests beside it; alone it is 0.02


async def test_disco_serve_says_the_same():
    """Before a server with a backup: a late usage, an answer under another type, and an error beside a chunk."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "sea"}]}
    ends = [event("Rhine "), event(finish="stop"), 1.1, event("and Rhone"), sse(usage(900, 40))]
    for steps, said in (
        (ends, WHOLE),
        ([event(WHOLE, finish=""), DONE], WHOLE),
        ([ERRORS["an empty delta"], DONE], "from the backup"),
    ):
        one, _ = asking(*steps, by="backup", headers=HEAD)
        async with one:
            answer = await ask(make_app(one), "/v1/chat/completions", asked)
        body = json.loads(answer.body)
        assert (answer.status, body["choices"][0]["message"]["content"]) == (200, said)
        if steps is ends:
            assert body["usage"]["prompt_tokens"] == 900
