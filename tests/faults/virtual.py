"""Answers in the event simulator, on endpoints that write the same text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from playing import Run, run_session

from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Candidate, Plan
from disco.playback import Pace, Playback
from disco.rates import Rates
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.switching.migration_rule import AnswerLengths

__all__ = ["REQUEST", "play"]

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")


def play(
    profiles: Mapping[str, SimulatedProfile],
    plan: Plan,
    *,
    costs: Mapping[str, float] | None = None,
    pace: Pace | None = None,
    streams: bool = True,
    timeouts: Timeouts | None = None,
    max_retries: int = 0,
    cancel_takes_s: float = 0.0,
    seed: int = 0,
) -> Run:
    """Run one session to its end. `costs`: USD per token; by default all the same."""
    candidates = {
        name: Candidate(
            name=name,
            reach="device" if name == "device" else "any",
            parks=name == "device",
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
    return run_session(session, profiles, REQUEST, np.random.default_rng(seed), cancel_takes_s=cancel_takes_s)
