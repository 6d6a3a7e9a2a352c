"""The limiter's promise: in no window is more spent than the limit, whatever comes when."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from disco.candidate import Payer
from disco.cost.budget_limiter import BudgetLimiter, Limit, WindowCounter
from disco.cost.budget_reservation import BudgetReservation
from disco.cost.token_bounds import MOST_PROOF, most_prompt_tokens
from disco.errors import BudgetExceededError
from disco.events import Usage
from disco.rates import Rates
from disco.request import Prefix, Request

WINDOW_S = 64.0
LIMIT = Limit("server_tokens", "server", "tokens", 1000, WINDOW_S)
GRAIN_S = WINDOW_S / 1024


@dataclass
class Job:
    """Something that ran, and what it cost."""

    ticket: int
    reserved: int
    start: float
    charged: int  # what had been settled until it started, and was still in the window
    end: float = math.inf
    cost: int = 0

    @property
    def final(self) -> int:
        """What it costs at most, as far as is known."""
        return self.reserved if self.end == math.inf else self.cost


def in_window(jobs: list[Job], right: float, *, inclusive=False, width: float = WINDOW_S) -> list[Job]:
    """The jobs that ran at some moment of (right - width, right]."""
    left = right - width
    return [j for j in jobs if j.start <= right and (j.end > left or (inclusive and j.end == left))]


class Arrivals(RuleBasedStateMachine):
    """Bursts, long answers, cancellations and late figures, at the edges of windows above all."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.counter = WindowCounter(LIMIT)
        self.now = 0.0
        self.all: list[Job] = []

    @rule(target=jobs, units=st.integers(1, 1100), times=st.integers(1, 6))
    def reserve(self, units, times):
        """A burst; who got something goes on, who got nothing was refused for a reason."""
        got = None
        for _ in range(times):
            ticket = self.counter.reserve(units, self.now)
            if ticket is None:
                near = in_window(self.all, self.now, inclusive=True, width=WINDOW_S + GRAIN_S)
                assert sum(j.final for j in near) + units > LIMIT.amount, "refused without need"
                break
            charged = sum(j.cost for j in in_window(self.all, self.now) if j.end < math.inf)
            got = Job(ticket, units, self.now, charged)
            self.all.append(got)
        return got

    @rule(job=consumes(jobs), share=st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.4]))
    def settle(self, job, share):
        """Also dearer than was reserved."""
        if job is not None and job.end == math.inf:
            job.cost, job.end = math.ceil(job.reserved * share), self.now
            self.counter.settle(job.ticket, job.cost, self.now)

    @rule(wait_s=st.floats(0.0, 2 * WINDOW_S) | st.sampled_from([0.0, GRAIN_S, WINDOW_S / 2, WINDOW_S]))
    def wait(self, wait_s):
        self.now += wait_s

    @rule(pick=st.integers(0, 50), off_s=st.sampled_from([-GRAIN_S, -1e-6, 0.0, 1e-6, GRAIN_S]))
    def wait_for_an_edge(self, pick, off_s):
        edges = sorted({j.end + WINDOW_S for j in self.all if self.now < j.end + WINDOW_S < math.inf})
        if edges:
            self.now = max(self.now, edges[pick % len(edges)] + off_s)

    def teardown(self):
        """The most that any window holds it holds when its right edge is a start."""
        for job in self.all:
            held = in_window(self.all, job.start)
            overrun = sum(max(0, j.final - j.reserved) for j in held)
            assert sum(j.final for j in held) - overrun <= LIMIT.amount, "overspent"
            # Who has overspent is counted in full for whoever comes after.
            assert job.charged + job.reserved <= LIMIT.amount, "started on what had been overspent"


SETTINGS = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_no_window_holds_more_than_the_limit():
    run_state_machine_as_test(Arrivals, settings=SETTINGS)


def test_memory_does_not_grow_with_requests_and_money_adds_up_exactly():
    """A tenth of a cent a thousand times is a dollar; in floats it is not."""
    counter = WindowCounter(Limit("usd", "server", "usd", 2.0, 100.0))
    unit = counter.units(0.001)
    for i in range(5000):
        counter.settle(counter.reserve(unit, i / 10), unit, i / 10)
        if i == 999:
            assert counter.left(i / 10) == counter.units(1.0)
    with pytest.raises(KeyError):  # what is settled is settled
        counter.settle(0, 0, 500.0)
    assert counter.left(-1e9) == counter.left(499.9)  # a clock that goes back gives nothing back
    assert len(counter._tally._spent) <= 1025
    assert counter.left(500.0) == pytest.approx(counter.units(1.0), rel=2e-3)


# ---------------------------------------------------------------------- one request

RATES = {"server": Rates(1e-7, 1e-6), "device": Rates(0, 0)}
PAYERS = {name: (Payer(name, name, rates),) for name, rates in RATES.items()}


def reservation(limit: Limit = LIMIT, limiter: BudgetLimiter | None = None, **more) -> BudgetReservation:
    return BudgetReservation(limiter or BudgetLimiter(), (limit,), PAYERS, **{"prompt_tokens": 100, **more})


