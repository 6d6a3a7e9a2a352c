"""A connection to a server that has proved, on this very connection, that it wrote its announcement.

HTTP clients choose a connection for each request, and make another one where the last was closed. Here the proof and
the request behind it must go the same way, so the connection is this module's own, and HTTP/1.1 is h11's.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Final, Self

import anyio
import anyio.abc
import h11

from disco.endpoints.attached.announcement import Announcement
from disco.endpoints.attached.handshake import new_nonce, proof, token
from disco.endpoints.attached.messages import ANSWERS, HELLO
from disco.events import Traffic

__all__ = ["ProvenConnection", "ServeGoneError"]

PROOF_S: Final = 2.0  # to connect and to prove
_MOST_BYTES: Final = 65_536  # of a response that is read whole
_PIECE: Final = 65_536


class ServeGoneError(Exception):
    """The server that was announced is not there any more, or is not the one that was announced."""


class ProvenConnection:
    """One connection, for one request. Mutable: the state of HTTP, and the bytes counted.

    Use `to`.
    """

    def __init__(self, stream: anyio.abc.SocketStream, announcement: Announcement) -> None:
        self._stream = stream
        self._announcement = announcement
        self._http = h11.Connection(h11.CLIENT)
        self._up = self._down = 0

    @classmethod
    async def to(cls, announcement: Announcement) -> Self:
        """Connect to a server, and let it prove that it is the one that was announced.

        Raises:
            ServeGoneError: nothing listens there, or something else.
        """
        connection: Self | None = None
        proven = False
        try:
            with anyio.move_on_after(PROOF_S):
                stream = await anyio.connect_tcp(announcement.host, announcement.port)
                connection = cls(stream, announcement)
                await connection._prove()
                proven = True
        except (
            OSError,
            anyio.BrokenResourceError,
            anyio.EndOfStream,
            h11.ProtocolError,
            ValueError,
            RecursionError,  # JSON without an end
        ) as error:
            raise ServeGoneError("it cannot be reached, or is another program") from error
        finally:
            if connection is not None and not proven:
                await connection.aclose()
        if connection is None or not proven:
            raise ServeGoneError("it does not answer")
        return connection

    async def order(self, body: bytes) -> int:
        """Send an order; return the status of the response, whose body is then read by `piece`.

        Raises:
            ServeGoneError: the connection broke.
        """
        given = {
            "authorization": f"Bearer {token(self._announcement.key)}",
            "content-type": "application/json",
        }
        try:
            return await self._ask("POST", ANSWERS, given, body)
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError) as error:
            raise ServeGoneError("the connection broke") from error

    async def piece(self) -> bytes | None:
        """Return the next piece of the response's body; None at its proper end.

        Raises:
            ServeGoneError: the connection broke before the end.
        """
        try:
            while True:
                event = await self._event()
                if isinstance(event, h11.Data):
                    return bytes(event.data)
                if isinstance(event, h11.EndOfMessage):
                    return None
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError) as error:
            raise ServeGoneError("the connection broke") from error

    @property
    def traffic(self) -> Traffic:
        """Return the bytes sent and received so far."""
        return Traffic(self._up, self._down)

    async def aclose(self) -> None:
        """Close the connection at once. Idempotent."""
        await anyio.aclose_forcefully(self._stream)

    async def _prove(self) -> None:
        """Ask for the proof.

        Raises:
            ValueError: there is none, or it is wrong.
        """
        nonce = new_nonce()
        status = await self._ask("GET", f"{HELLO}?nonce={nonce}", {}, b"")
        content = b""
        while (piece := await self.piece()) is not None:
            content += piece
            if len(content) > _MOST_BYTES:
                raise ValueError("the response is too long")
        document = json.loads(content) if status == 200 else None
        given = document.get("proof") if isinstance(document, dict) else None
        ends = anyio.abc.SocketAttribute
        expected = proof(
            self._announcement.key,
            nonce,
            client=_address(self._stream.extra_attributes[ends.local_address]()),
            server=_address(self._stream.extra_attributes[ends.remote_address]()),
        )
        if not (isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())):
            raise ValueError("the proof is wrong")
        self._http.start_next_cycle()

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
        where = self._announcement
        host = f"[{where.host}]" if ":" in where.host else where.host
        head = {"host": f"{host}:{where.port}", "content-length": str(len(body)), **headers}
        request = h11.Request(method=method, target=path, headers=list(head.items()))
        data = self._http.send(request) or b""
        if body:
            data += self._http.send(h11.Data(data=body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._up += len(data)
        await self._stream.send(data)
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event.status_code

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._stream.receive(_PIECE)
                self._down += len(data)
                self._http.receive_data(data)
                continue
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise anyio.EndOfStream
            return event


def _address(end: object) -> tuple[str, int]:
    assert isinstance(end, tuple)
    return str(end[0]), int(end[1])
