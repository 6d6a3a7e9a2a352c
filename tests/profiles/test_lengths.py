"""The distribution of token counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import Lengths

TOKENS = st.lists(st.integers(0, 5000) | st.integers(0, 10**9), min_size=1, max_size=60)


@given(TOKENS)
def test_it_is_the_sample(sample):
    known = Lengths.from_samples(sample)
    assert known.lengths.tolist() == sorted(set(sample))
    assert known.p == pytest.approx([sample.count(length) / len(sample) for length in sorted(set(sample))])
    assert known.mean() == pytest.approx(np.mean(sample))
    assert known.lengths.dtype == np.int64
    assert known.p.dtype == np.float64


@given(TOKENS, TOKENS)
def test_observing_is_the_same_as_having_sampled(first, later):
    known = Lengths.from_samples(first)
    for length in later:
        known.observe(length)
    whole = Lengths.from_samples(first + later)
    assert known.lengths.tolist() == whole.lengths.tolist()
    assert known.p == pytest.approx(whole.p)
    assert known.weight == pytest.approx(len(first) + len(later))


@given(TOKENS, st.data())
def test_counts_are_repetition(lengths, data):
    counts = data.draw(st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths)).filter(any))
    counted = Lengths.from_counts(lengths, counts)
    repeated = Lengths.from_samples(np.repeat(lengths, counts))
    assert counted.lengths.tolist() == repeated.lengths.tolist()
    assert counted.p == pytest.approx(repeated.p)


def test_what_was_read_before_an_observation_stays_as_it_was():
    known = Lengths.from_samples([1, 2])
    p = known.p
    known.observe(2)
    assert p.tolist() == [0.5, 0.5]
    assert known.p == pytest.approx([1 / 3, 2 / 3])


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


@pytest.mark.parametrize("wrong", [[], [-1], [1.5], ["a"], [[1]]])
def test_what_is_no_length_is_refused(wrong):
    with pytest.raises(ValueError, match="lengths"):
        Lengths.from_samples(wrong)


def test_counts_that_do_not_fit_are_refused():
    for lengths, counts in (([1], [0]), ([1, 2], [1]), ([1], [-1]), ([1], [float("nan")])):
        with pytest.raises(ValueError, match="counts"):
            Lengths.from_counts(lengths, counts)
    with pytest.raises(ValueError, match="half_life"):
        Lengths.from_samples([1], half_life=0)
    with pytest.raises(ValueError, match="cannot be"):
        Lengths.from_samples([1]).observe(-1)
