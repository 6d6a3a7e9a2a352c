"""Each metric against a case worked out by hand, and against its formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.playback import reader_metrics

STREAM = [(1.0, 1), (1.2, 3), (2.0, 1)]  # tokens at 1.0, 1.2, 1.2, 1.2, 2.0
TIMELINES = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 4)), max_size=20).map(
    lambda gaps: [(sum(g for g, _ in gaps[: i + 1]), k) for i, (_, k) in enumerate(gaps)]
)


def test_times_count_tokens_not_deltas() -> None:
    assert reader_metrics.token_times(STREAM) == [1.0, 1.2, 1.2, 1.2, 2.0]
    assert reader_metrics.ttft_s([(0.7, 0), *STREAM], 0.5) == 0.5
    assert reader_metrics.tbt_s(STREAM) == pytest.approx([0.2, 0.0, 0.0, 0.8])
    assert reader_metrics.tpot_s(STREAM) == pytest.approx(0.25)
    gaps = reader_metrics.gaps(STREAM)
    assert (gaps.p50_s, gaps.max_s) == pytest.approx((0.1, 0.8))


def test_quantiles_interpolate_linearly() -> None:
    assert reader_metrics.quantile([4, 1, 3, 2], 0.5) == 2.5
    assert reader_metrics.quantile([1, 2, 3, 4, 5], 0.99) == pytest.approx(4.96)
    assert reader_metrics.quantile([1.0, 2.0], 1.0) == 2.0
    assert math.isnan(reader_metrics.quantile([], 0.5))


def test_late_tokens_are_those_after_the_readers_deadline() -> None:
    # r_c = 5: deadlines 1.0, 1.2, 1.4, 1.6, 1.8.
    assert reader_metrics.lateness_s(STREAM, 5.0) == pytest.approx([0, 0, 0, 0, 0.2])
    assert reader_metrics.late_tokens(STREAM, 5.0) == 1
    assert reader_metrics.late_tokens([], 5.0) == 0


def test_stall_ratio_is_the_share_of_time_spent_waiting() -> None:
    # Read at 1.0, 1.2, 1.4, 1.6, 2.0, done at 2.2: waited 0.2 of 1.2 s.
    assert reader_metrics.stall_ratio(STREAM, 5.0) == pytest.approx(0.2 / 1.2)
    assert reader_metrics.stall_ratio([(3.0, 10)], 5.0) == pytest.approx(0.0)
    assert reader_metrics.stall_ratio([], 5.0) == 0.0


def test_qoe_follows_andes() -> None:
    # Submitted at 0 with TTFT* = 1 s: D = 1.0, 1.2, ..., 1.8; read at 1.0, 1.2, 1.4, 1.6, 2.0.
    assert reader_metrics.qoe(STREAM, 5.0, submitted_at=0.0, prompt_tokens=10) == pytest.approx(1 - 0.2 / 7.2)
    assert reader_metrics.qoe([(0.1, 50)], 5.0, submitted_at=0.0, prompt_tokens=10) == pytest.approx(1.0)
    # A long prompt is allowed a longer TTFT.
    assert reader_metrics.qoe([(2.0, 50)], 5.0, submitted_at=0.0, prompt_tokens=10_000) == pytest.approx(1.0)


def test_delaying_everything_is_not_rewarded() -> None:
    steady = [(0.5 + i / 50, 1) for i in range(200)]
    delayed = [(at + 5.0, k) for at, k in steady]
    how = {"submitted_at": 0.0, "prompt_tokens": 100}
    assert reader_metrics.qoe(delayed, 4.8, **how) < reader_metrics.qoe(steady, 4.8, **how) - 0.1
    targets = {"submitted_at": 0.0, "ttft_target_s": 1.0, "tbt_target_s": 0.05}
    assert reader_metrics.fluidity(delayed, **targets) < reader_metrics.fluidity(steady, **targets)


def test_fluidity_carries_slack_until_a_miss() -> None:
    # First: 1.0 of 1.5 allowed, slack 0.5; gaps 0.2, 0, 0 against 0.1: slack 0.4, 0.5, 0.6; 0.8 > 0.7.
    how = {"submitted_at": 0.0, "tbt_target_s": 0.1}
    assert reader_metrics.fluidity(STREAM, ttft_target_s=1.5, **how) == pytest.approx(4 / 5)
    assert reader_metrics.fluidity(STREAM, ttft_target_s=1.6, **how) == 1.0
    # Late first token: slack 0, so the gap of 0.2 is missed as well, and slack grows anew.
    assert reader_metrics.fluidity(STREAM, ttft_target_s=0.5, **how) == pytest.approx(2 / 5)


@given(TIMELINES, st.sampled_from([4.8, 25.0, 75.0]))
def test_bounds(timeline: list[tuple[float, int]], tps: float) -> None:
    late = reader_metrics.late_tokens(timeline, tps)
    assert 0 <= late <= sum(k for _, k in timeline)
    stalled = reader_metrics.stall_ratio(timeline, tps)
    assert 0 <= stalled < 1
    assert (stalled > 1e-9) <= (late > 0)  # who waits gets a late token
    if any(k for _, k in timeline):
        assert reader_metrics.qoe(timeline, tps, submitted_at=0.0, prompt_tokens=1) <= 1 + 1e-12
        how = {"submitted_at": 0.0, "ttft_target_s": 1.0, "tbt_target_s": 1 / tps}
        assert 0 <= reader_metrics.fluidity(timeline, **how) <= 1
