"""The distribution of token counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import Lengths

TOKENS = st.lists(st.integers(0, 5000) | st.integers(0, 10**9), min_size=1, max_size=60)


@given(TOKENS, TOKENS)
def test_it_is_the_sample_also_of_counts_and_observations(first, later):
    whole = first + later
    counts = {length: whole.count(length) for length in sorted(set(whole))}
    observed = Lengths.from_samples(first)
    before = observed.p.copy()
    read = observed.p
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


def test_it_forgets_where_asked():
    known = Lengths.from_counts([10], [1e6], half_life=100)
    for _ in range(100):
        known.observe(20)
    assert known.weight < 1e6
    for _ in range(4000):
        known.observe(20)
    assert known.p[known.lengths == 20] == pytest.approx(1.0, abs=1e-4)
    assert known.p.sum() == pytest.approx(1.0)
    long_run = Lengths.from_samples([1], half_life=1)
    for _ in range(1000):
        long_run.observe(2)
    assert long_run.p.sum() == pytest.approx(1.0)
    assert long_run.weight == pytest.approx(2.0)


def test_drawn_lengths_follow_it():
    known = Lengths.from_counts([5, 50], [3, 1])
    drawn = known.sample(np.random.default_rng(0), 10_000)
    assert drawn.dtype == np.int64
    assert np.mean(drawn == 5) == pytest.approx(0.75, abs=0.02)
    assert set(drawn.tolist()) == {5, 50}


def test_what_is_no_length_and_counts_that_do_not_fit_are_refused():
    for wrong in ([], [-1], [1.5], ["a"], [[1]]):
        with pytest.raises(ValueError, match="lengths"):
            Lengths.from_samples(wrong)
    for lengths, counts in (([1], [0]), ([1, 2], [1]), ([1], [-1]), ([1], [float("nan")])):
        with pytest.raises(ValueError, match="counts"):
            Lengths.from_counts(lengths, counts)
    with pytest.raises(ValueError, match="half_life"):
        Lengths.from_samples([1], half_life=0)
    with pytest.raises(ValueError, match="must not be negative"):
        Lengths.from_samples([1]).observe(-1)
