"""A server that answers every request to OpenAI's API with an example, for the SDK's tests of its resources."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from sdk_examples import Operation, operations

__all__ = ["api_server"]


@contextlib.contextmanager
def api_server() -> Iterator[str]:
    """Serve on a free port of the loopback device, in a thread; yield the base URL."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.operations = operations()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that hangs up: some tests do."""

    def find(self, verb: str, target: str) -> Operation | None:
        """Return the method of the API; a path that is written out goes before one with a placeholder."""
        parts = urlsplit(target)
        found = [o for o in self.operations if o.verb == verb and o.path.fullmatch(target)]
        found += [o for o in self.operations if o.verb == verb and o.path.fullmatch(unquote(parts.path))]
        return min(found, key=lambda o: o.path.pattern.count("[^"), default=None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """Answer a request of any method."""
        asked = self.rfile.read(int(self.headers.get("content-length") or 0))
        operation = self.server.find(self.command, self.path)
        if operation is None:
            body, kind, status = b'{"error": {"message": "no such path"}}', "application/json", 404
        else:
            body, kind = _answer(operation, streamed=_wants_stream(asked))
            status = 200
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as above

    def log_message(self, *args: object) -> None:
        """Say nothing on the terminal."""


def _wants_stream(body: bytes) -> bool:
    """Whether the request, JSON or a form, asks for a stream."""
    return b'"stream":true' in body.replace(b" ", b"") or b'name="stream"\r\n\r\ntrue' in body


def _answer(operation: Operation, *, streamed: bool) -> tuple[bytes, str]:
    if streamed and operation.event is not None:
        lines = [f"data: {json.dumps(event)}\n\n" for event in operation.events()]
        return "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream"
    body = operation.body()
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain"
    return json.dumps(body).encode(), "application/json"