def test_an_allowance_is_what_the_caller_asked_for_or_what_is_left_or_leaves_something_for_others():
    limiter = BudgetLimiter()
    one = reservation(limiter=limiter, max_tokens=200)
    assert one.open(0, "device", Prefix(), 0.0) is None  # it is not limited
    assert one.open(1, "server", Prefix(), 0.0) == 200
    one.close(1.0)
    one.close(2.0)
    assert limiter.left(1.0)["server_tokens"] == 700  # an answer that is never settled counts as reserved
    assert reservation(max_tokens=5000).open(0, "server", Prefix(), 0.0) == 900
    # Eight tokens of prefix, at most 20 of them to be read again.
    assert reservation(max_tokens=5000).open(0, "server", Prefix("x" * 20, tokens=8), 0.0) == 880
    limiter, limit = BudgetLimiter(), Limit("server_tokens", "server", "tokens", 10_000, 10.0)
    allowed = [reservation(limit, limiter).open(0, "server", Prefix(), 0.0) for _ in range(5)]
    assert allowed == [2475, 1831, 1348, 1024, 1024]


def test_what_an_endpoint_needs_to_prove_that_it_continues_is_reserved_too():
    prefix = Prefix("so far", tokens=2)
    limiters = [BudgetLimiter(), BudgetLimiter()]
    large = Limit("server_tokens", "server", "tokens", 50_000, 60.0)
    for limiter, unproved in zip(limiters, ((), ("server",)), strict=True):
        of = BudgetReservation(limiter, (large,), PAYERS, 100, max_tokens=40, unproved=unproved)
        assert of.open(0, "server", prefix, 0.0) == 38
        of.open(1, "server", Prefix(), 0.0)  # from the beginning there is nothing to prove
    more = [limiter.counter(large).left(0.0) for limiter in limiters]
    assert more[0] - more[1] == sum(MOST_PROOF) + prefix.tokens


def test_every_limit_has_to_allow_a_start_and_nothing_stays_reserved_under_one_because_another_refused():
    limiter, usd = BudgetLimiter(), Limit("usd", "server", "usd", 1e-5, 10.0)
    with pytest.raises(BudgetExceededError) as refused:
        BudgetReservation(limiter, (LIMIT, usd), PAYERS, 100).open(0, "server", Prefix(), 0.0)
    assert refused.value.limit == "usd"
    assert limiter.left(0.0) == {"server_tokens": 1000, "usd": 1e-5}


def test_what_is_not_reported_counts_as_the_user_wants_and_what_was_never_sent_costs_nothing():
    for unreported, left in [("estimated", 970), ("reserved", 700)]:
        limiter = BudgetLimiter()
        one = reservation(limiter=limiter, max_tokens=200, unreported=unreported)
        for attempt, usage in enumerate([Usage(20, 10), Usage(0, 0)]):
            one.open(attempt, "server", Prefix(), 0.0)
            one.settle(attempt, usage, reported=False, now=1.0)
            assert limiter.left(1.0)["server_tokens"] == left


def test_a_refusal_says_what_when_and_what_to_do():
    limiter = BudgetLimiter()
    first = reservation(limiter=limiter, max_tokens=900)
    first.open(0, "server", Prefix(), 0.0)
    with pytest.raises(BudgetExceededError, match="as soon as a running answer ends"):
        reservation(limiter=limiter).open(0, "server", Prefix(), 0.0)
    first.settle(0, Usage(100, 880), reported=True, now=4.0)
    with pytest.raises(BudgetExceededError) as refused:
        reservation(limiter=limiter).open(0, "server", Prefix(), 5.0)
    error = refused.value
    assert str(error).startswith(
        "The budget server_tokens does not allow endpoint 'server' another start: 20 are left of 1,000 tokens in any "
        "64 s, and this request may take 164 tokens"
    )
    assert "Enough frees up in 63 s" in str(error)
    assert (error.status_code, error.code) == (429, "insufficient_quota")
    assert error.response.headers["retry-after"] == "63"
    assert error.retry_after_s == pytest.approx(63.0, abs=0.1)
    with pytest.raises(BudgetExceededError, match="too small for this prompt"):
        reservation(limiter=limiter, prompt_tokens=2000).open(0, "server", Prefix(), 5.0)


def most(content: object, **params) -> int:
    request = Request(messages=[{"role": "user", "content": content}], model="m", params=params)
    return most_prompt_tokens(request)


def test_a_prompt_has_no_more_tokens_than_its_bound():
    """Bytes for text in any script; what it costs at most for pictures, however few bytes they take."""
    assert most("") > 40  # a template's own: SmolLM2's takes 31, with its system prompt
    assert 1000 < most("a" * 1000, temperature=0.5) < 1300
    assert 3000 < most("海" * 1000) < 3300
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000_000}}]
    assert 48_000 < most(picture) < 50_000
    assert most("a", tools=[{"function": {"x": "y" * 500}}]) > most("a") + 480
