"""Each metric against a case worked out by hand, and against its formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.playback import reader_metrics as of

STREAM = [(1.0, 1), (1.2, 3), (2.0, 1)]  # tokens at 1.0, 1.2, 1.2, 1.2, 2.0
TIMELINES = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 4)), max_size=20).map(
    lambda gaps: [(sum(g for g, _ in gaps[: i + 1]), k) for i, (_, k) in enumerate(gaps)]
)
ASKED = {"submitted_at": 0.0, "prompt_tokens": 10}
FLUID = {"submitted_at": 0.0, "tbt_target_s": 0.1}


def test_times_count_tokens_not_deltas_and_quantiles_interpolate_linearly():
    assert of.token_times(STREAM) == [1.0, 1.2, 1.2, 1.2, 2.0]
    assert of.ttft_s([(0.7, 0), *STREAM], 0.5) == 0.5
    assert of.tbt_s(STREAM) == pytest.approx([0.2, 0.0, 0.0, 0.8])
    assert of.tpot_s(STREAM) == pytest.approx(0.25)
    assert (of.gaps(STREAM).p50_s, of.gaps(STREAM).max_s) == pytest.approx((0.1, 0.8))
    assert of.quantile([4, 1, 3, 2], 0.5) == 2.5
    assert of.quantile([1, 2, 3, 4, 5], 0.99) == pytest.approx(4.96)
    assert of.quantile([1.0, 2.0], 1.0) == 2.0
    assert math.isnan(of.quantile([], 0.5))


def test_lateness_waiting_and_qoe_of_one_stream_by_hand():
    # r_c = 5: deadlines 1.0, 1.2, 1.4, 1.6, 1.8.
    assert of.lateness_s(STREAM, 5.0) == pytest.approx([0, 0, 0, 0, 0.2])
    assert (of.late_tokens(STREAM, 5.0), of.late_tokens([], 5.0)) == (1, 0)
    # Read at 1.0, 1.2, 1.4, 1.6, 2.0, done at 2.2: waited 0.2 of 1.2 s.
    assert of.stall_ratio(STREAM, 5.0) == pytest.approx(0.2 / 1.2)
    assert (of.stall_ratio([(3.0, 10)], 5.0), of.stall_ratio([], 5.0)) == (pytest.approx(0.0), 0.0)
    # Submitted at 0 with TTFT* = 1 s: D = 1.0, 1.2, ..., 1.8; read at 1.0, 1.2, 1.4, 1.6, 2.0.
    assert of.qoe(STREAM, 5.0, **ASKED) == pytest.approx(1 - 0.2 / 7.2)
    assert of.qoe([(0.1, 50)], 5.0, **ASKED) == pytest.approx(1.0)
    # A long prompt is allowed a longer TTFT.
    assert of.qoe([(2.0, 50)], 5.0, submitted_at=0.0, prompt_tokens=10_000) == pytest.approx(1.0)


def test_fluidity_carries_slack_until_a_miss():
    # First: 1.0 of 1.5 allowed, slack 0.5; gaps 0.2, 0, 0 against 0.1: slack 0.4, 0.5, 0.6; 0.8 > 0.7.
    assert of.fluidity(STREAM, ttft_target_s=1.5, **FLUID) == pytest.approx(4 / 5)
    assert of.fluidity(STREAM, ttft_target_s=1.6, **FLUID) == 1.0
    # Late first token: slack 0, so the gap of 0.2 is missed as well, and slack grows anew.
    assert of.fluidity(STREAM, ttft_target_s=0.5, **FLUID) == pytest.approx(2 / 5)


@given(TIMELINES, st.sampled_from([4.8, 25.0, 75.0]))
def test_bounds_and_delaying_everything_is_not_rewarded(timeline, tps):
    late = of.late_tokens(timeline, tps)
    assert 0 <= late <= sum(k for _, k in timeline)
    stalled = of.stall_ratio(timeline, tps)
    assert 0 <= stalled < 1
    assert (stalled > 1e-9) <= (late > 0)  # who waits gets a late token
    if any(k for _, k in timeline):
        delayed = [(at + 5.0, k) for at, k in timeline]
        assert of.qoe(delayed, tps, **ASKED) < of.qoe(timeline, tps, **ASKED) <= 1 + 1e-12
        slow, quick = (of.fluidity(stream, ttft_target_s=1.0, **FLUID) for stream in (delayed, timeline))
        assert 0 <= slow <= quick <= 1
