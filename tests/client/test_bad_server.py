"""A server that misbehaves on purpose, fault by fault: what the application sees of it, alone and with a device.

Alone, the exception is the class that the plain SDK raises for the same bytes, with the same body, and what had been
written is on it. Where the plain SDK notices nothing (a cut answer, a login page) or raises something that is none of
its own exceptions, it is one of the SDK's here. With a device behind the server the answer is whole all the same,
unless the mistake is the caller's.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import moved_clock
import openai
import pytest
from counted import CountingTransport
from scripted_server import (
    RESET,
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

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.anyio

SEA = [{"role": "user", "content": "Tell me about the sea."}]
SERVER_FIRST = Preset(
    dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}, migration={"enabled": False}
)
BEGUN, WHOLE = "The sea ", "The sea is wide."
REST = "is wide."
KEY = "secret-key-1234"

BEGIN = sse(chunk(role="assistant", content=""), chunk(BEGUN), done=False)
END = sse(chunk(REST), chunk(finish="stop"))


BOOM = {"error": {"message": "Boom.", "type": "server_error", "code": "boom"}}
SLOW_DOWN = {"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}
DOCUMENT = {**chunk(WHOLE), "object": "chat.completion"}
CONTENT = b'data: {"choices": [{"index": 0, "delta": {"content": "'
CALLERS = {"survives": False}


def refusal(status: str, code: str | None = None, message: str = "No, thank you.", headers: str = "") -> list:
    error = {"message": message, "type": "some_error", "param": "messages", "code": code}
    return answer(json.dumps({"error": error}).encode(), status=status, headers=headers)


@dataclass(frozen=True)
class Fault:
    """What the server sends, and what comes of it.

    Attributes:
        name: of the case.
        script: what it sends each time.
        raises: class of the exception when there is no other endpoint; None: it is no fault at all.
        said: what had been written by then.
        failure: the attempt's failure in the route record.
        survives: a device can save the answer.
    """

    name: str
    script: list[Any]
    raises: type[openai.OpenAIError] | None = None
    said: str = ""
    failure: str | None = None
    survives: bool = True


NULLS = dict.fromkeys(("id", "object", "created", "model", "usage"))
FINE = [
    Fault("nothing wrong", stream(BEGIN + END)),
    Fault(
        "chunks without choices",
        stream(
            sse({"id": "x", "object": "ping"}, {**chunk(), "choices": []}, done=False),
            BEGIN,
            sse({**chunk(), "choices": None}, {"type": "keep-alive"}, done=False) + b": comment\n\n",
            END,
        ),
    ),
    Fault("[DONE] twice, and text behind it", stream(BEGIN + END + b"data: [DONE]\n\n" + sse(chunk("!")))),
    Fault("no [DONE]", stream(BEGIN, sse(chunk(REST), chunk(finish="stop"), done=False))),
    Fault(
        "null fields",
        stream(
            sse(
                {**NULLS, "choices": [dict.fromkeys(("index", "delta", "finish_reason", "logprobs"))]},
                {"id": None, "choices": [{"delta": {"content": BEGUN, "role": None, "tool_calls": None}}]},
                done=False,
            ),
            END,
        ),
    ),
    Fault("the wrong content type", answer(BEGIN + END, content_type="text/plain")),
    Fault("a long line", stream(sse({**chunk(BEGUN), "padding": "x" * 1_000_000}, done=False), END)),
    Fault("characters cut between two reads", stream(*[bytes([b]) for b in BEGIN + END])),
]

GARBAGE = openai.APIResponseValidationError, "garbage"
CUT = openai.APIConnectionError, "incomplete"
LOST = openai.APIConnectionError, "connection"


def before(name: str, script: list[Any], kind: tuple[type[openai.OpenAIError], str], **more: Any) -> Fault:
    """A fault before the first text."""
    return Fault(name, script, kind[0], "", kind[1], **more)


def after(name: str, script: list[Any], kind: tuple[type[openai.OpenAIError], str]) -> Fault:
    """A fault in mid-stream."""
    return Fault(name, script, kind[0], BEGUN, kind[1])


FAULTS = [
    after("data that is not JSON", stream(BEGIN, b"data: {oops\n\n"), GARBAGE),
    after("JSON that is no object", stream(BEGIN, b"data: [1, 2]\n\n"), GARBAGE),
    after("bytes that are no UTF-8", stream(BEGIN, CONTENT + b'\xe2\x82"}}]}\n\n'), GARBAGE),
    after("a line that does not end", stream(BEGIN, b"data: " + b"x" * (8 * 1024 * 1024 + 1)), GARBAGE),
    before("a web page", answer(b"<html>Sign in</html>", content_type="text/html; charset=utf-8"), GARBAGE),
    before("one document instead of a stream", answer(json.dumps(DOCUMENT).encode()), GARBAGE),
    after("an error object in mid-stream", stream(BEGIN, sse(BOOM)), (openai.APIError, "server")),
    after("an error event", stream(BEGIN, b"event: error\n" + sse(BOOM)), (openai.APIError, "server")),
    after("a rate limit in mid-stream", stream(BEGIN, sse(SLOW_DOWN)), (openai.APIError, "rate_limit")),
    after("an end without a finish reason", stream(BEGIN + b"data: [DONE]\n\n"), CUT),
    after("an end in mid-sentence", stream(BEGIN), CUT),
    after("half a character at the end", stream(BEGIN, CONTENT + b"\xe2\x82"), CUT),
    before("an empty stream", stream(b""), CUT),
    before("only [DONE]", stream(b"data: [DONE]\n\n"), CUT),
    after("a connection that is reset", [STREAM_HEAD, piece(BEGIN), 0.02, RESET], LOST),
    after("a body that is cut off", [STREAM_HEAD, piece(BEGIN)], LOST),
    before("a connection reset at once", [RESET], LOST),
    before("another protocol", [b"SSH-2.0-nonsense\r\n"], LOST),
    *(
        before(" ".join(filter(None, [status, code])), refusal(f"{status} X", code, message), kind, **more)
        for status, code, kind, more in [
            ("500", None, (openai.InternalServerError, "server"), {}),
            ("408", None, (openai.APIStatusError, "server"), {}),
            ("409", None, (openai.ConflictError, "server"), {}),
            ("429", None, (openai.RateLimitError, "rate_limit"), {}),
            ("413", None, (openai.APIStatusError, "context_length"), {}),
            ("400", "context_length_exceeded", (openai.BadRequestError, "context_length"), {}),
            ("400", None, (openai.BadRequestError, "bad_request"), CALLERS),
            ("400", "content_filter", (openai.BadRequestError, "content_filter"), CALLERS),
            ("404", "model_not_found", (openai.NotFoundError, "bad_request"), CALLERS),
            ("422", None, (openai.UnprocessableEntityError, "bad_request"), CALLERS),
            ("401", "invalid_api_key", (openai.AuthenticationError, "authentication"), {}),
            ("403", None, (openai.PermissionDeniedError, "authentication"), {}),
        ]
        for message in [f"Incorrect API key provided: {KEY}." if status == "401" else "No, thank you."]
    ),
    before(
        "a web page with 502",
        answer(b"<html>Bad gateway</html>", status="502 Bad Gateway", content_type="text/html"),
        (openai.InternalServerError, "server"),
    ),
]

# The SDK's own generators are left open by an exception, which trio remarks on.
sdk_leaves_generators = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning",
    "ignore:Async generator 'openai:ResourceWarning",
    "ignore:Async generator 'httpx2:ResourceWarning",
)
# In every way of asking and on both loops where it may make a difference: before the first text, in mid-stream, a
# refusal. The other faults: a stream on one loop, a whole answer on the other.
TELLING = (
    "an error object in mid-stream",
    "a body that is cut off",
    "a web page",
    "429",
    "401 invalid_api_key",
)


def each_fault(test: Any) -> Any:
    cases = []
    for fault in FAULTS:
        loops = ("asyncio", "trio")
        if fault.name in TELLING:
            ways = [(way, loop) for way in ("stream", "whole", "raw", "events") for loop in loops]
        else:
            ways = [("stream", "trio"), ("whole", "asyncio")]
        cases += [pytest.param(fault, *way, id="-".join([fault.name, *way])) for way in ways]
    return pytest.mark.parametrize(("fault", "way", "anyio_backend"), cases)(test)


def device() -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(answer=WHOLE, decode_tps=1000.0), place="device")


def asking(server, local=None, **more) -> AsyncDisco:
    settings = {"max_retries": 0, "policy": SERVER_FIRST, "http_client": quick_client(), **more}
    return AsyncDisco(local=local, base_url=server.base_url, api_key=KEY, **settings)


def quick_client() -> httpx2.AsyncClient:
    """Reading the certificates of the world takes longer than the rest of a test, and nothing here uses TLS."""
    return httpx2.AsyncClient(verify=False)


async def read(pieces) -> str:
    return "".join([p.choices[0].delta.content or "" async for p in pieces if p.choices])


async def ask(client, way: str) -> tuple[str, Any]:
    """The answer's text, asked for in one of the SDK's ways, and its route record where that way tells it."""
    completions, asked = client.chat.completions, {"model": "m", "messages": SEA}
    match way:
        case "stream":
            async with await completions.create(stream=True, **asked) as chunks:
                return await read(chunks), getattr(chunks, "route", None)
        case "whole":
            whole = await completions.create(**asked)
            return whole.choices[0].message.content, getattr(whole, "route", None)
        case "raw":
            raw = await completions.with_raw_response.create(stream=True, **asked)
            return await read(raw.parse()), None
        case "events":
            async with await client.responses.create(model="m", input="The sea?", stream=True) as events:
                deltas = [e.delta async for e in events if e.type == "response.output_text.delta"]
            return "".join(deltas), None
        case _:
            raise AssertionError(way)


async def caught(client, way: str = "stream") -> Exception | None:
    try:
        await ask(client, way)
    except Exception as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.parametrize(("way", "anyio_backend"), [("stream", "trio"), ("whole", "asyncio")])
@pytest.mark.parametrize("fault", FINE, ids=lambda fault: fault.name)
async def test_oddities_are_no_faults(fault, way):
    async with scripted_server(fault.script) as server, asking(server) as client:
        text, route = await ask(client, way)
    assert text == WHOLE
    assert route.finish_reason == "stop"
    assert [t.failure for t in route.attempts] == [None]


@sdk_leaves_generators
@each_fault
async def test_alone_it_is_an_exception_of_the_sdks_that_keeps_the_text(fault, way):
    async with scripted_server(fault.script) as server, asking(server) as client:
        error = await caught(client, way)
        assert len(server.requests) == 1
    assert isinstance(error, fault.raises)
    assert isinstance(error, openai.APIError)
    assert error.partial_text == fault.said
    assert [t.failure for t in error.route.attempts] == [fault.failure]
    assert error.route.finish_reason is None
    told = f"{error} {error!r} {error.body}"
    assert BEGUN not in told
    assert KEY not in told


@sdk_leaves_generators
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_alone_it_is_what_the_plain_sdk_makes_of_the_same_bytes(fault):
    async with scripted_server(fault.script) as server:
        async with openai.AsyncOpenAI(
            base_url=server.base_url, api_key="other", max_retries=0, http_client=quick_client()
        ) as plain:
            theirs = await caught(plain)
        async with asking(server) as client:
            ours = await caught(client)
    if fault.failure in ("garbage", "incomplete"):
        # It notices nothing, or lets an exception of another library through.
        assert not isinstance(theirs, openai.OpenAIError)
        return
    assert type(ours) is type(theirs)
    for name in ("status_code", "code", "param", "type", "body", "message", "request_id"):
        assert str(getattr(ours, name, None)).replace("[key]", KEY) == str(getattr(theirs, name, None)), name


@sdk_leaves_generators
@each_fault
async def test_with_a_device_the_answer_survives_unless_the_caller_is_to_blame(fault, way):
    async with scripted_server(fault.script) as server, asking(server, device()) as client:
        if not fault.survives:
            error = await caught(client, way)
            assert isinstance(error, fault.raises)
            assert [t.endpoint for t in error.route.attempts] == ["server"]
            return
        text, route = await ask(client, way)
    assert text == WHOLE
    if route is not None:
        assert [(t.endpoint, t.failure) for t in route.attempts] == [
            ("server", fault.failure),
            ("device", None),
        ]
        # Without a reader nobody has seen the beginning; it is still what the answer goes on from.
        assert [p.endpoint for p in route.segments] == (["server", "device"] if fault.said else ["device"])
        assert route.seamless


async def test_a_rate_limit_is_waited_for_as_long_as_the_server_says():
    refused = refusal("429 X", headers="Retry-After: 0.4\r\n")
    async with (
        scripted_server(refused, stream(BEGIN + END)) as server,
        asking(server, max_retries=2) as client,
    ):
        began_at = time.monotonic()
        text, route = await ask(client, "stream")
        took_s = time.monotonic() - began_at
    assert text == WHOLE
    assert took_s >= 0.4
    assert [t.failure for t in route.attempts] == ["rate_limit", None]


async def test_a_rate_limit_longer_than_the_deadline_is_not_waited_for():
    refused = refusal("429 X", headers="Retry-After: 30\r\n")
    async with scripted_server(refused) as server:
        async with asking(server, max_retries=2, default_options={"deadline_s": 20}) as client:
            with anyio.fail_after(20), pytest.raises(openai.RateLimitError):
                await ask(client, "stream")
        assert len(server.requests) == 1


async def test_a_server_that_recovers_is_asked_again():
    busy = refusal("500 X", headers="retry-after-ms: 20\r\n")
    async with scripted_server(busy, busy, stream(BEGIN + END)) as server:
        async with asking(server, max_retries=2) as client:
            text, route = await ask(client, "whole")
        assert len(server.requests) == 3
    assert text == WHOLE
    assert [t.failure for t in route.attempts] == ["server", "server", None]


@pytest.mark.parametrize(
    "anyio_backend", [pytest.param(moved_clock.backend(name), id=name) for name in ("asyncio", "trio")]
)
@pytest.mark.parametrize("script", [[WAIT_FOR_CLOSE], [STREAM_HEAD, piece(BEGIN), WAIT_FOR_CLOSE]])
async def test_silence_is_a_timeout_or_the_devices_turn(script):
    transport, sent_bytes = CountingTransport(), len(BEGIN) if len(script) > 1 else 0

    def is_silent() -> bool:
        waiting = transport.open
        return bool(waiting) and server.is_silent and waiting[0].read_bytes == sent_bytes

    async with scripted_server(script) as server, anyio.create_task_group() as group:
        group.start_soon(moved_clock.pass_silence, is_silent)
        async with asking(server, timeout=10, http_client=httpx2.AsyncClient(transport=transport)) as client:
            error = await caught(client)
        assert isinstance(error, openai.APITimeoutError)
        assert error.partial_text == (BEGUN if len(script) > 1 else "")
        with anyio.fail_after(60):
            await server.closed.wait()
        transport = CountingTransport()
        http_client = httpx2.AsyncClient(transport=transport)
        async with asking(server, device(), timeout=10, http_client=http_client) as client:
            text, route = await ask(client, "stream")
        group.cancel_scope.cancel()
    assert text == WHOLE
    assert route.attempts[0].failure == ("stalled" if len(script) > 1 else "timeout")


async def test_usage_of_a_misbehaving_server_is_one_usage():
    """Counts in every chunk, and again at the end: the last ones count, once."""
    counted = {**chunk(BEGUN), "usage": usage(9, 1)["usage"]}
    script = stream(sse(counted, chunk(REST), chunk(finish="stop"), usage(9, 4), usage(9, 4)))
    async with scripted_server(script) as server, asking(server) as client:
        whole = await client.chat.completions.create(model="m", messages=SEA)
        options = {"include_usage": True}
        chunks = await client.chat.completions.create(
            model="m", messages=SEA, stream=True, stream_options=options
        )
        counts = [c.usage async for c in chunks if c.usage is not None and not c.choices]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 4)
    assert [(u.prompt_tokens, u.completion_tokens) for u in counts] == [(9, 4)]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("asked", "beginning"),
    [
        ({"logprobs": True}, BEGIN),
        ({"response_format": {"type": "json_object"}}, BEGIN),
        ({"tools": [WEATHER]}, BEGIN),
        ({}, BEGIN + sse(chunk(reasoning_content="Hm."), done=False)),
        ({}, sse(chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}]), done=False)),
    ],
    ids=["logprobs", "structured output", "tools", "after a thought", "after a tool call"],
)
async def test_what_means_something_only_as_a_whole_is_begun_anew_or_given_up(asked, beginning):
    """Nobody goes on from its middle: shown, it is lost; not shown yet, another one writes all of it."""
    able = SimulatedProfile(answer=WHOLE, decode_tps=1000.0, features=None)
    local = SimulatedEndpoint("device", able, place="device")
    async with (
        scripted_server([STREAM_HEAD, piece(beginning), 0.05, RESET]) as server,
        asking(server, local) as client,
    ):
        completions = client.chat.completions
        whole = await completions.create(model="m", messages=SEA, **asked)
        assert whole.choices[0].message.content == WHOLE
        assert [p.endpoint for p in whole.route.segments] == ["device"]
        with pytest.raises(openai.APIConnectionError) as caught:
            async with await completions.create(model="m", messages=SEA, stream=True, **asked) as chunks:
                await read(chunks)
    assert [t.endpoint for t in caught.value.route.attempts] == ["server"]
    assert caught.value.partial_text == (BEGUN if BEGIN in beginning else "")
