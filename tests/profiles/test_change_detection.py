"""A change of a server's times is found within a few of them; a heavy tail alone is none."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.profiles import AdaptiveRolling, Empirical, Rolling, load_server
from disco.profiles.change_detector import FALSE_ALARM_AFTER, ChangeDetector, scores

DEEPSEEK = load_server("deepseek-v3-2025").ttft()
SERVERS = ("deepseek-v3-2025", "llama-2-70b-replicate-2023", "gpt-4.1-nano-2026")


def feed(rolling, times, *, longer_than=None):
    """Observe times; those above a limit are only known to be longer."""
    for t in map(float, times):
        if longer_than is not None and t > longer_than:
            rolling.observe_censored(longer_than)
        else:
            rolling.observe(t)
    return rolling


def found_after(before, after, **how):
    """How many of the later times it takes to find the change; one more than all of them if it is not found."""
    rolling = feed(AdaptiveRolling(), before)
    known = rolling.changes
    for row, t in enumerate(after, 1):
        feed(rolling, [t], **how)
        if rolling.changes > known:
            return row
    return len(after) + 1


@given(st.lists(st.floats(0.001, 0.999), max_size=8, unique=True))
def test_each_score_is_a_log_likelihood_ratio_for_any_bins_and_any_censoring(cuts):
    """So Lorden's bound on false alarms holds: the expectation of exp(score) under uniform levels is 1."""
    edges = [0.0, *sorted(cuts), 1.0]
    ratios = np.array([scores(*bounds) for bounds in pairwise(edges)])
    assert np.diff(edges) @ np.exp(ratios) == pytest.approx(np.ones(4), rel=1e-6)


def test_four_of_the_latest_times_in_a_row_are_no_change_and_five_are():
    detector = ChangeDetector()
    assert [detector.add(0.999, 1.0) is None for _ in range(5)] == [True] * 4 + [False]
    assert [detector.add(0.0, 0.001) is None for _ in range(5)] == [True] * 4 + [False]
    # They do not add up over time: an ordinary hour with three of them says nothing.
    for level in ([0.3, 0.6, 0.8, 0.1, 0.5] * 4 + [0.999]) * 30:
        assert detector.add(level - 0.001, level) is None


@pytest.mark.parametrize("name", SERVERS)
def test_a_heavy_tail_alone_raises_fewer_alarms_than_the_bound(name):
    times = load_server(name).ttft().sample(np.random.default_rng(3), 20_000)
    assert feed(AdaptiveRolling(), times).changes <= 20_000 / FALSE_ALARM_AFTER
    assert feed(AdaptiveRolling(), np.full(2_000, 0.5)).changes == 0


@pytest.mark.parametrize(("factor", "within"), [(2.0, 8), (0.5, 11), (1.3, 30), (20.0, 6)])
def test_a_change_by_a_factor_is_found_within_some_times(factor, within):
    """Of DeepSeek's times, in at least 19 of 20 cases."""
    late = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        late += found_after(DEEPSEEK.sample(rng, 300), factor * DEEPSEEK.sample(rng, within + 20)) > within
    assert late <= 2


def test_an_outage_is_found_though_the_device_wins_every_race_in_it():
    rng = np.random.default_rng(1)
    late = [
        found_after(DEEPSEEK.sample(rng, 300), 20 * DEEPSEEK.sample(rng, 20), longer_than=2.4)
        for _ in range(20)
    ]
    assert max(late) <= 8


def test_after_an_outage_what_was_known_before_is_known_again():
    rng = np.random.default_rng(2)
    rolling = feed(AdaptiveRolling(), DEEPSEEK.sample(rng, 400))
    before = rolling.snapshot()
    feed(rolling, 20 * DEEPSEEK.sample(rng, 15))
    assert rolling.snapshot().quantile(0.5) > 10
    feed(rolling, DEEPSEEK.sample(rng, 15))
    after = rolling.snapshot()
    assert rolling.changes >= 2
    levels = np.array([0.1, 0.5, 0.9])  # the first few times of the outage stay in the tail
    assert after.quantile(levels) == pytest.approx(before.quantile(levels), rel=0.25)
    assert after.survival(10.0) < 0.03


def test_after_a_change_the_distribution_is_new_at_once_with_the_former_tail_moved_by_the_same_factor():
    rng = np.random.default_rng(5)
    before, after = DEEPSEEK.sample(rng, 400), 3 * DEEPSEEK.sample(rng, 10)
    adaptive, rolling = feed(AdaptiveRolling(), before), feed(Rolling(), before)
    assert not adaptive.is_unsettled
    feed(adaptive, after)
    feed(rolling, after)
    assert adaptive.is_unsettled
    assert not rolling.is_unsettled
    assert adaptive.snapshot().quantile(0.5) == pytest.approx(3 * DEEPSEEK.quantile(0.5), rel=0.2)
    assert adaptive.snapshot().quantile(0.98) == pytest.approx(3 * DEEPSEEK.quantile(0.98), rel=0.4)
    assert rolling.snapshot().quantile(0.5) < 1.5
    feed(adaptive, 3 * DEEPSEEK.sample(rng, 20))
    assert not adaptive.is_unsettled


def test_a_prior_that_does_not_fit_is_corrected_within_a_dozen_times():
    prior = Empirical.from_samples([0.4, 0.5, 0.6])
    times = 5 + np.random.default_rng(1).random(12)
    assert feed(AdaptiveRolling(prior=prior), times).snapshot().quantile(0.3) > 4
    assert feed(Rolling(prior=prior), times).snapshot().quantile(0.3) < 1


@given(
    st.lists(st.tuples(st.floats(0, 1e4) | st.sampled_from([0.5, 50.0]), st.booleans()), min_size=1),
    st.integers(1, 60),
)
def test_any_observations_leave_a_distribution_that_counts_them(observed, times):
    rolling = AdaptiveRolling(half_life=50)
    for t, censored in observed * times:
        (rolling.observe_censored if censored else rolling.observe)(t)
    known = rolling.snapshot()
    assert rolling.snapshot() is known
    assert rolling.count + rolling.censored_count == len(observed) * times
    assert rolling.weight <= 1 / (1 - 2 ** (-1 / 50)) + 64
    assert np.isfinite(known.levels).all()
    assert (np.diff(known.levels) >= -1e-12).all()
    with pytest.raises(ValueError, match="at least 0 s"):
        rolling.observe(-1.0)
