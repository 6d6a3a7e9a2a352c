"""Uvicorn's HTTP/1.1 protocol on httptools, stricter where httptools is lax."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from disco.server.api_errors import Refusal

__all__ = ["HttpProtocol"]

MAX_HEAD_BYTES: Final = 65_536  # of the request line and the headers; also of the trailers
HEAD_S: Final = 30.0  # a connection is closed if no request begins to be answered on it for so long
_FRAMING: Final = 8  # bytes of chunk sizes that a client may send for one byte of body


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    What this class adds: httptools collects a head or a trailer until it ends, however long it is. It takes trailers
    for headers. Of a request that offers an upgrade, it does not read the body; Java's HTTP client offers HTTP/2 with
    every request. Uvicorn waits for ever on a connection that says nothing, or too little. Refusals have the API's
    form.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._in_head = self._in_message = False
        self._overhead = 0  # bytes read since the last piece of the body, from the message's second read on
        self._again: bytes | None = None  # the head of a request whose offer of an upgrade is declined
        self._timer: asyncio.TimerHandle | None = None  # runs while no request is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the base class
        """Wait for a request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse what has come. The application is started at the end of a head."""
        self._unset_keepalive_if_required()
        if self._in_message:
            self._overhead += len(data)
        try:
            if not self._parse(memoryview(data)):
                self._stop_timer()
                self.handle_websocket_upgrade()
                return
        except httptools.HttpParserError:
            self._refuse(400, "The bytes sent are not a valid HTTP request.", "invalid_http")
            return
        if self._in_message and self._overhead > MAX_HEAD_BYTES:
            self._refuse(431, f"The headers are longer than {MAX_HEAD_BYTES} bytes.", "headers_too_long")
        else:
            self._start_timer()

    def _parse(self, data: memoryview) -> bool:
        """Parse; return False where the rest of the connection is a WebSocket.

        Raises:
            httptools.HttpParserError: the bytes are no HTTP, or are refused.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._again is None:
                    return False
                # The offer is declined. A parser that has met one, and is to close the connection, reads no body.
                head, self._again = self._again, None
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the base class
                self.parser.feed_data(head)
                data = data[upgrade.args[0] :]
            else:
                return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._in_head = self._in_message = True
        self._overhead = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the application, unless servers and proxies might understand the head differently.

        Raises:
            ValueError: the head is refused. The parser turns the error into its own.
        """
        self._in_head = False
        method, version = self.parser.get_method(), self.parser.get_http_version()
        size, hosts, codings = len(self.url), 0, []
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                codings.append(value.lower())
        if size > MAX_HEAD_BYTES or not self.url.startswith(b"/") or method == b"CONNECT":
            raise ValueError("too long, or the form of a request to a proxy")
        if not (version == "1.1" and hosts == 1 and codings in ([], [b"chunked"])) and not (
            version == "1.0" and hosts <= 1 and not codings
        ):
            raise ValueError("another version, not one Host, or another coding")
        if self.parser.should_upgrade() and not self._should_upgrade():
            kept = [(n, v) for n, v in self.headers if n != b"upgrade"]
            first = method + b" " + self.url + b" HTTP/" + version.encode() + b"\r\n"
            self._again = first + b"".join(n + b": " + v + b"\r\n" for n, v in kept) + b"\r\n"
            return
        if self.parser.should_upgrade() and self._is_answering:
            raise ValueError("a WebSocket behind a request that has not been answered")
        self._stop_timer()
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            # Trailers are dropped. They come after the access checks of a proxy in front, so they prove nothing.
            self.headers = deque(maxlen=0)  # type: ignore[assignment] # the parser only appends

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._overhead = max(0, self._overhead - (1 + _FRAMING) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._in_message = False
        if self._again is None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request: for its first byte as long as connections are kept, for the rest less."""
        super().on_response_complete()
        if self._in_message:
            self._start_timer()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_late(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(408, f"The headers were not complete after {HEAD_S:g} s.", "headers_timeout")
        else:  # it has sent nothing, or goes on with the body of a request that has been answered
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Send the refusal and close the connection; only close it if an answer is being sent."""
        self._stop_timer()
        self._in_head = self._in_message = False
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = Refusal(status, message, code=code).body()
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
                body
            )
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _start_timer(self) -> None:
        """Start the timer, unless it runs already or a request is being answered, which has clocks of its own."""
        if self._timer is None and not self._is_answering and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_S, self._is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
