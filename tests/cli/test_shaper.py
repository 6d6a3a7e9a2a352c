"""The shaping proxy on real sockets, in front of a server whose every byte the test decides."""

import time
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest

from disco.cli.demonstration.shaping_proxy import shape

pytestmark = [pytest.mark.real, pytest.mark.anyio]

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
PROMPT_S = 30.0  # far below any delay in these tests that must be cut short, far above this machine's noise


class Upstream:
    """A TCP server that hands each connection to the test."""

    def __init__(self, port, connections):
        self.port = port
        self._connections = connections

    async def accept(self):
        with anyio.fail_after(PROMPT_S):
            return await self._connections.receive()


@asynccontextmanager
async def upstream():
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    put, take = anyio.create_memory_object_stream(8)
    done = anyio.Event()

    async def handle(stream):
        async with stream:
            await put.send(stream)
            await done.wait()

    with put, take:
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            yield Upstream(listener.extra(anyio.abc.SocketAttribute.local_port), take)
            done.set()
            group.cancel_scope.cancel()


async def connect(port):
    return await anyio.connect_tcp("127.0.0.1", port)


async def read_exactly(stream, n):
    data = b""
    with anyio.fail_after(PROMPT_S):
        while len(data) < n:
            data += await stream.receive(n - len(data))
    return data


@asynccontextmanager
async def asked(**options):
    """A proxy, a client that has sent a request through it, and the server's end, which has read it."""
    async with upstream() as up, shape(up.port, **options) as proxy, await connect(proxy.port) as client:
        await client.send(REQUEST)
        server = await up.accept()
        assert await read_exactly(server, len(REQUEST)) == REQUEST
        yield proxy, client, server


async def ends(stream):
    """How a connection ends: "closed" or "reset"."""
    with anyio.fail_after(PROMPT_S):
        while True:
            try:
                await stream.receive()
            except anyio.EndOfStream:
                return "closed"
            except anyio.BrokenResourceError:
                return "reset"


async def until(condition):
    with anyio.fail_after(PROMPT_S):
        while not condition():  # noqa: ASYNC110 - looks at plain counters
            await anyio.sleep(0.01)


async def test_each_response_on_a_connection_waits_for_its_own_delay():
    async with upstream() as up, shape(up.port, delay=0.2) as proxy, await connect(proxy.port) as client:
        waits = []
        server = None
        for delay in (0.2, 0.0, 0.3):
            proxy.delay = delay
            sent_at = time.monotonic()
            await client.send(REQUEST)
            server = server or await up.accept()
            assert await read_exactly(server, len(REQUEST)) == REQUEST
            await server.send(HEAD + LAST)
            assert await read_exactly(client, len(HEAD + LAST)) == HEAD + LAST
            waits.append(time.monotonic() - sent_at)
        assert waits[0] >= 0.2
        assert waits[1] < min(waits[0], waits[2])
        assert waits[2] >= 0.3
        assert proxy.requests == 3


async def test_a_request_in_pieces_waits_once_and_arrives_whole():
    async with upstream() as up, shape(up.port, delay=0.2) as proxy, await connect(proxy.port) as client:
        for i in range(0, len(REQUEST), 10):
            await client.send(REQUEST[i : i + 10])
            await anyio.sleep(0.001)
        server = await up.accept()
        assert await read_exactly(server, len(REQUEST)) == REQUEST
        assert proxy.requests == 1


async def test_delays_can_come_from_a_distribution():
    class Fixed:
        def sample(self, rng, n, /):
            assert isinstance(rng, np.random.Generator)
            return np.full(n, 0.25)

    sent_at = time.monotonic()
    async with asked(delay=Fixed()):
        assert time.monotonic() - sent_at >= 0.25


async def test_frames_are_neither_merged_nor_split():
    async with asked() as (_, client, server):
        for i in range(50):
            frame = b"data: " + b"x" * i + b"\n\n"
            await server.send(frame)
            with anyio.fail_after(PROMPT_S):
                assert await client.receive() == frame


async def test_jitter_delays_chunks_and_keeps_their_order_and_borders():
    async with asked(jitter=0.15) as (_, client, server):
        sent_at = time.monotonic()
        frames = [f"data: {i}\n\n".encode() for i in range(60)]
        for frame in frames:
            await server.send(frame)
            await anyio.sleep(0.001)
        assert await read_exactly(client, sum(map(len, frames))) == b"".join(frames)
        took_s = time.monotonic() - sent_at
        assert 0.15 <= took_s < 4.0  # jitter does not add up: that would be 9 s


async def test_a_client_that_hangs_up_is_hung_up_on_the_server():
    async with asked() as (proxy, client, server):
        await server.send(HEAD)
        await client.aclose()
        assert await ends(server) in ("closed", "reset")
        await until(lambda: proxy.open_connections == 0)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "reset"),  # died before it answered
        (HEAD + b"5\r\nhello\r\n", "reset"),  # died in mid-answer
        (HEAD + b"5\r\nhello\r\n" + LAST, "closed"),  # closes an idle connection
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "closed"),
    ],
)
async def test_a_dead_server_is_a_reset_and_an_idle_one_is_not(answer, expected):
    async with asked() as (_, client, server):
        if answer:
            await server.send(answer)
            assert await read_exactly(client, len(answer)) == answer
        await server.aclose()
        assert await ends(client) == expected


@pytest.mark.parametrize("who", ["client", "server"])
async def test_whoever_leaves_during_the_delay_the_other_is_told_at_once(who):
    """The server never sees a byte of the request; the client sees a reset."""
    async with upstream() as up, shape(up.port, delay=3600) as proxy, await connect(proxy.port) as client:
        await client.send(REQUEST)
        server = await up.accept()
        await until(lambda: proxy.requests == 1)
        if who == "server":
            await server.aclose()
            assert await ends(client) == "reset"
            return
        await client.aclose()
        with anyio.fail_after(PROMPT_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await server.receive()


async def test_no_server_is_a_reset_and_a_later_one_is_found():
    async with upstream() as up:
        port = up.port
    async with shape(port) as proxy:
        async with await connect(proxy.port) as client:
            assert await ends(client) == "reset"
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        async with listener, anyio.create_task_group() as group:

            async def greet(stream):
                async with stream:
                    await stream.send(b"hello")

            group.start_soon(listener.serve, greet)
            async with await connect(proxy.port) as client:
                assert await read_exactly(client, 5) == b"hello"
            group.cancel_scope.cancel()


async def test_leaving_the_block_closes_every_connection():
    async with upstream() as up:
        async with shape(up.port, delay=3600) as proxy:
            client = await connect(proxy.port)
            await client.send(REQUEST)
            server = await up.accept()
        async with client:
            assert await ends(client) in ("closed", "reset")
        assert await ends(server) in ("closed", "reset")
        with pytest.raises(OSError, match=r"(?i)refused|failed"):
            await connect(proxy.port)
