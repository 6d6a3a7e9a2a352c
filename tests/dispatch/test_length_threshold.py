"""DiSCo-S: short prompts on the device, long ones race, and the server reads exactly its share of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch import (
    Candidate,
    Features,
    LengthThreshold,
    Start,
    plan_threshold,
    plan_threshold_samples,
)
from disco.profiles import Empirical, Lengths

DEVICE, SERVER = Candidate("d", "device"), Candidate("s", "any")
SKEWED = np.clip(np.random.default_rng(3).lognormal(4.0, 1.0, 100_000), 1, 8_000).astype(np.int64)
LUMPY = np.random.default_rng(4).choice([7, 7, 7, 30, 1_900], 100_000)
BUDGETS = [round(0.1 * i, 1) for i in range(1, 10)]
samples = st.lists(st.integers(1, 5_000), min_size=1, max_size=60)
shares = st.floats(0.0, 1.0)


def race_probability(plan, lengths):
    """`P(I_s(l) = 1)` for each length in tokens."""
    tokens = np.asarray(lengths)
    at_boundary = np.where(tokens == plan.boundary_tokens, plan.race_share, 0.0)
    return np.where(tokens > plan.boundary_tokens, 1.0, at_boundary)


def expected_share(plan, lengths):
    """E[I_s(l)·l] / E[l] under the fitted distribution."""
    tokens = lengths.lengths * lengths.p
    return float(tokens @ race_probability(plan, lengths.lengths) / tokens.sum())


def test_hand_computed_boundary():
    """Four prompts of 10 tokens, two of 20, one of 60: 40 + 40 + 60 = 140 tokens, of which half, 70.

    The device alone gets the first 70: all 40 of the tens, and 30 of the 40 tokens in twenties. So the
    boundary is 20, a quarter of the twenties race, and the server reads 40/4 + 60 = 70.
    """
    plan = plan_threshold(Lengths.from_samples([10, 10, 10, 10, 20, 20, 60]), 0.5)
    assert plan.boundary_tokens == 20
    assert plan.race_share == pytest.approx(0.25)


@given(samples, shares)
def test_budget_is_met_exactly_in_expectation(lengths, budget):
    kept = Lengths.from_samples(lengths)
    assert expected_share(plan_threshold(kept, budget), kept) == pytest.approx(budget, abs=1e-9)


@given(samples, shares)
def test_raw_samples_give_the_same_plan(lengths, budget):
    kept = Lengths.from_samples(lengths)
    raw = plan_threshold_samples(np.array(lengths), budget)
    assert expected_share(raw, kept) == pytest.approx(budget, abs=1e-9)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any), shares)
def test_very_long_prompts_are_planned_without_one_bin_per_length(lengths, budget):
    kept = Lengths.from_samples(lengths)
    raw = plan_threshold_samples(np.array(lengths), budget)
    assert expected_share(raw, kept) == pytest.approx(budget, abs=1e-9)


@given(samples, shares, shares)
def test_a_bigger_budget_never_races_less(lengths, one, other):
    kept = Lengths.from_samples(lengths)
    small, big = sorted((one, other))
    less = race_probability(plan_threshold(kept, small), kept.lengths)
    more = race_probability(plan_threshold(kept, big), kept.lengths)
    assert (more >= less - 1e-9).all()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("lengths", [SKEWED, LUMPY], ids=["skewed", "lumpy"])
def test_budget_holds_on_the_sequence(lengths, budget):
    """Within 1 % of it on 100,000 requests, and in truth within one prompt: rounding is carried over."""
    policy = LengthThreshold.fitted(
        Lengths.from_samples(lengths), budget=budget, rng=np.random.default_rng(5)
    )
    order = np.random.default_rng(6).permutation(lengths).tolist()
    used = sum(n for n in order if Start("s") in policy.starts(Features(n), DEVICE, SERVER))
    total = sum(order)
    assert used / total == pytest.approx(budget, rel=0.01)
    assert abs(used - budget * total) <= max(order) + 1e-6 * total


def test_fresh_requests_keep_to_the_budget():
    """100,000 new prompts of the same distribution: within one percentage point of the budget."""
    kept = Lengths.from_samples(SKEWED[:5_000])
    order = kept.sample(np.random.default_rng(8), 100_000)
    for budget in BUDGETS:
        used = order @ race_probability(plan_threshold(kept, budget), order)
        assert used / order.sum() == pytest.approx(budget, abs=0.01)


def test_ends_of_the_range_hold_for_lengths_never_seen():
    kept = Lengths.from_samples([10, 20])
    none, everything = plan_threshold(kept, 0.0), plan_threshold(kept, 1.0)
    assert race_probability(none, [1, 10, 20, 999]).tolist() == [0, 0, 0, 0]
    assert race_probability(everything, [1, 10, 20, 999]).tolist() == [1, 1, 1, 1]


def test_same_seed_same_decisions():
    kept = Lengths.from_samples(LUMPY[:1_000])

    def decide(seed):
        policy = LengthThreshold.fitted(kept, budget=0.9, rng=np.random.default_rng(seed))
        return [policy.starts(Features(n), DEVICE, SERVER) for n in LUMPY[:500].tolist()]

    assert decide(1) == decide(1)


def test_refit_follows_the_lengths():
    policy = LengthThreshold.fitted(Lengths.from_samples([10] * 10), budget=0.0, rng=np.random.default_rng(0))
    assert policy.starts(Features(50), DEVICE, SERVER) == (Start("d"),)
    policy = LengthThreshold.fitted(Lengths.from_samples([10, 90]), budget=0.5, rng=np.random.default_rng(0))
    boundary = policy.plan.boundary_tokens
    policy.refit(Lengths.from_samples([100, 900]), Empirical.from_samples([1.0]))
    assert policy.plan.boundary_tokens == 10 * boundary


@pytest.mark.parametrize("budget", [-0.1, 1.1, float("nan")])
def test_a_budget_that_is_no_share_is_refused(budget):
    with pytest.raises(ValueError, match="budget"):
        plan_threshold(Lengths.from_samples([1]), budget)


@pytest.mark.parametrize("lengths", [[], [0, 0], [-1, 3]])
def test_samples_without_tokens_are_refused(lengths):
    with pytest.raises(ValueError):  # noqa: PT011 - numpy words the negative one
        plan_threshold_samples(np.array(lengths, dtype=np.int64), 0.5)
