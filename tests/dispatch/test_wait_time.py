"""DiSCo-D, where the device joins after w(l), and DiSCo-S: the spared side reads exactly its share of tokens."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disco.dispatch import (
    Candidate,
    Features,
    LengthThreshold,
    Start,
    WaitTime,
    plan_threshold,
    plan_threshold_samples,
    plan_waits,
    plan_waits_samples,
)
from disco.dispatch.planners import rank_selection
from disco.dispatch.planners.wait_quantiles import EmpiricalWaits, SampleWaits
from disco.profiles import Empirical, Lengths

DEVICE, SERVER = Candidate("d", "device"), Candidate("s", "any")
LENGTHS = st.lists(st.integers(1, 5_000), min_size=1, max_size=40)
# Few distinct values, so that ties are the rule.
TIMES = st.lists(
    st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.2000001, 0.25, 1.0, 3.0, 9.5]), min_size=1, max_size=60
) | st.lists(st.floats(0.001, 60.0), min_size=1, max_size=100)
SHARES = st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.0])


def mean_wait_s(plan, lengths):
    """The mean wait for each length in tokens, s."""
    shares, waits = plan.waits(np.asarray(lengths))
    # A wait that no request gets may be infinite.
    return sum(p * np.where(p > 0.0, wait_s, 0.0) for p, wait_s in zip(shares, waits, strict=True))


def use_probability(plan, lengths, ttft):
    """`P(I_d(l) = 1)` for each length in tokens when the server's TTFT follows `ttft`."""
    shares, waits = plan.waits(np.asarray(lengths))
    source = EmpiricalWaits(ttft)
    return sum(p * source.use(wait_s) for p, wait_s in zip(shares, waits, strict=True))


def expected_share(plan, lengths, ttft):
    """E[I_d(l)·l] / E[l] under the fitted distributions."""
    tokens = lengths.lengths * lengths.p
    return float(tokens @ use_probability(plan, lengths.lengths, ttft) / tokens.sum())


ONE_TO_TEN = Empirical.from_samples([float(t) for t in range(1, 11)])
TWO_LENGTHS = Lengths.from_samples([10] * 5 + [50])  # 50 tokens in short prompts, 50 in the long one


@pytest.mark.parametrize(
    ("budget", "boundary_tokens", "waits_s"),
    [
        # Server TTFT 1, 2, ..., 10 s; α = 0.2; both lengths hold half of the tokens. All tail:
        (0.1, -1, [9.0, 9.0]),
        # P(T > w) = 0.2 at w = 8. No wait for the short ones would cost 0.4 of the 0.3 left: P(T > w*) = 0.2 + 0.3/0.5.
        (0.5, 10, [2.0, 8.0]),
        # 0.5 to spend; the short ones take 0.4 and do not wait; P(T > w*) = 0.2 + 0.1/0.5 = 0.4 is left.
        (0.7, 50, [0.0, 6.0]),
    ],
)
def test_hand_computed_boundary(budget, boundary_tokens, waits_s):
    plan = plan_waits(TWO_LENGTHS, ONE_TO_TEN, budget, 0.2)
    assert plan.boundary_tokens == boundary_tokens
    assert mean_wait_s(plan, [10, 50]) == pytest.approx(waits_s)


def test_hand_computed_slope():
    """Half of b − α = 0.5 buys waits of 0, for 0.3125 of the tokens; 0.3875 is left for the others.

    Just below β = 0.12 s a token they use 0.1875·u(1.2) + 0.5·u(6−) = 0.41875; from it on 0.36875, too little.
    """
    plan = plan_waits(TWO_LENGTHS, ONE_TO_TEN, 0.7, 0.2, form="slope")
    assert (plan.boundary_tokens, plan.edge.p_early) == (10, pytest.approx(0.625))  # of the short ones
    assert (plan.slope.early, plan.slope.late) == pytest.approx((0.12, 0.12), rel=5e-3)
    used = 0.4 + 0.1 * (0.3875 - 0.36875) / (0.41875 - 0.36875)
    assert use_probability(plan, [50], ONE_TO_TEN) == pytest.approx(used)


# A server's own table is straight lines, here with an atom, instead of steps.
TABLE = Empirical.from_quantiles([0.1, 0.5, 0.6, 0.9, 0.99], [0.2, 0.4, 0.4, 1.5, 8.0])


@given(LENGTHS, TIMES | st.none(), SHARES, SHARES, st.sampled_from(["boundary", "slope"]))
@example([10, 10, 50], [0.5, 0.5, 0.5], 0.5, 0.05, "slope")
@example([10, 20, 50], [0.5, 1.0, 2.0], 0.5, 0.0, "slope")  # the tail never starts the device
@example([10], [0.5], 1.0, 0.05, "slope")
def test_budget_is_met_exactly_in_expectation_and_short_prompts_never_wait_longer(
    lengths, times, budget, tail, form
):
    """Whatever the steps and atoms, from samples, from a distribution and from a quantile table."""
    kept = Lengths.from_samples(lengths)
    ttft = TABLE if times is None else Empirical.from_samples(times)
    plans = [plan_waits(kept, ttft, budget, tail, form=form)]
    if times is not None:
        plans.append(plan_waits_samples(np.array(lengths), np.array(times), budget, tail, form=form))
    for plan in plans:
        assert expected_share(plan, kept, ttft) == pytest.approx(budget, abs=1e-9)
        # A device reads them fast, so they get the budget first.
        waits_s = mean_wait_s(plan, kept.lengths)
        assert (waits_s[1:] >= waits_s[:-1] - 1e-9).all()


