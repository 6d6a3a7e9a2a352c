"""One request to a server that does everything a server can do wrong, over real sockets."""

from __future__ import annotations

import gzip
import json

import anyio
import openai
import pytest
import trio.testing
from scripted_server import (
    RESET,
    STREAM_END,
    STREAM_HEAD,
    WAIT_FOR_CLOSE,
    answer,
    chunk,
    piece,
    sse,
    stream,
    usage,
)
from servers import free_port

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.errors import FailureKind, IncompleteAnswerError
from disco.events import DeltaKind, Ended, Usage
from disco.request import Prefix, Request, Timeouts
from tests.endpoints.openai_api.asking import KEY, QUESTION, answer_of, ask, collect, failing, served, text_of

pytestmark = [pytest.mark.real, pytest.mark.anyio]

NORMAL = stream(
    sse(chunk(role="assistant", content=""), chunk("Hel"), chunk("lo"), chunk(finish="stop"), usage(9, 2))
)
A = sse(chunk("a"), done=False)
BEGUN = [STREAM_HEAD, piece(A)]


async def test_an_answer_from_beginning_to_end():
    async with served(NORMAL) as (server, endpoint):
        attempt = endpoint.open(ask(max_tokens=5, some_new_parameter=[1]))
        assert attempt.usage == Usage()
        deltas, ended = await collect(attempt)
    assert text_of(deltas) == "Hello"
    assert [d.kind for d in deltas] == [DeltaKind.ROLE, DeltaKind.TEXT, DeltaKind.TEXT]
    assert (ended.finish_reason, ended.usage) == ("stop", Usage(9, 2))
    assert ended.raw.choices[0].finish_reason == "stop"
    assert attempt.usage == Usage(9, 2)
    line, headers, body = server.requests[0]
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert headers["authorization"] == f"Bearer {KEY}"
    sent = {"messages": QUESTION, "model": "m", "max_tokens": 5, "some_new_parameter": [1]}
    assert body == {**sent, "stream": True, "stream_options": {"include_usage": True}}


async def test_headers_and_query_are_passed_on_and_the_connection_is_used_again():
    async with served(NORMAL) as (server, endpoint):
        request = Request(messages=QUESTION, model="m", extra_headers={"X-A": "1"}, extra_query={"b": "2"})
        for _ in range(3):
            await collect(endpoint.open(request))
    line, headers, _ = server.requests[0]
    assert line.startswith("POST /v1/chat/completions?b=2 ")
    assert headers["x-a"] == "1"
    assert (len(server.requests), server.connections) == (3, 1)


async def test_events_of_one_read_are_one_batch():
    nine = sse(*(chunk(str(n)) for n in range(9)), done=False)
    async with served(stream(nine, sse(chunk(finish="stop")))) as (_, endpoint):
        attempt = endpoint.open(ask())
        assert [d.text for d in await anext(attempt)] == [str(n) for n in range(9)]


async def test_characters_and_lines_may_be_cut_anywhere():
    text = "h\u00e9 \u20ac \U0001f600"
    data = sse(chunk(text), chunk("\ud83d"), chunk("\ude00"), chunk(finish="stop"))
    data = data.replace(json.dumps(text).encode(), f'"{text}"'.encode())
    deltas, _ = await answer_of(stream(*(data[n : n + 1] for n in range(len(data)))))
    assert text_of(deltas) == text + "\U0001f600"


ZIPPED = gzip.compress(sse(chunk("a"), chunk(finish="stop")))
PING = sse({**chunk(), "choices": []}, done=False)


@pytest.mark.parametrize(
    "script",
    [
        answer(ZIPPED, content_type="text/event-stream", headers="Content-Encoding: gzip\r\n"),
        stream(A + sse(chunk(finish="stop"), done=False)),  # neither [DONE] nor usage
        [STREAM_HEAD, piece(A + sse(chunk(finish="stop"), done=False))],  # cut behind the finish reason
        stream(b": ping\n\n", PING, A + sse(chunk(finish="stop"))),
    ],
    ids=["compressed", "no [DONE]", "cut at the end", "pings"],
)
async def test_whatever_is_around_it_the_answer_is_whole(script):
    deltas, ended = await answer_of(script)
    assert [d.text for d in deltas] == ["a"]
    assert (ended.finish_reason, ended.usage) == ("stop", None)


