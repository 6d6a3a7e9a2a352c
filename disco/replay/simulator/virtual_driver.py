"""Runs sessions in virtual time on simulated endpoints: the other thin driver around `session.machine`.

An event heap instead of an event loop: nothing waits, the same seed gives the same run to the last bit, and
the session under it is the one that runs live. One session may have a heap to itself (`Player.run`), or many
share one (`run_together`), where they meet at a device that has a queue.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Protocol

from disco.endpoints.simulation.simulated_script import Scripted
from disco.events import Delta, Ended, Started, Usage
from disco.replay.simulator.device_queue import SharedDevice
from disco.replay.simulator.paced_flow import KnownPackets, flow, flows, take_stretch
from disco.session.effects import (
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    FollowAttempt,
    ParkAttempt,
    Release,
    StartAttempt,
)
from disco.session.machine import Session

__all__ = ["Player", "Scripts", "Shared", "run_together"]

_STOP = object()  # a cancelled attempt has really stopped
_EVENT, _WAKE = 0, 1  # at the same time, what happens comes before what falls due


class Scripts(Protocol):
    """What the endpoints of one session would do."""

    def script(self, start: StartAttempt, *, holds_prompt: bool) -> tuple[Iterator[Scripted], int, int]:
        """An attempt's events, timed from when it begins to work.

        Args:
            start: the attempt.
            holds_prompt: the endpoint has kept the prompt's prefill for this session.

        Returns:
            The events; how many tokens of prompt and prefix there are; how many of these are cached.
        """
        ...


class Playing:
    """One attempt. All but its number, its start and who plays it is mutable."""

    __slots__ = (
        "cached_tokens",
        "events",
        "number",
        "over",
        "parked",
        "player",
        "prompt_tokens",
        "start",
        "started_at",
        "stopped",
        "written",
    )

    def __init__(self, player: Player, start: StartAttempt) -> None:
        self.player = player
        self.number = start.attempt
        self.start = start
        self.events: Iterator[Scripted] = iter(())
        self.started_at = math.inf  # when it begins to work; it may have to wait for its turn
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.written = 0
        self.parked = False
        self.over = False  # its script has ended or was cut short
        self.stopped = False

    def begin(self, at: float) -> None:
        """It is its turn."""
        self.player.begin(self, at)

    def forget(self) -> None:
        """What the endpoint kept of it is gone."""
        self.player.holding.discard(self.start.endpoint)

    def processed(self, now: float) -> Usage:
        """What it is charged for when it is stopped now."""
        if now < self.started_at:
            return Usage()
        return Usage(self.prompt_tokens, self.written, self.cached_tokens)


Entry = tuple[float, int, int, "Player", Playing | None, Any]  # (at, rank, tie-break, whose, attempt, event)


class Shared:
    """A heap of events and what orders those of the same time and rank. Mutable throughout."""

    __slots__ = ("heap", "ties")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.ties = itertools.count()


class Player:
    """Plays one session: does what its effects say and tells it what comes of it.

    Args:
        session: not started.
        scripts: what the endpoints do.
        shared: with others; None: it plays alone.
        devices: endpoints where attempts may have to wait for their turn.
        cancel_takes_s: how long an attempt goes on after it was cancelled; it is charged until then.
        out: where what is released is written down, if anywhere.
    """

    # Mutable: the heap, its ties and everything below `out`.
    __slots__ = (
        "cancel_takes_s",
        "closed",
        "devices",
        "error",
        "finished",
        "heap",
        "holding",
        "out",
        "playing",
        "scripts",
        "session",
        "ties",
        "wakes_at",
    )

    def __init__(
        self,
        session: Session,
        scripts: Scripts,
        *,
        shared: Shared | None = None,
        devices: Mapping[str, SharedDevice] | None = None,
        cancel_takes_s: float = 0.0,
        out: list[tuple[float, list[Delta]]] | None = None,
    ) -> None:
        self.session = session
        self.scripts = scripts
        shared = shared or Shared()
        self.heap, self.ties = shared.heap, shared.ties
        self.devices = devices
        self.cancel_takes_s = cancel_takes_s
        self.out = out
        self.playing: dict[int, Playing] = {}
        self.holding: set[str] = set()  # endpoints that keep the prompt's prefill
        self.closed = False
        self.finished: str | None = None
        self.error: Exception | None = None
        self.wakes_at = math.inf  # when a shared heap will wake it

    def run(self, start_at: float, cancel_at: float = math.inf) -> float:
        """Play to the end on a heap of one's own; returns the time then."""
        session, heap = self.session, self.heap
        now = start_at
        self.apply(session.start(now), now)
        while not self.closed:
            wake_at = session.wake_at
            event_at = heap[0][0] if heap else math.inf
            if cancel_at <= event_at and cancel_at <= wake_at:
                assert cancel_at < math.inf, "the session waits for something that will never come"
                now = max(now, cancel_at)
                cancel_at = math.inf
                self.apply(session.cancelled(now), now)
            elif event_at <= wake_at:
                _, _, _, _, playing, event = heappop(heap)
                assert playing is not None
                now = max(now, event_at)
                if type(event) is list and not (playing.over or playing.parked):
                    now = self.write(playing, event, now, cancel_at)
                else:
                    self.deliver(playing, event, now)
            else:
                now = max(now, wake_at)
                self.apply(session.woken(now), now)
        return now

    def write(self, playing: Playing, packet: list[Delta], now: float, until: float) -> float:
        """Deliver packets as long as nothing else happens before the next one; returns the time of the last."""
        session, heap, number, started_at = self.session, self.heap, playing.number, playing.started_at
        while True:
            playing.written += packet[0].tokens if len(packet) == 1 else sum([d.tokens for d in packet])
            effects = session.deltas(number, packet, now)
            if effects and (self.out is not None or len(effects) > 1 or type(effects[0]) is not Release):
                self.apply(effects, now)
            if heap and heap[0][0] < until:
                until = heap[0][0]
            state = session.attempts[number]
            if self.out is None and type(playing.events) is KnownPackets:
                taken = take_stretch(session, state, playing.events, started_at, until)
                if taken:
                    playing.written += taken
                    now = max(now, state.last_at)
                at, event = next(playing.events)
                at += started_at
            elif flows(session, state):
                before = state.tokens
                at, event = flow(session, state, playing.events, started_at, until, self.out)
                playing.written += state.tokens - before
                now = max(now, state.last_at)
            else:
                at, event = next(playing.events)
                at += started_at
            if at > session.wake_at or at >= until or type(event) is not list or playing.parked:
                if at < math.inf:
                    heappush(heap, (at, _EVENT, next(self.ties), self, playing, event))
                return now
            now, packet = at, event

    def deliver(self, playing: Playing, event: Any, now: float) -> None:
        """Tell the session what one of its attempts did."""
        session, number = self.session, playing.number
        if event is _STOP:
            playing.over = True
            if playing.written:
                self.holding.add(playing.start.endpoint)
            self.stop(playing, now)
        elif playing.over:
            return
        elif type(event) is Started:
            self.apply(session.began(number, now), now)
        elif type(event) is list:
            if playing.parked:
                playing.over = True
                usage = Usage(playing.prompt_tokens, 0, playing.cached_tokens)
                self.holding.add(playing.start.endpoint)
                self.apply(session.ended(number, Ended("parked", usage), now), now)
                self.stop(playing, now, usage)
                return
            playing.written += sum([d.tokens for d in event])
            self.apply(session.deltas(number, event, now), now)
            self.schedule(playing)
        elif type(event) is Ended:
            playing.over = True
            self.apply(session.ended(number, event, now), now)
            self.stop(playing, now, event.usage)
        else:
            playing.over = True
            self.apply(session.failed(number, event, now), now)
            self.stop(playing, now)

    def stop(self, playing: Playing, now: float, usage: Usage | None = None) -> None:
        """Nothing of the attempt runs any more."""
        if playing.stopped:
            return
        playing.stopped = True
        self.apply(self.session.stopped(playing.number, usage or playing.processed(now), now), now)
        device = self.devices.get(playing.start.endpoint) if self.devices else None
        if device is not None:
            device.leave(playing, now, keeps=playing.start.endpoint in self.holding)

    def schedule(self, playing: Playing) -> None:
        """Put the attempt's next event on the heap."""
        scripted = next(playing.events, None)
        if scripted is not None and scripted[0] < math.inf:
            at = playing.started_at + scripted[0]
            heappush(self.heap, (at, _EVENT, next(self.ties), self, playing, scripted[1]))

    def begin(self, playing: Playing, at: float) -> None:
        """An attempt begins to work at `at`."""
        start = playing.start
        playing.started_at = at
        playing.events, playing.prompt_tokens, playing.cached_tokens = self.scripts.script(
            start, holds_prompt=start.endpoint in self.holding
        )
        if self.session.candidates[start.endpoint].announces:
            heappush(self.heap, (at, _EVENT, next(self.ties), self, playing, Started(playing.cached_tokens)))
        self.schedule(playing)

    def apply(self, effects: list[Effect], now: float) -> None:
        """Do what the session wants."""
        for effect in effects:
            if type(effect) is Release:
                if self.out is not None:
                    self.out.append((now, effect.deltas))
            elif type(effect) is StartAttempt:
                playing = self.playing[effect.attempt] = Playing(self, effect)
                device = self.devices.get(effect.endpoint) if self.devices else None
                if device is None:
                    self.begin(playing, now)
                else:
                    device.enter(playing, now)
            elif type(effect) is CancelAttempt:
                playing = self.playing[effect.attempt]
                if not playing.over:
                    at = now + self.cancel_takes_s
                    heappush(self.heap, (at, _EVENT, next(self.ties), self, playing, _STOP))
            elif type(effect) is ParkAttempt:
                self.playing[effect.attempt].parked = True
            elif type(effect) is FollowAttempt:
                pass  # a script reads its whole prompt at once: nothing would be read sooner
            elif type(effect) is Finish:
                self.closed = True
                self.finished = effect.reason
            elif type(effect) is Fail:
                self.closed = True
                self.error = effect.error

    def forget(self) -> None:
        """Let go of the attempts, which hold on to their player: nothing is left for the garbage collector."""
        self.playing.clear()

    def wake_me(self, now: float) -> None:
        """On a shared heap: see to it that the session is woken in time."""
        wake_at = self.session.wake_at
        if wake_at < self.wakes_at:
            self.wakes_at = max(wake_at, now)
            heappush(self.heap, (self.wakes_at, _WAKE, next(self.ties), self, None, None))

    def step(self, playing: Playing | None, event: Any, now: float) -> bool:
        """On a shared heap: take what was on its top; returns whether that was the session's end."""
        if playing is not None:
            self.deliver(playing, event, now)
        elif now < self.wakes_at:
            return False  # an earlier one has taken its place since
        else:
            self.wakes_at = math.inf
            if self.session.wake_at <= now:
                self.apply(self.session.woken(now), now)
        if not self.closed:
            self.wake_me(now)
        return self.closed


def run_together(
    arrivals: Iterable[tuple[float, Callable[[], Player | None]]], shared: Shared
) -> Iterator[Player]:
    """Play sessions on one heap; yields each as it ends.

    Args:
        arrivals: (time, what makes the player) in order of time. A player is made when its time has come, so
            that it may depend on how the devices stand then; None: nobody can answer.
        shared: by all the players, empty.
    """
    heap = shared.heap
    for at, make in arrivals:
        yield from _until(heap, at)
        player = make()
        if player is not None:
            player.apply(player.session.start(at), at)
            player.wake_me(at)
    yield from _until(heap, math.inf)


def _until(heap: list[Entry], until: float) -> Iterator[Player]:
    """Whatever happens by that time."""
    while heap and heap[0][0] <= until:
        at, _, _, player, playing, event = heappop(heap)
        if not player.closed and player.step(playing, event, at):
            yield player
