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
from disco.events import Delta, Ended, Parked, Progress, SpeculationReport, Started, Usage
from disco.replay.pairs.pair_rounds import PairRounds
from disco.replay.simulator.device_queue import SharedDevice
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
from disco.session.machine import Session

__all__ = ["Player", "Shared", "run_together"]


class Playing:
    """One attempt in virtual time. Mutable: all but its number, its start and its player."""

    __slots__ = (
        "agreed",
        "cached_tokens",
        "events",
        "follows",
        "given",
        "held",
        "idle",
        "number",
        "over",
        "parked",
        "paused_at",
        "player",
        "prompt_tokens",
        "reads",
        "shift_s",
        "start",
        "started_at",
        "stopped",
        "successor",
        "waits",
        "works",
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
        self.follows = False  # parked, and stays to read more
        self.agreed = start.prefix.tokens  # tokens of the answer whose log probabilities are reported
        self.given: int | None = None  # how many tokens of the answer it was given to read; None: none
        self.works = False  # on a shared device, or in its queue
        self.reads = False  # at a server that reads prompts in turn, or in its queue
        self.paused_at: float | None = None
        self.idle = False  # a follower that has read all that it was given
        self.successor: Playing | None = None  # waits until this attempt, a parked one, has read
        self.held: Scripted | None = None  # the next event and its time, kept back by a pause
        self.shift_s = 0.0  # how much later the event on the heap comes, because of a pause
        self.over = False  # the script has ended or was cut short
        self.stopped = False
        self.waits = False  # for another attempt, which reads what this one needs

    @property
    def is_shifted(self) -> bool:
        """Whether the attempt's event on the heap does not come at its time there, because of a pause."""
        return self.paused_at is not None or self.shift_s > 0.0

    def put_off(self, event: Any, now: float) -> None:
        """Keep an event until the attempt goes on, or put it back on the heap for its new time."""
        if self.paused_at is not None:
            self.held = now + self.shift_s, event
            self.shift_s = 0.0
        else:
            self.player.push(self, now + self.shift_s, event)
            self.shift_s = 0.0

    def resume(self, now: float) -> None:
        """Go on after a pause: every later event comes later by the length of the pause."""
        assert self.paused_at is not None
        shift_s, self.paused_at = now - self.paused_at, None
        self.started_at += shift_s
        if self.held is None:
            self.shift_s += shift_s
        else:
            (at, event), self.held = self.held, None
            self.player.push(self, at + shift_s, event)

    def begin(self, at: float) -> None:
        """Begin to work at time `at`."""
        self.player.begin(self, at)

    def reads_for(self, endpoint: str) -> bool:
        """Whether the attempt is parked on that endpoint and still reads the prompt."""
        return self.parked and not (self.over or self.idle) and self.start.endpoint == endpoint

    def forget(self) -> None:
        """Note that the endpoint no longer holds the prompt's prefill."""
        self.player.holding.pop(self.start.endpoint, None)

    def processed(self, now: float) -> Usage:
        """Return what the attempt is charged for if it stops now."""
        if now < self.started_at:
            return Usage()
        if isinstance(self.events, PairRounds):
            return self.events.usage(now - self.started_at)
        prompt_tokens, cached_tokens = self.prompt_tokens, self.cached_tokens
        if self.given is None:
            worked_s = math.inf if self.written else now - self.started_at
            scripts, endpoint = self.player.scripts, self.start.endpoint
            prompt_tokens, cached_tokens = scripts.charged(endpoint, prompt_tokens, cached_tokens, worked_s)
        return Usage(prompt_tokens, self.written, cached_tokens)

    def drafted(self, now: float) -> tuple[str, int] | None:
        """Return who drafts for the attempt and has read the prompt, and the tokens of the answer in its cache."""
        if now < self.started_at or not isinstance(self.events, PairRounds):
            return None
        held = self.events.held(now - self.started_at)
        return None if held is None else (self.events.drafter, self.start.prefix.tokens + held)

    def speculation(self, now: float) -> SpeculationReport | None:
        """Return what the rounds of a pair came to; None for another endpoint, and before the attempt began."""
        if now < self.started_at or not isinstance(self.events, PairRounds):
            return None
        return self.events.speculation(now - self.started_at).moved(self.started_at)


_STOP = object()  # event: a cancelled attempt has stopped
_EVENT, _WAKE = 0, 1  # at the same time, events come before wake-ups


class Scripts(Protocol):
    """The scripts of one session's endpoints."""

    def script(self, start: StartAttempt, *, kept: int | None) -> tuple[Iterator[Scripted], int, int]:
        """Return an attempt's events, timed from when it begins to work.

        Args:
            start: the attempt.
            kept: tokens of the answer that the endpoint has kept behind the prompt for this session; None: it has kept
                nothing, not even the prompt.

        Returns:
            The events, the number of tokens of prompt and prefix, and how many of these are cached.
        """
        ...

    def reads_s(self, endpoint: str, tokens: int) -> float:
        """Return how long a follower at this endpoint needs to read `tokens` tokens, in seconds."""
        ...

    def logp(self, endpoint: str, begin: int, end: int) -> tuple[float, ...] | None:
        """Return the log probabilities that the endpoint's model gives to these tokens of the answer; None: unknown."""
        ...

    def charged(self, endpoint: str, tokens: int, cached_tokens: int, worked_s: float) -> tuple[int, int]:
        """Return for how many tokens of its prompt an attempt is charged that stops before its end, and cached ones.

        Args:
            endpoint: its name.
            tokens: of its prompt.
            cached_tokens: those of them that it need not read.
            worked_s: how long it has worked; infinity: it has written.
        """
        ...


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
        # Endpoints that keep the prompt's prefill, with the number of tokens of the answer behind it.
        self.holding: dict[str, int] = {}
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
                if type(event) is list and not (playing.over or playing.parked or playing.is_shifted):
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
        if playing.reads:
            self.leave(playing, now)
        while True:
            playing.written += packet[0].tokens if len(packet) == 1 else sum([d.tokens for d in packet])
            effects = session.deltas(number, packet, now)
            if effects and (self.out is not None or len(effects) > 1 or type(effects[0]) is not Release):
                self.apply(effects, now)
                if playing.paused_at is not None:
                    self.schedule(playing)
                    return now
            if heap and heap[0][0] < until:
                until = heap[0][0]
            at, event = next(playing.events)
            at += started_at
            if at > session.wake_at or at >= until or type(event) is not list or playing.parked:
                if at < math.inf:
                    self.push(playing, at, event)
                return now
            now, packet = at, event

    def deliver(self, playing: Playing, event: Any, now: float) -> None:
        """Report an event of an attempt to the session."""
        session, number = self.session, playing.number
        if event is _STOP:
            playing.over = True
            if playing.written:
                self.holding[playing.start.endpoint] = 0
            self.stop(playing, now)
        elif playing.over:
            return
        elif playing.is_shifted:
            playing.put_off(event, now)
        elif type(event) is Started:
            self.apply(session.began(number, now), now)
        elif type(event) is Progress:
            self.apply(session.progressed(number, event, now), now)
            self.schedule(playing)
        elif type(event) is Parked or (type(event) is list and playing.follows):
            self.has_read(playing, now)
        elif type(event) is list:
            if playing.parked:
                playing.over = True
                usage = Usage(playing.prompt_tokens, 0, playing.cached_tokens)
                self.holding[playing.start.endpoint] = 0
                self.apply(session.ended(number, Ended("parked", usage), now), now)
                self.stop(playing, now, usage)
                return
            playing.written += sum([d.tokens for d in event])
            if playing.reads:
                self.leave(playing, now)
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
        usage, speculation = usage or playing.processed(now), playing.speculation(now)
        if drafted := playing.drafted(now):
            self.holding.update([drafted])
        self.apply(self.session.stopped(playing.number, usage, now, speculation=speculation), now)
        self.leave(playing, now)

    def leave(self, playing: Playing, now: float) -> None:
        """Free the attempt's slot, or its place in the queue, for the attempt that waits for it."""
        if playing.works and self.devices:
            playing.works = playing.reads = False
            endpoint = playing.start.endpoint
            self.devices[endpoint].leave(playing, now, keeps=endpoint in self.holding)
        successor, playing.successor = playing.successor, None
        if successor is not None and not successor.over:
            self.enter(successor, now)

    def has_read(self, playing: Playing, now: float) -> None:
        """Report that a follower has read all that it was given; its endpoint is free until it is given more."""
        endpoint, given = playing.start.endpoint, playing.given or 0
        logp = None
        if "logp" in playing.start.wants:
            logp = self.scripts.logp(endpoint, playing.agreed, given)
            playing.agreed = given
        self.holding[endpoint] = given
        playing.events, playing.idle = iter(()), True
        self.leave(playing, now)
        usage = Usage(playing.prompt_tokens, 0, playing.cached_tokens)
        self.apply(self.session.parked(playing.number, Parked(usage, logp), now), now)

    def schedule(self, playing: Playing) -> None:
        """Put the attempt's next event on the heap."""
        self.put(playing, next(playing.events, None))

    def put(self, playing: Playing, scripted: Scripted | None) -> None:
        """Put an event of the attempt's script on the heap."""
        if scripted is not None and scripted[0] < math.inf:
            self.push(playing, playing.started_at + scripted[0], scripted[1])

    def push(self, playing: Playing, at: float, event: Any) -> None:
        """Put an event of an attempt on the heap."""
        heappush(self.heap, (at, _EVENT, next(self.ties), self, playing, event))

    def enter(self, playing: Playing, now: float) -> None:
        """Let an attempt begin now, or when its endpoint has a slot."""
        playing.waits = playing.idle = False
        device = self.devices.get(playing.start.endpoint) if self.devices else None
        if device is None:
            self.begin(playing, now)
        else:
            playing.works, playing.reads = True, device.overlap_s is not None and playing.given is None
            if playing.reads:  # asked now, and charged from now on
                self.script(playing, now)
            device.enter(playing, now)

    def begin(self, playing: Playing, at: float) -> None:
        """Begin an attempt's script at time `at`."""
        start = playing.start
        if playing.given is not None:
            kept = self.holding.get(start.endpoint)
            unread = playing.given if kept is None else playing.given - kept
            if kept is None:
                unread += self.session.config.prompt_tokens
            playing.prompt_tokens += unread
            done_at = at + self.scripts.reads_s(start.endpoint, unread)
            self.push(playing, done_at, Parked(Usage()))
            return
        if playing.reads and self.devices:
            first = next(playing.events, None)
            if first is not None:  # which does not come before its turn
                overlap_s = self.devices[start.endpoint].overlap_s or 0.0
                playing.started_at = max(playing.started_at, at - min(overlap_s, first[0]))
                self.put(playing, first)
            return
        self.script(playing, at)
        if self.session.candidates[start.endpoint].announces:
            self.push(playing, at, Started(playing.cached_tokens))
        self.schedule(playing)

    def script(self, playing: Playing, at: float) -> None:
        """Give an attempt its script, from time `at` on."""
        start, playing.started_at = playing.start, at
        playing.events, playing.prompt_tokens, playing.cached_tokens = self.scripts.script(
            start, kept=self.kept(start.endpoint, at)
        )

    def kept(self, endpoint: str, now: float) -> int | None:
        """Return how many tokens of the answer an endpoint has kept, or has read to draft; None: not the prompt."""
        drafting = (p.drafted(now) for p in self.playing.values() if not p.stopped)
        return dict(d for d in drafting if d).get(endpoint, self.holding.get(endpoint))

    def apply(self, effects: list[Effect], now: float) -> None:
        """Execute the session's effects."""
        for effect in effects:
            if type(effect) is Release:
                if self.out is not None:
                    self.out.append((now, effect.deltas))
            elif type(effect) is StartAttempt:
                playing = self.playing[effect.attempt] = Playing(self, effect)
                reading = next((p for p in self.playing.values() if p.reads_for(effect.endpoint)), None)
                if reading is None:
                    self.enter(playing, now)
                else:
                    playing.waits, reading.successor = True, playing
            elif type(effect) is CancelAttempt:
                playing = self.playing[effect.attempt]
                if not playing.over:
                    self.push(playing, now + self.cancel_takes_s, _STOP)
            elif type(effect) is ParkAttempt:
                playing = self.playing[effect.attempt]
                playing.parked, playing.follows = True, effect.follows
            elif type(effect) is FollowAttempt:
                playing = self.playing[effect.attempt]
                if not playing.over:
                    playing.given = effect.prefix.tokens
                    self.enter(playing, now)
            elif type(effect) is PauseAttempt:
                self.playing[effect.attempt].paused_at = now
            elif type(effect) is ResumeAttempt:
                self.playing[effect.attempt].resume(now)
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