def test_plans_follow_the_server_and_the_lengths():
    how, times = {"rng": np.random.default_rng(0)}, Empirical.from_samples([10.0 * t for t in range(1, 11)])
    policy = WaitTime.fitted(TWO_LENGTHS, ONE_TO_TEN, budget=0.7, tail=0.2, **how)
    assert policy.starts(Features(60), DEVICE, SERVER) == (Start("s"), Start("d", 8.0))
    policy.refit(TWO_LENGTHS, times)
    assert policy.starts(Features(60), DEVICE, SERVER) == (Start("s"), Start("d", 80.0))
    policy = LengthThreshold.fitted(Lengths.from_samples([10, 90]), budget=0.5, **how)
    boundary = policy.plan.boundary_tokens
    policy.refit(Lengths.from_samples([100, 900]), times)
    assert policy.plan.boundary_tokens == 10 * boundary


def test_what_cannot_be_planned_is_refused():
    for budget, tail in [(1.5, 0.1), (0.5, -0.1), (float("nan"), 0.1)]:
        with pytest.raises(ValueError, match="share"):
            plan_waits(TWO_LENGTHS, ONE_TO_TEN, budget, tail)
    for budget in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="budget"):
            plan_threshold(TWO_LENGTHS, budget)
    with pytest.raises(ValueError, match="time to first token"):
        plan_waits_samples(np.array([3]), np.array([]), 0.5)
    for lengths in ([], [0, 0], [-1, 3]):
        with pytest.raises(ValueError):  # noqa: PT011 - numpy words the negative one
            plan_threshold_samples(np.array(lengths, dtype=np.int64), 0.5)


# ---------------------------------------------------------------------- DiSCo-S: long prompts race

# No plan needs one bin per length.
ANY_LENGTHS = st.lists(st.integers(0, 5_000) | st.integers(0, 10**6), min_size=1, max_size=60).filter(any)


def race_probability(plan, lengths):
    """`P(I_s(l) = 1)` for each length in tokens."""
    tokens = np.asarray(lengths)
    at_boundary = np.where(tokens == plan.boundary_tokens, plan.race_share, 0.0)
    return np.where(tokens > plan.boundary_tokens, 1.0, at_boundary)


@given(ANY_LENGTHS, SHARES, SHARES)
def test_a_threshold_meets_its_budget_exactly_in_expectation_and_a_bigger_one_never_races_less(
    lengths, one, other
):
    """From a distribution and from raw samples. Long prompts race first; the ends hold for lengths never seen."""
    kept = Lengths.from_samples(lengths)
    tokens, raced = kept.lengths * kept.p, []
    for budget in sorted((one, other)):
        for plan in (plan_threshold(kept, budget), plan_threshold_samples(np.array(lengths), budget)):
            raced.append(race_probability(plan, kept.lengths))
            assert tokens @ raced[-1] / tokens.sum() == pytest.approx(budget, abs=1e-9)
            assert (np.diff(raced[-1]) >= 0).all()
            if budget in (0.0, 1.0):
                assert race_probability(plan, [1, 999, 10**7]).tolist() == [budget] * 3
    assert (raced[2] >= raced[0] - 1e-9).all()


# ---------------------------------------------------------------------- selecting near a rank

HEAVY = 0.25 + 0.15 * np.random.default_rng(5).pareto(2.2, 20_000)
# The part that sets the bounds is every 27th value: here it knows nothing of the rest.
MISLEADING = np.where(np.arange(20_000) % 27 == 0, 100.0 * HEAVY, HEAVY)


@given(values=TIMES, share=st.floats(0.0, 1.0, exclude_max=True), use=st.floats(0.0, 1.0))
def test_a_stretch_is_a_stretch_of_the_sorted_sample_and_gives_the_same_waits(values, share, use):
    values = np.array(values)
    rank, expected = int(share * len(values)), SampleWaits(values).split(use)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_selection, "_SELECT_FROM", 4)
        order = rank_selection.Ranks(values)
        stretch, skipped = order.near(rank)
        assert SampleWaits(values).split(use) == expected
    ordered = np.sort(values)
    assert skipped <= rank < skipped + len(stretch)
    assert (stretch == ordered[skipped : skipped + len(stretch)]).all()
    assert not np.isin(stretch, ordered[:skipped]).any()
    assert not np.isin(stretch, ordered[skipped + len(stretch) :]).any()
    assert order.beyond(values[0]) == (ordered > values[0]).sum()
    lower = ordered[ordered < values[0]]
    assert order.before(values[0]) == (lower[-1] if lower.size else None)


def test_of_many_samples_few_are_sorted_unless_the_bounds_miss():
    """What makes it cost the same on machines that sort slowly."""
    for rank in (10_000, 19_000):
        assert len(rank_selection.Ranks(HEAVY).near(rank)[0]) < 3_000
    stretch, skipped = rank_selection.Ranks(MISLEADING).near(10_000)
    assert (skipped, len(stretch)) == (0, len(MISLEADING))
