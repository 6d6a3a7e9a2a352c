"""What is fitted: a distribution kept up to date, which does not take a cancelled loser for fast, and T = k·l + c."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from disco.profiles import Empirical, Rolling, RollingLine, fit_line, load_server

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
    rolling = Rolling(half_life=500, prior=Empirical.from_samples([30.0]), prior_weight=50)
    known = feed(rolling, truth.sample(np.random.default_rng(1), 5_000)).snapshot()
    assert known.quantile(LEVELS[:-1]) == pytest.approx(truth.quantile(LEVELS[:-1]), rel=0.2)
    assert known.mean() == pytest.approx(truth.mean(), rel=0.2)
    assert rolling.weight == pytest.approx(1 / (1 - 2 ** (-1 / 500)), rel=0.01)


def test_after_one_half_life_of_new_times_they_hold_half_of_the_weight_and_after_ten_nearly_all():
    rolling = feed(Rolling(half_life=50), [0.2] * 1000 + [2.0] * 50)
    first = rolling.snapshot()
    assert rolling.snapshot() is first
    assert first.cdf(1.0) == pytest.approx(0.5, abs=0.01)
    feed(rolling, [2.0] * 450)
    assert rolling.snapshot().cdf(1.0) == pytest.approx(2**-10, rel=0.05)
    assert first.cdf(1.0) == pytest.approx(0.5, abs=0.01)  # a snapshot does not change later


def test_very_long_runs_do_not_overflow():
    rolling = feed(Rolling(half_life=1), [0.2, 0.3] * 1000)
    rolling.observe_censored(0.25)
    assert np.isfinite(rolling.weight)
    assert 0.19 < rolling.snapshot().quantile(0.01) < rolling.snapshot().quantile(0.99) < 0.31
    # What was seen first is by then lighter than any float: bins in use shrink again.
    early = feed(Rolling(half_life=1), [100.0, 0.01] + [0.5] * 2000)
    early.observe_censored(0.5)
    assert 0.48 < early.snapshot().quantile(0.0) < early.snapshot().quantile(1.0) < 0.52


BINS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@given(BINS, BINS)
def test_censored_times_are_redistributed_as_kaplan_and_meier_do_which_only_moves_mass_to_the_right(
    seen, censored
):
    """Times far enough apart for a bin each, so that the textbook estimate is matched at every bin's end."""
    times = [1e-2 * 1.2**i for i in range(41)]
    rolling = feed(Rolling(half_life=None), [times[i] for i in seen])
    before = rolling.snapshot()
    for i in censored:
        rolling.observe_censored(times[i])
    assert (rolling.count, rolling.censored_count) == (len(seen), len(censored))
    known = rolling.snapshot()
    for i in range(41):
        expected = kaplan_meier(seen, censored, i)
        assert known.survival(times[i] * 1.1) == pytest.approx(expected, abs=1e-9)
    everywhere = np.concatenate(([0.0, 5e-4], np.geomspace(1e-3, 1e3, 500)))
    assert (known.cdf(everywhere) <= before.cdf(everywhere) + 1e-9).all()


def test_only_censored_times_leave_the_prior_its_tail():
    rolling = Rolling(prior=Empirical.from_quantiles([0, 1], [0.1, 2.0]), prior_weight=10)
    before = rolling.snapshot().survival(1.0)
    for _ in range(30):
        rolling.observe_censored(0.5)
    assert rolling.snapshot().survival(1.0) > before
    assert rolling.snapshot().quantile(1.0) == pytest.approx(2.0, rel=0.03)


def test_nonsense_is_refused():
    rolling = Rolling()
    for wrong in (-0.1, float("nan")):
        for observe in (rolling.observe, rolling.observe_censored):
            with pytest.raises(ValueError, match="must be at least 0"):
                observe(wrong)
    with pytest.raises(ValueError, match="nothing observed"):
        rolling.snapshot()
    assert rolling.count == rolling.censored_count == 0
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="half_life"):
            Rolling(half_life=wrong)
    with pytest.raises(ValueError, match="prior_weight"):
        Rolling(prior_weight=-1)


