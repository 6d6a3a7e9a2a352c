"""One request to a server that does everything a server can do wrong, over real sockets."""

from __future__ import annotations

import contextlib
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
    scripted_server,
    sse,
    stream,
    usage,
)
from servers import free_port

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, DeltaKind, Ended, Usage
from disco.request import Prefix, Request, Timeouts

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "Hello there."}]
NORMAL = stream(
    sse(chunk(role="assistant", content=""), chunk("Hel"), chunk("lo"), chunk(finish="stop"), usage(9, 2))
)
KEY = "sk-test-0123456789abcdef"


@contextlib.asynccontextmanager
async def served(*scripts, **settings):
    """A scripted server and an endpoint on it."""
    async with (
        scripted_server(*scripts) as server,
        PlainClient(base_url=server.base_url, api_key=KEY) as client,
    ):
        endpoint = OpenAIEndpoint(client=client, **settings)
        try:
            yield server, endpoint
        finally:
            await endpoint.aclose()


def ask(**params) -> Request:
    timeouts = params.pop("timeouts", Timeouts())
    return Request(messages=QUESTION, model="m", params=params, timeouts=timeouts)


async def collect(attempt) -> tuple[list[Delta], Ended]:
    deltas: list[Delta] = []
    ended = None
    async with attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                assert ended is None
                ended = event
            else:
                assert event
                assert ended is None
                deltas += event
    assert ended is not None
    return deltas, ended


def text_of(deltas) -> str:
    return "".join(delta.text for delta in deltas)


