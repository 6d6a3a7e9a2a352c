"""One attempt in virtual time: its script, and what a pause does to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from disco.endpoints.simulation.simulated_script import Scripted
from disco.events import SpeculationReport, Usage
from disco.replay.pairs.pair_rounds import PairRounds
from disco.session.effects import StartAttempt

if TYPE_CHECKING:
    from disco.replay.simulator.virtual_driver import Player

__all__ = ["Playing"]


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
