"""The shaping proxy on real sockets, before a server whose every byte the test decides; its clock is moved by hand."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import moved_clock
import numpy as np
import pytest

from disco.testing import shape

pytestmark = [pytest.mark.real, pytest.mark.anyio]

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
PROMPT_S = 30.0  # far above this machine's noise
LONG_S = 3600.0  # passes only where the clock is moved


@pytest.fixture
def anyio_backend():
    return moved_clock.backend("asyncio")


def drawn(*delays):
    """A distribution of delays, drawn beforehand."""
    left = iter(delays)
    return SimpleNamespace(sample=lambda rng, n: np.full(n, next(left)) + 0 * rng.random())


async def soon(awaitable):
    with anyio.fail_after(PROMPT_S):
        return await awaitable


@asynccontextmanager
async def upstream(port=0):
    """A TCP server that hands each connection to the test: its port, and what accepts one."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    put, take = anyio.create_memory_object_stream(8)

    async def handle(stream):
        async with stream:
            await put.send(stream)
            await anyio.sleep_forever()

    with put, take:
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            yield listener.extra(anyio.abc.SocketAttribute.local_port), lambda: soon(take.receive())
            group.cancel_scope.cancel()


async def connect(port):
    return await anyio.connect_tcp("127.0.0.1", port)


@asynccontextmanager
async def asked(request=REQUEST, **options):
    """A proxy, a client that has sent a request to it, and the server's end of that connection."""
    async with (
        upstream() as (port, accept),
        shape(port, **options) as proxy,
        await connect(proxy.port) as client,
    ):
        await client.send(request)
        yield proxy, client, await accept()


async def arrives(stream, data):
    got = b""
    while len(got) < len(data):
        got += await soon(stream.receive(len(data) - len(got)))
    assert got == data


async def arrives_when_due(stream, data):
    """Nothing before its time."""
    moved_clock.skip(LONG_S - 2 * PROMPT_S)
    with anyio.move_on_after(0.05):
        pytest.fail(f"{await stream.receive()} came too early")
    moved_clock.skip(2 * PROMPT_S)
    await arrives(stream, data)


async def ends(stream):
    """How a connection ends, without a byte more."""
    try:
        pytest.fail(f"{await soon(stream.receive())} came")
    except anyio.EndOfStream:
        return "closed"
    except anyio.BrokenResourceError:
        return "reset"


async def until(condition):
    with anyio.fail_after(PROMPT_S):
        while not condition():  # noqa: ASYNC110 - looks at plain counters
            await anyio.sleep(0.01)


async def test_each_request_on_a_connection_waits_once_for_its_own_delay_and_arrives_whole():
    async with asked(b"", delay=LONG_S) as (proxy, client, server):
        for number, delay in enumerate((LONG_S, 0.0, drawn(LONG_S)), 1):
            proxy.delay = delay
            for at in range(0, len(REQUEST), 20):
                await client.send(REQUEST[at : at + 20])
                await anyio.sleep(0.001)
            await until(lambda number=number: proxy.requests == number)
            await (arrives_when_due if delay else arrives)(server, REQUEST)
            await server.send(HEAD + LAST)
            await arrives(client, HEAD + LAST)
        assert proxy.requests == 3


async def test_chunks_keep_their_borders_and_under_jitter_their_order():
    async with asked() as (proxy, client, server):
        await arrives(server, REQUEST)
        frames = [b"data: " + b"x" * length + b"\n\n" for length in range(30)]
        for frame in frames:
            await server.send(frame)
            assert await soon(client.receive()) == frame
        proxy.jitter = drawn(LONG_S, 0.0, *[LONG_S] * 28)  # which does not add up
        for frame in frames:
            await server.send(frame)
            await anyio.sleep(0.001)
        await arrives_when_due(client, b"".join(frames))


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
        await arrives(server, REQUEST)
        if answer:
            await server.send(answer)
            await arrives(client, answer)
        await server.aclose()
        assert await ends(client) == expected


@pytest.mark.parametrize("who", ["client", "server"])
async def test_whoever_leaves_during_the_delay_the_other_is_told_at_once(who):
    """The server never sees a byte of the request; the client sees a reset."""
    async with asked(delay=LONG_S) as (proxy, client, server):
        await until(lambda: proxy.requests == 1)
        leaves, stays = (client, server) if who == "client" else (server, client)
        await leaves.aclose()
        assert await ends(stays) in (("closed", "reset") if who == "client" else ("reset",))
        await until(lambda: proxy.open_connections == 0)


async def test_no_server_is_a_reset_and_a_later_one_is_found():
    async with upstream() as (port, _):
        pass
    async with shape(port) as proxy:
        async with await connect(proxy.port) as client:
            assert await ends(client) == "reset"
        async with upstream(port) as (_, accept), await connect(proxy.port) as client:
            await (await accept()).send(b"hello")
            await arrives(client, b"hello")


async def test_leaving_the_block_closes_every_connection():
    async with upstream() as (port, accept):
        async with shape(port, delay=LONG_S) as proxy:
            client = await connect(proxy.port)
            await client.send(REQUEST)
            server = await accept()
        async with client:
            assert await ends(client) in ("closed", "reset")
        assert await ends(server) in ("closed", "reset")
        with pytest.raises(OSError, match=r"(?i)refused|failed"):
            await connect(proxy.port)