TYPES = {
    FailureKind.INCOMPLETE: IncompleteAnswerError,
    FailureKind.CONNECTION: openai.APIConnectionError,
    FailureKind.SERVER: openai.APIError,
    FailureKind.GARBAGE: openai.APIResponseValidationError,
    FailureKind.AUTHENTICATION: openai.AuthenticationError,
}


@pytest.mark.parametrize(
    ("script", "said", "kind"),
    [
        (stream(sse(chunk("a"))), "a", FailureKind.INCOMPLETE),
        (stream(A), "a", FailureKind.INCOMPLETE),
        (stream(b""), "", FailureKind.INCOMPLETE),
        (stream(A, b'data: {"cho'), "a", FailureKind.INCOMPLETE),
        ([*BEGUN, RESET], "a", FailureKind.CONNECTION),
        ([STREAM_HEAD, piece(A + b'data: {"x": "\xe2\x82')], "a", FailureKind.CONNECTION),
        (stream(A, sse({"error": {"message": "boom", "code": 500}})), "a", FailureKind.SERVER),
        (stream(b'event: error\ndata: {"message": "boom"}\n\n'), "", FailureKind.SERVER),
        (stream(sse(chunk("a", finish="error"))), "a", FailureKind.SERVER),
        (stream(A, b"data: <oops>\n\n"), "a", FailureKind.GARBAGE),
        (answer(b"<html>login</html>", content_type="text/html; charset=utf-8"), "", FailureKind.GARBAGE),
        (answer(b'{"id": "x"}'), "", FailureKind.GARBAGE),
        (answer(b"no JSON"), "", FailureKind.GARBAGE),
        (answer(b'{"error": {"message": "boom"}}'), "", FailureKind.SERVER),
        ([b"SSH-2.0-nonsense\r\n"], "", FailureKind.CONNECTION),
        ([RESET], "", FailureKind.CONNECTION),
        (answer(b"{}", status="401 Unauthorized"), "", FailureKind.AUTHENTICATION),
        (answer(b"<h1>no</h1>", status="503 X", content_type="text/html"), "", FailureKind.SERVER),
    ],
)
async def test_misbehaviour_has_its_kind_and_keeps_the_text_before_it(script, said, kind):
    async with served(script) as (server, endpoint):
        got, failure = await failing(endpoint.open(ask()))
    assert (got, failure.kind) == (said, kind)
    by_status = openai.InternalServerError if " 503 " in str(script[0]) else TYPES[kind]
    assert type(failure.error) is by_status
    assert len(server.requests) == 1, "retries belong to the session"


async def test_what_an_error_says_of_waiting_is_kept_and_the_key_is_not():
    body = json.dumps({"error": {"message": f"slow down, {KEY}"}}).encode()
    async with served(answer(body, status="429 X", headers="Retry-After: 12\r\n")) as (_, endpoint):
        _, failure = await failing(endpoint.open(ask()))
    assert (failure.kind, failure.retry_after_s) == (FailureKind.RATE_LIMIT, 12.0)
    assert KEY not in f"{failure.error!r}{failure.error}{failure}{failure.error.body}"


async def test_refused_connection_costs_nothing():
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=KEY) as client:
        attempt = OpenAIEndpoint(client=client).open(ask())
        _, failure = await failing(attempt)
    assert failure.kind is FailureKind.CONNECTION
    assert attempt.usage == Usage()


# ---------------------------------------------------------------------- closing


async def closed(server) -> None:
    with anyio.fail_after(60):
        await server.closed.wait()


@pytest.mark.parametrize("head", [[], [STREAM_HEAD], BEGUN])
async def test_closing_from_another_task_closes_the_connection_whatever_is_awaited(head):
    async with served([*head, WAIT_FOR_CLOSE]) as (server, endpoint):
        attempt = endpoint.open(ask())

        async def read():
            async for _ in attempt:
                pass

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await server.asked.wait()
                await anyio.sleep(0.02)  # what was sent is read, and the next read waits
                await attempt.aclose()
        await closed(server)
        await attempt.aclose()