# ---------------------------------------------------------------------- the line T = k·l + c

LENGTHS = st.lists(st.integers(1, 4096), min_size=2, max_size=30).filter(lambda x: len(set(x)) > 1)


@given(LENGTHS, st.floats(1e-5, 0.1), st.floats(-5, 5), st.data())
def test_points_on_a_line_give_the_line_and_the_non_negative_fit_is_the_best_of_those_allowed(
    lengths, k, c, data
):
    fit = fit_line(lengths, k * np.array(lengths) + c)
    assert fit.k_s_per_token == pytest.approx(k, rel=1e-6, abs=1e-9)
    assert fit.c_s == pytest.approx(c, rel=1e-6, abs=1e-6)
    assert (fit.r2, fit.n) == (pytest.approx(1.0, abs=1e-6), len(lengths))
    assert fit.ttft_s(100) == pytest.approx(100 * k + c, abs=1e-5)

    times = data.draw(st.lists(st.floats(0, 10), min_size=len(lengths), max_size=len(lengths)))
    fit = fit_line(lengths, times, non_negative=True)
    assert fit.k_s_per_token >= 0 <= fit.c_s
    # Lengths in thousands, so that scipy's solver sees columns of similar size.
    x = np.array(lengths) / 1000
    _, best = nnls(np.column_stack([x, np.ones(len(x))]), np.array(times))
    left = np.linalg.norm(np.array(times) - [fit.ttft_s(length) for length in lengths])
    assert left == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_lines_that_bend_or_are_flat_and_points_that_make_none():
    lengths = np.array([16, 64, 256, 1024])
    bent = 4e-3 * lengths + 2e-6 * lengths**2
    assert fit_line(lengths, bent).c_s < 0
    assert 0.99 < fit_line(lengths, bent, non_negative=True).r2 < 1
    assert fit_line([1, 2], [3.0, 3.0]).r2 == 1.0
    one = "at least two different prompt lengths"
    for x, times, said in [
        ([], [], one),
        ([5], [1.0], one),
        ([5, 5, 5], [1.0, 2.0, 3.0], one),
        ([1, 2], [1.0], "as many"),
        ([1, 2], [1.0, float("nan")], "finite"),
    ]:
        with pytest.raises(ValueError, match=said):
            fit_line(x, times)


def test_a_line_that_bends_upwards_is_right_for_long_prompts_however_many_short_ones_come_between():
    """Attention grows with the length; a hand-over reads a dozen tokens after each long prompt."""

    def takes(tokens):
        return 0.01 + tokens / 400 + (tokens / 1400) ** 2

    line = RollingLine(1 / 400, 0.01)
    for tokens in np.random.default_rng(3).integers(600, 1500, 60):
        line.observe(int(tokens), takes(tokens))
        line.observe(12, takes(12))
        line.observe(4, takes(4) / 2)
    for tokens in (800, 1400):
        assert line.c_s + line.k_s_per_token * tokens == pytest.approx(takes(tokens), rel=0.2)


def test_a_quantile_of_how_late_a_line_was_holds_for_the_next_prompt():
    rng = np.random.default_rng(5)
    line, within = RollingLine(0.004, 0.0), []
    assert line.ratio_quantile(0.9, at_least=1.4) == 1.4
    for _ in range(1000):
        tokens, slower = int(rng.integers(300, 1500)), float(rng.lognormal(0.0, 0.2))
        planned_s = line.k_s_per_token * tokens + line.c_s
        within.append(0.004 * tokens * slower <= planned_s * line.ratio_quantile(0.9, at_least=1.4))
        line.observe(tokens, 0.004 * tokens * slower)
        line.observe(20, 0.3)  # a ratio of 4, which says nothing of long prompts
    assert 0.86 < np.mean(within[100:]) < 0.96
