"""A server that misbehaves on purpose, fault by fault: what the application sees of it, alone and with a device.

Alone, the exception is the class that the plain SDK raises for the same bytes, with the same body, and what had been
written is on it. Where the plain SDK notices nothing (a cut answer, a login page) or raises something that is none of
its own exceptions, it is one of the SDK's here. With a device behind the server the answer is whole all the same,
unless the mistake is the caller's.
"""

from __future__ import annotations

import time
from typing import Any

import anyio
import httpx2
import moved_clock
import openai
import pytest
from counted import CountingTransport
from faulty_answers import (
    BEGIN,
    BEGUN,
    END,
    FAULTS,
    FINE,
    KEY,
    REST,
    SEA,
    WHOLE,
    ask,
    asking,
    caught,
    device,
    quick_client,
    refusal,
)
from scripted_server import (
    RESET,
    STREAM_HEAD,
    WAIT_FOR_CLOSE,
    chunk,
    piece,
    scripted_server,
    sse,
    stream,
    usage,
)

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = [pytest.mark.real, pytest.mark.anyio]

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
                _ = [each async for each in chunks]
    assert [t.endpoint for t in caught.value.route.attempts] == ["server"]
    assert caught.value.partial_text == (BEGUN if BEGIN in beginning else "")
