"""S1: with the server alone, the time-outs are the SDK's own, and disco has no clocks beside them."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
import moved_clock
import openai
import openai._base_client
import pytest
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    Body,
    answering,
    both,
    chat_events,
    document,
    is_async,
    text_of,
    whole_chat,
)

from disco import AsyncDisco

pytestmark = pytest.mark.anyio

EACH = httpx2.Timeout(1.0, connect=2.0, read=90.0, write=4.0)

# To the constructor, to `with_options`, to the request.
GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}, {}),
    "None to the constructor": ({"timeout": None}, {}, {}),
    "a number to the constructor": ({"timeout": 45.0}, {}, {}),
    "an object to the constructor": ({"timeout": EACH}, {}, {}),
    "None to a copy": ({}, {"timeout": None}, {}),
    "a number to a copy": ({}, {"timeout": 45.0}, {}),
    "an object to a copy": ({}, {"timeout": EACH}, {}),
    "None to a request": ({}, {}, {"timeout": None}),
    "a number to a request": ({}, {}, {"timeout": 45.0}),
    "an object to a request": ({}, {}, {"timeout": EACH}),
    "all three": ({"timeout": EACH}, {"timeout": 7.0}, {"timeout": 8.0}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_request_has_the_time_outs_that_the_sdk_gives_it(kinds, stream):
    expected, seen = {}, {}
    for name, (made, copied, asked) in GIVEN.items():

        def call(client, copied=copied, asked=asked):
            return client.with_options(**copied).chat.completions.create(**CHAT, **asked, stream=stream)

        for outcome, into in zip(await both(kinds, call, **made), (expected, seen), strict=True):
            into[name] = outcome.error or [r.extensions["timeout"] for r in outcome.requests]
    assert seen == expected


@pytest.mark.parametrize("limit", [None, 45.0, EACH], ids=str)
async def test_the_time_outs_of_the_http_client_hold(kinds, limit):
    expected, seen = [], []
    for kind, into in zip(kinds, (expected, seen), strict=True):

        def answer(request, into=into):
            into.append(request.extensions["timeout"])
            request.read()
            return answering(request)

        async def later(request, answer=answer):
            await request.aread()
            return answer(request)

        make, handler = (httpx2.AsyncClient, later) if is_async(kind) else (httpx2.Client, answer)
        http = make(transport=httpx2.MockTransport(handler), timeout=limit)
        client = kind(base_url=BASE, api_key="k", http_client=http)
        into.append(client.timeout)
        asked = client.chat.completions.create(**CHAT)
        if is_async(kind):
            await asked
        closing = client.close()
        if is_async(kind):
            await closing
    assert seen == expected


async def test_a_time_out_of_the_server_is_the_sdks_error_after_as_many_requests(kinds):
    def silent(request):
        raise httpx2.ReadTimeout("silent", request=request)

    plain, ours = await both(kinds, lambda client: client.chat.completions.create(**CHAT), silent)
    assert len(ours.requests) == len(plain.requests) == 3
    assert ours.failure() == plain.failure()
    assert ours.sent() == plain.sent()


class Slow(Body):
    """An event stream with 100 s of silence before each event."""

    async def __aiter__(self):
        async for piece in super().__aiter__():
            await anyio.sleep(100)
            yield piece


@pytest.mark.parametrize("anyio_backend", [moved_clock.virtual("asyncio")], ids=["virtual"])
@pytest.mark.parametrize("kind", [openai.AsyncOpenAI, AsyncDisco], ids=["plain", "disco"])
async def test_a_server_may_be_silent_for_longer_than_30_s(kind, monkeypatch):
    # The SDK finds out in a thread on which platform it is; a clock that jumps would not wait for it.
    monkeypatch.setattr(openai._base_client, "get_platform", lambda: "Linux")
    monkeypatch.setattr(openai._base_client, "asyncify", _inline)
    asked = []

    async def answer(request):
        asked.append(request)
        await anyio.sleep(100)
        if b'"stream":true' not in request.content:
            return document(whole_chat())
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=kind, stream=Slow([_event(c) for c in chat_events(usage=False)]))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with kind(base_url=BASE, api_key="k", http_client=http) as client:
        whole = await client.chat.completions.create(**CHAT)
        assert (whole.choices[0].message.content, anyio.current_time()) == (SAID, 100)
        stream = await client.chat.completions.create(**CHAT, stream=True)
        assert text_of([chunk async for chunk in stream]) == SAID
    assert len(asked) == 2


def _inline(function):
    async def call(*given, **named):
        return function(*given, **named)

    return call


def _event(body):
    return b"data: " + json.dumps(body).encode() + b"\n\n"
