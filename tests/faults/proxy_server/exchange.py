"""One request through the proxy and its response, with what befalls them on the way."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Callable

from faults.proxy_server import http_parts as http
from faults.proxy_server.fault import PAGE, Fault, Kind, Moment, first_part, strikes_before
from faults.proxy_server.http_parts import Event, Head
from scripted_server import STREAM_END, answer, piece

__all__ = ["Client", "Gone", "Passage"]

# A reset takes with it what its receiver has not read yet; so long the client has time to read what passed before.
_READ_S = 0.03
CLOSE = "Connection: close\r\n"


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


class Passage:
    """One request and its response.

    Mutable: whether its fault `struck`, whether it is `silent` since, how many `tokens` were passed on to the client.
    """

    def __init__(
        self, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.fault, self.reader, self.writer = fault, reader, writer
        self.moment = fault and fault.moment
        self.struck = self.silent = False
        self.tokens = 0
        self.client: Client = writer.transport.get_protocol()  # type: ignore[assignment]

    async def run(self, head: Head, host: str, port: int) -> None:
        """All of it, or until the client goes away; what the server then still writes has no reader."""
        both = [
            asyncio.ensure_future(each) for each in (self._pass(head, host, port), self.client.gone.wait())
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            ended, _ = await asyncio.gather(*both, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _pass(self, head: Head, host: str, port: int) -> None:
        up_reader, up = await asyncio.open_connection(host, port, limit=2**20)
        try:
            fields = {**head.fields, "connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            if self.moment is Moment.REQUEST:
                await self.reader.readexactly(self.fault.after_bytes)
                await self.strike()
            up.write(f"{head.line}\r\n{lines}\r\n".encode("latin-1"))
            up.write(await self.reader.readexactly(int(fields.get("content-length", 0))))
            await up.drain()
            if self.moment is Moment.HEAD:
                await self.strike()
            await self._respond(await http.read_head(up_reader), up_reader)
        finally:
            with contextlib.suppress(ConnectionError):
                up.close()
                await up.wait_closed()

    async def _respond(self, head: Head, up: asyncio.StreamReader) -> None:
        """The response, down to the client."""
        ours = ("content-length", "transfer-encoding", "connection")
        fields = "".join(f"{n}: {v}\r\n" for n, v in head.fields.items() if n not in ours)
        top = f"{head.line}\r\n{fields}{CLOSE}Transfer-Encoding: chunked\r\n\r\n"
        await self._send(top.encode("latin-1"))
        passed = 0
        async for event in http.events(http.read_body(up, head)):
            fault = None if self.struck else self.fault
            if fault is not None and strikes_before(fault, event, self.tokens, passed):
                if part := first_part(event.data, fault, passed):
                    await self._send(piece(part))
                await self.strike(event)
            await self._send(piece(event.data))
            passed += len(event.data)
            self.tokens += bool(event.content)
        await self._send(STREAM_END)

    async def strike(self, event: Event | None = None) -> None:
        """The fault, here and now; before `event` where the response has begun. Returns when it is one that passes."""
        fault = self.fault
        self.struck = True
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
                self.silent = True
                await self.client.gone.wait()
            case Kind.GARBAGE:
                framed = event is not None and fault.framed
                await self._send(piece(fault.body) if framed else fault.body)
            case Kind.STATUS:
                lines = "".join(f"{name}: {value}\r\n" for name, value in fault.headers)
                await self._send(*answer(fault.body, status=f"{fault.status} X", headers=CLOSE + lines))
            case Kind.PAGE:
                await self._send(*answer(PAGE, content_type="text/html", headers=CLOSE))
            case Kind.ERROR:
                await self._send(piece(b"data: " + fault.body + b"\n\n"))
            case Kind.CLOSE | Kind.END:
                pass
            case _:
                raise AssertionError(f"{fault.kind} is no fault of a socket's")
        if event is not None and fault.kind in (Kind.GARBAGE, Kind.ERROR, Kind.END):
            await self._send(STREAM_END)
        raise Gone

    async def _send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
