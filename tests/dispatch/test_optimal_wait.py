"""Optimal wait: never worse than the paper's wait time, at exactly the same budget, and truly optimal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from disco.dispatch import (
    Candidate,
    Dispatcher,
    Features,
    OptimalWait,
    Start,
    load_preset,
    plan_optimal_waits,
    plan_waits,
)
from disco.dispatch.planners.optimal_plan import _Problem, device_times_s
from disco.dispatch.planners.ttft_integral import ServerTimes, ttft_quantile_s
from disco.dispatch.planners.wait_quantiles import JUST_AFTER_0_S, EmpiricalWaits
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

DEVICE, SERVER = Candidate("d", "device", prefill_tps=40.0, overhead_s=0.05), Candidate("s", "any")
ALWAYS = (Start("s"), Start("d"))
CHAT = np.clip(np.random.default_rng(3).lognormal(3.3, 1.0, 3_000), 4, 900).astype(np.int64)
TWO_TIMES = Empirical.from_samples([1.0, 9.0])

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=12)
TIMES = st.lists(
    st.sampled_from([0.0, 0.1, 0.2, 0.25, 1.0, 3.0, 9.5]) | st.floats(0.01, 20.0), min_size=1, max_size=20
)
SHARES = st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.1, 0.5, 1.0])
DEVICES = st.builds(
    Candidate,
    name=st.just("d"),
    reach=st.just("device"),
    prefill_tps=st.sampled_from([5.0, 40.0, 900.0, float("inf")]),
    overhead_s=st.sampled_from([0.0, 0.1, 2.0]),
)
# A quantile table with an atom, and one that begins with answers that are there at once.
TABLES = st.sampled_from(
    [
        Empirical.from_quantiles([0.1, 0.5, 0.6, 0.9, 0.99], [0.2, 0.4, 0.4, 1.5, 8.0]),
        Empirical.from_quantiles([0.0, 0.2, 0.7, 1.0], [0.0, 0.0, 0.3, 2.0]),
        Empirical.from_quantiles([0.0, 1.0], [0.5, 1.5]),
    ]
)
SERVERS = st.builds(Empirical.from_samples, TIMES) | TABLES


def device_of(prefill_tps):
    return Candidate("d", "device", prefill_tps=prefill_tps)


def policy_of(lengths, times, device=DEVICE, **how):
    known = Lengths.from_samples(lengths), Empirical.from_samples(times)
    return OptimalWait(*known, device, **how, rng=np.random.default_rng(0))


def mean_s(ttft, lengths, device, shares, waits_s):
    arrives_s = waits_s + device_times_s(device, lengths.lengths)
    return float((shares * ServerTimes(ttft).mean_until_s(arrives_s)).sum(axis=0) @ lengths.p)


def p99_s(ttft, lengths, device, shares, waits_s):
    arrives_s = waits_s + device_times_s(device, lengths.lengths)
    return ttft_quantile_s(ttft, 0.99, arrives_s.ravel(), (shares * lengths.p).ravel())


@given(LENGTHS, SERVERS, DEVICES, SHARES, st.sampled_from([0.0, 0.05, 0.3]))
def test_never_worse_than_the_paper_and_the_budget_met_unless_the_device_cannot_help(
    lengths, ttft, device, budget, tail
):
    """In expectation: the mean always, P99 too where the tail is asked for; and the budget is kept."""
    kept = Lengths.from_samples(lengths)
    plan = plan_optimal_waits(kept, ttft, device, budget, tail)
    assert plan.budget_used <= budget + 1e-9
    for alpha in (tail,) if tail else (0.0, 0.2):
        paper = plan_waits(kept, ttft, budget, alpha).waits(kept.lengths)
        assert plan.mean_ttft_s <= mean_s(ttft, kept, device, *paper) * (1 + 1e-9) + 1e-12
    if tail:
        late_s = p99_s(ttft, kept, device, *paper)
        assert p99_s(ttft, kept, device, plan.shares, plan.waits_s) <= late_s * (1 + 1e-9)
    assert plan.shares.sum(axis=0) == pytest.approx(1.0)
    tokens = kept.lengths * kept.p
    spent = float((plan.shares * EmpiricalWaits(ttft).use(plan.waits_s)).sum(axis=0) @ tokens / tokens.sum())
    assert plan.budget_used == pytest.approx(spent, abs=1e-12)
    helped = device_times_s(device, kept.lengths) < ttft.values[-1]
    # An answer that is there at once needs no help either.
    useful = float(tokens[helped].sum() / tokens.sum()) * ttft.survival(0.0)
    assert spent >= min(budget, useful) - 1e-9
    if not tail:  # longer prompts never wait less
        latest_s = np.where(plan.shares > 0.0, plan.waits_s, -1.0).max(axis=0)
        soonest_s = np.where(plan.shares > 0.0, plan.waits_s, np.inf).min(axis=0)
        assert (latest_s[:-1] <= soonest_s[1:]).all()


def all_waits(ttft):
    """Every wait that can matter with a step function: none, the times that occur, and never."""
    return np.unique(np.concatenate([[0.0, JUST_AFTER_0_S], ttft.values]))


def solve_exactly(lengths, ttft, device, budget, late_s=None, exposed=None):
    """The linear program, all waits of all lengths at once: the smallest mean."""
    waits_s = all_waits(ttft)
    arrives_s = device_times_s(device, lengths.lengths)[:, None] + waits_s
    samples, weights = ttft.values[1::2], np.diff(np.append(0.0, ttft.levels[1::2]))
    gain = (np.minimum(samples, arrives_s[..., None]) * weights).sum(axis=2)
    tokens = lengths.lengths * lengths.p / lengths.mean()
    limits, rooms = [np.outer(tokens, EmpiricalWaits(ttft).use(waits_s)).ravel()], [budget]
    if late_s is not None:
        limits.append((lengths.p[:, None] * (arrives_s > late_s)).ravel())
        rooms.append(exposed)
    each = np.kron(np.eye(lengths.lengths.size), np.ones(waits_s.size))
    found = linprog(
        (lengths.p[:, None] * gain).ravel(),
        A_ub=np.array(limits),
        b_ub=np.array(rooms),
        A_eq=each,
        b_eq=np.ones(lengths.lengths.size),
    )
    return found.fun if found.success else None


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
    st.lists(st.integers(0, 60).map(lambda tenths: tenths / 10), min_size=1, max_size=5),
    DEVICES,
    SHARES,
    st.floats(0.0, 7.0),
)
@settings(max_examples=60)
def test_nothing_has_a_smaller_mean_nor_one_with_as_good_a_p99(lengths, times, device, budget, limit_s):
    """Of plans that keep P99 to a limit, whatever the limit; and where none can, none is made up."""
    kept, ttft = Lengths.from_samples(lengths), Empirical.from_samples(times)
    best_s = solve_exactly(kept, ttft, device, budget)
    assert plan_optimal_waits(kept, ttft, device, budget).mean_ttft_s == pytest.approx(best_s, abs=1e-7)
    problem = _Problem(kept, ttft, device)
    plan = problem.shielded(problem.tried(all_waits(ttft), limit_s), budget, limit_s)
    exposed = 0.01 / ttft.survival(limit_s) if ttft.survival(limit_s) > 0.0 else 1.0
    if plan is None:  # a plan that only just keeps to both limits may be passed over
        assert solve_exactly(kept, ttft, device, budget, limit_s, exposed - 1e-6) is None
        return
    best_s = solve_exactly(kept, ttft, device, budget, limit_s, exposed)
    assert plan.mean_ttft_s == pytest.approx(best_s, abs=1e-6)
    assert p99_s(ttft, kept, device, plan.shares, plan.waits_s) <= limit_s + 1e-9


@settings(max_examples=50)
@given(
    SERVERS,
    st.lists(st.just(0.0) | st.floats(0.001, 20.0), min_size=1, max_size=8),
    st.floats(0.0, 30.0),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_only_corner_waits_can_be_best_and_means_and_quantiles_of_the_sooner_are_what_they_say(
    ttft, device_s, price, level
):
    """Whatever a token costs and however slow the device is, no wait at all beats the best corner."""
    times, source = ServerTimes(ttft), EmpiricalWaits(ttft)

    def cost(waits_s):
        return times.mean_until_s(waits_s + device_s[0]) + price * source.use(waits_s)

    everywhere = np.concatenate([all_waits(ttft), np.linspace(0.0, 25.0, 501)])
    assert cost(times.corner_waits_s()).min() <= cost(everywhere).min() + 1e-9

    limits, drawn_s = np.array([*device_s, np.inf]), ttft.quantile((np.arange(100_000) + 0.5) / 100_000)
    means_s = [np.minimum(drawn_s, limit).mean() for limit in limits]
    assert times.mean_until_s(limits) == pytest.approx(means_s, abs=1e-3)

    def reached(t):
        return 1.0 - ttft.survival(float(t)) * float((limits[:-1] > t).mean())

    at_s = ttft_quantile_s(ttft, level, limits[:-1], np.full(len(device_s), 1.0 / len(device_s)))
    assert reached(at_s) >= level - 1e-9
    assert at_s == 0.0 or reached(at_s * (1 - 1e-9)) < level + 1e-6


def test_a_preset_may_name_it_and_it_follows_the_server():
    """T is 1 or 9 s: a wait of 1 s uses the device half of the time, and gains more than none at all for half."""
    lengths = Lengths.from_samples([10])
    policy = policy_of([10], [1.0, 9.0], budget=0.5)
    assert policy.starts(Features(10), DEVICE, SERVER) == (Start("s"), Start("d", 1.0))
    policy.refit(lengths, Empirical.from_samples([2.0, 18.0]))
    assert policy.wait_s(10) == 2.0
    preset = load_preset({"dispatch": {"policy": "optimal_wait", "budget": 0.5, "tail": 0.0}})
    dispatcher = Dispatcher(preset, lengths=lengths, ttft=TWO_TIMES, rng=np.random.default_rng(0))
    dear_server = Candidate("s", "any", rates=Rates(1.0, 1.0))
    assert dispatcher.plan(Features(10), [DEVICE, dear_server], {}).starts == (Start("s"), Start("d", 1.0))


@pytest.mark.parametrize("longest", [1_000, 10**6], ids=["a table", "too long for a table"])
def test_lengths_never_seen_wait_like_the_next_longer_one(longest):
    policy = policy_of([10, longest], [0.5, 1.0, 2.0, 60.0], budget=0.01)
    known = policy.wait_s(10), policy.wait_s(longest)
    assert known[0] < known[1]
    unseen = [3, 11, 5 * longest]
    assert [policy.wait_s(n) for n in unseen] == [known[0], known[1], known[1]]
    assert policy.waits_s(np.array(unseen)).tolist() == [known[0], known[1], known[1]]


def test_a_device_that_slows_down_is_planned_for_again_and_left_alone_where_the_server_never_was_slower():
    """Hot or busy: the prompts it can still help with are fewer. Small changes are not worth a new plan."""
    quick = device_of(100.0)
    policy = policy_of([10, 100], [0.5, 4.0], quick, budget=1.0)
    assert policy.starts(Features(100), quick, SERVER) == ALWAYS
    before = policy.plan
    policy.starts(Features(100), device_of(99.0), SERVER)
    assert policy.plan is before
    policy.starts(Features(100), device_of(10.0), SERVER)
    assert policy.starts(Features(10), device_of(10.0), SERVER) == ALWAYS
    assert policy.wait_s(100) >= 4.0
    assert policy.plan.budget_used == pytest.approx(10 / 110)


def test_what_cannot_be_planned_is_refused():
    nan = float("nan")
    for length, budget, tail in [(1, 1.5, 0.1), (1, 0.5, -0.1), (1, nan, 0.1), (0, 0.5, 0.0)]:
        with pytest.raises(ValueError, match="share" if length else "at least one token"):
            plan_optimal_waits(Lengths.from_samples([length]), TWO_TIMES, DEVICE, budget, tail)
