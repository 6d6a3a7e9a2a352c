"""Distributions of seconds and of token counts: what must hold, whatever they were built from."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disco.profiles import Empirical, Lengths

SECONDS = st.floats(min_value=0, max_value=1e4, allow_subnormal=False)
SAMPLES = st.lists(SECONDS, min_size=1, max_size=60)
LEVEL = st.floats(min_value=0, max_value=1)
NAN, INF = float("nan"), float("inf")


@st.composite
def tables(draw):
    """A quantile table: strictly increasing levels with non-decreasing values."""
    steps = draw(st.sets(st.integers(0, 1000), min_size=1, max_size=40))
    values = draw(st.lists(SECONDS, min_size=len(steps), max_size=len(steps)))
    return np.array(sorted(steps)) / 1000, np.sort(values)


@st.composite
def samples(draw):
    values = draw(SAMPLES)
    weights = draw(st.none() | st.lists(st.floats(0.01, 100), min_size=len(values), max_size=len(values)))
    return Empirical.from_samples(values, weights=weights)


@given(
    tables().map(lambda table: Empirical.from_quantiles(*table)) | samples(),
    st.lists(LEVEL, min_size=1, max_size=20),
    st.lists(SECONDS, min_size=1, max_size=20),
)
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
    assert known.survival(times) == pytest.approx(1 - reached, abs=1e-12)
    assert isinstance(known.quantile(float(levels[0])), float)
    assert isinstance(known.cdf(float(times[0])), float)


@given(tables(), SAMPLES, st.data())
def test_tables_and_samples_are_represented_exactly_and_whole_weights_count_as_repetition(
    table, values, data
):
    levels, at_levels = table
    assert Empirical.from_quantiles(levels, at_levels).quantile(levels) == pytest.approx(at_levels, rel=1e-12)
    weights = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)).filter(any))
    weighted, values = Empirical.from_samples(values, weights=weights), np.sort(np.repeat(values, weights))
    known = Empirical.from_samples(values)
    for one in (known, weighted):
        assert one.mean() == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12)
        assert one.cdf(values) == pytest.approx([np.mean(values <= t) for t in values], abs=1e-9)
    for i, t in enumerate(values.tolist(), start=1):
        assert known.quantile(i / len(values)) == t
    assert (known.quantile(0.0), known.quantile(1.0)) == (min(values), max(values))


def test_a_quantile_table_is_straight_in_between_and_flat_outside():
    known = Empirical.from_quantiles([0.2, 0.6], [1.0, 3.0])
    assert [known.quantile(q) for q in (0.0, 0.4, 1.0)] == pytest.approx([1.0, 2.0, 3.0])
    # There is an atom at the lower end.
    assert [known.cdf(t) for t in (0.999, 1.0, 2.0, 3.0)] == pytest.approx([0.0, 0.2, 0.4, 1.0])
    assert known.mean() == pytest.approx(0.2 * 1.0 + 0.4 * 2.0 + 0.4 * 3.0)


@given(samples(), st.integers(1, 40))
def test_evenly_spaced_quantiles_each_cover_their_share(known, count):
    spaced = known.spaced(count)
    assert len(spaced) == count
    assert list(spaced) == sorted(spaced)
    assert spaced[-1] == known.quantile(1.0)
    for number, time_s in enumerate(spaced, 1):
        assert known.cdf(time_s) >= number / count - 1e-9


def test_what_is_drawn_follows_the_distribution_and_the_seed():
    times = Empirical.from_samples([0.5, 1.0, 4.0], weights=[0.5, 0.3, 0.2])
    for known, values, type_ in [
        (times, {0.5: 0.5, 1.0: 0.3, 4.0: 0.2}, np.float64),
        (Lengths.from_counts([5, 50], [3, 1]), {5: 0.75, 50: 0.25}, np.int64),
    ]:
        drawn = known.sample(np.random.default_rng(7), 20_000)
        assert (drawn.dtype, drawn.shape) == (type_, (20_000,))
        assert {v: np.mean(drawn == v) for v in values} == pytest.approx(values, abs=0.02)
        assert (drawn == known.sample(np.random.default_rng(7), 20_000)).all()


def test_it_cannot_be_changed_from_outside_and_travels_between_processes():
    given_values = np.array([1.0, 2.0])
    known = Empirical.from_samples(given_values)
    given_values[:] = 9.0
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(known, protocol=5, buffer_callback=buffers.append)
    unaligned = [memoryview(b"x" + bytes(buffer.raw()))[1:] for buffer in buffers]  # as Dask may deliver them
    for one in (known, copy.deepcopy(known), pickle.loads(sent, buffers=unaligned)):
        assert one.quantile(1.0) == 2.0
    with pytest.raises(ValueError, match="read-only"):
        known.values[0] = 3.0
    with pytest.raises(AttributeError):
        known.values = given_values


BAD_SAMPLES = [([*wrong], None) for wrong in ([], [-1.0], [NAN], [INF], [[1.0]])]
BAD_SAMPLES += [([1.0], [0.0]), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, -1.0])]
BAD_TABLES = [
    ([0.0, 0.0], [1, 2]),
    ([0.5, 0.2], [1, 2]),
    ([0.0, 1.1], [1, 2]),
    ([0.0, 1.0], [2, 1]),
    ([0.5], [1, 2]),
]


def test_nonsense_is_refused():
    for values, weights in BAD_SAMPLES:
        with pytest.raises(ValueError, match=r"values|weights"):
            Empirical.from_samples(values, weights=weights)
    for levels, values in BAD_TABLES:
        with pytest.raises(ValueError, match=r"levels|values"):
            Empirical.from_quantiles(levels, values)
    for level in (-0.01, 1.01, NAN, np.array([-0.01])):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Empirical.from_samples([1.0]).quantile(level)
    for wrong in ([], [-1], [1.5], ["a"], [[1]]):
        with pytest.raises(ValueError, match="lengths"):
            Lengths.from_samples(wrong)
    for lengths, counts in (([1], [0]), ([1, 2], [1]), ([1], [-1]), ([1], [NAN])):
        with pytest.raises(ValueError, match="counts"):
            Lengths.from_counts(lengths, counts)
    with pytest.raises(ValueError, match="half_life"):
        Lengths.from_samples([1], half_life=0)
    with pytest.raises(ValueError, match="must not be negative"):
        Lengths.from_samples([1]).observe(-1)


# ---------------------------------------------------------------------- token counts

TOKENS = st.lists(st.integers(0, 5000) | st.integers(0, 10**9), min_size=1, max_size=60)


@given(TOKENS, TOKENS)
def test_lengths_are_the_sample_also_of_counts_and_observations(first, later):
    whole = first + later
    counts = {length: whole.count(length) for length in sorted(set(whole))}
    observed = Lengths.from_samples(first)
    before, read = observed.p.copy(), observed.p
    for length in later:
        observed.observe(length)
    assert read.tolist() == before.tolist()  # what was read before an observation stays as it was
    assert observed.weight == pytest.approx(len(whole))
    counted = Lengths.from_counts([*counts, 7, 7], [*counts.values(), 0, 0])
    for known in (Lengths.from_samples(whole), observed, counted):
        assert known.lengths[known.p > 0].tolist() == list(counts)
        assert known.p[known.p > 0] == pytest.approx([n / len(whole) for n in counts.values()])
        assert known.mean() == pytest.approx(np.mean(whole))
        assert (known.lengths.dtype, known.p.dtype) == (np.int64, np.float64)


def test_lengths_forget_where_asked_however_long_it_takes():
    for half_life, start, times, weight in [(100, 1e6, 4100, 144.8), (1, 1, 1000, 2.0)]:
        known = Lengths.from_counts([10], [start], half_life=half_life)
        for _ in range(times):
            known.observe(20)
        assert known.weight == pytest.approx(weight, rel=1e-3)
        assert known.p[known.lengths == 20] == pytest.approx(1.0, abs=1e-4)
        assert known.p.sum() == pytest.approx(1.0)
