"""One request through the proxy and its response, with what befalls them on the way."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from faults.proxy_server import http_parts as http
from faults.proxy_server.fault import PAGE, Fault, Kind, Moment, first_part, strikes_before
from faults.proxy_server.http_parts import CHUNKED_HEAD, LAST_CHUNK, Event, Head, chunked

__all__ = ["Client", "Exchange", "Gone", "Passage"]

# A reset takes with it what its receiver has not read yet; so long the client has time to read what passed before.
_READ_S = 0.03


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


@dataclass(slots=True)
class Passage:
    """One request through the proxy. Mutable while it lasts."""

    fault: Fault | None
    struck: bool = False  # its moment came
    tokens: int = 0  # chunks with content passed on to the client
    reused: bool = False  # it came on a connection that had carried a request before
    silent: bool = False  # nothing of it comes any more before the client goes
    over: bool = False


class Exchange:
    """One request and its response. Mutable: its passage, of which it `tell`s."""

    def __init__(
        self,
        passage: Passage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        tell: Callable[[], None],
        keep_alive: bool,
    ) -> None:
        self.passage, self.fault = passage, passage.fault
        self.moment = passage.fault and passage.fault.moment
        self.reader, self.writer = reader, writer
        self.tell, self.keep_alive = tell, keep_alive
        self.client: Client = writer.transport.get_protocol()  # type: ignore[assignment]

    async def run(self, head: Head, host: str, port: int) -> None:
        """All of it, or until the client goes away; what the server then still writes has no reader."""
        passing = asyncio.ensure_future(self._pass(head, host, port))
        leaving = asyncio.ensure_future(self.client.gone.wait())
        try:
            await asyncio.wait([passing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                raise Gone
            passing.result()
        finally:
            passing.cancel()
            leaving.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _pass(self, head: Head, host: str, port: int) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port, limit=2**20)
        try:
            await self._forward(head, up_writer)
            if self.moment is Moment.HEAD:
                await self.strike()
            response = await http.read_head(up_reader)
            if response is None:
                raise Gone
            await self._respond(response, up_reader)
        finally:
            with contextlib.suppress(ConnectionError):
                up_writer.close()
                await up_writer.wait_closed()

    async def _forward(self, head: Head, up: asyncio.StreamWriter) -> None:
        """The request, upstream."""
        fields = {**head.fields, "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        if self.moment is Moment.REQUEST:
            await self.reader.readexactly(self.fault.after_bytes)
            await self.strike()
        up.write(f"{head.line}\r\n{lines}\r\n".encode("latin-1"))
        up.write(await self.reader.readexactly(head.length or 0))
        await up.drain()

    async def _respond(self, head: Head, up: asyncio.StreamReader) -> None:
        """The response, down to the client."""
        ours = ("content-length", "transfer-encoding", "connection")
        fields = "".join(f"{n}: {v}\r\n" for n, v in head.fields.items() if n not in ours)
        close = "" if self.keep_alive else "Connection: close\r\n"
        await self._send(f"{head.line}\r\n{fields}{close}".encode("latin-1") + CHUNKED_HEAD + b"\r\n")
        passed = 0
        async for event in http.events(http.read_body(up, head)):
            fault = None if self.passage.struck else self.fault
            if fault is not None and strikes_before(fault, event, self.passage.tokens, passed):
                await self._piece(first_part(event.data, fault, passed))
                await self.strike(event)
            await self._piece(event.data)
            passed += len(event.data)
            if event.content:
                self.passage.tokens += 1
                self.tell()
        await self._send(LAST_CHUNK)

    async def strike(self, event: Event | None = None) -> None:
        """The fault, here and now; before `event` where the response has begun. Returns when it is one that passes."""
        fault = self.fault
        self.passage.struck = True
        self.tell()
        match fault.kind:
            case Kind.RESET:
                await asyncio.sleep(_READ_S)
                # SO_LINGER with no time to linger makes close() send RST instead of FIN.
                linger = struct.pack("ii", 1, 0)
                self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.writer.transport.abort()
            case Kind.HALF_CLOSE:
                self.writer.write_eof()
                await self.client.gone.wait()
            case Kind.STALL | Kind.DELAY if fault.seconds < math.inf:
                await asyncio.sleep(fault.seconds)
                return
            case Kind.STALL:
                self.passage.silent = True
                await self.client.gone.wait()
            case Kind.GARBAGE if event is None or not fault.framed:
                await self._send(fault.body)
            case Kind.GARBAGE:
                await self._piece(fault.body)
            case Kind.STATUS:
                await self._plain(fault.status, "application/json", fault.body, fault.headers)
            case Kind.PAGE:
                await self._plain(200, "text/html", PAGE)
            case Kind.ERROR:
                await self._piece(b"data: " + fault.body + b"\n\n")
            case Kind.CLOSE | Kind.END:
                pass
            case _:
                raise AssertionError(f"{fault.kind} is no fault of a socket's")
        if event is not None and fault.kind in (Kind.GARBAGE, Kind.ERROR, Kind.END):
            await self._send(LAST_CHUNK)
        raise Gone

    async def _plain(
        self, status: int, kind: str, body: bytes, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """A response of its own, in the place of the server's; the connection is closed behind it."""
        fields = (("Content-Type", kind), ("Content-Length", len(body)), ("Connection", "close"), *more)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        await self._send(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode("latin-1") + body)

    async def _send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def _piece(self, data: bytes) -> None:
        """A piece of the response's body."""
        await self._send(chunked(data))
