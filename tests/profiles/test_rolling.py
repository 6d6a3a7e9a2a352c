"""The distribution kept up to date: it converges, forgets, and does not take a cancelled loser for fast."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import Empirical, Rolling, load_server

TIMES = st.floats(min_value=0, max_value=2e3)
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])


def feed(rolling, times):
    for t in times:
        rolling.observe(float(t))
    return rolling


def kaplan_meier(seen, censored, t):
    """P(T > t) by the textbook product over distinct times; the largest time counts as seen (Efron)."""
    s, times = 1.0, sorted({*seen, *censored})
    for x in times:
        if x > t:
            return s
        at_risk = sum(y >= x for y in (*seen, *censored))
        s *= 1 - (seen.count(x) + (censored.count(x) if x == times[-1] else 0)) / at_risk
    return s


@given(st.lists(TIMES, min_size=1, max_size=80))
def test_without_forgetting_it_is_the_sample_to_within_a_bin(times):
    known = feed(Rolling(half_life=None), times).snapshot()
    exact = Empirical.from_samples(np.clip(times, 0, 1e3))
    for i in range(1, len(times) + 1):
        q = (i - 0.5) / len(times)
        assert known.quantile(q) == pytest.approx(exact.quantile(q), rel=0.03, abs=1.001e-3)


def test_a_prior_is_reproduced_until_something_is_observed_and_gives_way_to_what_is():
    prior = load_server("gpt-4.1-nano-2026").ttft()
    known = Rolling(prior=prior).snapshot()
    assert known.quantile(LEVELS) == pytest.approx(prior.quantile(LEVELS), rel=0.03)
    assert known.mean() == pytest.approx(prior.mean(), rel=0.01)
    truth = load_server("deepseek-v3-2025").ttft()
    rolling = Rolling(half_life=2000, prior=Empirical.from_samples([30.0]), prior_weight=50)
    known = feed(rolling, truth.sample(np.random.default_rng(1), 20_000)).snapshot()
    assert known.quantile(LEVELS[:-1]) == pytest.approx(truth.quantile(LEVELS[:-1]), rel=0.1)
    assert known.mean() == pytest.approx(truth.mean(), rel=0.1)
    assert rolling.weight == pytest.approx(1 / (1 - 2 ** (-1 / 2000)), rel=0.01)


def test_it_forgets():
    """After one half-life of new times they hold about half of the weight, after ten nearly all."""
    rolling = feed(Rolling(half_life=50), [0.2] * 1000)
    feed(rolling, [2.0] * 50)
    assert rolling.snapshot().cdf(1.0) == pytest.approx(0.5, abs=0.01)
    feed(rolling, [2.0] * 450)
    assert rolling.snapshot().cdf(1.0) == pytest.approx(2**-10, rel=0.05)
    assert feed(Rolling(half_life=None), [0.2] * 1000 + [2.0] * 500).snapshot().cdf(1.0) == pytest.approx(
        2 / 3
    )


def test_very_long_runs_do_not_overflow():
    rolling = feed(Rolling(half_life=1), [0.2, 0.3] * 1000)
    rolling.observe_censored(0.25)
    assert np.isfinite(rolling.weight)
    assert 0.19 < rolling.snapshot().quantile(0.01) < rolling.snapshot().quantile(0.99) < 0.31
    # What was seen first is by then lighter than any float: bins in use shrink again.
    early = feed(Rolling(half_life=1), [100.0, 0.01])
    feed(early, [0.5] * 2000)
    early.observe_censored(0.5)
    assert 0.48 < early.snapshot().quantile(0.0) < early.snapshot().quantile(1.0) < 0.52


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
)
def test_censored_times_are_redistributed_as_kaplan_and_meier_do(seen, censored):
    """Times far enough apart for a bin each, so that the textbook estimate is matched at every bin's end."""
    times = [1e-2 * 1.2**i for i in range(41)]
    rolling = feed(Rolling(half_life=None), [times[i] for i in seen])
    for i in censored:
        rolling.observe_censored(times[i])
    known = rolling.snapshot()
    for i in range(41):
        expected = kaplan_meier(seen, censored, i)
        assert known.survival(times[i] * 1.1) == pytest.approx(expected, abs=1e-9)


@given(st.lists(TIMES, min_size=1, max_size=40), st.lists(TIMES, min_size=1, max_size=20))
def test_a_censored_time_only_moves_mass_to_the_right(seen, censored):
    rolling = feed(Rolling(half_life=None), seen)
    before = rolling.snapshot()
    for t in censored:
        rolling.observe_censored(t)
    times = np.concatenate(([0.0, 5e-4], np.geomspace(1e-3, 1e3, 2000)))
    assert (rolling.snapshot().cdf(times) <= before.cdf(times) + 1e-9).all()
    assert rolling.snapshot().mean() >= before.mean() * (1 - 1e-9)


def test_losers_cancelled_early_do_not_make_a_slow_server_look_fast():
    """A device that wins against every slow start cuts those times off; the tail must survive that."""
    truth = load_server("deepseek-v3-2025").ttft()
    rng = np.random.default_rng(3)
    honest, naive = Rolling(half_life=None), Rolling(half_life=None)
    for t in truth.sample(rng, 8000):
        # The device's own speed varies, so that some slow starts are seen.
        cut = float(rng.uniform(0.8, 12.0))
        if t <= cut:
            honest.observe(float(t))
            naive.observe(float(t))
        else:
            honest.observe_censored(cut)
    assert honest.snapshot().quantile(0.98) == pytest.approx(truth.quantile(0.98), rel=0.1)
    assert naive.snapshot().quantile(0.98) < 0.9 * truth.quantile(0.98)
    assert (honest.count, honest.censored_count) == (naive.count, 8000 - naive.count)


def test_only_censored_times_leave_the_prior_its_tail():
    rolling = Rolling(prior=Empirical.from_quantiles([0, 1], [0.1, 2.0]), prior_weight=10)
    before = rolling.snapshot().survival(1.0)
    for _ in range(30):
        rolling.observe_censored(0.5)
    assert rolling.snapshot().survival(1.0) > before
    assert rolling.snapshot().quantile(1.0) == pytest.approx(2.0, rel=0.03)


def test_a_snapshot_does_not_change_later():
    rolling = feed(Rolling(), [0.5] * 10)
    first = rolling.snapshot()
    assert rolling.snapshot() is first
    level = first.quantile(0.9)
    feed(rolling, [5.0] * 100)
    assert first.quantile(0.9) == level
    assert rolling.snapshot().quantile(0.9) > 4


def test_nonsense_is_refused():
    rolling = Rolling()
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="must be at least 0"):
            rolling.observe(wrong)
        with pytest.raises(ValueError, match="must be at least 0"):
            rolling.observe_censored(wrong)
    with pytest.raises(ValueError, match="nothing observed"):
        rolling.snapshot()
    assert rolling.count == rolling.censored_count == 0
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="half_life"):
            Rolling(half_life=wrong)
    with pytest.raises(ValueError, match="prior_weight"):
        Rolling(prior_weight=-1)
