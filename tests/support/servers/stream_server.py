"""A loopback TCP server of asyncio's streams, in a thread of its own, that leaves nothing open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from anyio.from_thread import start_blocking_portal

__all__ = ["listening"]


@contextlib.contextmanager
def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> Iterator[int]:
    """Run `serve` for every connection to the port that this yields; at the end all of them are cut."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        connections.add(task)
        try:
            # The client left, or is cut off; of a cancelled task, asyncio's streams would print a traceback.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await serve(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
        finally:
            writer.transport.abort()  # where it was cut, its client may read no more
            connections.discard(task)

    async def start() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20)

    async def stop() -> None:
        # A connection that asyncio has just accepted comes to its task, which closes it. Where its server is closed
        # before, it is left open (an assertion in `Server._attach`, Python 3.11).
        for each in server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        for _ in range(10):
            await asyncio.sleep(0)
        server.close()
        cut = list(connections)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed now

    with start_blocking_portal("asyncio") as portal:
        server = portal.call(start)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            portal.call(stop)
