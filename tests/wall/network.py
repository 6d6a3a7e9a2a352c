"""The network of the wall: no socket and no real time, so that ten thousand cells take less than a minute.

Every connection of httpx2 ends here, whoever opens it: the plain SDK's, disco's own, a backup's. So all are asked as an
application makes them, with their default settings, and no client is given a transport of ours. The clock jumps to the
next thing that can happen: silences and time-outs are those of the rows and of the clients, in seconds, and cost
nothing. One clock serves the thread that asks and the loop in the background of a synchronous client. What a socket
would do otherwise is in `test_sockets`: the same rows on a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import selectors
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import anyio
import httpx2
import openai._base_client
import pytest
from wall.script import CUT, DROP, REFUSE, RESET, Reply, Step

from disco.client.sync import portal as portal_module

__all__ = ["CLOCK", "NETWORK", "Hangs", "Request", "VirtualLoop", "entered", "quiet", "run"]

REAL_S = 20.0  # nothing may stand still for so long on the machine's own clock
_FAULTS = {
    CUT: httpx2.RemoteProtocolError(
        "peer closed connection without sending complete message body (incomplete chunked read)"
    ),
    RESET: httpx2.ReadError("connection reset"),
    REFUSE: httpx2.ConnectError("connection refused"),
    DROP: httpx2.RemoteProtocolError("Server disconnected without sending a response."),
}


class Hangs(Exception):
    """Nothing can happen any more."""


class Clock:
    """Seconds since the wall began. It jumps only while somebody waits for an answer.

    Mutable: `now`; `waiting`, how many wait.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Somebody waits for what the loop does."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


CLOCK = Clock()


class _Selector(selectors.DefaultSelector):
    """Skips what its loop would wait."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None and CLOCK.waiting:
            CLOCK.now += timeout
            return ready
        began = time.monotonic()
        while not (ready := super().select(0.05)):
            if CLOCK.waiting and timeout is not None:
                return ready
            if CLOCK.waiting and time.monotonic() - began > REAL_S:
                raise Hangs
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is `CLOCK`'s."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        return CLOCK.now


class Request:
    """A request that came: its path and its body, as JSON where it is."""

    def __init__(self, request: httpx2.Request, content: bytes) -> None:
        self.path, self.at = request.url.path, CLOCK.now
        try:
            self.body = json.loads(content)
        except ValueError:
            self.body = None

    @property
    def says(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


Server = Callable[[Request], Reply]


class Network:
    """Who listens, by port. Mutable: all."""

    def __init__(self) -> None:
        self.servers: dict[int, Server] = {}
        self.apps: dict[int, Any] = {}
        self.requests: list[tuple[int, Request]] = []
        self.complaints: list[str] = []
        self.open = 0

    def clear(self) -> None:
        self.__init__()

    def reply(self, request: httpx2.Request, content: bytes) -> Reply:
        port = request.url.port or 80
        if port not in self.servers:
            raise httpx2.ConnectError("nobody listens", request=request)
        came = Request(request, content)
        self.requests.append((port, came))
        return self.servers[port](came)


NETWORK = Network()


def _head(reply: Reply, body: Any, request: httpx2.Request) -> httpx2.Response:
    headers = [(name.encode("latin-1", "replace"), value.encode()) for name, value in reply.headers.items()]
    return httpx2.Response(reply.status, headers=headers, stream=body, request=request)


def _played(steps: Sequence[Step], read_s: float | None) -> Iterator[bytes | float]:
    """The bytes, and what is to be waited before the next ones; raises what a client's transport would."""
    left = read_s
    for step in steps:
        if isinstance(step, float):
            if left is not None and step >= left:
                yield left
                raise httpx2.ReadTimeout("")
            left = None if left is None else left - step
            yield step
        elif isinstance(step, bytes):
            left = read_s
            if step:
                yield step
        else:
            raise _copy(_FAULTS[step])


def _copy(error: Exception) -> Exception:
    return type(error)(str(error))


