"""Driver that runs sessions in virtual time on simulated endpoints; the live driver is the other user of the machine.

It has an event heap instead of an event loop: nothing waits, and the same seed gives the same run to the last bit.
The session is the one that runs live (`session.machine`). A session may have its own heap (`Player.run`), or many
share one (`run_together`) and meet at a device that has a queue.
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

_STOP = object()  # event: a cancelled attempt has stopped
_EVENT, _WAKE = 0, 1  # at the same time, events come before wake-ups


class Scripts(Protocol):
    """The scripts of one session's endpoints."""

    def script(self, start: StartAttempt, *, holds_prompt: bool) -> tuple[Iterator[Scripted], int, int]:
        """Return an attempt's events, timed from when it begins to work.

        Args:
            start: the attempt.
            holds_prompt: the endpoint has kept the prompt's prefill for this session.

        Returns:
            The events, the number of tokens of prompt and prefix, and how many of these are cached.
        """
        ...


class Playing:
    """One attempt in virtual time. Mutable: all but its number, its start and its player."""

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
        self.started_at = math.inf  # when the attempt begins to work; it may have to wait for its turn
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.written = 0
        self.parked = False
        self.over = False  # the script has ended or was cut short
        self.stopped = False

    def begin(self, at: float) -> None:
        """Begin to work at time `at`."""
        self.player.begin(self, at)

    def forget(self) -> None:
        """Note that the endpoint no longer holds the prompt's prefill."""
        self.player.holding.discard(self.start.endpoint)

    def processed(self, now: float) -> Usage:
        """Return what the attempt is charged for if it stops now."""
        if now < self.started_at:
            return Usage()
        return Usage(self.prompt_tokens, self.written, self.cached_tokens)


Entry = tuple[float, int, int, "Player", Playing | None, Any]  # (at, rank, tie-break, player, attempt, event)


class Shared:
    """A heap of events, and a counter that orders events of the same time and rank. Mutable: all."""

    __slots__ = ("heap", "ties")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.ties = itertools.count()


class Player:
    """Play one session: execute its effects, and report the results to it.

    Args:
        session: not started.
        scripts: the scripts of the endpoints.
        shared: a heap shared with other players; None: the player has its own heap.
        devices: endpoints where attempts may have to wait for their turn.
        cancel_takes_s: time that an attempt goes on after it was cancelled, s; it is charged until then.
        out: list that gets everything released; None: it is not written down.
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
        self.wakes_at = math.inf  # when the shared heap will wake the session

    def run(self, start_at: float, cancel_at: float = math.inf) -> float:
        """Play to the end on the player's own heap; return the time of the end."""
        session, heap = self.session, self.heap
        now = start_at
        self.apply(session.start(now), now)
        while not self.closed:
            wake_at = session.wake_at
            event_at = heap[0][0] if heap else math.inf
            if cancel_at <= event_at and cancel_at <= wake_at:
                assert cancel_at < math.inf, "the session waits, but no event is left that could wake it"
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
        """Deliver packets until something else happens before the next one; return the time of the last packet."""
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
        """Report an event of an attempt to the session."""
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
        """Note that the attempt has stopped: charge it, and free its slot."""
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
        """Begin an attempt's script at time `at`."""
        start = playing.start
        playing.started_at = at
        playing.events, playing.prompt_tokens, playing.cached_tokens = self.scripts.script(
            start, holds_prompt=start.endpoint in self.holding
        )
        if self.session.candidates[start.endpoint].announces:
            heappush(self.heap, (at, _EVENT, next(self.ties), self, playing, Started(playing.cached_tokens)))
        self.schedule(playing)

    def apply(self, effects: list[Effect], now: float) -> None:
        """Execute the session's effects."""
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
                pass  # a script reads its whole prompt at once, so reading along has no effect
            elif type(effect) is Finish:
                self.closed = True
                self.finished = effect.reason
            elif type(effect) is Fail:
                self.closed = True
                self.error = effect.error

    def forget(self) -> None:
        """Drop the attempts, which refer to their player, so that the garbage collector need not free both."""
        self.playing.clear()

    def wake_me(self, now: float) -> None:
        """Put the session's next wake-up on the shared heap."""
        wake_at = self.session.wake_at
        if wake_at < self.wakes_at:
            self.wakes_at = max(wake_at, now)
            heappush(self.heap, (self.wakes_at, _WAKE, next(self.ties), self, None, None))

    def step(self, playing: Playing | None, event: Any, now: float) -> bool:
        """Handle an entry from the top of the shared heap; return whether the session has ended."""
        if playing is not None:
            self.deliver(playing, event, now)
        elif now < self.wakes_at:
            return False  # an earlier wake-up has replaced this one
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
    """Play sessions on one heap; yield each player when its session ends.

    Args:
        arrivals: (time, function that returns the player) in order of time. The function is called at that time, so
            that the player may depend on the state of the devices; it returns None if no endpoint can answer.
        shared: the heap of all players, empty.
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
    """Handle all events up to a time; yield each player when its session ends."""
    while heap and heap[0][0] <= until:
        at, _, _, player, playing, event = heappop(heap)
        if not player.closed and player.step(playing, event, at):
            yield player
