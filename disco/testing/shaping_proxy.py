"""A TCP proxy on loopback that makes a server on this machine respond like a distant one.

Each request waits before it is passed on, as in a busy server's queue. After that, all bytes pass unchanged, chunk
by chunk. If a client hangs up, the proxy hangs up on the server at once. If the server dies, the client sees a
connection reset.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import anyio.abc
import numpy as np
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

__all__ = ["Shaper", "shape"]

_CHUNKS = 1024  # chunks held per direction; a sender that is further ahead waits
_LOST = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class _Sampler(Protocol):
    def sample(self, rng: np.random.Generator, n: int, /) -> np.ndarray[Any, Any]: ...


Delay = _Sampler | float
"""Seconds, or a distribution of seconds such as a server profile's time to first token."""


class Shaper:
    """The proxy's counters, and its settings, which may change while it runs.

    Attributes:
        port: of 127.0.0.1, that it listens on.
        delay: extra seconds before the first byte of each response.
        jitter: extra seconds per chunk of a response. Chunks stay in order, and delays of late chunks do not add up.
        requests: number of requests passed on or held.
        open_connections: number of clients connected now.

    Args:
        rng: draws the seconds where they are a distribution.
    """

    def __init__(self, port: int, delay: Delay, jitter: Delay, rng: np.random.Generator) -> None:
        self.port = port
        self.delay = delay
        self.jitter = jitter
        self.requests = 0
        self.open_connections = 0
        self._rng = rng

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def draw(self, delay: Delay) -> float:
        """Draw one value of a delay in seconds, never negative."""
        return max(0.0, float(delay if isinstance(delay, int | float) else delay.sample(self._rng, 1)[0]))


@asynccontextmanager
async def shape(
    upstream_port: int, delay: Delay = 0.0, *, jitter: Delay = 0.0, port: int = 0, seed: int | None = None
) -> AsyncIterator[Shaper]:
    """Run the proxy in front of `127.0.0.1:upstream_port` for the length of the `async with` block.

    Args:
        upstream_port: the port that the server listens on; it need not be up yet.
        delay: see `Shaper`.
        jitter: see `Shaper`.
        port: port to listen on; 0 picks a free one.
        seed: seed of the drawn delays.

    Yields:
        The running proxy.
    """
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    own_port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    shaper = Shaper(own_port, delay, jitter, np.random.default_rng(seed))

    async def handle(client: anyio.abc.SocketStream) -> None:
        shaper.open_connections += 1
        try:
            await _Connection(shaper, client).run(upstream_port)
        finally:
            shaper.open_connections -= 1

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        error: Exception | None = None
        try:
            yield shaper
        except Exception as raised:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
            error = raised
        finally:
            group.cancel_scope.cancel()
    if error is not None:
        raise error


class _Connection:
    """One client's connection, which carries one request after another."""

    # Mutable: everything below. A request begins with the first bytes after bytes of a response.

    def __init__(self, shaper: Shaper, client: anyio.abc.SocketStream) -> None:
        self.shaper = shaper
        self.client = client
        self.responding = True  # the last bytes went to the client (or there were none)
        self.release_at = -math.inf  # when the current request may be passed on
        self.chunked = False  # the current response has no length of its own
        self.tail = b""  # the last bytes of the current response
        self.group: anyio.abc.TaskGroup

    async def run(self, upstream_port: int) -> None:
        async with self.client:
            try:
                server = await anyio.connect_tcp("127.0.0.1", upstream_port)
            except OSError:
                _reset_on_close(self.client)
                return
            up, to_server = anyio.create_memory_object_stream[tuple[float, bytes]](_CHUNKS)
            down, to_client = anyio.create_memory_object_stream[tuple[float, bytes]](_CHUNKS)
            with up, to_server, down, to_client:
                async with server, anyio.create_task_group() as self.group:
                    start = self.group.start_soon
                    start(self._read, self.client, up, self._on_request_bytes, self._client_gone)
                    start(self._write, to_server, server, None)
                    start(self._read, server, down, self._on_response_bytes, None)
                    start(self._write, to_client, self.client, self._server_gone)

    async def _read(
        self,
        source: anyio.abc.SocketStream,
        put: MemoryObjectSendStream[tuple[float, bytes]],
        release_at: Callable[[bytes], float],
        gone: Callable[[], None] | None,
    ) -> None:
        # Reading never waits for a delay, so that a hang-up is noticed at once.
        with put:
            try:
                while True:
                    data = await source.receive()
                    await put.send((release_at(data), data))
            except _LOST:
                if gone is not None:
                    gone()

    async def _write(
        self,
        take: MemoryObjectReceiveStream[tuple[float, bytes]],
        sink: anyio.abc.SocketStream,
        drained: Callable[[], None] | None,
    ) -> None:
        try:
            async for release_at, data in take:
                if release_at > anyio.current_time():
                    await anyio.sleep_until(release_at)
                await sink.send(data)
        except _LOST:
            self.group.cancel_scope.cancel()
            return
        if drained is not None:
            drained()

    def _on_request_bytes(self, data: bytes) -> float:
        del data
        if self.responding:
            self.responding = False
            self.chunked, self.tail = False, b""
            self.shaper.requests += 1
            self.release_at = anyio.current_time() + self.shaper.draw(self.shaper.delay)
        return self.release_at

    def _on_response_bytes(self, data: bytes) -> float:
        if not self.responding:
            self.responding = True
            self.chunked = b"transfer-encoding: chunked" in data.lower()
        self.tail = (self.tail + data[-8:])[-8:]
        return anyio.current_time() + self.shaper.draw(self.shaper.jitter)

    def _client_gone(self) -> None:
        self.group.cancel_scope.cancel()

    def _server_gone(self) -> None:
        # Closing an idle connection is normal. If an answer was due or half sent, the server has died. An answer
        # with a content length needs no reset, because the client counts its bytes.
        if not self.responding or (self.chunked and not self.tail.endswith(b"0\r\n\r\n")):
            _reset_on_close(self.client)
        self.group.cancel_scope.cancel()


def _reset_on_close(stream: anyio.abc.SocketStream) -> None:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
