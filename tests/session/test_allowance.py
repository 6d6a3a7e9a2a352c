"""A session under an absolute budget: what is not paid for does not start, and what has used up its share stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import FAST, REQUEST, SERVER_ALONE, ProfileScripts, run_session, session_of
from situations import situations

from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.events import Delta
from disco.plan import Payer
from disco.rates import Rates
from disco.replay.simulator.virtual_driver import Player, Shared, run_together
from disco.request import Request
from disco.session.machine import Session

PROMPT = 20
SERVER = {"server": replace(FAST, answer_tokens=200)}
PRICES = Rates(1e-7, 1e-6)
PAYERS = {
    "device": (Payer("device", "device", Rates(0.0, 0.0)),),
    "server": (Payer("server", "server", PRICES),),
    "edge": (Payer("edge", "server", PRICES),),
}


@dataclass(slots=True)
class Watched(BudgetReservation):
    """Writes down what every attempt reserved and cost, and when it ran."""

    seen: dict[int, list[float]] = field(default_factory=dict)  # attempt: start, end, reserved, cost

    def open(self, attempt, endpoint, prefix, now):
        allowed = BudgetReservation.open(self, attempt, endpoint, prefix, now)
        if allowed is not None:
            (_, _, _, units), *_ = self._held[attempt].held
            self.seen[attempt] = [now, math.inf, units, 0]
        return allowed

    def settle(self, attempt, usage, *, reported, now):
        if attempt in self.seen:
            self.seen[attempt][1::2] = [now, usage.prompt_tokens + usage.completion_tokens]
        BudgetReservation.settle(self, attempt, usage, reported=reported, now=now)


def limit_of(tokens: int, window_s: float = 60.0) -> Limit:
    return Limit("server_tokens", "server", "tokens", tokens, window_s)


def budgeted(profiles, plan, limit: Limit, *, limiter=None, max_tokens: int | None = None, **how) -> Session:
    reservation = Watched(limiter or BudgetLimiter(), (limit,), PAYERS, PROMPT, max_tokens=max_tokens)
    return session_of(profiles, plan, reservation=reservation, max_tokens=max_tokens, **how)


def asked(max_tokens: int | None) -> Request:
    return REQUEST if max_tokens is None else replace(REQUEST, params={"max_tokens": max_tokens})


def test_one_that_ignores_its_limit_is_stopped_and_chunks_of_many_tokens_are_weighed():
    """A server that sends sixty tokens as one delta does not write sixty times its allowance."""
    session = budgeted(SERVER, SERVER_ALONE, limit_of(120), max_tokens=180)
    ignoring = run_session(session, SERVER, REQUEST, np.random.default_rng(0))  # told of no limit
    assert (ignoring.finished, session.attempts[0].tokens) == ("length", 101)
    session = budgeted(SERVER, SERVER_ALONE, limit_of(120))
    session.start(0.0)
    session.deltas(0, [Delta("word " * 60)], 1.0)
    assert session.attempts[0].active
    effects = session.deltas(0, [Delta("word " * 60)], 2.0)
    assert not session.attempts[0].active
    assert [type(e).__name__ for e in effects].count("CancelAttempt") == 1


@settings(max_examples=40)
@given(st.data())
def test_many_sessions_together_never_overspend(data):
    """Whatever endpoints and readers do, whenever requests come: no window of the budget holds more than it."""
    window_s = data.draw(st.sampled_from([1.0, 4.0, 30.0]))
    limit, limiter = limit_of(data.draw(st.integers(85, 300)), window_s), BudgetLimiter()
    sessions: list[tuple[Session, int]] = []
    shared, arrivals, at = Shared(), [], 0.0
    for _ in range(data.draw(st.integers(2, 6))):
        drawn = data.draw(situations())
        at += data.draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, window_s]))
        max_tokens = data.draw(st.none() | st.integers(1, 120))
        how = {name: drawn[name] for name in ("streams", "pace", "costs")}
        profiles = drawn["profiles"]
        session = budgeted(profiles, drawn["plan"], limit, limiter=limiter, max_tokens=max_tokens, **how)
        rng = np.random.default_rng(drawn["seed"])
        scripts = ProfileScripts(profiles, asked(max_tokens), rng, PROMPT)
        player = Player(session, scripts, shared=shared, cancel_takes_s=drawn["cancel_takes_s"])
        sessions.append((session, max(p.packet_tokens for p in profiles.values())))
        arrivals.append((at, lambda player=player: player))
    assert len(list(run_together(arrivals, shared))) == len(sessions)
    jobs = []
    for session, late in sessions:
        for number, (start, end, reserved, cost) in session.reservation.seen.items():
            assert end < math.inf, "never settled"
            state = session.attempts[number]
            if session.config.max_tokens is not None:
                assert cost <= reserved
            # Nobody told it to stop: what was in its last packet, and what it wrote until it heard of it.
            assert cost - reserved <= late + 0.1 * state.candidate.decode_tps
            jobs.append((start, end, cost, max(0, cost - reserved)))
    for right, *_ in jobs:
        held = [(cost, over) for start, end, cost, over in jobs if start <= right and end > right - window_s]
        assert sum(cost - over for cost, over in held) <= limit.amount
    assert not limiter.counter(limit)._open, "a reservation was never given back"