async def failing(attempt) -> tuple[str, EndpointFailure]:
    """The text that came before the failure, and the failure."""
    said = ""
    async with attempt:
        try:
            async for event in attempt:
                assert not isinstance(event, Ended)
                said += text_of(event)
        except EndpointFailure as failure:
            return said, failure
    raise AssertionError("did not fail")


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
    assert body == {
        "messages": QUESTION,
        "model": "m",
        "max_tokens": 5,
        "some_new_parameter": [1],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_headers_and_query_are_passed_on():
    async with served(NORMAL) as (server, endpoint):
        request = Request(messages=QUESTION, model="m", extra_headers={"X-A": "1"}, extra_query={"b": "2"})
        await collect(endpoint.open(request))
    line, headers, _ = server.requests[0]
    assert line.startswith("POST /v1/chat/completions?b=2 ")
    assert headers["x-a"] == "1"


async def test_events_of_one_read_are_one_batch():
    async with served(
        stream(sse(*(chunk(str(n)) for n in range(9)), done=False), sse(chunk(finish="stop")))
    ) as (
        _,
        endpoint,
    ):
        attempt = endpoint.open(ask())
        assert [d.text for d in await anext(attempt)] == [str(n) for n in range(9)]
        await attempt.aclose()


async def test_connection_is_used_again_after_a_complete_answer():
    async with served(NORMAL) as (server, endpoint):
        for _ in range(3):
            await collect(endpoint.open(ask()))
        assert len(server.requests) == 3
        assert server.connections == 1


async def test_characters_and_lines_may_be_cut_anywhere():
    data = sse(chunk("h\u00e9 \u20ac \U0001f600"), chunk(finish="stop"))
    data = data.replace(
        json.dumps("h\u00e9 \u20ac \U0001f600").encode(), '"h\u00e9 \u20ac \U0001f600"'.encode()
    )
    async with served(stream(*(data[n : n + 1] for n in range(len(data))))) as (_, endpoint):
        deltas, _ = await collect(endpoint.open(ask()))
    assert text_of(deltas) == "h\u00e9 \u20ac \U0001f600"


async def test_compressed_stream_is_read():
    body = gzip.compress(sse(chunk("zip"), chunk(finish="stop")))
    script = answer(body, content_type="text/event-stream", headers="Content-Encoding: gzip\r\n")
    async with served(script) as (_, endpoint):
        deltas, _ = await collect(endpoint.open(ask()))
    assert text_of(deltas) == "zip"


async def test_missing_done_and_usage_do_not_matter_once_there_is_a_finish_reason():
    async with served(stream(sse(chunk("a"), chunk(finish="stop"), done=False))) as (_, endpoint):
        deltas, ended = await collect(endpoint.open(ask()))
    assert (text_of(deltas), ended.finish_reason, ended.usage) == ("a", "stop", None)


async def test_cut_after_the_finish_reason_is_no_failure():
    async with served([STREAM_HEAD, piece(sse(chunk("a"), chunk(finish="stop"), done=False))]) as (
        _,
        endpoint,
    ):
        _, ended = await collect(endpoint.open(ask()))
    assert ended.finish_reason == "stop"


@pytest.mark.parametrize(
    ("script", "said", "kind", "type_"),
    [
        (stream(sse(chunk("a"))), "a", FailureKind.INCOMPLETE, IncompleteAnswerError),
        (stream(sse(chunk("a"), done=False)), "a", FailureKind.INCOMPLETE, IncompleteAnswerError),
        (stream(b""), "", FailureKind.INCOMPLETE, IncompleteAnswerError),
        (
            stream(sse(chunk("a"), done=False), b'data: {"cho'),
            "a",
            FailureKind.INCOMPLETE,
            IncompleteAnswerError,
        ),
        (
            [STREAM_HEAD, piece(sse(chunk("a"), done=False)), RESET],
            "a",
            FailureKind.CONNECTION,
            openai.APIConnectionError,
        ),
        (
            [STREAM_HEAD, piece(sse(chunk("a"), done=False) + b'data: {"x": "\xe2\x82')],
            "a",
            FailureKind.CONNECTION,
            openai.APIConnectionError,
        ),
        (
            stream(sse(chunk("a"), done=False), sse({"error": {"message": "boom", "code": 500}})),
            "a",
            FailureKind.SERVER,
            openai.APIError,
        ),
        (stream(b'event: error\ndata: {"message": "boom"}\n\n'), "", FailureKind.SERVER, openai.APIError),
        (stream(sse(chunk("a", finish="error"))), "a", FailureKind.SERVER, openai.APIError),
        (
            stream(sse(chunk("a"), done=False), b"data: <oops>\n\n"),
            "a",
            FailureKind.GARBAGE,
            openai.APIResponseValidationError,
        ),
        (
            answer(b"<html>login</html>", content_type="text/html; charset=utf-8"),
            "",
            FailureKind.GARBAGE,
            openai.APIResponseValidationError,
        ),
        (answer(b'{"id": "x"}'), "", FailureKind.GARBAGE, openai.APIResponseValidationError),
        (answer(b'{"error": {"message": "boom"}}'), "", FailureKind.SERVER, openai.APIError),
        ([b"SSH-2.0-nonsense\r\n"], "", FailureKind.CONNECTION, openai.APIConnectionError),
        ([RESET], "", FailureKind.CONNECTION, openai.APIConnectionError),
        (
            answer(b"{}", status="401 Unauthorized"),
            "",
            FailureKind.AUTHENTICATION,
            openai.AuthenticationError,
        ),
        (
            answer(b"<h1>no</h1>", status="503 X", content_type="text/html"),
            "",
            FailureKind.SERVER,
            openai.InternalServerError,
        ),
    ],
)
async def test_misbehaviour_has_its_kind_and_keeps_the_text_before_it(script, said, kind, type_):
    async with served(script) as (server, endpoint):
        got, failure = await failing(endpoint.open(ask()))
    assert (got, failure.kind) == (said, kind)
    assert type(failure.error) is type_
    assert len(server.requests) == 1, "retries belong to the session"


async def test_retry_after_of_a_429():
    script = answer(b'{"error": {"message": "slow down"}}', status="429 X", headers="Retry-After: 12\r\n")
    async with served(script) as (_, endpoint):
        _, failure = await failing(endpoint.open(ask()))
    assert (failure.kind, failure.retry_after_s) == (FailureKind.RATE_LIMIT, 12.0)


async def test_a_key_that_the_server_quotes_is_not_repeated():
    body = json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()
    async with served(answer(body, status="401 X")) as (_, endpoint):
        _, failure = await failing(endpoint.open(ask()))
    assert KEY not in f"{failure.error!r}{failure.error}{failure}{failure.error.body}"


async def test_refused_connection_costs_nothing():
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=KEY) as client:
        attempt = OpenAIEndpoint(client=client).open(ask())
        _, failure = await failing(attempt)
    assert failure.kind is FailureKind.CONNECTION
    assert attempt.usage == Usage()


async def test_keep_alives_and_chunks_without_choices_are_no_deltas():
    empty = {**chunk(), "choices": []}
    async with served(
        stream(b": ping\n\n", sse(empty, done=False), sse(chunk("a"), chunk(finish="stop")))
    ) as (
        _,
        endpoint,
    ):
        deltas, _ = await collect(endpoint.open(ask()))
    assert [d.text for d in deltas] == ["a"]


async def test_cancelling_the_reader_closes_the_connection():
    async with served([STREAM_HEAD, piece(sse(chunk("a"), done=False)), WAIT_FOR_CLOSE]) as (
        server,
        endpoint,
    ):
        attempt = endpoint.open(ask())
        with anyio.CancelScope() as scope:
            async for _ in attempt:
                scope.cancel()
        assert scope.cancelled_caught
        with anyio.fail_after(60):
            await server.closed.wait()
        assert attempt.usage.completion_tokens == 1
        assert attempt.usage.prompt_tokens > 0


