"""A body that is left before its end, at any point and by any reader: the transport's generators are closed with it."""

from __future__ import annotations

import functools
import gc
import gzip
import itertools
import time
import warnings

import anyio
import httpx2
import pytest
from scripted_server import chunk, sse

from disco import AsyncDisco
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure
from disco.request import Request

pytestmark = pytest.mark.anyio
MADE = {"base_url": "http://h.example/v1", "api_key": "k"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
WORDS = [sse(chunk(f"w{n} "), done=False) for n in range(40)]
# As they come when the reader is slow: all pieces wait in the connection's buffer, and reading one waits for nothing.
BODIES = {
    "small pieces": (WORDS, {}),
    "a large piece": ([b"".join(WORDS)], {}),
    "compressed": ([gzip.compress(b"".join(WORDS))], {"content-encoding": "gzip"}),
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=BODIES)
def body(request):
    return Transport(*BODIES[request.param])


class Transport(httpx2.AsyncBaseTransport, httpx2.AsyncByteStream):
    """Answers with these pieces and is silent then. Its generators are nested as httpx2's and httpcore2's are."""

    def __init__(self, pieces, headers, status=200):
        self.pieces, self.headers = pieces, {"content-type": "text/event-stream", **headers}
        self.status = status
        self.closed = 0

    async def handle_async_request(self, request):
        return httpx2.Response(self.status, headers=self.headers, stream=self)

    async def __aiter__(self):
        async for piece in self.inner():  # and does not close it
            yield piece

    async def inner(self):
        try:
            for piece in self.pieces:
                yield piece
            await anyio.sleep_forever()
        finally:
            self.closed += 1


async def by_attempt(transport, leave):
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        PlainClient(**MADE, http_client=http) as client,
    ):
        request = Request(messages=CHAT["messages"], model="m", params={})
        attempt = OpenAIEndpoint(client=client).open(request)
        await leave(attempt)
        await attempt.aclose()


async def by_direct_stream(transport, leave):
    http = httpx2.AsyncClient(transport=transport)
    async with AsyncDisco(**MADE, price=(0, 0), http_client=http) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        await leave(stream)
        await stream.close()


async def by_raw_reader(transport, leave):
    http = httpx2.AsyncClient(transport=transport)
    async with AsyncDisco(**MADE, price=(0, 0), http_client=http) as client:
        raw = client.chat.completions.with_streaming_response
        async with raw.create(**CHAT, stream=True) as response:
            body = response.http_response.aiter_bytes()
            await leave(body)
            await body.aclose()


async def unread(reader):
    pass


async def after(reader, pieces=2):
    for _ in range(pieces):
        await anext(reader)


async def late(reader):
    await after(reader)
    time.sleep(0.02)  # noqa: ASYNC251 - a turn is over


async def cancelled(reader):
    with anyio.CancelScope() as scope:
        await late(reader)
        scope.cancel()
        async for _ in reader:
            pass


READERS = [by_attempt, by_direct_stream, by_raw_reader]
LEFT = [unread, after, late, cancelled]


def quietly(function):
    """The same test; it fails where the garbage collector finds a generator that nobody has closed."""

    @functools.wraps(function)
    async def test(**given):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            await function(**given)
            gc.collect()
            await anyio.wait_all_tasks_blocked()
        assert [str(each.message) for each in warned if "generator" in str(each.message)] == []

    return test


@pytest.mark.parametrize("read", READERS, ids=lambda by: by.__name__)
@pytest.mark.parametrize("leave", LEFT, ids=lambda way: way.__name__)
@quietly
async def test_the_generators_of_its_transport_are_closed_with_it(body, read, leave):
    await read(body, leave)
    await anyio.wait_all_tasks_blocked()
    assert body.closed == (leave is not unread)


@quietly
async def test_so_are_those_of_an_error_that_cannot_be_decompressed():
    refused = Transport([b"no gzip", b"at all"], {"content-encoding": "gzip"}, status=400)

    async def leave(attempt):
        with pytest.raises(EndpointFailure):
            await anext(attempt)

    await by_attempt(refused, leave)
    await anyio.wait_all_tasks_blocked()
    assert refused.closed == 1


@pytest.mark.parametrize("read", READERS, ids=lambda by: by.__name__)
@pytest.mark.filterwarnings("ignore")  # trio complains then
async def test_a_body_without_end_that_waits_for_nothing_is_left_in_time(read):
    at = time.thread_time()
    await read(Transport(itertools.cycle(WORDS), {}), late)
    assert time.thread_time() - at < 1
