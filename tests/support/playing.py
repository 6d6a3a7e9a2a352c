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


@dataclass(slots=True)
class Run:
    """How a session went."""

    session: Session  # in its last state
    out: list[tuple[float, list[Delta]]] = field(
        default_factory=list
    )  # (time, deltas) as the reader got them
    finished: str | None = None  # the reason, or None when it failed
    error: Exception | None = None
    now: float = 0.0  # virtual time at the end, seconds
    running: set[int] = field(default_factory=set)  # attempts that were never stopped; must be empty

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
    cancel_takes_s: float = 0.0,
) -> Run:
    """Play a session to its end; the reader leaves at `cancel_at`, and a cancelled attempt goes on for a while."""
    result = Run(session)
    scripts = ProfileScripts(profiles, request, rng, session.config.prompt_tokens)
    player = Player(session, scripts, cancel_takes_s=cancel_takes_s, out=result.out)
    result.now = player.run(0.0, cancel_at)
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
        request = self.request if start.max_tokens is None else self.request.limited(start.max_tokens)
        profile, name = self.profiles[start.endpoint], start.endpoint
        events = script(profile, request, start.prefix, self.rng, endpoint=name, prompt_tokens=prompt)
        return events, prompt, 0