@pytest.mark.parametrize("head", [[], [STREAM_HEAD], [STREAM_HEAD, piece(sse(chunk("a"), done=False))]])
async def test_closing_from_another_task_closes_the_connection_whatever_is_awaited(head):
    async with served([*head, WAIT_FOR_CLOSE]) as (server, endpoint):
        attempt = endpoint.open(ask())
        finished = anyio.Event()

        async def read():
            async for _ in attempt:
                pass
            finished.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await server.asked.wait()
            await anyio.sleep(0.02)  # what was sent is read, and the next read waits
            await attempt.aclose()
            with anyio.fail_after(60):
                await finished.wait()
                await server.closed.wait()
        await attempt.aclose()


async def test_closing_without_reading_to_the_end_does_not_drain():
    async with served([STREAM_HEAD, piece(sse(chunk("a"), done=False)), WAIT_FOR_CLOSE]) as (
        server,
        endpoint,
    ):
        attempt = endpoint.open(ask())
        await anext(attempt)
        await attempt.aclose()
        await attempt.aclose()
        with anyio.fail_after(60):
            await server.closed.wait()
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)


async def test_closing_the_endpoint_closes_its_attempts():
    async with served([STREAM_HEAD, piece(sse(chunk("a"), done=False)), WAIT_FOR_CLOSE]) as (
        server,
        endpoint,
    ):
        await anext(endpoint.open(ask()))
        await endpoint.aclose()
        with anyio.fail_after(60):
            await server.closed.wait()


async def test_an_attempt_that_never_started_is_closed_without_asking():
    async with served(NORMAL) as (server, endpoint):
        attempt = endpoint.open(ask())
        await attempt.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)
        assert server.requests == []


FOREVER = 10_000.0
VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.1)}), id="trio-virtual")],
)


@VIRTUAL
async def test_clocks_that_are_off_wait_for_ever_on_virtual_time():
    slow = [
        STREAM_HEAD,
        5000.0,
        piece(sse(chunk("a"), done=False)),
        5000.0,
        piece(sse(chunk(finish="stop"))),
        STREAM_END,
    ]
    async with served(slow) as (_, endpoint):
        deltas, _ = await collect(endpoint.open(ask(timeouts=Timeouts(None, None, None, None))))
    assert text_of(deltas) == "a"


@VIRTUAL
@pytest.mark.parametrize("tail", [[FOREVER], [0.5, piece(b": ping\n\n")] * 100], ids=["silence", "pings"])
async def test_whatever_follows_the_finish_reason_the_answer_ends_soon(tail):
    script = [STREAM_HEAD, piece(sse(chunk("a"), chunk(finish="stop"), done=False)), *tail]
    async with served(script) as (_, endpoint):
        started_at = anyio.current_time()
        _, ended = await collect(endpoint.open(ask(timeouts=Timeouts(None, None, None, None))))
        assert ended.finish_reason == "stop"
        assert anyio.current_time() - started_at < 5


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
    told = "The quick brown fox jumps"
    script = stream(sse(chunk("The"), chunk(" quick"), chunk(" red"), chunk(finish="stop")))
    async with served(script, continuation=Continuation("trailing")) as (_, endpoint):
        (delta,), _ = await collect(endpoint.open(ask(), Prefix(told)))
    assert (delta.text, delta.tokens, delta.raw) == ("The quick red", 3, None)


async def test_a_target_that_does_not_reproduce_the_withheld_text_fails_at_the_seam():
    script = stream(sse(chunk(" under"), chunk(finish="stop")))
    async with served(script, continuation=Continuation("prefix")) as (_, endpoint):
        said, failure = await failing(endpoint.open(ask(), Prefix("It jumps over", withheld=" over")))
    assert (said, failure.kind) == ("", FailureKind.SEAM)
    assert isinstance(failure.error, IncompleteAnswerError)


async def test_used_up_answer_ends_without_asking():
    async with served(NORMAL, continuation=Continuation("flags")) as (server, endpoint):
        attempt = endpoint.open(ask(max_tokens=3), Prefix("a b c", tokens=3))
        deltas, ended = await collect(attempt)
    assert (deltas, ended.finish_reason, server.requests) == ([], "length", [])
    assert attempt.usage == Usage()


async def test_endpoint_without_a_known_way_does_not_continue():
    async with served(NORMAL) as (server, endpoint):
        assert not endpoint.capabilities("m").continues
        _, failure = await failing(endpoint.open(ask(), Prefix("It jumps")))
    assert (failure.kind, server.requests) == (FailureKind.SEAM, [])


async def test_warm_up_never_raises():
    for script in ([RESET], answer(b"{}", status="401 X"), answer(b"<html>"), answer(b'{"data": 3}')):
        async with served(script, continuation=Continuation("auto")) as (_, endpoint):
            await endpoint.warm_up()
            assert not endpoint.capabilities("m").continues
            assert endpoint.verdicts == {}
