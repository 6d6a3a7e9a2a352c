"""Sessions for tests: endpoints made of simulated profiles, played to their end in virtual time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from disco.candidate import Candidate
from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import Scripted, SimulatedProfile, log_probabilities, script
from disco.events import Delta
from disco.plan import Plan, Start
from disco.playback import Pace, playback_for
from disco.replay.simulator.virtual_driver import Player
from disco.request import Request, Timeouts
from disco.session.effects import StartAttempt
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord
from disco.session.switching.answer_lengths import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
FAST = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120)
NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
SERVER_ALONE = Plan((Start("server"),))

PROFILES = Mapping[str, SimulatedProfile]


def candidate(name: str, profile: SimulatedProfile, cost_out: float = 1e-6, **more: Any) -> Candidate:
    """An endpoint as the session sees it; a prompt token costs a tenth of a generated one."""
    facts = {
        "reach": "device" if name == "device" else "any",
        "parks": name == "device",
        "pauses": name == "device",
        "rates": Rates(cost_out / 10, cost_out),
        "prefill_tps": profile.prefill_tps,
        "overhead_s": profile.overhead_s + profile.ttft_s,
        "decode_tps": profile.decode_tps,
        "continues": profile.continues,
    }
    return Candidate(name, **{**facts, **more})


def session_of(
    profiles: PROFILES,
    plan: Plan,
    *,
    costs: Mapping[str, float] | None = None,
    pace: Pace | None = None,
    listener: Any = None,
    reservation: Any = None,
    judge: Any = None,
    believed: Mapping[str, Mapping[str, Any]] | None = None,
    **config: Any,
) -> Session:
    """A session that has not started.

    `costs`: USD per generated token, by name, 1e-6 by default; `believed`: fields of candidates that differ from the
    profiles, by name; `config`: more of `SessionConfig`.
    """
    candidates = {
        name: candidate(name, profile, (costs or {}).get(name, 1e-6), **(believed or {}).get(name, {}))
        for name, profile in profiles.items()
    }
    settings = SessionConfig(**{"prompt_tokens": 20, "pace_tps": pace.tps if pace else None, **config})
    lengths = AnswerLengths.geometric(150.0)
    session = Session(plan, candidates, settings, playback_for(pace), lengths, listener, reservation, judge)
    woken, wake = itertools.count(), session.woken

    def count(now: float):
        assert next(woken) < 50_000, "the driver is woken over and over for nothing"
        return wake(now)

    session.woken = count  # type: ignore[method-assign]
    return session


@dataclass(slots=True)
class Run:
    """How a session went."""

    session: Session  # in its last state
    out: list[tuple[float, list[Delta]]]  # (time, deltas) as the reader got them
    finished: str | None  # the reason, or None when it failed
    error: Exception | None
    now: float  # virtual time at the end, seconds
    running: set[int]  # attempts that were never stopped; must be empty

    @property
    def text(self) -> str:
        """What the reader got."""
        return "".join(d.text for _, deltas in self.out for d in deltas)


def run_session(
    session: Session,
    profiles: PROFILES,
    request: Request = REQUEST,
    rng: np.random.Generator | None = None,
    *,
    cancel_at: float = math.inf,
    cancel_takes_s: float = 0.0,
    scripts: type[ProfileScripts] | None = None,
) -> Run:
    """Play a session to its end; the reader leaves at `cancel_at`, and a cancelled attempt goes on for a while."""
    made = (scripts or ProfileScripts)(
        profiles, request, rng or np.random.default_rng(0), session.config.prompt_tokens
    )
    out: list[tuple[float, list[Delta]]] = []
    player = Player(session, made, cancel_takes_s=cancel_takes_s, out=out)
    now = player.run(0.0, cancel_at)
    running = {number for number, playing in player.playing.items() if not playing.stopped}
    return Run(session, out, player.finished, player.error, now, running)


@dataclass(frozen=True, slots=True)
class ProfileScripts:
    """Endpoints that do what their profiles say, whatever they did before."""

    profiles: PROFILES
    request: Request
    rng: np.random.Generator
    prompt_tokens: int

    def reads_s(self, endpoint: str, tokens: int) -> float:
        return tokens / self.profiles[endpoint].prefill_tps

    def logp(self, endpoint: str, begin: int, end: int) -> tuple[float, ...] | None:
        profile = self.profiles[endpoint]
        known = profile.mean_logp is not None
        return log_probabilities(profile, self.request, begin, end - begin) if known else None

    def charged(self, endpoint: str, tokens: int, cached_tokens: int, worked_s: float) -> tuple[int, int]:
        return tokens, cached_tokens

    def script(self, start: StartAttempt, *, kept: int | None) -> tuple[Iterator[Scripted], int, int]:
        prompt = self.prompt_tokens + start.prefix.tokens
        request = self.request if start.max_tokens is None else self.request.limited(start.max_tokens)
        if start.cap is not None:
            request = request.capped(start.cap)
        profile, name = self.profiles[start.endpoint], start.endpoint
        cached = 0
        if kept is not None and profile.prefill_tps < math.inf:
            cached = min(self.prompt_tokens + min(kept, start.prefix.tokens), prompt - 1)
        events = script(
            profile,
            request,
            start.prefix,
            self.rng,
            endpoint=name,
            prompt_tokens=prompt,
            cached_tokens=cached,
            progress="progress" in start.wants,
        )
        return events, prompt, cached


def play(
    profiles: PROFILES,
    plan: Plan,
    *,
    request: Request = REQUEST,
    seed: int = 0,
    cancel_at: float = math.inf,
    cancel_takes_s: float = 0.0,
    scripts: type[ProfileScripts] | None = None,
    **how: Any,
) -> Run:
    """One session, played to its end; `how` is for `session_of`."""
    rng = np.random.default_rng(seed)
    ends = {"cancel_at": cancel_at, "cancel_takes_s": cancel_takes_s, "scripts": scripts}
    return run_session(session_of(profiles, plan, **how), profiles, request, rng, **ends)


def record_of(session: Session, **more: Any) -> RouteRecord:
    """The route record of a finished session, with its ledger."""
    return make_record(session, settle_accounts(session), preset="test", **more)


def check(run: Run) -> RouteRecord:
    """What holds of every answer, however it was made; returns its record."""
    session, text = run.session, run.text
    assert (run.finished is None) != (run.error is None)
    assert not run.running, "an attempt was left running"
    assert all(attempt.stopped for attempt in session.attempts)
    record = record_of(session, created_s=1.0)
    assert all(t.ended_s is not None for t in record.attempts)
    allowed = {s.endpoint for s in session.plan.starts} | set(session.plan.fallbacks)
    allowed |= {move.target for move in session.plan.migrations.values()} | set(session.plan.heirs)
    assert {t.endpoint for t in record.attempts} <= allowed

    # Every token once and in order: what the reader got is, piece by piece, what the writers wrote.
    assert record.seamless
    assert text == session.transcript.text
    end = 0
    for piece in record.segments:
        assert piece.start_char == end < piece.end_char
        end = piece.end_char
        writer = session.attempts[piece.attempt]
        prefix = writer.prefix.text
        written = "".join(writer.parts)[piece.start_char - len(prefix) :]
        assert written.startswith(text[piece.start_char : end])
        assert text[: len(prefix)] == prefix[: len(text)]
    assert end == len(text)
    if run.finished not in (None, "cancelled"):
        assert sum(tokens for _, tokens in record.released) == record.answer_tokens
        assert sum(t.kept_tokens for t in record.attempts) == record.answer_tokens

    # Nothing is released before it was written.
    written = released = 0
    events = [(t, 0, n) for t, n in record.generated] + [(t, 1, n) for t, n in record.released]
    for _, kind, tokens in sorted(events, key=lambda event: (event[0], event[1])):
        written, released = (written + tokens, released) if kind == 0 else (written, released + tokens)
        assert released <= written

    # The ledger is the sum of its charges, and charges all that any attempt used.
    ledger = record.ledger
    assert ledger.totals().policy_cost == math.fsum(charge.policy_cost for charge in ledger.charges)
    used = sum(a.usage.prompt_tokens + a.usage.completion_tokens for a in session.attempts)
    assert sum(c.prompt_tokens + c.completion_tokens for c in ledger.charges) == used
    assert ledger.totals().policy_cost == pytest.approx(sum(t.policy_cost for t in record.attempts))
    return record
