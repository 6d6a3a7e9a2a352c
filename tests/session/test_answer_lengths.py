"""The survival function agrees with counting, term by term."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.session.switching.answer_lengths import AnswerLengths

SAMPLES = st.lists(st.integers(1, 60), min_size=1, max_size=60)
CENSORED = st.lists(st.integers(0, 60), max_size=20)


@given(SAMPLES, CENSORED, st.none() | st.integers(1, 90), st.integers(0, 70))
def test_survival_is_kaplan_and_meiers_and_the_rest_follows_from_it(lengths, censored, cap, n):
    dist = AnswerLengths.from_samples(lengths, censored)
    survival = 1.0
    for j in range(1, max(lengths) + 1):
        # An answer censored at x is known to be longer than x.
        at_risk = sum(x >= j for x in lengths) + sum(x >= j for x in censored)
        if lengths.count(j):
            survival *= 1 - lengths.count(j) / at_risk
        assert dist.survival(j) == pytest.approx(survival, abs=1e-9)
    dist = dist.capped(cap)
    here = dist.survival(n)
    if here > 0:
        total = sum(dist.survival(j) for j in range(n, 100))
        total += dist.survival(100) / dist.tail_hazard  # constant hazard from there on
        assert dist.expected_remaining(n) == pytest.approx(total / here, rel=1e-6)
        assert dist.hazard(n) == pytest.approx(1 - dist.survival(n + 1) / here, abs=1e-9)
        median = dist.remaining_quantile(n, 0.5)
        assert dist.survival(n + median) <= 0.5 * here * (1 + 1e-9)
        assert median == 1 or dist.survival(n + median - 1) > 0.5 * here * (1 - 1e-9)
    later = [dist.expected_remaining(m) for m in range(n, 80) if dist.survival(m) > 0]
    assert all(m <= dist.most_remaining(n) + 1e-9 for m in later)


def test_the_memoryless_prior():
    prior = AnswerLengths.geometric(200)
    assert prior.survival(0) == 1
    assert [prior.expected_remaining(n) for n in (0, 5000)] == pytest.approx([200, 200])
    assert (prior.hazard(7), prior.hazard(7, window=16)) == pytest.approx((1 / 200, 1 / 200))
    assert prior.remaining_quantile(0, 0.9) == math.ceil(math.log(0.1) / math.log(1 - 1 / 200))
    assert prior.capped(128).expected_remaining(0) == pytest.approx(200 * (1 - (1 - 1 / 200) ** 128))
    assert prior.capped(128).capped(500).cap_tokens == 128
    one = AnswerLengths.geometric(1)
    assert (one.remaining_quantile(0, 0.9), one.expected_remaining(0)) == (1, 1)


def test_a_quantile_table_is_straight_between_its_rows_and_goes_on_at_the_pooled_hazard():
    dist = AnswerLengths.from_quantiles([(0.0, 0), (0.5, 100), (1.0, 300)])
    assert (dist.survival(50), dist.survival(200)) == pytest.approx((0.75, 0.25))
    assert dist.expected_remaining(0) == pytest.approx(sum(dist.survival(j) for j in range(400)))
    open_end = AnswerLengths.from_quantiles([(0.5, 100), (0.9, 300)])
    assert 0 < open_end.survival(1000) < 0.1
    assert open_end.expected_remaining(1000) > 0
    # Longer than anything seen goes on at the pooled hazard.
    pooled = AnswerLengths.from_samples([100, 200])
    assert pooled.expected_remaining(200) == pooled.expected_remaining(900) == pytest.approx(150)


def test_many_samples_are_thinned_without_losing_the_shape():
    lengths = [1 + (i * 7919) % 1000 for i in range(5000)]
    dist = AnswerLengths.from_samples(lengths)
    assert len(dist.knots) <= 130
    assert dist.expected_remaining(0) == pytest.approx(sum(lengths) / len(lengths), rel=0.02)
    assert dist.survival(500) == pytest.approx(0.5, abs=0.01)


def test_nonsense_is_refused():
    wrong = {
        "geometric": [0.5, math.inf],
        "from_samples": [[], [0]],
        "from_quantiles": [[], [(0.1, 50), (0.5, 20)]],
    }
    for build, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match="must"):
                getattr(AnswerLengths, build)(value)
