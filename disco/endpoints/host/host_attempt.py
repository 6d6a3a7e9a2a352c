"""One answer of an engine in a host process: its events come as OpenAI's chunks, and orders go to it while it runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import anyio

from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.contract import PAUSE_HOLD_S, Attempt, Event, seam_behind
from disco.endpoints.event_coding import delta_of, prefix_fields, speculation_of, usage_of
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import (
    Delta,
    Ended,
    Parked,
    Progress,
    SeamReport,
    SpeculationReport,
    Started,
    Traffic,
    Usage,
)
from disco.request import Prefix, Request

__all__ = ["HostAttempt", "Opening"]

_CLOSE_S: Final = 10.0
Mode = Literal["write", "park", "follow"]
Opening = Callable[[Callable[[], Mapping[str, Any]]], Awaitable[Attempt]]
"""Makes the attempt at the host once that runs; its argument makes the field `disco` when the request is sent."""


class HostAttempt(Attempt):
    """See `Attempt`. Made by `HostEndpoint.open`.

    What is asked of it before the request is sent goes with the request. What is asked later becomes an order, sent in
    the background, in order, once the host has begun to reply: from then on it knows the answer.

    Args:
        request, prefix, wants: as `Endpoint.open` has them.
        key: makes what the host finds the answer by; unlike any other.
        opening: see `Opening`.
        order: sends an order to the answer with this key.
        explained: makes the failure that the session sees; may wait a moment for what happened to the host.
        on_close: called once when the attempt has ended, with whether its answer is complete.
        tasks: run what is sent in the background.
        takes_orders: whether it can park, follow and pause.
    """

    # Mutable: everything below the blank line.

    def __init__(
        self,
        request: Request,
        prefix: Prefix,
        wants: frozenset[str],
        *,
        key: Callable[[], str],
        opening: Opening,
        order: Callable[[str, Mapping[str, Any]], Awaitable[None]],
        explained: Callable[[EndpointFailure], Awaitable[EndpointFailure]],
        on_close: Callable[[HostAttempt, bool], object],
        tasks: BackgroundTasks,
        takes_orders: bool = True,
    ) -> None:
        self._takes_orders = takes_orders
        self._request = request
        self._wants = wants
        self._key = key
        self._opening = opening
        self._order = order
        self._explained = explained
        self._on_close = on_close
        self._tasks = tasks

        self._prefix = prefix
        self._number = 0  # of the text that the follower was given last
        self._mode: Mode = "write"
        self._inner: Attempt | None = None
        self._left: Attempt | None = None  # the one before
        self._id = ""
        self._is_sent = False  # the request is on its way, so that what is asked now is an order
        self._known = anyio.Event()  # the host knows the answer
        self._orders: deque[Mapping[str, Any]] = deque()
        self._sends = False
        self._ready: deque[Event] = deque()
        self._beginning = anyio.CancelScope()  # lets `aclose` end the wait for the host
        self._idle: anyio.Event | None = None  # set when no task is in that wait; None before it
        self._over = self._finished = self._reported = False
        self._announced = False
        self._paused_at: float | None = None
        self._is_parked = False
        self._progress: Progress | None = None
        self._used = Usage()
        self._traffic = Traffic()
        self._speculation: SpeculationReport | None = None
        self._clock_s = 0.0  # from the clock that programs share to the event loop's
        self._earlier: list[Usage] = []  # of the requests before the newest
        self._logp: tuple[float, ...] = ()  # that no `Parked` has reported yet
        self._text_chars = 0

    async def __anext__(self) -> Event:
        if self._over and not self._ready:
            self._release()
            raise StopAsyncIteration
        try:
            while not self._ready:
                if self._inner is None:
                    await self._begin()
                await self._read()
            event = self._ready.popleft()
            if isinstance(event, Ended):
                await self._end()
            return event
        except BaseException:
            self._stop()
            raise

    async def _begin(self) -> None:
        self._idle = anyio.Event()
        try:
            with self._beginning:
                if self._left is not None:
                    await self._left.aclose()
                await self._tasks.begin()
                self._inner = await self._opening(self._first)
        finally:
            self._idle.set()
        if self._over or self._inner is None:
            if self._inner is not None:
                await self._inner.aclose()
            raise StopAsyncIteration

    def _first(self) -> dict[str, Any]:
        """Return what the request says besides OpenAI's fields; it is on its way now."""
        self._id = self._key()
        self._is_sent = True
        request = self._request
        return {
            "id": self._id,
            "mode": self._mode,
            "number": self._number,
            "prefix": prefix_fields(self._prefix),
            "wants": sorted(self._wants),
            "classes": list(request.classes),
            "cap": request.cap,
            "drafts": request.drafts,
            "may_be_saved": request.may_be_saved,
        }

    async def _read(self) -> None:
        """Read what has come next into `_ready`."""
        assert self._inner is not None
        try:
            came = await self._inner.__anext__()
        except StopAsyncIteration:
            if self._over:
                raise
            error = IncompleteAnswerError("The host of the model has ended an answer without saying so.")
            raise await self._explained(EndpointFailure(FailureKind.INCOMPLETE, error)) from None
        except EndpointFailure as failure:
            body = getattr(failure.error, "body", None)
            if isinstance(body, Mapping) and isinstance(extras := body.get("disco"), Mapping):
                self._note_work(extras)
            self._stop()
            raise await self._explained(failure) from failure
        if self._over:
            raise StopAsyncIteration
        if not self._known.is_set():
            self._known.set()
            self._send_soon()
        if not isinstance(came, list):
            return  # the head of the response, and what servers say to show that they live
        deltas: list[Delta] = []
        for piece in came:
            chunk = piece.raw
            extras = (chunk.model_extra or {}).get("disco") if chunk is not None else None
            if not isinstance(extras, Mapping):
                continue
            self._note_work(extras)
            if chunk.choices:
                choice = chunk.choices[0].model_dump(exclude_unset=True, warnings=False)
                deltas.append(delta_of(choice, extras))
                continue
            if deltas:
                self._take(deltas)
                deltas = []
            self._note(extras)
        if deltas:
            self._take(deltas)

    def _note_work(self, extras: Mapping[str, Any]) -> None:
        if (used := extras.get("used")) is not None:
            self._used = usage_of(used)
        if (traffic := extras.get("traffic")) is not None:
            self._traffic = Traffic(*traffic)
        if (report := extras.get("speculation")) is not None:
            if self._speculation is None:
                self._clock_s = anyio.current_time() - time.monotonic()
            self._speculation = speculation_of(report, self._speculation)

    def _take(self, deltas: list[Delta]) -> None:
        self._text_chars += sum(len(delta.text) for delta in deltas)
        if self._mode == "write":
            self._ready.append(deltas)

    def _note(self, extras: Mapping[str, Any]) -> None:
        """Take an event that is no text."""
        if (cached := extras.get("started")) is not None and not self._announced:
            self._announced = True
            self._ready.append(Started(int(cached)))
        elif (told := extras.get("progress")) is not None:
            done, total, tps = told
            self._progress = Progress(int(done), int(total), float(tps))
            if "progress" in self._wants:
                self._ready.append(self._progress)
        elif "parked" in extras:
            self._logp += tuple(extras["parked"] or ())
            if self._mode == "follow" and extras.get("number") == self._number:
                logp, self._logp = self._logp, ()
                self._is_parked = True
                self._ready.append(Parked(self.usage, logp if "logp" in self._wants else None))
        elif (reason := extras.get("ended")) is not None:
            self._note_end(str(reason))

    def _note_end(self, reason: str) -> None:
        if self._mode == "follow":
            # The answer was complete before it could become a follower: it is asked for once more, as one.
            self._earlier.append(self._used)
            self._used = Usage()
            self._left, self._inner = self._inner, None
            self._is_sent, self._known = False, anyio.Event()
            self._orders.clear()
            return
        # It may have been complete before it could be parked: its prefill is kept all the same.
        reason = "parked" if self._mode == "park" else reason
        self._ready.append(Ended(reason, self.usage))

    async def _end(self) -> None:
        self._over = self._finished = True
        if self._inner is not None:
            await self._inner.aclose()
        self._release()

    # Orders

    def _tell(self, order: Mapping[str, Any], *, in_request: bool = False) -> None:
        """Send an order, unless the request says the same, which is not sent yet."""
        if in_request and not self._is_sent:
            return
        self._orders.append(order)
        if self._known.is_set():
            self._send_soon()

    def _send_soon(self) -> None:
        if self._orders and not self._sends and self._tasks.is_open:
            self._sends = True
            self._tasks.start_soon(self._send)

    async def _send(self) -> None:
        try:
            while self._orders and not self._over:
                await self._order(self._id, self._orders.popleft())
        finally:
            self._sends = False

    def park(self) -> bool:
        return self._turn("park")

    def follow(self) -> bool:
        return self._turn("follow")

    def _turn(self, mode: Mode) -> bool:
        if self._over or not self._takes_orders:
            return False
        self._mode, self._paused_at = mode, None
        self._is_parked = self._is_parked and mode == "follow"
        if any(isinstance(event, Ended) for event in self._ready):
            self._ready = deque(event for event in self._ready if not isinstance(event, Ended | list))
            self._note_end("parked")
        else:
            self._ready = deque(event for event in self._ready if not isinstance(event, list))
            self._tell({"do": mode}, in_request=True)
        return True

    def extend(self, prefix: Prefix) -> bool:
        if self._over or self._mode != "follow":
            return False
        if prefix != self._prefix:
            self._prefix = prefix
            self._number += 1
            self._is_parked = False
            order = {"do": "extend", "prefix": prefix_fields(prefix), "number": self._number}
            self._tell(order, in_request=True)
        return True

    def pause(self) -> bool:
        begun = self._idle is not None
        if not self._takes_orders or self._over or self._mode != "write" or not begun or self._scores:
            return False
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._tell({"do": "pause"})
        return True

    def resume(self) -> bool:
        if self._over or self._paused_at is None:
            return False
        self._paused_at = None
        self._tell({"do": "resume"})
        return True

    @property
    def _scores(self) -> bool:
        return bool(self._request.classes and "label_scores" in self._wants and not self._prefix)

    @property
    def is_working(self) -> bool:
        """Whether another attempt would wait for it: not while a follower waits, or after a long pause."""
        if self._idle is None or self._over or self._is_parked:
            return False
        return self._paused_at is None or time.monotonic() - self._paused_at < PAUSE_HOLD_S

    # The end

    def _stop(self) -> None:
        self._over = True
        self._release()

    async def aclose(self) -> None:
        self._over = True
        self._ready.clear()
        if self._inner is not None:
            await self._inner.aclose()
        elif self._idle is not None and not self._idle.is_set():
            self._beginning.cancel()
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._idle.wait()
        self._release()

    def _release(self) -> None:
        if not self._reported:
            self._reported = True
            self._on_close(self, self._finished)

    @property
    def usage(self) -> Usage:
        if not self._earlier:
            return self._used
        # What was computed, and of the cached tokens only those that another attempt computed.
        computed = cached = written = own = 0
        for one in (*self._earlier, self._used):
            computed += one.prompt_tokens - one.cached_tokens
            cached += max(0, one.cached_tokens - own)
            written += one.completion_tokens
            own = one.prompt_tokens or own
        return Usage(computed + cached, written, cached)

    @property
    def progress(self) -> Progress | None:
        return self._progress

    @property
    def traffic(self) -> Traffic:
        """Return the bytes that the host sent for it to another machine, and received."""
        return self._traffic

    @property
    def speculation(self) -> SpeculationReport | None:
        return None if self._speculation is None else self._speculation.moved(self._clock_s)

    @property
    def seam(self) -> SeamReport | None:
        return seam_behind(self._prefix, self._text_chars)
