"""One session in virtual time, from its start to its end, on endpoints given by their profiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from disco.endpoints.simulation.simulated_script import Scripted, SimulatedProfile, script
from disco.events import Delta
from disco.replay.simulator.virtual_driver import Player
from disco.request import Request
from disco.session.effects import StartAttempt
from disco.session.machine import Session

__all__ = ["ProfileScripts", "Run", "run_session"]


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
    result = Run(session)
    scripts = ProfileScripts(profiles, request, rng, session.config.prompt_tokens)
    player = Player(session, scripts, cancel_takes_s=cancel_takes_s, out=result.out)
    result.now = player.run(start_at, cancel_at)
    result.finished, result.error = player.finished, player.error
    result.running = {number for number, playing in player.playing.items() if not playing.stopped}
    return result


@dataclass(frozen=True, slots=True)
class ProfileScripts:
    """Endpoints that do what their profiles say, whatever they did before."""

    profiles: Mapping[str, SimulatedProfile]
    request: Request
    rng: np.random.Generator
    prompt_tokens: int

    def script(self, start: StartAttempt, *, holds_prompt: bool) -> tuple[Iterator[Scripted], int, int]:
        del holds_prompt  # these endpoints keep nothing
        prompt = self.prompt_tokens + start.prefix.tokens
        events = script(
            self.profiles[start.endpoint],
            self.request if start.max_tokens is None else self.request.limited(start.max_tokens),
            start.prefix,
            self.rng,
            endpoint=start.endpoint,
            prompt_tokens=prompt,
        )
        return events, prompt, 0
