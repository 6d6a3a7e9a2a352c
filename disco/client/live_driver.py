"""Run a session on real endpoints: the asynchronous shell around `session.machine`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel

from disco.endpoints.background_tasks import keep_interrupts_out
from disco.endpoints.contract import Attempt, Endpoint
from disco.errors import DiscoError, EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Alive, Delta, Ended, Parked, Progress, Started, Traffic, Usage
from disco.request import Request
from disco.session.effects import (
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    FollowAttempt,
    ParkAttempt,
    PauseAttempt,
    Release,
    ResumeAttempt,
    StartAttempt,
)
from disco.session.failed_answer import explained
from disco.session.machine import Session
from disco.session.records.route_record import RouteRecord

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.observed.statistics import PlannedStarts

__all__ = ["LiveSession"]

# A timer that fires this much too late means that this process was suspended (Ctrl-Z, a debugger, a frozen
# container). What its endpoints wrote meanwhile still has to be read.
STOOD_STILL_S = 0.5
CLOSE_S = 5.0  # an attempt that takes longer to close is given up, and charged for its usage so far
MAX_BUFFERED_BYTES = 16 * 2**20
# Memory that a delta takes besides its text. A vendor's chunk is a tree of models.
_DELTA_BYTES, _CHUNK_BYTES = 256, 2560

_log = logging.getLogger("disco")


class LiveSession:
    """One answer in progress.

    `run` must run in a background task. `read` and `cancel` are for the reader. Mutable: everything
    below the line in `__init__`.

    Args:
        session: the state machine, not started.
        endpoints: every endpoint that the plan names, by name.
        request: the request that the attempts get.
        on_done: called once, in the background task, when the answer is complete and charged.
        planned: is told which starts have reached their endpoints.
        max_buffered_bytes: how much may wait for the reader, held for its pace or not read yet, before the writer
            has to wait. Memory, not text: a server's chunk takes some 2.5 KB, a device's token 250 bytes.
    """

    def __init__(
        self,
        session: Session,
        endpoints: Mapping[str, Endpoint],
        request: Request,
        *,
        on_done: Callable[[Session], None] | None = None,
        planned: PlannedStarts | None = None,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.session = session
        self.error: Exception | None = None
        self.written: Callable[[], RouteRecord] | None = None  # set by `on_done`; writes the record once
        self.done = False
        self.on_change: Callable[[], None] | None = None  # called when text waits or the answer has ended
        self._endpoints = endpoints
        self._request = request
        self._on_done = on_done
        self._planned = planned
        self._max_buffered_bytes = max_buffered_bytes
        # ---
        self._out: list[Delta] = []
        self._out_bytes = 0
        self._delta_bytes = _DELTA_BYTES  # of the newest delta, without its text
        self._changed: anyio.Event | None = None  # set when text waits or the answer has ended
        self._room: anyio.Event | None = None  # set when the reader has made room
        self._held: set[int] = set()  # attempts that wait for room in the buffer
        self._poke = anyio.Event()  # set when the timer must read `wake_at` again
        self._timer_at = float("inf")
        self._group: anyio.abc.TaskGroup | None = None
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._scope_of_load: dict[str, anyio.CancelScope] = {}
        self._attempts: dict[int, Attempt] = {}
        self._cancel_requested = False
        self._schedule: Callable[[Callable[[], None]], object] | None = None  # from any thread

    @property
    def record(self) -> RouteRecord | None:
        """The route record, once the answer is complete. It is made at first access, as few need it."""
        return None if self.written is None else self.written()

    # ------------------------------------------------------------------ the reader's side

    async def read(self) -> list[Delta]:
        """Return everything released since the last call: at least one delta; empty at the end of the answer.

        Raises:
            Exception: the error that ended the answer, once all text before it has been read.
        """
        while not (batch := self.take()) and not self.done:
            await self._change()
        return batch

    def take(self) -> list[Delta]:
        """As `read`, but does not wait: empty also where nothing has been released."""
        if not self._out:
            if self.done and self.error is not None:
                raise self.error
            return []
        batch, self._out, self._out_bytes = self._out, [], 0
        if self._room is not None:
            self._room.set()
            self._room = None
        return batch

    @property
    def lives(self) -> list[LiveSession]:
        """The sessions of the answer: this one."""
        return [self]

    @property
    def was_cancelled(self) -> bool:
        """Whether the answer was stopped, so that its end must not look like that of a complete answer."""
        ending = self.session.ending
        return ending.cancelled and ending.reason == "cancelled"  # a server may give that reason, too

    def cancel(self) -> None:
        """Cancel the answer: the reader no longer needs it. Idempotent; does not wait."""
        if not self.done and not self._cancel_requested:
            self._cancel_requested = True
            self._poke.set()

    def abandon(self) -> None:
        """Cancel the answer from any thread, or from a destructor, when its stream was dropped. Never raises."""
        if self.done:
            return
        self._cancel_requested = True
        if self._schedule is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with everything in it
                self._schedule(self._wake_timer)

    def _wake_timer(self) -> None:
        self._poke.set()

    @property
    def buffered_tokens(self) -> float:
        """Tokens of the answer that are written but not read: held for their pace, or waiting for `read`."""
        return self.session.transcript.playback.banked_tokens + sum(delta.tokens for delta in self._out)

    async def wait_done(self) -> None:
        """Return once no task of the answer runs any more."""
        while not self.done:
            await self._change()

    async def _change(self) -> None:
        # One event for all readers: one task may close a stream while another reads it.
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _wake_readers(self) -> None:
        if self.on_change is not None:
            self.on_change()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # ------------------------------------------------------------------ the background task

    async def run(self) -> None:
        """Drive the session to its end. Never raises, except for cancellation."""
        self._schedule = _scheduler()
        keep_interrupts_out(self._pump)
        keep_interrupts_out(self._load)
        ended_by: Exception = DiscoError("The client was closed before the answer was complete.")
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._apply(self.session.start(anyio.current_time()))
                for name in self.session.plan.loading(self.session.candidates):
                    group.start_soon(self._load, name)
                await self._keep_time()
        except Exception as error:  # noqa: BLE001 - a defect must not end the client's other answers
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            _log.error("An answer was given up: %s in disco itself.", type(error).__name__)
            ended_by = error
        finally:
            if not self.done:  # a waiting reader must not wait for ever
                self.session.cancelled(anyio.current_time())
                self._close(ended_by)

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
            # The session may ask to be woken earlier than the timer was set for.
            if now - min(self._timer_at, session.wake_at) > STOOD_STILL_S:
                self._apply(session.resumed(now))
            for number in self._held:
                session.waits(number, now)
            if now >= session.wake_at:
                self._apply(session.woken(now))

    async def _load(self, name: str) -> None:
        """Have an endpoint load its model while others write, and tell the session once it is loaded."""
        with anyio.CancelScope() as self._scope_of_load[name]:
            if self.done:
                return
            try:
                await self._endpoints[name].load()
            except Exception as error:  # noqa: BLE001 - an attempt that needs the model reports it
                _log.debug("Endpoint %r could not load its model: %s.", name, type(error).__name__)
                return
            if not self.done:
                self._apply(self.session.loaded(name, anyio.current_time()))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Release:
                self._out.extend(effect.deltas)
                self._out_bytes += sum(map(_bytes, effect.deltas))
                self._wake_readers()
            elif type(effect) is StartAttempt:
                assert self._group is not None
                self._scopes[effect.attempt] = anyio.CancelScope()
                self._group.start_soon(self._pump, effect)
            elif type(effect) is CancelAttempt:
                self._scopes[effect.attempt].cancel()
            elif type(effect) is ParkAttempt:
                attempt = self._attempts.get(effect.attempt)
                if attempt is None or not (attempt.follow() if effect.follows else attempt.park()):
                    self._scopes[effect.attempt].cancel()
            elif type(effect) is FollowAttempt:
                attempt = self._attempts.get(effect.attempt)
                if attempt is not None:
                    attempt.extend(effect.prefix)
            elif type(effect) is PauseAttempt:
                self._attempts[effect.attempt].pause()
            elif type(effect) is ResumeAttempt:
                self._attempts[effect.attempt].resume()
            elif type(effect) is Finish:
                self._close(None)
            elif type(effect) is Fail:
                self._close(explained(effect.error, self.session, self._endpoints))
        if self.session.wake_at < self._timer_at:
            self._poke.set()

    def _close(self, error: Exception | None) -> None:
        self.error = error
        self.done = True
        if self._planned is not None:
            self._planned.close()
        for scope in self._scope_of_load.values():
            scope.cancel()  # the answer does not wait for a model; it loads on
        self._poke.set()
        self._wake_readers()
        if self._on_done is not None:
            try:
                self._on_done(self.session)
            except Exception as defect:  # noqa: BLE001 - a missing record must not fail a complete answer
                _log.error(
                    "An answer's route record was not written: %s in disco itself.",
                    type(defect).__name__,
                )

    async def _pump(self, start: StartAttempt) -> None:
        """Pass one attempt's events to the session until the attempt ends or is cancelled."""
        session, now, number = self.session, _loop_clock(), start.attempt
        request = self._request if start.max_tokens is None else self._request.limited(start.max_tokens)
        if start.cap is not None:
            request = request.capped(start.cap)
        if start.drafts is not None:
            request = replace(request, drafts=start.drafts)
        assist = session.plan.assist
        if assist is not None and request.refined is not None and start.endpoint == assist.heir:
            request = replace(request, messages=request.refined)
        earlier = sum(a.candidate.name == start.endpoint for a in session.attempts[:number])
        if earlier:
            is_last = (
                earlier >= session.config.max_retries or start.endpoint in session.ending.failures.plainly
            )
            request = replace(request, retries=earlier, is_last=is_last)
        attempt: Attempt | None = None
        handed_on = has_ended = False
        try:
            with self._scopes[number] as scope:
                attempt = self._attempts[number] = self._open(start, request)
                if self._planned is not None:
                    self._planned.reached(start.endpoint)
                async for event in attempt:
                    if not isinstance(event, list):
                        has_ended = has_ended or type(event) is Ended
                        self._apply(self._tell(number, event, now()))
                        continue
                    self._delta_bytes = _DELTA_BYTES if event[-1].raw is None else _CHUNK_BYTES
                    self._apply(session.deltas(number, event, now()))
                    if not handed_on and self._out:
                        # Deltas of one packet are read without waiting. Without this turn of the loop, the reader
                        # would get the first token only after all of them.
                        handed_on = True
                        await anyio.lowlevel.checkpoint()
                    if self._is_full:
                        await self._wait_for_room(number)
            if not (has_ended or scope.cancel_called):
                self._apply(session.failed(number, _no_end(start.endpoint), now()))
        except EndpointFailure as failure:
            self._apply(session.failed(number, failure, anyio.current_time()))
        except Exception as error:  # noqa: BLE001 - a broken endpoint must not end the answer
            crash = EndpointFailure(FailureKind.CRASHED, error)
            self._apply(session.failed(number, crash, anyio.current_time()))
        finally:
            usage, traffic, seam, speculation = Usage(), Traffic(), None, None
            if attempt is not None:
                with (
                    anyio.move_on_after(CLOSE_S, shield=True),
                    contextlib.suppress(Exception),  # charged for its usage so far, as after CLOSE_S
                ):
                    await attempt.aclose()
                usage, traffic, seam = attempt.usage, attempt.traffic, attempt.seam
                speculation = attempt.speculation
            now_at = anyio.current_time()
            self._apply(
                session.stopped(number, usage, now_at, traffic=traffic, seam=seam, speculation=speculation)
            )

    def _open(self, start: StartAttempt, request: Request) -> Attempt:
        endpoint = self._endpoints[start.endpoint]
        if request.redaction is not None:
            from disco.endpoints.redaction import redacting  # noqa: PLC0415 - rarely needed

            endpoint, request = redacting(endpoint, request)
        if start.wants:
            return endpoint.open(request, start.prefix, wants=start.wants)
        return endpoint.open(request, start.prefix)

    def _tell(
        self, number: int, event: Started | Alive | Progress | Parked | Ended, now: float
    ) -> list[Effect]:
        """Pass an event other than deltas to the session."""
        if type(event) is Ended:
            return self.session.ended(number, event, now)
        if type(event) is Parked:
            return self.session.parked(number, event, now)
        if type(event) is Progress:
            return self.session.progressed(number, event, now)
        if type(event) is Alive:
            return self.session.alive(number, event, now)
        return self.session.began(number, now)

    @property
    def _is_full(self) -> bool:
        playback = self.session.transcript.playback
        banked = playback.banked_tokens if self.session.config.streams else 0.0
        if self._out_bytes + banked * self._delta_bytes <= self._max_buffered_bytes:
            return False
        # Text behind a gate does not leave when the reader makes room: holding the writer would hold it for ever.
        return playback.gate is None or self._out_bytes > self._max_buffered_bytes

    async def _wait_for_room(self, number: int) -> None:
        """Hold the writer until the reader has made room. None of its clocks for silence runs out meanwhile."""
        self._held.add(number)
        try:
            while self._is_full:
                self._room = self._room or anyio.Event()
                await self._room.wait()
            self.session.waits(number, anyio.current_time())
        finally:
            self._held.discard(number)


def _no_end(endpoint: str) -> EndpointFailure:
    """Return the failure of an attempt that stopped without an end event."""
    error = IncompleteAnswerError(
        f"Endpoint {endpoint!r} stopped without reporting that its answer is complete. An attempt has to end with "
        "Ended, or raise EndpointFailure."
    )
    return EndpointFailure(FailureKind.INCOMPLETE, error)


def _bytes(delta: Delta) -> int:
    return len(delta.text) + (_DELTA_BYTES if delta.raw is None else _CHUNK_BYTES)


def _loop_clock() -> Callable[[], float]:
    """Return the clock of the running event loop: `anyio.current_time`, without a look-up at every token."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:  # trio
        return anyio.current_time


def _scheduler() -> Callable[[Callable[[], None]], object]:
    """Return a function that schedules a callback in the running event loop, from any thread."""
    native: Any = anyio.lowlevel.current_token().native_token
    schedule = getattr(native, "call_soon_threadsafe", None)  # asyncio's loop; else trio's token
    return native.run_sync_soon if schedule is None else schedule  # type: ignore[no-any-return]
