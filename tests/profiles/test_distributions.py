"""The empirical distribution: what F and F⁻¹ must satisfy, whatever they were built from."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disco.profiles import Empirical

SECONDS = st.floats(min_value=0, max_value=1e4, allow_subnormal=False)
SAMPLES = st.lists(SECONDS, min_size=1, max_size=60)
LEVEL = st.floats(min_value=0, max_value=1)


@st.composite
def tables(draw):
    """A quantile table: strictly increasing levels with non-decreasing values."""
    steps = draw(st.sets(st.integers(0, 1000), min_size=1, max_size=40))
    values = draw(st.lists(SECONDS, min_size=len(steps), max_size=len(steps)))
    return np.array(sorted(steps)) / 1000, np.sort(values)


@st.composite
def distributions(draw):
    if draw(st.booleans()):
        return Empirical.from_quantiles(*draw(tables()))
    values = draw(SAMPLES)
    weights = draw(st.none() | st.lists(st.floats(0.01, 100), min_size=len(values), max_size=len(values)))
    return Empirical.from_samples(values, weights=weights)


@given(distributions(), st.lists(LEVEL, min_size=1, max_size=20), st.lists(SECONDS, min_size=1, max_size=20))
@example(Empirical.from_quantiles([0.001, 0.999], [1e4, np.nextafter(1e4, np.inf)]), [0.5], [1.0])
def test_quantiles_and_levels_are_inverse_monotone_and_the_same_for_scalars_and_arrays(known, levels, times):
    """cdf(quantile(q)) >= q, the law that budgets stand on, and quantile(cdf(t)) <= t."""
    levels, times = np.sort(levels), np.sort(times)
    values, reached = known.quantile(levels), known.cdf(times)
    # Between knots that are neighbouring floats, a quantile is rounded to one of them.
    assert (known.cdf(values + 4 * np.spacing(values)) >= levels - 1e-9).all()
    some = reached > 0
    assert (known.quantile(reached[some]) <= times[some] + 1e-9 * np.maximum(times[some], 1)).all()
    assert (np.diff(values) >= -1e-9).all()
    assert (np.diff(reached) >= -1e-12).all()
    assert values == pytest.approx([known.quantile(float(q)) for q in levels], abs=1e-12)
    assert reached == pytest.approx([known.cdf(float(t)) for t in times], abs=1e-12)
    assert known.survival(times) == pytest.approx([1 - known.cdf(float(t)) for t in times], abs=1e-12)
    assert isinstance(known.quantile(float(levels[0])), float)
    assert isinstance(known.cdf(float(times[0])), float)


@given(tables())
def test_a_quantile_table_is_reproduced(table):
    levels, values = table
    known = Empirical.from_quantiles(levels, values)
    assert known.quantile(levels) == pytest.approx(values, rel=1e-12)


@given(SAMPLES)
def test_a_sample_is_represented_exactly(values):
    known = Empirical.from_samples(values)
    assert known.mean() == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12)
    for t in values:
        assert known.cdf(t) == pytest.approx(np.mean(np.array(values) <= t), abs=1e-12)
    for i, t in enumerate(sorted(values), start=1):
        assert known.quantile(i / len(values)) == t
    assert (known.quantile(0.0), known.quantile(1.0)) == (min(values), max(values))


@given(SAMPLES, st.data())
def test_whole_weights_count_as_repetition(values, data):
    weights = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)).filter(any))
    weighted = Empirical.from_samples(values, weights=weights)
    repeated = Empirical.from_samples(np.repeat(values, weights))
    assert weighted.mean() == pytest.approx(repeated.mean(), rel=1e-9, abs=1e-12)
    assert weighted.cdf(np.array(values)) == pytest.approx(repeated.cdf(np.array(values)), abs=1e-9)


def test_a_quantile_table_is_straight_in_between_and_flat_outside():
    known = Empirical.from_quantiles([0.2, 0.6], [1.0, 3.0])
    assert known.quantile(0.4) == pytest.approx(2.0)
    assert (known.quantile(0.0), known.quantile(1.0)) == (1.0, 3.0)
    assert known.cdf(1.0) == pytest.approx(0.2)  # the atom at the lower end
    assert known.cdf(0.999) == 0.0
    assert known.cdf(3.0) == 1.0
    assert known.cdf(2.0) == pytest.approx(0.4)
    assert known.mean() == pytest.approx(0.2 * 1.0 + 0.4 * 2.0 + 0.4 * 3.0)


def test_samples_drawn_follow_the_distribution_and_the_seed():
    known = Empirical.from_samples([0.5, 1.0, 4.0], weights=[0.5, 0.3, 0.2])
    drawn = known.sample(np.random.default_rng(7), 20_000)
    assert drawn.dtype == np.float64
    assert drawn.shape == (20_000,)
    assert np.mean(drawn == 0.5) == pytest.approx(0.5, abs=0.02)
    assert np.mean(drawn == 4.0) == pytest.approx(0.2, abs=0.02)
    assert (drawn == known.sample(np.random.default_rng(7), 20_000)).all()


def test_it_cannot_be_changed_from_outside_and_travels_between_processes():
    given_values = np.array([1.0, 2.0])
    known = Empirical.from_samples(given_values)
    given_values[:] = 9.0
    for one in (known, copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
        assert one.quantile(1.0) == 2.0
    with pytest.raises(ValueError, match="read-only"):
        known.values[0] = 3.0
    with pytest.raises(AttributeError):
        known.values = given_values


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        *(([*wrong], None) for wrong in ([], [-1.0], [NAN], [INF], [[1.0]])),
        *(([1.0], [0.0]), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, -1.0])),
    ],
)
def test_nonsense_samples_are_refused(values, weights):
    with pytest.raises(ValueError, match=r"values|weights"):
        Empirical.from_samples(values, weights=weights)


@pytest.mark.parametrize(
    ("levels", "values"),
    [([0.0, 0.0], [1, 2]), ([0.5, 0.2], [1, 2]), ([0.0, 1.1], [1, 2]), ([0.0, 1.0], [2, 1]), ([0.5], [1, 2])],
)
def test_nonsense_tables_are_refused(levels, values):
    with pytest.raises(ValueError, match=r"levels|values"):
        Empirical.from_quantiles(levels, values)


@pytest.mark.parametrize("q", [-0.01, 1.01, NAN])
def test_a_level_outside_its_range_is_refused(q):
    for level in (q, np.array([q])):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Empirical.from_samples([1.0]).quantile(level)
