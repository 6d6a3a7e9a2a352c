"""What an attempt needs to know about the HTTP client under the SDK, and about a request's size."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import ContextVar
from itertools import chain
from typing import Final, Self, cast

import anyio
import anyio.lowlevel
import httpx2

from disco.events import Traffic
from disco.request import Prefix, Request

__all__ = ["TURN_S", "TrafficCounter", "estimated_tokens", "exhaust", "in_turns", "leave", "pieces", "unwind"]

_NEVER_SENT = (
    *(httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout),
    *(httpx2.ProxyError, httpx2.UnsupportedProtocol),
)
_BROKEN_OFF = (httpx2.HTTPError, httpx2.StreamError, OSError)
_LAST_CHUNK_BYTES = len(b"0\r\n\r\n")


class TrafficCounter:
    """Counts the bytes of an attempt's requests and responses, as HTTP/1.1 writes them.

    While the counter is entered as a context manager, `PlainClient` reports to it what is sent in this context. With
    another client the counter learns of a request once its response has come.

    The heads are computed from the request and response objects; bodies are counted as they come. These counts are
    exact: a request, a response's head, the body of a response that is read to its end. These are not:

    - A piece of a chunked body counts as one chunk. The HTTP library splits a chunk that comes in several reads;
      then a few bytes too many are counted.
    - A request that is cancelled before its response counts as sent, whole.
    - Bytes that are still unread when a response is closed do not count.
    - TLS, TCP, a proxy's `CONNECT`, responses like "100 Continue" and trailers do not count; HTTP/2 is counted like
      HTTP/1.1.

    Mutable: the exchanges so far, and the count of the body that is read as a stream.
    """

    __slots__ = ("_body_bytes", "_exchanges", "_framing_bytes", "_streamed")

    def __init__(self) -> None:
        self._exchanges: list[tuple[httpx2.Request, httpx2.Response | None]] = []
        self._streamed: httpx2.Response | None = None
        self._body_bytes = self._framing_bytes = 0

    def __enter__(self) -> Self:
        _WATCHED_BY.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _WATCHED_BY.set(None)

    @staticmethod
    def current() -> TrafficCounter | None:
        """Return the counter that is entered in this context."""
        return _WATCHED_BY.get()

    def sending(self, request: httpx2.Request) -> None:
        """Record that a request is sent."""
        self._exchanges.append((request, None))

    def failed(self, error: BaseException) -> None:
        """Record that no response came to the last request."""
        if isinstance(error, _NEVER_SENT):
            self._exchanges.pop()

    def answered(self, response: httpx2.Response) -> None:
        """Record the response to the last request, or to one that was not reported."""
        if self._exchanges and self._exchanges[-1][1] is None:
            self._exchanges.pop()
        for each in (*response.history, response):
            self._exchanges.append((each.request, each))

    def streams(self, response: httpx2.Response) -> None:
        """Record that this response's body is read piece by piece: each piece goes through `received`."""
        self._streamed = response
        if all(response is not each for _, each in self._exchanges):
            self.answered(response)  # from a client that does not report its requests

    def received(self, piece: bytes) -> None:
        """Count a piece of the body that is read as a stream."""
        size = len(piece)
        self._body_bytes += size
        self._framing_bytes += (size.bit_length() + 3 >> 2) + 4  # the size in hexadecimal, and two line ends

    def ended(self) -> None:
        """Record that the body that is read as a stream has ended."""
        self._framing_bytes += _LAST_CHUNK_BYTES

    @property
    def last_response(self) -> httpx2.Response | None:
        """Return the response that came last."""
        return self._exchanges[-1][1] if self._exchanges else None

    @property
    def traffic(self) -> Traffic:
        """Return all bytes sent and received so far."""
        up = down = 0
        for request, response in self._exchanges:
            up += _request_bytes(request)
            if response is not None:
                down += _head_bytes(response) + self._body(response)
        return Traffic(up, down)

    def _body(self, response: httpx2.Response) -> int:
        size, framing = response.num_bytes_downloaded, 0
        if response is self._streamed:
            size, framing = size or self._body_bytes, self._framing_bytes
        elif size:
            framing = len(f"{size:x}") + 4 + _LAST_CHUNK_BYTES
        return size + framing if "chunked" in response.headers.get("transfer-encoding", "") else size


_WATCHED_BY: Final[ContextVar[TrafficCounter | None]] = ContextVar("disco_traffic", default=None)


def _request_bytes(request: httpx2.Request) -> int:
    line = len(request.method) + len(request.url.raw_path) + len(b"  HTTP/1.1\r\n")
    return line + _fields_bytes(request.headers) + len(request.read())