class _Body(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    def __init__(self, steps: Sequence[Step], read_s: float | None) -> None:
        self._steps, self._read_s = steps, read_s
        self._is_open = True
        NETWORK.open += 1

    def __iter__(self) -> Iterator[bytes]:
        for step in _played(self._steps, self._read_s):
            if isinstance(step, bytes):
                yield step
            else:
                CLOCK.now += step

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in _played(self._steps, self._read_s):
            await anyio.sleep(
                0.0 if isinstance(step, bytes) else step
            )  # each read of a socket gives others a turn
            if isinstance(step, bytes):
                yield step

    def close(self) -> None:
        NETWORK.open -= self._is_open
        self._is_open = False

    async def aclose(self) -> None:
        self.close()


def _split(reply: Reply) -> tuple[Sequence[Step], Sequence[Step]]:
    """What comes before the head of a response, and its body: a document's silence is before its head."""
    if not reply.is_document and reply.fault not in (REFUSE, DROP):
        return (), reply.steps
    at = next((i for i, step in enumerate(reply.steps) if isinstance(step, bytes)), len(reply.steps))
    return reply.steps[:at], reply.steps[at:]


def _read_s(request: httpx2.Request) -> float | None:
    limit = request.extensions.get("timeout", {}).get("read")
    return None if limit is None else float(limit)


def _send(self: Any, request: httpx2.Request) -> httpx2.Response:
    reply = NETWORK.reply(request, request.read())
    before, body = _split(reply)
    for step in _played(before, _read_s(request)):
        assert isinstance(step, float)
        CLOCK.now += step
    return _head(reply, _Body(body, _read_s(request)), request)


async def _send_async(self: Any, request: httpx2.Request) -> httpx2.Response:
    content = await request.aread()
    if app := NETWORK.apps.get(request.url.port or 80):
        return await _ask_app(app, request, content)
    reply = NETWORK.reply(request, content)
    before, body = _split(reply)
    for step in _played(before, _read_s(request)):
        assert isinstance(step, float)
        await anyio.sleep(step)
    return _head(reply, _Body(body, _read_s(request)), request)


class _AppBody(httpx2.AsyncByteStream):
    """The body of an application's response. Closing it is the client's leaving."""

    def __init__(self, queue: asyncio.Queue[Any], left: asyncio.Event, task: asyncio.Task[None]) -> None:
        self._queue, self._left, self._task = queue, left, task
        self._over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._over:
            message = await self._queue.get()
            if message is None:  # the application failed: its server closes the connection
                raise _copy(_FAULTS[CUT])
            self._over = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def aclose(self) -> None:
        self._left.set()
        await asyncio.wait([self._task], timeout=30.0)


async def _ask_app(app: Any, request: httpx2.Request, content: bytes) -> httpx2.Response:
    """Ask an ASGI application, which may stream."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    left, asked = asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": content, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def serve() -> None:
        try:
            await app(scope, receive, queue.put)
        finally:
            await queue.put(None)

    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "root_path": "",
        "scheme": "http",
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", request.url.port),
        "method": request.method,
        "path": request.url.path,
        "query_string": request.url.query,
        "headers": headers,
    }
    task = asyncio.create_task(serve())
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        start = await queue.get()
    except BaseException:
        left.set()
        await asyncio.wait([task], timeout=30.0)
        raise
    if start is None:
        raise _copy(_FAULTS[DROP])
    body = _AppBody(queue, left, task)
    return httpx2.Response(start["status"], headers=start.get("headers", []), stream=body, request=request)


class _Like:
    """A module with some of its functions replaced, for one that imports it."""

    def __init__(self, module: ModuleType, **replaced: Any) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def entered() -> Iterator[Network]:
    """The network is here, and time with it. For the thread that asks, and for its loops."""

    def sleep(seconds: float) -> None:
        CLOCK.now += seconds

    def inline(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*given: Any, **named: Any) -> Any:
            return function(*given, **named)

        return call

    def run_portal(self: Any, function: Callable[..., Any], *given: Any) -> Any:
        async def waited() -> Any:
            with CLOCK.held():  # until the loop has the result: then it must not jump on to its next timer
                return await function(*given)

        return run_in_portal(self, waited)

    run_in_portal = portal_module.Portal.run
    sdk_time = _Like(time, sleep=sleep)
    virtual = functools.partial(anyio.run, backend_options={"loop_factory": VirtualLoop})
    contexts = functools.cache(httpx2.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx2.HTTPTransport, "handle_request", _send)
        patch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", _send_async)
        patch.setattr("httpx2._transports.default.create_ssl_context", contexts)
        patch.setattr(openai._base_client, "time", sdk_time)
        patch.setattr(openai._base_client, "random", lambda: 0.0)
        # The SDK finds out in a thread on which platform it is; a clock that jumps would not wait for it.
        patch.setattr(openai._base_client, "asyncify", inline)
        patch.setattr(portal_module, "anyio", _Like(anyio, run=virtual))
        patch.setattr(portal_module.Portal, "run", run_portal)
        NETWORK.clear()
        yield NETWORK


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged, and nobody warned: of ten thousand odd answers there would be much to say.

    disco's own errors are complaints: no server's oddity is one.
    """
    disabled, ours, complaints = logging.root.manager.disable, logging.getLogger("disco"), _Complaints()
    propagates = ours.propagate
    logging.disable(logging.WARNING)
    ours.addHandler(complaints)
    ours.propagate = False
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        ours.propagate = propagates
        ours.removeHandler(complaints)
        logging.disable(disabled)


class _Complaints(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        NETWORK.complaints.append(record.getMessage())


def run(function: Callable[..., Any], *given: Any) -> Any:
    """Await it, in virtual time."""

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        NETWORK.complaints.append(f"{context['message']}: {context.get('exception')!r}")

    with CLOCK.held(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(complain)
        return runner.run(function(*given))
