"""The parts below the public API that these tests need, wherever they are kept.

The only file here that knows module paths and constructors which may move: each has its old and its new place.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from playing import Run, run_session

from disco.cost import Rates
from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.playback import Pace, Playback
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.route_record import RouteRecord
from disco.session.switching.answer_lengths import AnswerLengths

try:
    from disco.plan import Candidate, Migration, Plan, Start
except ImportError:
    from disco.dispatch.plan import Candidate, Migration, Plan, Start
try:
    from disco.events import Delta, DeltaKind, Ended, Usage
except ImportError:
    from disco.session.events import Delta, DeltaKind, Ended, Usage

try:
    from disco.session.records.record_writer import make_record
except ImportError:
    from disco.session.records.route_record import make_record  # type: ignore[no-redef]

__all__ = [
    "Candidate",
    "CustomAttempt",
    "CustomEndpoint",
    "Delta",
    "DeltaKind",
    "Ended",
    "Migration",
    "Pace",
    "Plan",
    "Run",
    "Start",
    "Usage",
    "candidate",
    "play",
    "record_of",
]

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
_FIELDS = {field.name for field in fields(Candidate)}


def candidate(
    name: str, *, place: Literal["device", "server"] = "server", cost_out: float = 1e-6, **more: Any
) -> Candidate:
    """An endpoint as the session sees it; a prompt token costs a tenth of a generated one."""
    cost_in = cost_out / 10
    if "rates" in _FIELDS:
        more["rates"] = Rates(cost_in, cost_out)
    else:
        more.update(cost_in=cost_in, cost_out=cost_out)
    if "reach" in _FIELDS:
        more["reach"] = "device" if place == "device" else "any"
    else:
        more["place"] = place
    return Candidate(name=name, **more)


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
        name: candidate(
            name,
            cost_out=(costs or {}).get(name, 1e-6),
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


def record_of(run: Run, costs: Mapping[str, float] | None = None) -> RouteRecord:
    """The route record of a finished session, with its ledger."""
    rates = {
        name: Rates((costs or {}).get(name, 1e-6) / 10, (costs or {}).get(name, 1e-6))
        for name in run.session.candidates
    }
    if "rates" in inspect.signature(settle_accounts).parameters:
        ledger = settle_accounts(run.session, rates)
    else:
        ledger = settle_accounts(run.session)
    return make_record(run.session, ledger, preset="test")


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

    reach = "device"  # a class attribute serves whether or not `place` is derived from it
    place = "device"

    def __init__(self, name: str = "device") -> None:
        self.name = name

    def capabilities(self, model: str | None = None) -> Capabilities:
        parks = {"parks": True} if "parks" in {field.name for field in fields(Capabilities)} else {}
        return Capabilities(continues=True, features=None, **parks)
