"""One session in virtual time on simulated endpoints, its record, and endpoints that a test makes itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from playing import Run, run_session

from disco.cost import Rates
from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.events import Delta, Ended, Usage
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = [
    "CustomAttempt",
    "CustomEndpoint",
    "Migration",
    "Pace",
    "Plan",
    "Run",
    "Start",
    "play",
    "record_of",
]

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")


def play(
    profiles: Mapping[str, SimulatedProfile],
    plan: Plan,
    *,
    costs: Mapping[str, float] | None = None,
    pace: Pace | None = None,
    streams: bool = True,
    timeouts: Timeouts | None = None,
    max_retries: int = 2,
    cancel_at: float = math.inf,
    cancel_takes_s: float = 0.0,
    seed: int = 0,
) -> Run:
    """One session, played to its end in virtual time. `costs`: USD per generated token; by default all the same."""
    candidates = {
        name: Candidate(
            name=name,
            reach="any",
            rates=Rates((costs or {}).get(name, 1e-6) / 10, (costs or {}).get(name, 1e-6)),
            prefill_tps=profile.prefill_tps,
            overhead_s=profile.overhead_s + (profile.ttft_s if isinstance(profile.ttft_s, float) else 0.3),
            decode_tps=profile.decode_tps,
            continues=profile.continues,
        )
        for name, profile in profiles.items()
    }
    config = SessionConfig(
        prompt_tokens=20,
        streams=streams,
        pace_tps=pace.tps if pace else None,
        timeouts=timeouts or Timeouts(),
        max_retries=max_retries,
    )
    session = Session(plan, candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    rng = np.random.default_rng(seed)
    return run_session(session, profiles, REQUEST, rng, cancel_at=cancel_at, cancel_takes_s=cancel_takes_s)


def record_of(run: Run, _costs: object = None) -> RouteRecord:
    """The route record of a finished session, with its ledger."""
    return make_record(run.session, settle_accounts(run.session), preset="test")


class CustomAttempt(Attempt):
    """An attempt that counts what it wrote and stops after its end. Subclasses write `_next`.

    Mutable: `written`, `over`.
    """

    def __init__(self, prompt_tokens: int = 10) -> None:
        self.prompt_tokens = prompt_tokens
        self.written = 0
        self.over = False

    async def __anext__(self) -> list[Delta] | Ended:
        if self.over:
            raise StopAsyncIteration
        event = await self._next()
        if isinstance(event, list):
            self.written += len(event)
        self.over = isinstance(event, Ended)
        return event

    async def _next(self) -> list[Delta] | Ended:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.written)


class CustomEndpoint(Endpoint):
    """A device made by a test. Subclasses write `open`."""

    place = "device"

    def __init__(self, name: str = "device") -> None:
        self.name = name

    def capabilities(self, model: str | None = None) -> Capabilities:
        return Capabilities(continues=True, features=None, parks=True)
