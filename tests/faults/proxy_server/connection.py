"""The proxy's side of a client's connection: when the client goes, and how to be rude to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

__all__ = ["Client", "Gone", "reset", "while_client_stays"]


class Gone(Exception):
    """The connection to the client is over."""


class Client(asyncio.StreamReaderProtocol):
    """Tells when the client goes, whoever reads or does not read from it at that moment."""

    def __init__(self, accepted: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]) -> None:
        self.gone = asyncio.Event()
        super().__init__(asyncio.StreamReader(limit=2**20), accepted)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


def reset(writer: asyncio.StreamWriter) -> None:
    # SO_LINGER with no time to linger makes close() send RST instead of FIN.
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def while_client_stays(client: Client) -> AsyncIterator[None]:
    """Stop the body when the client goes away; what the server then still writes has no reader."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    async def watch() -> None:
        nonlocal left
        await client.gone.wait()
        left = True
        task.cancel()

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if left:
            raise Gone from None
        raise
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
