"""Runs a session on real endpoints: the thin asynchronous shell around `session.machine`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import anyio
import anyio.abc
import anyio.lowlevel

from disco.endpoints.base import Attempt, Endpoint
from disco.errors import EndpointFailure, FailureKind
from disco.request import Prefix, Request
from disco.session.effects import (
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    ParkAttempt,
    Release,
    StartAttempt,
)
from disco.session.events import Delta, Ended
from disco.session.machine import Session
from disco.session.record import RouteRecord

__all__ = ["LiveSession"]

CLOSE_S = 5.0  # an attempt that cannot be closed for so long is given up, and charged as it stands


class LiveSession:
    """One answer in progress.

    `run` belongs into a background task; `read` and `cancel` are the reader's side. Mutable: everything
    below the line in `__init__`.

    Args:
        session: the state machine, not started.
        endpoints: by name, every endpoint the plan names.
        request: what they are asked.
        on_done: called once, in the background task, when the answer is complete and charged.
        max_buffered: deltas the reader may leave unread before reading from endpoints pauses.
    """

    def __init__(
        self,
        session: Session,
        endpoints: Mapping[str, Endpoint],
        request: Request,
        *,
        on_done: Callable[[Session], None] | None = None,
        max_buffered: int = 100_000,
    ) -> None:
        self.session = session
        self.error: Exception | None = None
        self.record: RouteRecord | None = None  # set by `on_done`
        self.done = False
        self._endpoints = endpoints
        self._request = request
        self._on_done = on_done
        self._max_buffered = max_buffered
        # ---
        self._out: list[Delta] = []
        self._reader: anyio.Event | None = None  # set when there is something to read
        self._room: anyio.Event | None = None  # set when the reader made room
        self._poke = anyio.Event()  # set when the timer must look at `wake_at` again
        self._timer_at = float("inf")
        self._group: anyio.abc.TaskGroup | None = None
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._attempts: dict[int, Attempt] = {}
        self._cancel_requested = False

    # ------------------------------------------------------------------ the reader's side

    async def read(self) -> list[Delta]:
        """Everything released since the last call, at least one delta; empty at the end of the answer.

        Raises:
            Exception: what ended the answer, once all text before it has been read.
        """
        while not self._out:
            if self.done:
                if self.error is not None:
                    raise self.error
                return []
            self._reader = anyio.Event()
            await self._reader.wait()
        batch, self._out = self._out, []
        if self._room is not None:
            self._room.set()
            self._room = None
        return batch

    def cancel(self) -> None:
        """The reader goes away. Idempotent; does not wait."""
        if not self.done and not self._cancel_requested:
            self._cancel_requested = True
            self._poke.set()

    @property
    def buffered_tokens(self) -> float:
        """Tokens of the answer that are written and not read yet: held for their pace, or waiting for `read`."""
        return self.session.playback.banked_tokens + sum(delta.tokens for delta in self._out)

    async def wait_done(self) -> None:
        """Return once nothing of the answer runs any more."""
        while not self.done:
            self._reader = anyio.Event()
            await self._reader.wait()

    # ------------------------------------------------------------------ the background task

    async def run(self) -> None:
        """Drive the session to its end. Never raises, except for cancellation."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._apply(self.session.start(anyio.current_time()))
                await self._keep_time()
        finally:
            if not self.done:  # the client is closing: whoever still reads must not wait for ever
                self.session.cancelled(anyio.current_time())
                self._close(None)

    async def _keep_time(self) -> None:
        session = self.session
        while not self.done:
            if self._cancel_requested:
                self._cancel_requested = False
                self._apply(session.cancelled(anyio.current_time()))
                continue
            self._timer_at = session.wake_at
            with anyio.move_on_at(self._timer_at):
                await self._poke.wait()
            self._poke = anyio.Event()
            now = anyio.current_time()
            if now >= session.wake_at:
                self._apply(session.woken(now))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Release:
                self._out.extend(effect.deltas)
                if self._reader is not None:
                    self._reader.set()
                    self._reader = None
            elif type(effect) is StartAttempt:
                assert self._group is not None
                self._scopes[effect.attempt] = anyio.CancelScope()
                self._group.start_soon(self._pump, effect.attempt, effect.endpoint, effect.prefix)
            elif type(effect) is CancelAttempt:
                self._scopes[effect.attempt].cancel()
            elif type(effect) is ParkAttempt:
                attempt = self._attempts.get(effect.attempt)
                if attempt is None or not attempt.park():
                    self._scopes[effect.attempt].cancel()
            elif type(effect) is Finish:
                self._close(None)
            elif type(effect) is Fail:
                self._close(effect.error)
        if self.session.wake_at < self._timer_at:
            self._poke.set()

    def _close(self, error: Exception | None) -> None:
        self.error = error
        self.done = True
        self._poke.set()
        if self._on_done is not None:
            self._on_done(self.session)
        if self._reader is not None:
            self._reader.set()
            self._reader = None

    async def _pump(self, number: int, name: str, prefix: Prefix) -> None:
        """Carry one attempt's events into the machine until it ends or is cancelled."""
        session, now = self.session, _loop_clock()
        attempt = self._attempts[number] = self._endpoints[name].open(self._request, prefix)
        handed_on = False
        try:
            with self._scopes[number]:
                async for event in attempt:
                    if type(event) is Ended:
                        self._apply(session.ended(number, event, now()))
                        continue
                    assert isinstance(event, list)
                    self._apply(session.deltas(number, event, now()))
                    if not handed_on and self._out:
                        # What came in the same packet is read without ever waiting: without this turn
                        # of the loop the first token would reach the reader behind all of it.
                        handed_on = True
                        await anyio.lowlevel.checkpoint()
                    if len(self._out) > self._max_buffered:
                        self._room = self._room or anyio.Event()
                        await self._room.wait()
        except EndpointFailure as failure:
            self._apply(session.failed(number, failure, anyio.current_time()))
        except Exception as error:  # noqa: BLE001 - a broken endpoint must not take the answer with it
            crash = EndpointFailure(FailureKind.CRASHED, error)
            self._apply(session.failed(number, crash, anyio.current_time()))
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await attempt.aclose()
            self._apply(session.stopped(number, attempt.usage, anyio.current_time()))


def _loop_clock() -> Callable[[], float]:
    """`anyio.current_time`, without finding out for every token anew which event loop is running."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:  # trio
        return anyio.current_time
