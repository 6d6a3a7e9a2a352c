"""A TCP proxy that counts the bytes that pass it, in both directions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import anyio.abc

__all__ = ["CountingProxy", "counted"]


@dataclass
class CountingProxy:
    """Mutable: the counts. `base_url`: for clients of the server behind it."""

    base_url: str
    bytes_up: int = 0
    bytes_down: int = 0


@asynccontextmanager
async def counted(base_url: str) -> AsyncIterator[CountingProxy]:
    """A proxy before the server at `base_url`."""
    port = urlsplit(base_url).port
    assert port is not None
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    own_port = listener.extra(anyio.abc.SocketAttribute.local_port)
    proxy = CountingProxy(f"http://127.0.0.1:{own_port}/v1")

    async def serve(client: anyio.abc.SocketStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", port)
        async with client, server, anyio.create_task_group() as both:
            both.start_soon(pump, client, server, "bytes_up")
            both.start_soon(pump, server, client, "bytes_down")

    async def pump(one: anyio.abc.SocketStream, other: anyio.abc.SocketStream, name: str) -> None:
        try:
            async for data in one:
                setattr(proxy, name, getattr(proxy, name) + len(data))
                await other.send(data)
            await other.send_eof()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # one side has closed the connection

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield proxy
        tasks.cancel_scope.cancel()
