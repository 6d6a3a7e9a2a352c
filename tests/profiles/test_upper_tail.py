"""How long the rare ones are, from a small sample: too long rather than too short."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import UpperTail
from disco.profiles.upper_tail import FEWEST

P = 0.0005


def tail_of(times) -> UpperTail:
    tail = UpperTail()
    for x_s in times:
        tail.observe(x_s)
    return tail


KINDS = {
    "exponential": lambda rng, n: 0.02 + rng.exponential(0.05, n),
    "log-normal": lambda rng, n: 0.05 * np.exp(rng.normal(0.0, 0.5, n)),
    "Pareto": lambda rng, n: 0.03 * (1 + rng.pareto(4.0, n)),
    "two kinds": lambda rng, n: np.where(rng.random(n) < 0.1, 0.3, 0.008) * np.exp(rng.normal(0.0, 0.3, n)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seen", [40, 100, 400])
def test_healthy_answers_exceed_it_about_as_rarely_as_they_should(kind, seen):
    """Over 60 samples, the next 20,000 answers each: at most twice p of them in the mean, from 100 answers on."""
    rng = np.random.default_rng(seen)
    missed = []
    for _ in range(60):
        limit_s = tail_of(KINDS[kind](rng, seen)).exceeded_by(P)
        missed.append(float((KINDS[kind](rng, 20_000) > limit_s).mean()))
    assert np.mean(missed) <= (2 * P if seen >= 100 else 8 * P)


def test_it_is_of_use_where_gaps_are_even():
    """Not more than a few times the longest gap of an even server."""
    limit_s = tail_of(0.02 * np.exp(np.random.default_rng(1).normal(0.0, 0.2, 200))).exceeded_by(P)
    assert 0.03 < limit_s < 0.12


@given(st.lists(st.floats(0.0, 50.0), min_size=FEWEST, max_size=80), st.floats(0.001, 0.4))
def test_it_is_never_below_the_longest_recent_time_and_falls_with_p(times, p):
    tail = tail_of(times)
    rare, often = tail.exceeded_by(P), tail.exceeded_by(p)
    assert rare is not None
    assert often is not None
    assert rare >= min(max(times), 1000.0) * 0.97  # a bin is 2.7 % wide
    if p >= P:
        assert rare >= often * 0.999


def test_before_there_is_data_nothing_is_said_and_one_long_time_counts_at_once():
    tail = tail_of([0.02] * (FEWEST - 1))
    assert tail.exceeded_by(P) is None
    tail.observe(0.02)
    before = tail.exceeded_by(P)
    tail.observe(2.0)
    assert before < 0.2
    assert tail.exceeded_by(P) > 1.9


def test_times_known_only_to_be_longer_count_as_long_and_are_forgotten_in_time():
    tail = tail_of([0.02] * 50)
    before = tail.exceeded_by(P)
    for _ in range(3):
        tail.observe_censored(1.0)
    assert tail.exceeded_by(P) > 0.95 > before
    for _ in range(3000):
        tail.observe(0.02)
    assert tail.exceeded_by(P) < 0.2


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1])
def test_a_probability_is_a_probability(p):
    with pytest.raises(ValueError, match="probability"):
        tail_of([0.1] * 30).exceeded_by(p)
