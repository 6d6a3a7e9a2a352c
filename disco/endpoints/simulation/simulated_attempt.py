"""One attempt at a simulated endpoint, and the turns of attempts at a simulated device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
import numpy as np

from disco.endpoints.contract import PAUSE_HOLD_S, Attempt, Event
from disco.endpoints.simulation.simulated_script import (
    Scripted,
    log_probabilities,
    script,
    seam_report,
    swallowed_tokens,
)
from disco.endpoints.simulation.simulated_text import prompt_pieces, tokenise
from disco.errors import EndpointFailure
from disco.events import Delta, DeltaKind, Ended, Parked, Progress, SeamReport, Started, Usage
from disco.request import Prefix, Request

if TYPE_CHECKING:
    from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint

__all__ = ["SimulatedAttempt", "Slots"]


class Slots:
    """The attempts that may work now: any number at a server; on a device only the one that came first."""

    # Mutable: present (in order of arrival), following (parked, and given more text from time to time), aside (paused,
    # and displaced by others), kept (what a device has in its KV cache).

    def __init__(self, *, one_at_a_time: bool) -> None:
        self.present: list[SimulatedAttempt] = []
        self.following: list[SimulatedAttempt] = []
        self.aside: list[SimulatedAttempt] = []
        self.kept: list[str] = []
        self.one_at_a_time = one_at_a_time

    def may_work(self, attempt: SimulatedAttempt) -> bool:
        if self.one_at_a_time and anyio.current_time() >= self.present[0].held_until:
            self.present[0].give_way()
        return not self.one_at_a_time or self.present[0] is attempt

    def look_again(self) -> None:
        for attempt in self.present:
            attempt.look_again()

    def leave(self, attempt: SimulatedAttempt, kept: list[str] | None) -> None:
        if attempt not in self.present:
            return
        self.present.remove(attempt)
        if self.one_at_a_time:
            if kept is not None:
                self.kept = kept
            if self.present:
                self.present[0].look_again()

    def cached(self, pieces: list[str]) -> int:
        """Return how many of the first `pieces` need no prefill; the last always does, to get its logits."""
        same = 0
        for new, old in zip(pieces, self.kept, strict=False):
            if new != old:
                break
            same += 1
        return min(same, len(pieces) - 1)


class SimulatedAttempt(Attempt):
    """One run of a script; made by `SimulatedEndpoint.open`."""

    # Mutable: state and everything after it. A waiting attempt is in the device's queue.

    def __init__(
        self,
        endpoint: SimulatedEndpoint,
        slots: Slots,
        request: Request,
        prefix: Prefix,
        rng: np.random.Generator,
        wants: frozenset[str] = frozenset(),
    ) -> None:
        self._name = endpoint.name
        self._place = endpoint.place
        self._profile = endpoint.profile
        self._slots = slots
        self._request = request
        self._prefix = prefix
        self._rng = rng
        self._reports = "progress" in wants and endpoint.place == "device"
        self._gives_logp = "logp" in wants and endpoint.profile.mean_logp is not None
        self._state: Literal["new", "waiting", "working", "following", "aside", "done"] = "new"
        self._mode: Literal["write", "park", "follow"] = "write"
        self._announced = False
        self._read: Prefix | None = None  # a follower's prefix when its turn last came
        self._earlier = Usage()  # a follower's usage before that turn
        self._read_tokens = 0  # tokens that the follower had read then
        self._changed: anyio.Event | None = None  # set to make a task that waits in __anext__ check again
        self._events: Iterator[Scripted] = iter(())
        self._ahead: Scripted | None = None  # taken from the script, not delivered yet
        self._started_at = 0.0
        self._pieces: list[str] = []
        self._cached = 0
        self._written: list[str] = []
        self._paused_at = math.inf
        self._displaced = False  # the cache has served others since the attempt was paused
        self._read_again = 0  # tokens that were lost and read again
        self._known = ""  # text of the answer whose probability is reported, or will not be
        self._final: Usage | None = None

    async def __anext__(self) -> Event:
        if self._state == "done":
            raise StopAsyncIteration
        if self._state == "new":
            self._state = "waiting"
            self._slots.present.append(self)
        try:
            await anyio.lowlevel.checkpoint()
            event = await self._due()
            if isinstance(event, EndpointFailure):
                raise event
        except BaseException:
            self._finish()
            raise
        if isinstance(event, Ended):
            if event.finish_reason != "parked" and event.usage is not None:
                event = replace(event, usage=self._charged(event.usage))
            self._finish(event.usage)
        elif isinstance(event, list):
            return self._wrote(event)
        return event

    def _wrote(self, deltas: list[Delta]) -> list[Delta]:
        content = [delta for delta in deltas if delta.kind is not DeltaKind.ROLE]
        if self._gives_logp and content:
            begin = self._prefix.tokens + len(self._written)
            values = log_probabilities(self._profile, self._request, begin, len(content))
            deltas = [replace(delta, logp=(value,)) for delta, value in zip(content, values, strict=True)]
        self._written += (delta.text for delta in content)
        return deltas

    async def _due(self) -> Event | EndpointFailure:
        """Wait for the next event of the script."""
        while True:
            if self._state == "done":  # closed by another task
                raise StopAsyncIteration
            if self._state == "waiting":
                if not self._slots.may_work(self):
                    await self._wait(self._slots.present[0].held_until)
                    continue
                if self._displaced:
                    self._go_on()
                    continue
                self._start()
                if self._place == "device" and not self._announced:
                    self._announced = True
                    return Started(self._cached)
            if self._state == "following":
                if self._mode == "follow" and self._read == self._prefix:
                    await self._wait(math.inf)
                    continue
                if self._mode == "park":
                    return Ended("parked", self.usage)
                self._state = "waiting"
                self._slots.following.remove(self)
                self._slots.present.append(self)
                continue
            if self._state == "aside":
                await self._wait(math.inf)
                continue
            if self._mode != "write" and self._written:
                if (parked := self._park_now()) is not None:
                    return parked
                continue
            due_at, event = self._next()
            if anyio.current_time() < due_at:
                await self._wait(due_at)
                continue
            if self._paused_at < due_at and not isinstance(event, Progress):
                self._slots.look_again()  # those who wait learn how long
                await self._wait(math.inf)
                continue
            self._ahead = None
            if isinstance(event, Progress):
                return event
            if self._mode != "write" and not isinstance(event, EndpointFailure):
                if isinstance(event, list) and event[0].kind is DeltaKind.ROLE:
                    continue
                if (parked := self._park_now(read=True)) is not None:
                    return parked
                continue
            return event

    def _park_now(self, *, read: bool = False) -> Ended | Parked | None:
        """Keep the prompt, which is read, and free the device for other attempts, whatever was written.

        Returns None for a follower that was given more text meanwhile.
        """
        usage = self._charged(Usage(len(self._pieces), 0, self._cached)) if read else self.usage
        if self._mode == "park":
            return Ended("parked", usage)
        self._earlier, self._read_tokens, self._read_again = usage, len(self._pieces), 0
        self._slots.leave(self, self._pieces)
        self._state = "following"
        self._slots.following.append(self)
        self._written = []
        return Parked(usage, self._agreement()) if self._read == self._prefix else None

    def _agreement(self) -> tuple[float, ...] | None:
        """Return the log probabilities of the tokens that a follower has read since it last reported them."""
        assert self._read is not None
        if not self._gives_logp:
            return None
        known_chars, pieces = self._read.shared_chars(self._known), tokenise(self._read.sent)
        begins = accumulate(map(len, pieces), initial=0)
        first = sum(begin < known_chars for begin in islice(begins, len(pieces)))
        self._known = self._read.sent
        return log_probabilities(self._profile, self._request, first, len(pieces) - first)

    async def _wait(self, until: float) -> None:
        self._changed = anyio.Event()
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()

    def look_again(self) -> None:
        """Wake the task that waits in `__anext__`, if there is one."""
        if self._changed is not None:
            self._changed.set()

    def _start(self) -> None:
        self._state = "working"
        self._pieces = prompt_pieces(self._request.messages, self._prefix)
        self._cached = self._slots.cached(self._pieces)
        if self._read is None and self._mode != "follow":
            self._known = self._prefix.sent
        self._read, self._ahead = self._prefix, None
        self._started_at = anyio.current_time()
        self._events = script(
            self._profile,
            self._request,
            self._prefix,
            self._rng,
            endpoint=self._name,
            prompt_tokens=len(self._pieces),
            cached_tokens=self._cached,
            progress=self._reports,
        )

    def _next(self) -> tuple[float, list[Delta] | Progress | Ended | EndpointFailure]:
        """Return the next event of the script, and when it is due, s."""
        if self._ahead is None:
            self._ahead = next(self._events)
        return self._started_at + self._ahead[0], self._ahead[1]

    @property
    def held_until(self) -> float:
        """Until when the device stays free for the attempt, s: it is inf unless the attempt stands still, paused."""
        if self._paused_at == math.inf or self._state != "working":
            return math.inf
        due_at, event = self._next()
        return math.inf if isinstance(event, Progress) else max(self._paused_at, due_at) + PAUSE_HOLD_S

    def give_way(self) -> None:
        """Leave the device, paused, to the next attempt."""
        self._slots.leave(self, self._kept())
        self._slots.aside.append(self)
        self._state, self._displaced = "aside", True

    def _kept(self) -> list[str]:
        """Return what the device has read of the attempt's prompt and answer."""
        if not self._written:
            return self._pieces[: self._used_now().prompt_tokens]
        return self._pieces + tokenise(self._prefix.withheld) + self._written

    def _go_on(self) -> None:
        """Go on with the script, once what others have displaced is read again."""
        kept = self._kept()
        lost = len(kept) - self._slots.cached(kept)
        self._read_again += lost
        self._state, self._displaced = "working", False
        self._delay(anyio.current_time() + lost / self._profile.prefill_tps)

    def _delay(self, until: float) -> None:
        """Let the next event of the script come no earlier than `until`, s."""
        self._started_at += max(0.0, until - self._next()[0])

    def _finish(self, usage: Usage | None = None) -> None:
        if self._state == "done":
            return
        self._final = usage if usage is not None else self.usage
        kept = None
        if self._state == "working":
            kept = self._pieces[: self._used_now().prompt_tokens if usage is None else None]
            if self._written:  # the last token written was never evaluated itself
                kept += tokenise(self._prefix.withheld) + self._written[:-1]
        for others in (self._slots.following, self._slots.aside):
            if self in others:
                others.remove(self)
        self._state = "done"
        self._slots.leave(self, kept)
        self.look_again()

    async def aclose(self) -> None:
        self._finish()

    def park(self) -> bool:
        if self._place == "server" or self._state == "done":
            return False
        self._mode = "park"
        self.resume()
        self.look_again()
        return True

    def follow(self) -> bool:
        if self._place == "server" or self._state == "done":
            return False
        self._mode = "follow"
        self.resume()
        self.look_again()
        return True

    def pause(self) -> bool:
        if self._place == "server" or self._state in ("new", "done") or self._mode != "write":
            return False
        self._paused_at = min(self._paused_at, anyio.current_time())
        self._slots.look_again()
        return True

    def resume(self) -> bool:
        paused_at, self._paused_at = self._paused_at, math.inf
        if self._state == "done" or paused_at == math.inf:
            return False
        if self._state == "aside":
            self._slots.aside.remove(self)
            self._slots.present.insert(1, self)
            self._state = "waiting"
        elif self._state == "working" and paused_at < self._next()[0]:
            self._delay(anyio.current_time())
        self.look_again()
        return True

    def extend(self, prefix: Prefix) -> bool:
        if self._mode != "follow" or self._state == "done":
            return False
        self._prefix = prefix
        self.look_again()
        return True

    @property
    def progress(self) -> Progress | None:
        if self._place == "server" or self._state not in ("working", "following"):
            return None
        total = len(self._pieces)
        read = self._used_now().prompt_tokens if self._state == "working" else total
        return Progress(read, total, self._profile.prefill_tps if read > self._cached else 0.0)

    @property
    def seam(self) -> SeamReport | None:
        return seam_report(self._profile, self._prefix, sum(map(len, self._written)))

    @property
    def usage(self) -> Usage:
        if self._final is not None:
            return self._final
        if self._state != "working" and not self._displaced:
            return self._earlier
        return self._charged(self._used_now())

    def _charged(self, used: Usage) -> Usage:
        """Add the usage of a follower's earlier turns: each computed token counts, the cached ones count once."""
        cached = self._earlier.cached_tokens + max(0, used.cached_tokens - self._read_tokens)
        before = self._earlier.prompt_tokens - self._earlier.cached_tokens
        computed = before + used.prompt_tokens - used.cached_tokens + self._read_again
        written = self._earlier.completion_tokens + used.completion_tokens
        return Usage(computed + cached, written, cached)

    def _used_now(self) -> Usage:
        prompt = len(self._pieces)
        if self._written:
            generated = len(self._written) + swallowed_tokens(self._profile, self._prefix)
            return Usage(prompt, generated, self._cached)
        if self._place == "device":  # a server's prefill must be assumed done
            prefilling_s = anyio.current_time() - self._started_at - self._profile.overhead_s
            done = prefilling_s * self._profile.prefill_tps if prefilling_s > 0 else 0.0
            prompt = min(prompt, self._cached + int(min(done, prompt)))
        return Usage(prompt, 0, self._cached)
