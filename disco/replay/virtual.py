"""Runs a session in virtual time on simulated endpoints: the other thin driver around `session.machine`.

An event heap instead of an event loop: nothing waits, the same seed gives the same run to the last bit, and
the session under it is the one that runs live.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from disco.endpoints.simulated_script import Scripted, SimulatedProfile, script
from disco.request import Request
from disco.session.effects import (
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    ParkAttempt,
    Release,
    StartAttempt,
)
from disco.session.events import Delta, Ended, Usage
from disco.session.machine import Session

__all__ = ["Run", "run_session"]


@dataclass(slots=True)
class _Playing:
    """One attempt on the heap. All fields mutable."""

    events: Any
    started_at: float
    prompt_tokens: int
    written: int = 0
    parked: bool = False
    over: bool = False  # its script has ended or was cut short
    usage: Usage | None = None


@dataclass(slots=True)
class Run:
    """How a session went.

    Attributes:
        session: the machine in its last state.
        out: (time, deltas) as the reader got them.
        finished: the reason, or None when it failed.
        error: what it failed with.
        now: virtual time at the end, seconds.
        running: attempts that were started and never stopped; must be empty.
    """

    session: Session
    out: list[tuple[float, list[Delta]]] = field(default_factory=list)
    finished: str | None = None
    error: Exception | None = None
    now: float = 0.0
    running: set[int] = field(default_factory=set)

    @property
    def text(self) -> str:
        """What the reader got."""
        return "".join(d.text for _, deltas in self.out for d in deltas)


def run_session(
    session: Session,
    profiles: Mapping[str, SimulatedProfile],
    request: Request,
    rng: np.random.Generator,
    *,
    cancel_at: float = math.inf,
    start_at: float = 0.0,
    cancel_takes_s: float = 0.0,
) -> Run:
    """Play a session to its end.

    Args:
        session: not started.
        profiles: by endpoint name.
        request: what is answered.
        rng: source of all randomness in time.
        cancel_at: when the reader goes away, seconds.
        start_at: virtual time of the request.
        cancel_takes_s: how long an attempt goes on after it was cancelled; it is charged until then.
    """
    return _Driver(session, profiles, request, rng, cancel_takes_s).run(start_at, cancel_at)


class _Driver:
    def __init__(
        self,
        session: Session,
        profiles: Mapping[str, SimulatedProfile],
        request: Request,
        rng: np.random.Generator,
        cancel_takes_s: float,
    ) -> None:
        self.result = Run(session)
        self.session = session
        self.profiles = profiles
        self.request = request
        self.rng = rng
        self.cancel_takes_s = cancel_takes_s
        self.heap: list[tuple[float, int, int, Any]] = []  # (at, tie-break, attempt, event)
        self.ties = itertools.count()
        self.playing: dict[int, _Playing] = {}
        self.closed = False

    def run(self, start_at: float, cancel_at: float) -> Run:
        now = start_at
        self.apply(self.session.start(now), now)
        while not self.closed:
            wake_at = self.session.wake_at
            event_at = self.heap[0][0] if self.heap else math.inf
            at = min(wake_at, event_at, cancel_at)
            assert at < math.inf, "the session waits for something that will never come"
            now = max(now, at)
            if at == cancel_at:
                cancel_at = math.inf
                self.apply(self.session.cancelled(now), now)
            elif event_at <= wake_at:
                _, _, number, event = heapq.heappop(self.heap)
                self.deliver(number, event, now)
            else:
                self.apply(self.session.woken(now), now)
        self.result.now = now
        self.result.running = {n for n, p in self.playing.items() if p.usage is None}
        return self.result

    def deliver(self, number: int, event: Any, now: float) -> None:
        playing = self.playing[number]
        if event is _STOP:
            playing.over = True
            self.stop(number, playing, now)
            return
        if playing.over:
            return
        if isinstance(event, list):
            if playing.parked:
                playing.over = True
                usage = Usage(playing.prompt_tokens, 0, 0)
                self.apply(self.session.ended(number, Ended("parked", usage), now), now)
                self.stop(number, playing, now, usage)
                return
            playing.written += sum(d.tokens for d in event)
            self.apply(self.session.deltas(number, event, now), now)
            self.schedule(number, playing)
        elif isinstance(event, Ended):
            playing.over = True
            self.apply(self.session.ended(number, event, now), now)
            self.stop(number, playing, now, event.usage)
        else:
            playing.over = True
            self.apply(self.session.failed(number, event, now), now)
            self.stop(number, playing, now)

    def stop(self, number: int, playing: _Playing, now: float, usage: Usage | None = None) -> None:
        if playing.usage is None:
            playing.usage = usage or Usage(playing.prompt_tokens, playing.written, 0)
            self.apply(self.session.stopped(number, playing.usage, now), now)

    def schedule(self, number: int, playing: _Playing) -> None:
        scripted: Scripted | None = next(playing.events, None)
        if scripted is not None and scripted[0] < math.inf:
            self.push(playing.started_at + scripted[0], number, scripted[1])

    def push(self, at: float, number: int, event: Any) -> None:
        heapq.heappush(self.heap, (at, next(self.ties), number, event))

    def apply(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                self.result.out.append((now, effect.deltas))
            elif isinstance(effect, StartAttempt):
                prompt = self.session.terms.prompt_tokens + effect.prefix.tokens
                events = script(
                    self.profiles[effect.endpoint],
                    self.request,
                    effect.prefix,
                    self.rng,
                    endpoint=effect.endpoint,
                    prompt_tokens=prompt,
                )
                playing = _Playing(events, started_at=now, prompt_tokens=prompt)
                self.playing[effect.attempt] = playing
                self.schedule(effect.attempt, playing)
            elif isinstance(effect, CancelAttempt):
                if not self.playing[effect.attempt].over:
                    self.push(now + self.cancel_takes_s, effect.attempt, _STOP)
            elif isinstance(effect, ParkAttempt):
                self.playing[effect.attempt].parked = True
            elif isinstance(effect, Finish):
                self.closed = True
                self.result.finished = effect.reason
            elif isinstance(effect, Fail):
                self.closed = True
                self.result.error = effect.error


_STOP = object()  # a cancelled attempt has really stopped
