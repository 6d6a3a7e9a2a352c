"""DiSCo-S: short prompts on the device, long ones race, and the server reads exactly its share of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch import LengthThreshold, plan_threshold, plan_threshold_samples
from disco.profiles import Empirical, Lengths

# No plan needs one bin per length.
LENGTHS = st.lists(st.integers(0, 5_000) | st.integers(0, 10**6), min_size=1, max_size=60).filter(any)
SHARES = st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.0])


def race_probability(plan, lengths):
    """`P(I_s(l) = 1)` for each length in tokens."""
    tokens = np.asarray(lengths)
    at_boundary = np.where(tokens == plan.boundary_tokens, plan.race_share, 0.0)
    return np.where(tokens > plan.boundary_tokens, 1.0, at_boundary)


def test_hand_computed_boundary():
    """Four prompts of 10 tokens, two of 20, one of 60: 40 + 40 + 60 = 140 tokens, of which half, 70.

    The device alone gets the first 70: all 40 of the tens, and 30 of the 40 tokens in twenties. So the
    boundary is 20, a quarter of the twenties race, and the server reads 40/4 + 60 = 70.
    """
    plan = plan_threshold(Lengths.from_samples([10, 10, 10, 10, 20, 20, 60]), 0.5)
    assert (plan.boundary_tokens, plan.race_share) == (20, pytest.approx(0.25))
    kept = Lengths.from_samples([10, 20])
    none, everything = plan_threshold(kept, 0.0), plan_threshold(kept, 1.0)  # also for lengths never seen
    assert race_probability(none, [1, 10, 20, 999]).tolist() == [0, 0, 0, 0]
    assert race_probability(everything, [1, 10, 20, 999]).tolist() == [1, 1, 1, 1]
    policy = LengthThreshold.fitted(Lengths.from_samples([10, 90]), budget=0.5, rng=np.random.default_rng(0))
    boundary = policy.plan.boundary_tokens
    policy.refit(Lengths.from_samples([100, 900]), Empirical.from_samples([1.0]))
    assert policy.plan.boundary_tokens == 10 * boundary


@given(LENGTHS, SHARES, SHARES)
def test_budget_is_met_exactly_in_expectation_and_a_bigger_one_never_races_less(lengths, one, other):
    """From a distribution and from raw samples."""
    kept = Lengths.from_samples(lengths)
    tokens, raced = kept.lengths * kept.p, []
    for budget in sorted((one, other)):
        for plan in (plan_threshold(kept, budget), plan_threshold_samples(np.array(lengths), budget)):
            raced.append(race_probability(plan, kept.lengths))
            assert tokens @ raced[-1] / tokens.sum() == pytest.approx(budget, abs=1e-9)
    assert (raced[2] >= raced[0] - 1e-9).all()


def test_what_cannot_be_planned_is_refused():
    for budget in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="budget"):
            plan_threshold(Lengths.from_samples([1]), budget)
    for lengths in ([], [0, 0], [-1, 3]):
        with pytest.raises(ValueError):  # noqa: PT011 - numpy words the negative one
            plan_threshold_samples(np.array(lengths, dtype=np.int64), 0.5)
