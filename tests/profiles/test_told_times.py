"""What a server says of its TTFT helps, and cannot hurt more than a wrong profile does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import Empirical, Rolling, trust, with_told
from disco.profiles.told_times import HALF_LIFE_S, MOST_TOLD, PROFILE_WEIGHT

TIMES = st.lists(st.floats(0.0, 60.0), min_size=1, max_size=30)
QUANTILES = st.lists(st.floats(0.0, 60.0), min_size=1, max_size=100).map(sorted)
PROFILE = st.one_of(
    TIMES.map(Empirical.from_samples),
    st.tuples(QUANTILES).map(
        lambda q: Empirical.from_quantiles(np.arange(1, len(q[0]) + 1) / (len(q[0]) + 1), q[0])
    ),
)
COUNT, AGE_S = st.integers(0, 1000), st.floats(0.0, 1e6)


def told_alone(quantiles, network_s=0.0):
    return with_told(Empirical.from_samples([1.0]), quantiles, trusted=1.0, network_s=network_s)[0]


@given(PROFILE, QUANTILES, st.floats(0.001, 1.0), st.floats(0.0, 2.0))
def test_the_prior_is_nowhere_farther_from_any_truth_than_the_farther_of_both(
    profile, quantiles, trusted, network_s
):
    prior, weight = with_told(profile, quantiles, trusted=trusted, network_s=network_s)
    told = told_alone(quantiles, network_s)
    at = np.concatenate((profile.values, told.values, np.linspace(0.0, 62.0, 50)))
    low, high = np.minimum(profile.cdf(at), told.cdf(at)), np.maximum(profile.cdf(at), told.cdf(at))
    assert (prior.cdf(at) >= low - 1e-6).all()
    assert (prior.cdf(at) <= high + 1e-6).all()
    share = MOST_TOLD * trusted / weight
    assert prior.cdf(at) == pytest.approx(share * told.cdf(at) + (1 - share) * profile.cdf(at), abs=1e-6)
    assert min(PROFILE_WEIGHT, MOST_TOLD) <= weight <= MOST_TOLD
    assert (np.diff(prior.levels) >= 0).all()
    assert (np.diff(prior.values) >= 0).all()
    assert (prior.levels[0], prior.levels[-1]) == (0.0, 1.0)


@given(PROFILE, QUANTILES)
def test_what_is_not_trusted_or_was_not_measured_changes_nothing(profile, quantiles):
    assert with_told(profile, quantiles, trusted=0.0, network_s=1.0) == (profile, PROFILE_WEIGHT)
    assert with_told(profile, [], trusted=1.0, network_s=1.0) == (profile, PROFILE_WEIGHT)


@given(COUNT, AGE_S, st.integers(0, 100), st.floats(0.0, 1e5))
def test_trust_grows_with_the_answers_and_falls_with_age(count, age_s, more, later_s):
    trusted = trust(count, age_s)
    assert 0.0 <= trusted <= 1.0
    assert trust(count + more, age_s) >= trusted >= trust(count, age_s + later_s)
    assert trust(1000, 0.0) == 1.0
    assert trust(1000, HALF_LIFE_S) == pytest.approx(0.5)


@pytest.mark.parametrize("age_s", [-1.0, float("nan"), float("inf")])
def test_an_age_that_is_none_is_not_trusted(age_s):
    assert trust(1000, age_s) == 0.0


@given(st.integers(0, 2**32), st.integers(5, 400))
def test_own_observations_outweigh_a_server_that_lies(seed, count):
    """After as many own observations as the lie counts for, the median is out of its reach."""
    rng = np.random.default_rng(seed)
    prior, weight = with_told(
        Empirical.from_samples([0.5]), [900.0] * 100, trusted=trust(count, 0.0), network_s=0.0
    )
    times = Rolling(prior=prior, prior_weight=weight)
    for x_s in rng.uniform(0.4, 0.6, 150):
        times.observe(x_s)
    assert times.snapshot().quantile(0.5) < 0.62


@given(QUANTILES, st.floats(0.0, 5.0))
def test_the_network_shifts_every_quantile(quantiles, network_s):
    levels = np.linspace(0.01, 1.0, 20)
    assert told_alone(quantiles, network_s).quantile(levels) == pytest.approx(
        told_alone(quantiles).quantile(levels) + network_s
    )
