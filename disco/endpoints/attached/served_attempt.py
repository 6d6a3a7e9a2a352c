"""One answer of the model that a `disco serve` of this user runs."""

from __future__ import annotations

from typing import Final

import anyio

from disco.endpoints.attached.announcement import Announcement
from disco.endpoints.attached.messages import order_of, read_line
from disco.endpoints.attached.proven_connection import ProvenConnection, ServeGoneError
from disco.endpoints.contract import Attempt, Event, seam_behind
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.events import Ended, Progress, SeamReport, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["OrderRefusedError", "ServedAttempt"]

_LONGEST_LINE: Final = 16 * 2**20
_CLOSE_S: Final = 1.0
_BUSY: Final = 429
_PROGRESS: Final = "progress"
_NOT_THIS_ONE: Final = frozenset({400, 413})  # statuses of the request, not of the server


class OrderRefusedError(Exception):
    """The server is there, but cannot take this request: it cannot be sent, is too long for it, or is malformed."""


class ServedAttempt(Attempt):
    """See `Attempt`.

    Raises `ServeGoneError` where the server is gone, and `OrderRefusedError` before the first event where it cannot
    take the request: the caller decides what that means.

    Mutable: everything below the blank line.
    """

    def __init__(
        self,
        announcement: Announcement,
        request: Request,
        prefix: Prefix,
        wants: frozenset[str],
        *,
        name: str,
    ) -> None:
        self._announcement = announcement
        self._request = request
        self._prefix = prefix
        self._wants = wants
        self._name = name

        self._connection: ProvenConnection | None = None
        self._lines: list[bytes] = []  # whole ones that are not read yet, the next one last
        self._rest = b""
        self._usage = Usage()
        self._progress: Progress | None = None
        self._text_chars = 0
        self._over = False
        self._waiting: anyio.CancelScope | None = None
        self._idle: anyio.Event | None = None

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        self._idle = anyio.Event()
        try:
            with anyio.CancelScope() as self._waiting:
                event = await self._next()
                if isinstance(event, Ended):
                    self._over = True
                    await self._leave()
                return event
            raise StopAsyncIteration  # closed by another task
        except BaseException:
            self._over = True
            await self._leave()
            raise
        finally:
            self._waiting = None
            self._idle.set()

    async def aclose(self) -> None:
        self._over = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._idle is not None:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._idle.wait()
        await self._leave()

    @property
    def usage(self) -> Usage:
        return self._usage

    @property
    def progress(self) -> Progress | None:
        return self._progress

    @property
    def traffic(self) -> Traffic:
        return Traffic() if self._connection is None else self._connection.traffic

    @property
    def seam(self) -> SeamReport | None:
        return seam_behind(self._prefix, self._text_chars)

    async def _next(self) -> Event:
        if self._connection is None:
            self._connection = await ProvenConnection.to(self._announcement)
            await self._begin(self._connection)
        while True:
            event = await self._received(self._connection)
            if not isinstance(event, Progress) or _PROGRESS in self._wants:
                return event

    async def _received(self, connection: ProvenConnection) -> Event:
        try:
            item, usage = read_line(await self._line(connection))
        except ValueError as error:
            reason = LocalModelError(f"Endpoint {self._name!r} got a line that breaks the protocol.")
            raise EndpointFailure(FailureKind.GARBAGE, reason) from error
        if item is None:
            raise ServeGoneError("it is shutting down")
        self._usage = usage
        if isinstance(item, EndpointFailure):
            raise item
        if isinstance(item, Progress):
            self._progress = item
        elif isinstance(item, list):
            self._text_chars += sum(len(delta.text) for delta in item)
        return item

    async def _begin(self, connection: ProvenConnection) -> None:
        """Send the order.

        Raises:
            ServeGoneError: the server is gone, or takes no request any more.
            OrderRefusedError: it cannot take this one.
            EndpointFailure: the server has too much to do.
        """
        try:
            # Progress is asked for in any case: with it comes what an attempt that is called off has read so far.
            order = order_of(self._request, self._prefix, self._wants | {_PROGRESS})
        except (TypeError, ValueError) as error:
            raise OrderRefusedError("it has a value that JSON cannot represent") from error
        status = await connection.order(order)
        if status == _BUSY:
            message = (
                f"Endpoint {self._name!r}: the `disco serve` of this machine has too many requests. Send fewer at a "
                "time, or raise its --max-concurrent."
            )
            raise EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError(message))
        if status in _NOT_THIS_ONE:
            raise OrderRefusedError(f"the server refuses it with status {status}")
        if status != 200:  # it is shutting down, or has another protocol
            raise ServeGoneError(f"it refuses with status {status}")

    async def _line(self, connection: ProvenConnection) -> bytes:
        while not self._lines:
            piece = await connection.piece()
            if piece is None:
                raise ServeGoneError("its answer ended before it was complete")
            *whole, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > _LONGEST_LINE:
                raise ValueError("a line is too long")
            self._lines = [line for line in whole[::-1] if line]
        return self._lines.pop()

    async def _leave(self) -> None:
        """Close the connection, upon which the server stops its work for this answer."""
        if self._connection is not None:
            with anyio.CancelScope(shield=True):
                await self._connection.aclose()
