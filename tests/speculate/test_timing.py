"""The machine in virtual time: as fast as the formula says, and never slower than it must be."""

from __future__ import annotations

import pytest

from disco.speculate import window_of
from disco.speculate.effects import Finish
from disco.speculate.estimates import Estimates
from disco.speculate.predict import token_s
from disco.speculate.rounds import Rounds
from disco.speculate.seen import Seen, VerifyCurve
from tests.speculate.made_clock import a_timed

CURVE = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
"""Measured: an F32 target on one core."""


@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 4, 8])
@pytest.mark.parametrize(("round_trip_s", "draft_s"), [(0.0, 0.03), (0.01, 0.009), (0.06, 0.009)])
def test_time_per_token_is_the_predicted_one(parallel, window, round_trip_s, draft_s):
    rounds = Rounds(window_of("static", n=window), parallel=parallel)
    timed = a_timed(rounds, CURVE, tokens=400, round_trip_s=round_trip_s, draft_s=draft_s, seed=window)
    acceptance = rounds.tally.accepted / rounds.tally.judged  # as it came out, so that luck is no difference
    seen = Seen(acceptance=acceptance, draft_s=draft_s, round_trip_s=round_trip_s, verify=CURVE)
    assert timed.token_s == pytest.approx(token_s(window, seen, parallel), rel=0.12)
    assert timed.modes[-200:] == ["distributed"] * 200


def test_estimates_come_close_to_the_true_times():
    """The server's own curve is wrong by half, also where nothing is measured."""
    said = VerifyCurve([(rows, seconds / 2) for rows, seconds in CURVE.points])
    rounds = Rounds(window_of("static", n=4), estimates=Estimates(said))
    a_timed(rounds, CURVE, tokens=1000, round_trip_s=0.03, draft_s=0.009)
    seen = Seen()
    rounds.estimates.fill(seen)
    assert seen.draft_s == pytest.approx(0.009, rel=0.02)
    assert seen.round_trip_s == pytest.approx(0.03, rel=0.02)
    assert seen.acceptance == pytest.approx(0.8, abs=0.1)
    assert (seen.verify.s(5), seen.verify.s(16)) == pytest.approx((CURVE.s(5), CURVE.s(16)), rel=0.02)
    assert seen.queue_s == 0.0


def test_the_seconds_of_an_answer_in_turn_add_up():
    rounds = Rounds(window_of("static", n=4))
    timed = a_timed(rounds, CURVE, tokens=400, round_trip_s=0.03)
    tally = rounds.tally
    assert tally.draft_s + tally.wire_s + tally.queue_s + tally.verify_s == pytest.approx(timed.now, rel=0.02)


def test_a_drafter_that_does_not_pay_is_left_alone():
    """The window finds it out by itself; the cost is the first few rounds, and shadows cost nothing."""
    rounds = Rounds(window_of("optimal"))
    timed = a_timed(rounds, CURVE, tokens=300, right=0.2, draft_s=0.03)
    assert timed.modes[-200:].count("distributed") == 0
    assert timed.token_s == pytest.approx(CURVE.s(1), rel=0.01)
    assert timed.now < 1.1 * 300 * CURVE.s(1)
    assert rounds.tally.compared > 8


def test_a_drafter_that_becomes_good_is_found_out():
    """It is slow for the first 5 s, a busy device say, then fast."""
    rounds = Rounds(window_of("optimal"))
    timed = a_timed(
        rounds,
        CURVE,
        tokens=1000,
        right=0.95,
        round_trip_s=0.002,
        draft_s=lambda now: 0.2 if now < 5 else 0.002,
    )
    before = [mode for mode, at in zip(timed.modes, timed.written_s, strict=True) if 2 < at < 5]
    after = [mode for mode, at in zip(timed.modes, timed.written_s, strict=True) if at > 16]
    assert set(before) == {"alone"}
    assert after.count("distributed") > 0.9 * len(after)


def test_a_drafter_that_hangs_costs_its_patience_and_no_more():
    """The drafter hangs from 2 s on for good, and does not stop when it is told to."""
    rounds = Rounds(window_of("static", n=4))
    timed = a_timed(
        rounds, CURVE, tokens=300, draft_s=lambda now: 0.009 if now < 2 else 1e6, hangs_from_s=2.0
    )
    gaps = [after - before for before, after in zip(timed.written_s, timed.written_s[1:], strict=False)]
    assert rounds.tally.late == 1
    assert max(gaps) < 0.4
    assert timed.modes[-1] == "alone"


def test_the_target_does_not_wait_for_a_drafter_that_reads():
    rounds = Rounds(window_of("static", n=4))
    timed = a_timed(rounds, CURVE, tokens=100, ready_s=1.0, prefill_s=0.2)
    alone = [at for at, mode in zip(timed.written_s, timed.modes, strict=True) if mode == "alone"]
    assert timed.written_s[0] < 0.3
    assert alone[-1] < 1.5
    assert timed.modes[-1] == "distributed"
    assert timed.end == Finish("length")
