"""A session under an absolute budget: what is not paid for does not start, and what has used up its share stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import ProfileScripts, Run, run_session
from session.plays import FAST as QUICK
from session.plays import ON_SERVER, REQUEST, SERVER_ALONE, record_of, session_of
from situations import situations

from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import BudgetExceededError, FailureKind, LocalModelError
from disco.events import Delta
from disco.plan import Migration, Payer, Plan, Start
from disco.playback import Pace
from disco.rates import Rates
from disco.replay.simulator.virtual_driver import Player, Shared, run_together
from disco.request import Request
from disco.session.machine import Session

PROMPT = 20
SLOW = SimulatedProfile(ttft_s=0.5, decode_tps=20.0, answer_tokens=200)
FAST = replace(QUICK, answer_tokens=200)
BOTH = {"device": SLOW, "server": FAST}
DYING = {"device": replace(SLOW, fault=Fault(after_tokens=40, kind=FailureKind.CRASHED)), "server": FAST}
PAYERS = {
    "device": (Payer("device", "device", Rates(0.0, 0.0)),),
    "server": (Payer("server", "server", Rates(1e-7, 1e-6)),),
    "edge": (Payer("edge", "server", Rates(1e-7, 1e-6)),),
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


def tokens(amount: int, window_s: float = 60.0) -> Limit:
    return Limit("server_tokens", "server", "tokens", amount, window_s)


def budgeted(
    profiles,
    plan,
    limit: Limit,
    *,
    limiter: BudgetLimiter | None = None,
    max_tokens: int | None = None,
    **how,
) -> Session:
    reservation = Watched(limiter or BudgetLimiter(), (limit,), PAYERS, PROMPT, max_tokens=max_tokens)
    return session_of(profiles, plan, reservation=reservation, max_tokens=max_tokens, **how)


def asked(max_tokens: int | None) -> Request:
    return REQUEST if max_tokens is None else replace(REQUEST, params={"max_tokens": max_tokens})


def run(profiles, plan, limit, *, max_tokens=None, **how) -> Run:
    session = budgeted(profiles, plan, limit, max_tokens=max_tokens, **how)
    return run_session(session, profiles, asked(max_tokens), np.random.default_rng(0))


def whole(max_tokens: int | None = None) -> str:
    """The answer as it is without a budget."""
    return run({"server": FAST}, SERVER_ALONE, tokens(10**6), max_tokens=max_tokens).text


@pytest.mark.parametrize("max_tokens", [None, 180])
def test_an_endpoint_that_has_used_up_its_allowance_hands_on(max_tokens):
    """The device writes the rest of the same answer; nothing is lost at the cut, and nothing comes twice."""
    result = run(BOTH, ON_SERVER, tokens(120), max_tokens=max_tokens)
    server, device = result.session.attempts
    assert result.text == whole(max_tokens)
    assert result.finished == ("stop" if max_tokens is None else "length")
    assert (server.allowance, server.failure) == (100, FailureKind.BUDGET)
    assert device.allowance is None
    assert server.usage.prompt_tokens + server.usage.completion_tokens <= 120
    assert server.tokens > 70  # its own count of tokens, or four bytes to one


@pytest.mark.parametrize("max_tokens", [None, 180])
def test_where_no_endpoint_can_write_on_the_answer_ends_there(max_tokens):
    result = run({"server": FAST}, SERVER_ALONE, tokens(120), max_tokens=max_tokens)
    assert result.finished == "length"
    assert result.error is None
    assert whole().startswith(result.text)
    assert 70 < result.session.attempts[0].tokens <= 100


def test_the_callers_own_limit_is_no_reason_to_go_on():
    result = run(BOTH, ON_SERVER, tokens(1000), max_tokens=50)
    assert result.finished == "length"
    assert [a.failure for a in result.session.attempts] == [None]


def test_an_endpoint_for_which_nothing_can_be_reserved_does_not_start():
    """The plan came too late: in its place the device answers, as if the server had failed at once."""
    result = run(BOTH, ON_SERVER, tokens(60))
    server, device = result.session.attempts
    assert (server.outcome, server.failure) == ("failed", FailureKind.BUDGET)
    assert server.usage.prompt_tokens == 0
    assert (device.outcome, result.finished) == ("finished", "stop")
    record = record_of(result.session)
    assert record.budget == {
        "server_tokens": {"amount": 60, "window_s": 60.0, "reserved": 0, "spent": 0, "left": 60}
    }
    assert record.attempts[0].failure == "budget"


def test_a_budget_that_allows_no_endpoint_is_an_error_that_says_so():
    result = run({"server": FAST}, SERVER_ALONE, tokens(60))
    assert isinstance(result.error, BudgetExceededError)
    assert result.session.reservation.seen == {}


@pytest.mark.parametrize(
    "plan",
    [Plan((Start("device"),), ("server",)), Plan((Start("device"), Start("server", 0.1)))],
    ids=["takeover", "hedge"],
)
def test_what_the_budget_refuses_is_not_what_an_answer_fails_of(plan):
    result = run(DYING, plan, tokens(60))
    assert isinstance(result.error, LocalModelError)
    assert result.text
    assert whole().startswith(result.text)


def test_a_refused_hedge_disturbs_no_other_attempt():
    result = run(BOTH, Plan((Start("device"), Start("server", 0.1))), tokens(60))
    assert result.finished == "stop"
    assert [a.outcome for a in result.session.attempts] == ["finished", "failed"]


def test_a_refused_move_disturbs_no_other_attempt():
    """The cut is made and taken back; the reader gets the answer of the one who writes."""
    plan = Plan((Start("device"),), migrations={"device": Migration("server")})
    result = run(BOTH, plan, tokens(60), pace=Pace(tps=8.0), costs={"device": 1e-4})
    assert result.finished == "stop"
    assert result.text == whole()
    assert result.session.migrations[0].outcome == "target_failed"
    assert result.session.attempts[1].ended_at == result.session.attempts[1].started_at
    gaps = np.diff([at for at, _ in result.out])
    assert gaps.max() < 0.5, "the reader was kept waiting"


def test_one_that_ignores_its_limit_is_stopped():
    session = budgeted({"server": FAST}, SERVER_ALONE, tokens(120), max_tokens=180)
    result = run_session(session, {"server": FAST}, REQUEST, np.random.default_rng(0))  # told of no limit
    assert result.finished == "length"
    assert session.attempts[0].tokens == 101


def test_chunks_of_many_tokens_are_weighed():
    """A server that sends fifty tokens as one delta does not write fifty times its allowance."""
    session = budgeted({"server": FAST}, SERVER_ALONE, tokens(120))
    session.start(0.0)
    session.deltas(0, [Delta("word " * 60)], 1.0)
    assert session.attempts[0].active
    effects = session.deltas(0, [Delta("word " * 60)], 2.0)
    assert not session.attempts[0].active
    assert [type(e).__name__ for e in effects].count("CancelAttempt") == 1


# ---------------------------------------------------------------------- many at once


@settings(max_examples=60)
@given(st.data())
def test_many_sessions_together_never_overspend(data):
    """Whatever endpoints and readers do, whenever requests come: no window of the budget holds more than it."""
    window_s = data.draw(st.sampled_from([1.0, 4.0, 30.0]))
    limit, limiter = tokens(data.draw(st.integers(85, 300)), window_s), BudgetLimiter()
    sessions: list[tuple[Session, int]] = []
    shared, arrivals, at = Shared(), [], 0.0
    for _ in range(data.draw(st.integers(2, 8))):
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
