"""A TCP proxy that does to a connection what networks and servers do, at a moment one can name.

    with fault_proxy(server.base_url) as proxy:
        proxy.arm([Fault(Kind.RESET, Moment.MIDDLE, tokens=5), None])
        client = AsyncDisco(base_url=proxy.base_url, ...)

Upstream is any HTTP server. Each request comes on a new connection, so that faults of connecting befall requests, and
gets one of its own upstream. What comes back is passed on event by event, each as one piece of a chunked body.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal
from faults.proxy_server.exchange import Client, Gone, Passage
from faults.proxy_server.fault import Fault, Kind, Moment, Schedule
from faults.proxy_server.http_parts import read_head


class FaultProxy:
    """Made by `fault_proxy`. All methods may be called from any thread but the proxy's own.

    `passages` are the requests for an answer so far; `errors`, what went wrong with the proxy itself.
    """

    def __init__(self, upstream: str, portal: BlockingPortal) -> None:
        parts = urlsplit(upstream)
        self._upstream, self._portal = (parts.hostname, parts.port), portal
        self._listener: asyncio.Server | None = None
        self._hole: list[socket.socket] = []
        self._schedule: Iterator[Fault | None] = iter(())
        self._next: Fault | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()
        self._open = 0
        self.passages: list[Passage] = []
        self.errors: list[BaseException] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}{parts.path}"

    def arm(self, schedule: Schedule) -> None:
        """What befalls the requests from now on, one after the other; once it is used up, nothing.

        REFUSE and BLACK_HOLE stay until the next `arm`: nobody can count who finds no door.
        """
        self._schedule = iter(schedule)
        self._next = next(self._schedule, None)
        self._portal.call(self._set_door)

    def wait_idle(self, within_s: float = 60.0) -> None:
        """Return when no connection is open at the proxy; raises TimeoutError where somebody left one open."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._open == 0, within_s):
                raise TimeoutError(f"{self._open} connections are open")

    def is_silent(self) -> bool:
        """Whoever knocks now is not heard, or whoever came last is not answered any more."""
        return bool(self._hole) or any(p.silent and not p.client.gone.is_set() for p in self.passages[-1:])

    # ------------------------------------------------------------------ in the proxy's loop

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Passage:
        passage = Passage(self._next, reader, writer)
        self._next = next(self._schedule, None)
        if self._next is not None and self._next.kind in (Kind.REFUSE, Kind.BLACK_HOLE):
            self._spawn(self._set_door())
        self.passages.append(passage)
        return passage

    async def _set_door(self) -> None:
        kind = self._next.kind if self._next is not None else None
        self._shut()
        if kind is Kind.BLACK_HOLE:
            self._hole = _black_hole(self.port)
        elif kind is not Kind.REFUSE:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(lambda: Client(self._accepted), "127.0.0.1", self.port)

    def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for sock in self._hole:
            sock.close()
        self._hole = []

    async def _end(self) -> None:
        self._shut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count(1)
        self._spawn(self._serve(reader, writer))

    def _count(self, connections: int) -> None:
        with self._changed:
            self._open += connections
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        try:
            if self._next is not None and self._next.moment is Moment.CONNECT:
                await self._take(reader, writer).strike()
            head = await read_head(reader)
            asks = head.line.startswith("POST")
            passage = self._take(reader, writer) if asks else Passage(None, reader, writer)
            await passage.run(head, *self._upstream)
        except (Gone, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                writer.close()
                await writer.wait_closed()
            self._count(-1)


def _black_hole(port: int) -> list[socket.socket]:
    """A port whose queue is full and never served: the kernel drops whoever knocks."""
    door, *waiting = made = [socket.socket() for _ in range(3)]
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", port))
    door.listen(0)
    for sock in waiting:
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
    return made


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy in front of the server at `upstream` (its base_url), in a thread of its own."""
    with start_blocking_portal("asyncio") as portal:
        proxy = FaultProxy(upstream, portal)
        proxy.arm(())
        try:
            yield proxy
        finally:
            portal.call(proxy._end)
    for error in proxy.errors:
        raise error
