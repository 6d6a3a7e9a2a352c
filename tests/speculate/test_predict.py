"""The arithmetic of rounds, against brute force."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.speculate.predict import best_window, round_s, token_s, tokens_per_round
from disco.speculate.seen import Seen, VerifyCurve

CURVE = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
SHARE = st.floats(0.0, 1.0)
SECONDS = st.floats(0.0, 1.0)


def drawn(acceptance: float, window: int, chance: random.Random) -> int:
    """Return how many of a window's tokens are right before the first wrong one."""
    right = 0
    while right < window and chance.random() < acceptance:
        right += 1
    return right


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize("window", [1, 4, 12])
def test_tokens_per_round_are_those_of_drawn_rounds(acceptance, window):
    chance = random.Random(1)
    mean = sum(1 + drawn(acceptance, window, chance) for _ in range(20_000)) / 20_000
    assert tokens_per_round(acceptance, window) == pytest.approx(mean, rel=0.02)


@given(SHARE, st.integers(0, 64))
def test_tokens_per_round_are_the_sum_of_the_powers(acceptance, window):
    assert tokens_per_round(acceptance, window) == pytest.approx(
        sum(acceptance**n for n in range(window + 1))
    )


def pipeline_s(seen: Seen, window: int, parallel: int, chance: random.Random, streaks: int) -> float:
    """Return the mean time per token of drawn streaks, each window with its own times; see `predict`.

    Window j is drafted once the drafter is free and verdict j - parallel has come; the target works on one at a time.
    """
    tokens, time_s = 0, 0.0
    for _ in range(streaks):
        right = drawn(seen.acceptance, 10**6, chance)
        tokens += right + 1
        verdicts: list[float] = []
        drafted = computed = 0.0
        while True:
            j = len(verdicts)
            begun = max(drafted, verdicts[j - parallel] if j >= parallel else 0.0)
            drafted = begun + window * seen.draft_s
            way = (seen.round_trip_s + seen.queue_s) / 2
            computed = max(computed, drafted + way) + seen.verify.s(window if j else window + 1)
            verdicts.append(computed + way)
            if right <= window * (j + 1):
                break
        time_s += verdicts[-1]
    return time_s / tokens


@pytest.mark.parametrize("parallel", [2, 3, 4])
@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("acceptance", [0.3, 0.9])
@pytest.mark.parametrize(("round_trip_s", "draft_s"), [(0.0, 0.03), (0.06, 0.009)])
def test_time_per_token_in_parallel_is_that_of_a_drawn_pipeline(
    parallel, window, acceptance, round_trip_s, draft_s
):
    seen = Seen(acceptance, draft_s, round_trip_s, queue_s=0.005, verify=CURVE)
    drawn_s = pipeline_s(seen, window, parallel, random.Random(2), streaks=3000)
    assert token_s(window, seen, parallel) == pytest.approx(drawn_s, rel=0.04)


@given(SHARE, SECONDS, SECONDS, SECONDS, st.integers(1, 64), st.integers(2, 8))
def test_more_in_flight_is_never_predicted_slower(
    acceptance, draft_s, round_trip_s, queue_s, window, parallel
):
    seen = Seen(acceptance, draft_s, round_trip_s, queue_s, verify=CURVE)
    assert token_s(window, seen, parallel + 1) <= token_s(window, seen, parallel) * (1 + 1e-9)


def test_perfect_drafts_in_parallel_run_at_the_pace_of_the_slowest_stage():
    seen = Seen(1.0, 0.001, 0.06, verify=CURVE)
    assert token_s(8, seen, parallel=64) == pytest.approx(CURVE.s(8) / 8)
    assert token_s(8, seen, parallel=1) == pytest.approx((0.008 + 0.06 + CURVE.s(9)) / 9)


def test_the_target_alone_streams():
    seen = Seen(0.5, 0.01, round_trip_s=0.5, queue_s=0.002, verify=CURVE)
    assert token_s(0, seen) == round_s(0, seen) == pytest.approx(0.031)


@given(SHARE, SECONDS, SECONDS, SECONDS, st.integers(1, 3))
def test_the_best_window_is_the_best(acceptance, draft_s, round_trip_s, queue_s, parallel):
    seen = Seen(acceptance, draft_s, round_trip_s, queue_s, verify=CURVE)
    window, seconds = best_window(seen, 12, parallel)
    every = [token_s(n, seen, parallel) for n in range(13)]
    assert (window, seconds) == (every.index(min(every)), min(every))


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 10)), min_size=1, max_size=12))
def test_a_curve_passes_through_its_points_and_never_falls(points):
    curve = VerifyCurve(points)
    assert all(a <= b + 1e-12 for a, b in pairwise(curve.s(rows) for rows in range(250)))
    for rows, seconds in points:
        assert curve.s(rows) >= seconds
    for rows, seconds in curve.points:
        assert curve.s(rows) == seconds
    assert VerifyCurve(curve.points) == curve


@pytest.mark.parametrize("points", [[], [(0, 0.1)], [(1, -1.0)], [(1, float("nan"))], [(1, float("inf"))]])
def test_a_curve_that_no_target_has_is_refused(points):
    with pytest.raises(ValueError, match="verify curve"):
        VerifyCurve(points)


def test_a_curve_goes_on_with_its_last_slope_and_below_its_first_point_stays_there():
    curve = VerifyCurve([(2, 0.1), (4, 0.2)])
    assert (curve.s(1), curve.s(3), curve.s(104)) == pytest.approx((0.1, 0.15, 5.2))
    assert VerifyCurve([(3, 0.1)]).s(50) == 0.1
