"""Estimates: what is censored is not counted, and all of them find the truth."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.speculate.estimates import Acceptance, Estimates, Smoothed, VerifyTimes
from disco.speculate.seen import Seen, VerifyCurve


@pytest.mark.parametrize("true", [0.4, 0.7, 0.95])
@pytest.mark.parametrize("window", [2, 8])
def test_acceptance_is_unbiased_where_accepted_over_drafted_is_not(true, window):
    chance = random.Random(3)
    acceptance = Acceptance(memory=1e9)
    accepted = drafted = 0
    for _ in range(4000):
        drafted += window
        for place in range(window):
            right = chance.random() < true
            acceptance.add(place, right=right)
            accepted += right
            if not right:
                break
    assert acceptance.value == pytest.approx(true, abs=0.015)
    assert acceptance.at(1) == pytest.approx(true, abs=0.03)
    assert accepted / drafted < true - 0.02  # what a naive estimate would say
    if window == 8 and true < 0.9:
        assert accepted / drafted < 0.7 * true


def test_acceptance_by_place_shows_what_the_mean_hides():
    chance = random.Random(4)
    acceptance = Acceptance(memory=1e9)
    for _ in range(3000):
        for place, true in enumerate((0.9, 0.5, 0.5, 0.1)):
            right = chance.random() < true
            acceptance.add(place, right=right)
            if not right:
                break
    assert [acceptance.at(place) for place in range(4)] == pytest.approx([0.9, 0.5, 0.5, 0.1], abs=0.06)
    assert acceptance.at(40) == acceptance.value


def test_acceptance_forgets():
    acceptance = Acceptance()
    for _ in range(500):
        acceptance.add(0, right=True)
    assert acceptance.value > 0.98
    for _ in range(250):
        acceptance.add(0, right=False)
    assert acceptance.value < 0.1


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=50))
def test_acceptance_is_a_probability(tokens):
    acceptance = Acceptance()
    for place, right in tokens:
        acceptance.add(place, right=right)
    assert 0 < acceptance.value < 1
    assert all(0 < acceptance.at(place) < 1 for place in (0, 1, 199))
    assert acceptance.judged == len(tokens)


@given(st.floats(1e-4, 10), st.integers(1, 100))
def test_a_constant_is_its_own_average(value, times):
    smoothed = Smoothed()
    for _ in range(times):
        smoothed.add(value, 3)
    assert smoothed.value == pytest.approx(value)


def test_one_pause_does_not_spoil_an_average_and_a_lasting_change_does():
    smoothed = Smoothed()
    for _ in range(20):
        smoothed.add(0.01)
    smoothed.add(5.0)
    assert smoothed.value is not None
    assert smoothed.value < 0.02
    for _ in range(30):
        smoothed.add(0.05)
    assert smoothed.value == pytest.approx(0.05, rel=0.01)
    for nonsense in (float("nan"), float("inf"), -1.0):
        smoothed.add(nonsense)
    assert smoothed.value == pytest.approx(0.05, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 70), st.floats(-1, 100)), max_size=40),
    st.one_of(st.none(), st.just(VerifyCurve([(1, 0.03), (9, 0.09)]))),
)
def test_the_verify_curve_stays_monotone_whatever_is_measured(measured, said):
    times = VerifyTimes(said)
    for rows, seconds in measured:
        times.add(rows, seconds)
    if times.curve is None:
        assert said is None
        assert not any(rows > 0 and seconds > 0 for rows, seconds in measured)
    else:
        assert all(a <= b + 1e-12 for a, b in pairwise(times.curve.s(rows) for rows in range(80)))


def test_the_verify_curve_becomes_the_true_one():
    """The server says half of it, and measurements are noisy and of some row counts only."""
    true = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
    chance = random.Random(5)
    times = VerifyTimes(VerifyCurve([(rows, seconds / 2) for rows, seconds in true.points]))
    assert times.curve is not None
    assert times.curve.s(9) == pytest.approx(true.s(9) / 2)
    for _ in range(200):
        rows = chance.choice((1, 5))
        times.add(rows, true.s(rows) * chance.uniform(0.9, 1.1))
    for rows in (1, 2, 5, 9, 16):
        assert times.curve.s(rows) == pytest.approx(true.s(rows), rel=0.1)


def test_waits_give_queue_and_utilisation():
    """Of 10 rounds 4 wait for 20 ms."""
    estimates, seen = Estimates(), Seen()
    for place in range(400):
        estimates.verified(5, 0.02 if place % 10 < 4 else 0.0, 0.06, 0.03)
    estimates.fill(seen)
    assert seen.queue_s == pytest.approx(0.008, abs=0.002)
    assert seen.utilisation == pytest.approx(0.4, abs=0.1)
    assert seen.round_trip_s == pytest.approx(0.03)


def test_reading_is_not_drafting():
    """What a drafter reads in between is taken off; a long reading gives an upper bound only."""
    estimates = Estimates()
    estimates.drafted(4, 200, 1.0)
    assert estimates.draft_s == pytest.approx(0.25)
    for _ in range(10):
        estimates.drafted(4, 1, 0.04)
    assert estimates.draft_s == pytest.approx(0.01)
    estimates.drafted(4, 200, 1.0)
    assert estimates.draft_s == pytest.approx(0.01)
    estimates.drafted(0, 3, 1.0)
    assert estimates.draft_s == pytest.approx(0.01)
    estimates.drafted(4, 13, 0.04)  # a GPU reads next to nothing; nothing contradicts what is known
    assert estimates.draft_s == pytest.approx(0.01)
    estimates.drafted(4, 61, 0.008)  # it must have become faster
    assert estimates.draft_s == pytest.approx(0.002)
    for _ in range(30):
        estimates.drafted(4, 13, 0.8)  # slower, even if each token that it read took as long
    assert estimates.draft_s == pytest.approx(0.05, rel=0.05)


def test_the_first_round_tells_how_long_a_round_trip_takes_at_most():
    estimates, seen = Estimates(), Seen()

    def found():
        estimates.fill(seen)
        return seen.round_trip_s

    estimates.opened(0.3)  # it connected first
    assert found() == pytest.approx(0.3)
    estimates.opened(0.1)
    estimates.opened(0.2)
    assert found() == pytest.approx(0.1)
    estimates.verified(5, 0.0, 0.03, 0.08)  # now it is known
    assert found() == pytest.approx(0.08)
    estimates.opened(0.2)
    assert found() == pytest.approx(0.08)
    for _ in range(20):
        estimates.opened(0.02)  # another network
    assert found() == pytest.approx(0.02, abs=0.005)


def test_patience_grows_with_the_draft_and_is_finite_before_the_first():
    estimates = Estimates(VerifyCurve([(1, 0.03)]))
    assert 0.5 < estimates.patience_s(4, 1) < 1.0
    estimates.drafted(4, 1, 0.04)
    assert 0.12 < estimates.patience_s(4, 1) < 0.2
    assert estimates.patience_s(8, 100) > 2 * estimates.patience_s(4, 1)


def test_what_was_never_measured_keeps_its_value():
    seen = Seen(draft_s=1.0, round_trip_s=2.0, queue_s=3.0, utilisation=0.4, token_s=5.0)
    Estimates().fill(seen)
    assert (seen.draft_s, seen.round_trip_s, seen.queue_s, seen.utilisation, seen.token_s) == (
        1,
        2,
        3,
        0.4,
        5,
    )
