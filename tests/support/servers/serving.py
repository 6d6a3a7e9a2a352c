"""A real server on a real socket, in a thread, for tests that ask it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from scripted_server import ScriptedServer, answer, scripted_server

from disco import AsyncDisco
from disco.server import Metrics, serve

HELLO = [{"role": "user", "content": "Tell me about the sea."}]


@dataclass
class Served:
    """A running `serve`: its base_url, who answers (in the portal's loop), and the route records so far."""

    base_url: str
    client: AsyncDisco
    portal: BlockingPortal
    routes: list[Any]

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.base_url)
        return parts.hostname, parts.port

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        at: str | None = None,
    ) -> Answer:
        """One HTTP request, without any client library's opinion. `body`: JSON, bytes or an iterable of bytes."""
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        fields = {**({} if at is None else {"Host": at}), **(headers or {})}
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=60)) as connection:
            connection.request(method or ("GET" if body is None else "POST"), path, data, fields)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def open(self, path: str, body: Any) -> socket.socket:
        """A POST on a bare socket, for those who hang up."""
        data = json.dumps(body).encode()
        raw = socket.create_connection(self.address, timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        raw.sendall(head.encode() + data)
        return raw

    def until(self, what: Callable[[], bool], within_s: float = 60.0) -> None:
        """Wait in the server's loop until `what()` holds."""

        async def wait() -> None:
            with anyio.fail_after(within_s):
                while not what():  # noqa: ASYNC110 - it is somebody else's state
                    await anyio.sleep(0.01)

        self.portal.call(wait)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, which must be in the API's shape."""
        assert self.headers["content-type"] == "application/json"
        error = self.json["error"]
        assert {"message", "type", "param", "code"} <= set(error)
        assert (type(error["message"]), type(error["type"])) == (str, str)
        return error


@contextlib.contextmanager
def serving(make: Callable[..., AsyncDisco], **options: Any) -> Iterator[Served]:
    """Serve the client that `make(on_route=...)` gives, on a free port."""
    ready: queue.Queue[Any] = queue.Queue()
    routes: list[Any] = []

    async def run() -> None:
        metrics = Metrics()

        def on_route(route: Any) -> None:
            routes.append(route)
            metrics.answer(route)

        async with make(on_route=on_route) as client:
            settings = {"metrics": metrics, "grace_s": 0.0, **options}
            with anyio.CancelScope() as scope:
                await serve(client, port=0, on_ready=lambda url: ready.put((url, client, scope)), **settings)

    with start_blocking_portal("asyncio") as portal:
        running = portal.start_task_soon(run)
        running.add_done_callback(lambda ended: ready.put(None))
        came = ready.get(timeout=120)
        if came is None:
            running.result()
        url, client, scope = came
        try:
            yield Served(url, client, portal, routes)
        finally:
            portal.call(scope.cancel)
            running.result(timeout=120)


@contextlib.contextmanager
def upstream(*scripts: Any, has_responses: bool = True) -> Iterator[ScriptedServer]:
    """The scripted server in a loop of its own. It answers the warm-up before it plays the first script."""
    listed = answer(b'{"object":"list","data":[]}')
    scripted = scripted_server(listed, *scripts, has_responses=has_responses)
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(scripted) as server:
        yield server
