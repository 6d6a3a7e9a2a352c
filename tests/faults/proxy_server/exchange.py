"""One request through the proxy and its response, with what befalls them on the way."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from faults.proxy_server.connection import Client, Gone, reset, while_client_stays
from faults.proxy_server.fault import Cut, Direction, Fault, Kind, Moment
from faults.proxy_server.http_parts import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    Event,
    Head,
    chunked,
    events,
    read_body,
    read_head,
)

__all__ = ["EMPTY_EVENTS", "PAGE", "Exchange", "Passage", "first_part", "strikes_before"]

# A reset takes with it what its receiver has not read yet; so long the client has time to read what passed before.
_READ_S = 0.03
_SLOW_BYTES_PER_S = 100.0  # an event takes seconds
PAGE = b"<!doctype html><title>Sign in</title><p>Please sign in to the network.</p>"
EMPTY_EVENTS = b': ping\n\ndata: {"choices": []}\n\ndata: {"choices": [{"index": 0, "delta": {}}]}\n\n'


@dataclass(slots=True)
class Passage:
    """One request through the proxy. Mutable while it lasts.

    Attributes:
        fault: what befell it.
        struck: the fault's moment came.
        path: of the request.
        request_bytes: of the request's body, as far as they were read.
        tokens: chunks with content passed on to the client.
        reused: the request came on a connection that had carried one before.
        sent_bytes: of the response's body, without its framing.
        silent: nothing of it comes any more before the client goes (or so slowly that its clocks run out first).
        over: nothing of it is left.
    """

    fault: Fault | None
    struck: bool = False
    path: str = ""
    request_bytes: int = 0
    tokens: int = 0
    reused: bool = False
    sent_bytes: int = 0
    silent: bool = False
    over: bool = False


class Exchange:
    """One request and its response. Mutable while it lasts.

    Args:
        passage: what is known of it; its fault strikes here.
        reader, writer: the connection to the client.
        tell: called whenever something happens.
        keep_alive: the connection may be used again.
    """

    def __init__(
        self,
        passage: Passage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        tell: Callable[[], None],
        keep_alive: bool,
    ) -> None:
        self.passage = passage
        self.tell = tell
        self.keep_alive = keep_alive
        self.fault = passage.fault
        self.reader, self.writer = reader, writer
        self.client: Client = writer.transport.get_protocol()  # type: ignore[assignment]
        self.upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.bytes_per_s = math.inf
        self.body_bytes = 0
        self.last = b""  # the event that was passed on last

    def now(self, moment: Moment) -> bool:
        """Whether the fault strikes here."""
        return self.fault is not None and self.fault.moment is moment and not self.passage.struck

    async def run(self, head: Head, host: str, port: int) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port, limit=2**20)
        self.upstream = (up_reader, up_writer)
        try:
            async with while_client_stays(self.client):
                await self.forward(head)
                if self.now(Moment.HEAD):
                    await self.strike()
                response = await read_head(up_reader)
                if response is None:
                    raise Gone
                await self.respond(response, read_body(up_reader, response))
        finally:
            with contextlib.suppress(ConnectionError):
                up_writer.close()
                await up_writer.wait_closed()

    async def forward(self, head: Head) -> None:
        """The request, upstream."""
        assert self.upstream is not None
        writer = self.upstream[1]
        fields = {**head.fields, "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{head.line}\r\n{lines}\r\n".encode("latin-1"))
        left = head.length or 0
        fault = self.fault
        at = (fault.after_bytes or 0) if fault is not None and fault.moment is Moment.REQUEST else math.inf
        while left or self.now(Moment.REQUEST):
            room = at - self.passage.request_bytes
            if left == 0 or (room <= 0 and self.now(Moment.REQUEST)):
                await self.strike()
                room = math.inf
            data = await self.reader.read(int(min(left, 65536, room)))
            if not data and left:
                raise Gone
            self.passage.request_bytes += len(data)
            left -= len(data)
            if self.bytes_per_s < math.inf:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            struck_up = self.passage.struck and fault is not None and fault.direction is Direction.UP
            if struck_up and fault.kind is Kind.GARBAGE:
                data = (fault.body * (len(data) // max(1, len(fault.body)) + 1))[: len(data)]
            if not writer.is_closing() and not (struck_up and fault.kind is Kind.HALF_CLOSE):
                writer.write(data)
                await writer.drain()

    async def respond(self, head: Head, body: AsyncIterator[bytes]) -> None:
        """The response, down to the client."""
        kept = ("content-length", "transfer-encoding", "connection")
        fields = "".join(f"{n}: {v}\r\n" for n, v in head.fields.items() if n not in kept)
        close = "" if self.keep_alive else "Connection: close\r\n"
        begin = f"{head.line}\r\n{fields}{close}".encode("latin-1") + CHUNKED_HEAD + b"\r\n"
        if not head.fields.get("content-type", "").startswith("text/event-stream"):
            self.writer.write(begin)
            async for data in body:
                await self.piece(data)
            await self.send(LAST_CHUNK)
            return
        await self.send(begin)
        async for event in events(body):
            fault = None if self.passage.struck else self.fault
            if fault is not None and strikes_before(fault, event, self.passage.tokens, self.body_bytes):
                await self.strike(event)
            await self.piece(event.data)
            self.last = event.data
            self.body_bytes += len(event.data)
            if event.content:
                self.passage.tokens += 1
                self.tell()
        await self.send(LAST_CHUNK)

    async def strike(self, event: Event | None = None) -> None:
        """The fault, here and now. Returns when it is one that passes."""
        fault = self.fault
        assert fault is not None
        self.passage.struck = True
        self.tell()
        if event is not None:
            await self.piece(first_part(event.data, fault, self.body_bytes))
        if fault.direction is Direction.UP and self.upstream is not None:
            await self.strike_upstream(fault)
            return
        match fault.kind:
            case Kind.CLOSE:
                raise Gone
            case Kind.RESET:
                await asyncio.sleep(_READ_S)
                reset(self.writer)
                raise Gone
            case Kind.HALF_CLOSE:
                self.writer.write_eof()
                await self.gone()
            case Kind.STALL | Kind.DELAY:
                if fault.seconds == math.inf:
                    await self.silence()
                await asyncio.sleep(fault.seconds)
            case Kind.THROTTLE:
                self.throttle(fault.bytes_per_s)
            case Kind.GARBAGE:
                framed = event is not None and fault.framed
                await (self.piece if framed else self.send)(fault.body)
                await self.finish(event)
            case Kind.STATUS:
                await self.plain(fault.status, fault.headers, fault.body)
            case Kind.PAGE:
                await self.plain(200, (("Content-Type", "text/html"),), PAGE)
            case Kind.ERROR:
                await self.piece(b"data: " + fault.body + b"\n\n")
                await self.finish(event)
            case Kind.END:
                await self.finish(event)
            case Kind.REPEAT:
                await self.piece(self.last)
            case Kind.EMPTY:
                await self.piece(EMPTY_EVENTS)
            case _:
                raise AssertionError(f"{fault.kind} is no fault of a connection")

    async def strike_upstream(self, fault: Fault) -> None:
        """The way to the server breaks; what the server makes of that comes back on the other."""
        assert self.upstream is not None
        writer = self.upstream[1]
        match fault.kind:
            case Kind.HALF_CLOSE:
                writer.write_eof()
            case Kind.CLOSE:
                writer.close()
                raise Gone
            case Kind.RESET:
                reset(writer)
                raise Gone
            case Kind.STALL:
                await self.silence()
            case Kind.DELAY:
                await asyncio.sleep(fault.seconds)
            case Kind.THROTTLE:
                self.throttle(fault.bytes_per_s)
            case Kind.GARBAGE:
                pass  # `forward` spoils what is still to come
            case _:
                raise AssertionError(f"{fault.kind} does not happen on the way to the server")

    async def plain(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """A response of its own, in the place of the server's; the connection is closed behind it."""
        names = {name.lower() for name, _ in headers}
        if "content-type" not in names:
            headers = (*headers, ("Content-Type", "application/json"))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        await self.send(head.encode("latin-1") + body)
        raise Gone

    async def finish(self, event: Event | None) -> None:
        """End the response: properly where it has begun."""
        if event is not None:
            await self.send(LAST_CHUNK)
        raise Gone

    async def send(self, data: bytes) -> None:
        if not data:
            return
        if self.bytes_per_s < math.inf:
            await asyncio.sleep(len(data) / self.bytes_per_s)
        self.writer.write(data)
        await self.writer.drain()

    async def piece(self, data: bytes) -> None:
        """A piece of the response's body."""
        await self.send(chunked(data))
        self.passage.sent_bytes += len(data)

    def throttle(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.passage.silent = bytes_per_s < _SLOW_BYTES_PER_S

    async def silence(self) -> None:
        self.passage.silent = True
        await self.gone()

    async def gone(self) -> None:
        """Wait for the client to go."""
        await self.client.gone.wait()
        raise Gone


def strikes_before(fault: Fault, event: Event, tokens: int, passed: int) -> bool:
    """Whether `event` is the first behind the fault, after so many tokens and bytes of the body."""
    if fault.cut is Cut.CHARACTER and event.data.isascii():
        return False  # it waits for the next event with a character to cut
    match fault.moment:
        case Moment.FIRST:
            return bool(event.content) and tokens == 0
        case Moment.MIDDLE if fault.after_bytes is not None:
            return passed + len(event.data) > fault.after_bytes
        case Moment.MIDDLE:
            return tokens >= fault.tokens
        case Moment.LAST:
            return event.finishes
        case Moment.TAIL:
            return event.done
    return False


def first_part(data: bytes, fault: Fault, passed: int) -> bytes:
    """What still gets through of the event in which the fault strikes."""
    if fault.after_bytes is not None and fault.moment is Moment.MIDDLE:
        return data[: max(0, fault.after_bytes - passed)]
    if fault.cut is Cut.LINE:
        return data[: len(data) // 2]
    if fault.cut is Cut.CHARACTER:
        first = next(i for i, byte in enumerate(data) if byte >= 0x80)
        return data[: first + 1]
    return b""