async def test_closing_without_reading_to_the_end_does_not_drain():
    async with served([*BEGUN, WAIT_FOR_CLOSE]) as (server, endpoint):
        attempt = endpoint.open(ask())
        await anext(attempt)
        await attempt.aclose()
        await closed(server)
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)
        assert (attempt.usage.prompt_tokens > 50, attempt.usage.completion_tokens) == (True, 1)


VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.1)}), id="trio-virtual")],
)
OFF = Timeouts(None, None, None, None)


@VIRTUAL
async def test_clocks_that_are_off_wait_for_ever_on_virtual_time():
    script = [STREAM_HEAD, 5000.0, piece(A), 5000.0, piece(sse(chunk(finish="stop"))), STREAM_END]
    deltas, _ = await answer_of(script, asked=ask(timeouts=OFF))
    assert text_of(deltas) == "a"


@VIRTUAL
@pytest.mark.parametrize("tail", [[10_000.0], [0.5, piece(b": ping\n\n")] * 100], ids=["silence", "pings"])
async def test_whatever_follows_the_finish_reason_the_answer_ends_soon(tail):
    script = [STREAM_HEAD, piece(A + sse(chunk(finish="stop"), done=False)), *tail]
    async with served(script) as (_, endpoint):
        started_at = anyio.current_time()
        _, ended = await collect(endpoint.open(ask(timeouts=OFF)))
        assert ended.finish_reason == "stop"
        assert anyio.current_time() - started_at < 5


# ---------------------------------------------------------------------- continuing


async def test_continuation_is_sent_and_its_echo_and_withheld_text_are_swallowed():
    told = "The quick brown fox jumps over"
    script = stream(sse(chunk(told[:-5]), chunk(" ov"), chunk("er"), chunk(" the"), chunk(finish="stop")))
    async with served(script, continuation=Continuation("flags")) as (server, endpoint):
        assert endpoint.capabilities("m").continues
        prefix = Prefix(told, tokens=6, withheld=" over")
        deltas, _ = await collect(endpoint.open(ask(max_tokens=20), prefix))
    assert text_of(deltas) == " the"
    body = server.requests[0][2]
    assert body["messages"][-1] == {"role": "assistant", "content": told[:-5]}
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["max_tokens"] == 20 - 6 + 2


async def test_text_released_late_has_no_raw_chunk_and_counts_its_tokens():
    script = stream(sse(chunk("The"), chunk(" quick"), chunk(" red"), chunk(finish="stop")))
    async with served(script, continuation=Continuation("trailing")) as (_, endpoint):
        (delta,), _ = await collect(endpoint.open(ask(), Prefix("The quick brown fox jumps")))
    assert (delta.text, delta.tokens, delta.raw) == ("The quick red", 3, None)


@pytest.mark.parametrize(("method", "asked"), [("prefix", 1), ("none", 0)])
async def test_a_server_that_does_not_continue_fails_at_the_seam(method, asked):
    """It does not write the withheld text, or is not known to continue at all."""
    script = stream(sse(chunk(" under"), chunk(finish="stop")))
    async with served(script, continuation=Continuation(method)) as (server, endpoint):
        assert endpoint.capabilities("m").continues is bool(asked)
        said, failure = await failing(endpoint.open(ask(), Prefix("It jumps over", withheld=" over")))
    assert (said, failure.kind, len(server.requests)) == ("", FailureKind.SEAM, asked)
    assert isinstance(failure.error, IncompleteAnswerError)


async def test_used_up_answer_ends_without_asking():
    async with served(NORMAL, continuation=Continuation("flags")) as (server, endpoint):
        attempt = endpoint.open(ask(max_tokens=3), Prefix("a b c", tokens=3))
        assert await collect(attempt) == ([], Ended("length", Usage()))
    assert (server.requests, attempt.usage) == ([], Usage())


@pytest.mark.parametrize(
    "script", [[RESET], answer(b"{}", status="401 X"), answer(b"<html>"), answer(b'{"data": 3}')]
)
async def test_warm_up_never_raises(script):
    async with served(script, continuation=Continuation("auto")) as (_, endpoint):
        await endpoint.warm_up()
        assert not endpoint.capabilities("m").continues
        assert endpoint.verdicts == {}
