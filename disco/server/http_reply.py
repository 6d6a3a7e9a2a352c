"""The HTTP response to one request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from starlette.types import Send

from disco.server.api_errors import Refusal, error_event

__all__ = ["EVENTS", "JSON", "LINES", "Reply"]

log = logging.getLogger("disco.server")

JSON = "application/json"
EVENTS = "text/event-stream"
_MOST_LAST = 65_536
LINES = "application/x-ndjson"  # one JSON object a line


class Reply:
    """Sends status, headers and body of one response piece by piece.

    Mutable: `started`, `_events`, `_lines` and `_last`.

    Args:
        send: the ASGI server's function.
        path: the path's name in the log, not the path that the client wrote.
    """

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._path = path
        self.started = False
        self._events = False  # whether this is an event stream, which can carry an error
        self._lines = False  # whether this is lines of JSON, of which the last may be an error
        self._last = b""
        self.clean: Callable[[bytes], bytes] = bytes  # takes the owner's keys out of an error

    async def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the status line and the headers."""
        wire = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._events = any(n == b"content-type" and v.startswith(EVENTS.encode()) for n, v in wire)
        self._lines = any(n == b"content-type" and v == LINES.encode() for n, v in wire)
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": wire})

    async def piece(self, data: bytes) -> None:
        """Send a piece of the body."""
        # Of a line that comes by itself, the end of the event would hide the event.
        self._last = (self._last + data)[-_MOST_LAST:] if len(data) <= 2 else data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the rest of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(
        self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = (), *, kind: str = JSON
    ) -> None:
        """Send a whole response."""
        fixed = [("content-type", kind), ("content-length", str(len(body)))]
        await self.begin(status, [*fixed, *headers])
        await self.end(body)

    async def refuse(self, refusal: Refusal, *, named: bool = False) -> None:
        """Send and log the error: as a response or, after the response has begun, as its last event or line.

        A body that cannot carry an error stays incomplete, which the client's HTTP library detects.

        Args:
            refusal: the error.
            named: True for the format of the Responses API's streams.
        """
        level = logging.WARNING if refusal.status >= 500 else logging.INFO
        when = "in mid-answer, " if self.started else ""
        log.log(level, "%s: refused %swith %d (%s)", self._path, when, refusal.status, refusal.reason)
        if not self.started:
            headers = [
                (n, self.clean(v.encode("latin-1")).decode("latin-1")) for n, v in refusal.headers.items()
            ]
            await self.whole(refusal.status, self.clean(refusal.body()), headers)
        elif self._events:
            await self.end(self.clean(error_event(refusal, self._last, named=named)))
        elif self._lines:
            await self.end(refusal.body() + b"\n")
