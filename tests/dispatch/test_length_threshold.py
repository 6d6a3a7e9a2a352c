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
SKEWED = np.clip(np.random.default_rng(3).lognormal(4.0, 1.0, 30_000), 1, 8_000).astype(np.int64)
LUMPY = np.random.default_rng(4).choice([7, 7, 7, 30, 1_900], 30_000)
samples = st.lists(st.integers(1, 5_000), min_size=1, max_size=60)
# No plan needs one bin per length.
very_long = st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any)
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


@given(samples | very_long, shares)
def test_budget_is_met_exactly_in_expectation_from_a_distribution_and_from_raw_samples(lengths, budget):
    kept = Lengths.from_samples(lengths)
    for plan in (plan_threshold(kept, budget), plan_threshold_samples(np.array(lengths), budget)):
        assert expected_share(plan, kept) == pytest.approx(budget, abs=1e-9)


@given(samples, shares, shares)
def test_a_bigger_budget_never_races_less(lengths, one, other):
    kept = Lengths.from_samples(lengths)
    small, big = sorted((one, other))
    less = race_probability(plan_threshold(kept, small), kept.lengths)
    more = race_probability(plan_threshold(kept, big), kept.lengths)
    assert (more >= less - 1e-9).all()


@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("lengths", [SKEWED, LUMPY], ids=["skewed", "lumpy"])
def test_budget_holds_on_the_sequence(lengths, budget):
    """Within 1 % of it on 30,000 requests, and in truth within one prompt: rounding is carried over."""
    policy = LengthThreshold.fitted(
        Lengths.from_samples(lengths), budget=budget, rng=np.random.default_rng(5)
    )
    order = np.random.default_rng(6).permutation(lengths).tolist()
    used = sum(n for n in order if Start("s") in policy.starts(Features(n), DEVICE, SERVER))
    total = sum(order)
    assert used / total == pytest.approx(budget, rel=0.01)
    assert abs(used - budget * total) <= max(order) + 1e-6 * total


def test_ends_of_the_range_hold_for_lengths_never_seen():
    kept = Lengths.from_samples([10, 20])
    none, everything = plan_threshold(kept, 0.0), plan_threshold(kept, 1.0)
    assert race_probability(none, [1, 10, 20, 999]).tolist() == [0, 0, 0, 0]
    assert race_probability(everything, [1, 10, 20, 999]).tolist() == [1, 1, 1, 1]


def test_refit_follows_the_lengths():
    policy = LengthThreshold.fitted(Lengths.from_samples([10] * 10), budget=0.0, rng=np.random.default_rng(0))
    assert policy.starts(Features(50), DEVICE, SERVER) == (Start("d"),)
    policy = LengthThreshold.fitted(Lengths.from_samples([10, 90]), budget=0.5, rng=np.random.default_rng(0))
    boundary = policy.plan.boundary_tokens
    policy.refit(Lengths.from_samples([100, 900]), Empirical.from_samples([1.0]))
    assert policy.plan.boundary_tokens == 10 * boundary


def test_what_cannot_be_planned_is_refused():
    for budget in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="budget"):
            plan_threshold(Lengths.from_samples([1]), budget)
    for lengths in ([], [0, 0], [-1, 3]):
        with pytest.raises(ValueError):  # noqa: PT011 - numpy words the negative one
            plan_threshold_samples(np.array(lengths, dtype=np.int64), 0.5)