def _head_bytes(response: httpx2.Response) -> int:
    reason = response.extensions.get("reason_phrase", b"")
    return len(b"HTTP/1.1 200 \r\n") + len(reason) + _fields_bytes(response.headers)


def _fields_bytes(headers: httpx2.Headers) -> int:
    """Return the bytes of a head's fields, `name: value` and a line end each, and of the empty line behind them."""
    fields = headers.raw
    return sum(map(len, chain.from_iterable(fields))) + 4 * len(fields) + 2


async def exhaust(body: AsyncIterator[bytes], *, note: Callable[[bytes], object] | None = None) -> bool:
    """Read the few bytes behind [DONE] and `note` them: once they are read, the connection can be used again.

    Return False where the body has not ended soon, or by an error.
    """
    with anyio.move_on_after(_DRAIN_S, shield=True), contextlib.suppress(*_BROKEN_OFF):
        async for piece in body:
            if note is not None:
                note(piece)
        return True
    return False


async def unwind(body: AsyncIterator[bytes]) -> None:
    """End a body that is not at its end.

    When the transport's generators are closed between two pieces, they leave their inner generators to the garbage
    collector, of which trio complains. A cancelled read unwinds them all and closes the connection. What has come by
    then is read first, but not for long: a few bytes may be many once they are decompressed.
    """
    with anyio.CancelScope(shield=True) as scope, contextlib.suppress(*_BROKEN_OFF):
        scope.cancel()
        until = time.thread_time() + _UNWIND_S
        async for _ in body:
            if time.thread_time() > until:
                break


async def leave(body: AsyncGenerator[bytes, None]) -> None:
    """End a body whose response is closed, also where the garbage collector is what ends its reader.

    The collector may end the reader and the transport's generators at once, each in a task of its own. On asyncio this
    waits for nothing, so that no such task finds its generator running.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        await unwind(body)
    await body.aclose()


def pieces(response: httpx2.Response, wire: TrafficCounter | None = None) -> AsyncGenerator[bytes, None]:
    """Return the body as it arrives, decompressed where it is compressed, in pieces that are read in turns.

    Without compression the response's own stream is read directly, which is what `aiter_bytes` does after
    passing every piece through three more generators. `wire`: counts what comes.
    """
    if wire is not None:
        wire.streams(response)
    is_fresh = not (response.is_stream_consumed or response.is_closed)
    if is_fresh and type(response) is httpx2.Response and "content-encoding" not in response.headers:
        body = aiter(cast("httpx2.AsyncByteStream", response.stream))
        if isinstance(body, AsyncGenerator):
            response.is_stream_consumed = True
            return in_turns(body, wire)
    return in_turns(response.aiter_bytes(), wire)


async def in_turns(
    body: AsyncGenerator[bytes, None], wire: TrafficCounter | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces of at most `_PIECE_BYTES`; other tasks run at least every `TURN_S`.

    A few bytes on the wire may be millions of events: compressed, or thousands in one read. While they are worked off,
    nothing is waited for: without this, neither another task would run, nor a time-out end that.
    """
    now = time.monotonic
    read = 0  # bytes since the clock was looked at
    try:
        began = now()
        async for piece in body:
            if wire is not None:
                wire.received(piece)
            size = len(piece)
            read += size
            if read > _PIECE_BYTES:
                read = size
                if now() - began > TURN_S:
                    await anyio.lowlevel.checkpoint()
                    began = now()
            if size <= _PIECE_BYTES:
                yield piece
            else:
                for start in range(0, size, _PIECE_BYTES):
                    yield piece[start : start + _PIECE_BYTES]
                    if now() - began > TURN_S:
                        await anyio.lowlevel.checkpoint()
                        began = now()
        if wire is not None:
            wire.ended()
    except BaseException:
        await leave(body)  # a turn between two pieces may be cancelled, and so may the reader be
        raise


_PIECE_BYTES = 2048  # the events that take longest and fit in here are read in about 10 ms
TURN_S = 0.01
_UNWIND_S = 0.05
_DRAIN_S = 0.1


def estimated_tokens(request: Request, prefix: Prefix) -> int:
    """Return an estimate of the prompt tokens, at four characters each; the server's usage gives exact figures."""
    characters = len(prefix.sent)
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, str):
            characters += len(content)
        elif isinstance(content, list):
            characters += sum(len(str(p.get("text") or "")) for p in content if isinstance(p, dict))
    return math.ceil(characters / 4) + 4 * len(request.messages)
