"""What a client learns of its endpoints' silences, and how much it may cost to act on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco.candidate import Candidate
from disco.client.endpoint_catalog.observed.silences import DOUBT, EARNED, MOST, Silences, observations
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics
from disco.endpoints.contract import Capabilities
from disco.errors import FailureKind
from disco.events import Usage
from disco.profiles import Empirical, Rolling, RollingLine
from disco.profiles.upper_tail import FEWEST
from disco.rates import Rates
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, Role

SERVER = Candidate("server", "any", overhead_s=0.4)
DEVICE = Candidate("device", "device", overhead_s=0.1, prefill_tps=100.0)


def attempt(candidate: Candidate = SERVER, **facts) -> AttemptState:
    """An attempt of 2 s that wrote 20 tokens from 0.5 s on, and was never silent for longer than 0.1 s."""
    state = AttemptState(0, candidate, Role.STARTER, 0.0, Prefix(), outcome=AttemptOutcome.FINISHED)
    usual = {"first_content_at": 0.5, "last_at": 2.0, "ended_at": 2.0, "tokens": 20, "longest_gap_s": 0.1}
    for name, value in {**usual, "usage": Usage(90, 20), **facts}.items():
        setattr(state, name, value)
    return state


def learnt(state: AttemptState, *, by_line: bool = False) -> list[tuple[str, float]]:
    return [(kind, pytest.approx(value)) for kind, value in observations(state, by_line=by_line)]


def learn(known: Silences, state: AttemptState) -> None:
    for kind, value in (*known.doubts(state), *observations(state, by_line=False)):
        known.observe(kind, value)


STALLED = {"failure": FailureKind.STALLED, "outcome": AttemptOutcome.FAILED, "ended_at": 6.0}
UNHEARD = {"first_content_at": None, "tokens": 0, "longest_gap_s": 0.0, "last_at": 0.0}


@pytest.mark.parametrize(
    ("facts", "seen"),
    [
        ({}, [("gap_s", 0.1), ("late_start", 0.5)]),
        ({"tokens": 5}, [("late_start", 0.5)]),  # too short to say anything
        (STALLED, [("gap_s", 0.1)]),  # a stall is no gap
        ({**STALLED, "doubted_at": 3.0}, [("gap_s", 0.1)]),  # nor is one that its heir has ended
        ({"doubted_at": 3.0}, [("gap_s", 0.1), ("late_start", 0.5)]),  # it had only its end to say
        ({"doubted_at": 3.0, "longest_gap_s": 1.5}, [("gap_s", 1.5), ("late_start", 0.5)]),  # it came back
        ({"outcome": AttemptOutcome.CANCELLED, "ended_at": 2.5}, [("gap_above_s", 0.5)]),
        ({"outcome": AttemptOutcome.CANCELLED, "ended_at": 2.05}, [("gap_s", 0.1)]),
        ({"outcome": AttemptOutcome.CANCELLED, "ended_at": 9.0, "doubted_at": 5.0}, [("gap_s", 0.1)]),
        ({**UNHEARD, "outcome": AttemptOutcome.LOST}, [("late_start_above", 2.0)]),
        ({**UNHEARD, "outcome": AttemptOutcome.LOST, "doubted_at": 1.0}, []),
        ({**UNHEARD, "outcome": AttemptOutcome.FAILED, "failure": FailureKind.TIMEOUT}, []),
    ],
)
def test_what_is_learnt_of_a_server(facts, seen):
    assert learnt(attempt(**facts)) == seen


def test_a_devices_start_is_compared_with_the_time_that_its_prompt_should_take():
    assert learnt(attempt(DEVICE), by_line=True) == [("gap_s", 0.1), ("late_start", 0.5 / (0.1 + 90 / 100))]
    slow = replace(DEVICE, slow_start=2.0)
    lost = attempt(slow, **UNHEARD, outcome=AttemptOutcome.LOST, doubted_at=1.0)
    assert learnt(lost, by_line=True) == [("late_start_above", 2.0 * 2.0 / 1.0)]
    assert learnt(attempt(replace(DEVICE, load_s=1.0)), by_line=True) == [("gap_s", 0.1)], "a cold start"


def test_before_there_is_data_a_candidate_has_no_limits_and_afterwards_it_has():
    known = EndpointStatistics(ttft=Rolling(), line=None)
    known.ttft.observe(0.5)

    def candidate() -> Candidate:
        return known.candidate("server", "any", Rates(), Capabilities())

    for _ in range(FEWEST - 1):
        known.learn(attempt())
    assert (candidate().silence_s, candidate().slow_start) == (None, None)
    known.learn(attempt())
    assert 0.1 < candidate().silence_s < 2.0
    assert 0.5 < candidate().slow_first_token_s(10_000) < 5.0, "a server's does not depend on the prompt"


def test_a_devices_limit_grows_with_its_prompt():
    known = EndpointStatistics(line=RollingLine(0.01, 0.1))
    for _ in range(FEWEST):
        known.learn(attempt(known.candidate("device", "device", Rates(), Capabilities(ready=True))))
    candidate = known.candidate("device", "device", Rates(), Capabilities(ready=True))
    assert candidate.slow_first_token_s(1000) > 5 * candidate.slow_first_token_s(50)


def test_doubts_in_vain_are_few_and_are_earned_by_answers():
    """However often it comes back: after the first few, at most one answer in ten."""
    known, doubts = Silences(), 0
    for _ in range(FEWEST):
        learn(known, attempt())
    for _ in range(400):
        in_doubt = known.may_be_doubted
        doubts += in_doubt
        learn(known, attempt(doubted_at=1.0 if in_doubt else None))
    assert doubts <= (MOST + 400 * EARNED) / DOUBT
    assert doubts >= 400 * EARNED / DOUBT * 0.8


@pytest.mark.parametrize(
    ("facts", "left"),
    [
        ({}, MOST - DOUBT + EARNED),
        ({**UNHEARD, "outcome": AttemptOutcome.LOST}, MOST - DOUBT),  # it lost a race
        ({"outcome": AttemptOutcome.FAILED, "failure": FailureKind.SERVER}, MOST - DOUBT),
        ({"doubted_at": 1.0}, MOST - 2 * DOUBT),  # it came back
        (STALLED, MOST - DOUBT),
        ({**STALLED, "doubted_at": 3.0}, MOST - DOUBT),
        ({**UNHEARD, **STALLED, "doubted_at": 3.0}, MOST - 2 * DOUBT),  # it may be slow
    ],
)
def test_what_an_attempt_takes_of_the_doubts_or_earns(facts, left):
    known = Silences()
    learn(known, attempt(doubted_at=1.0))
    learn(known, attempt(**facts))
    assert known.tenths == left


LEFT = {"outcome": AttemptOutcome.CANCELLED, "ended_at": 6.0}  # by its reader


@pytest.mark.parametrize("ended", [STALLED, {**STALLED, "failure": FailureKind.TIMEOUT}, LEFT], ids=str)
@pytest.mark.parametrize("where", [{}, UNHEARD], ids=["in mid-text", "before the first word"])
def test_who_hangs_when_it_is_waited_for_has_all_doubts_again(where, ended):
    known = Silences()
    for _ in range(5):
        learn(known, attempt(**UNHEARD, **STALLED, doubted_at=3.0))
    assert not known.may_be_doubted
    waited_for = replace(SERVER, may_be_doubted=False)
    learn(known, attempt(waited_for))
    assert not known.may_be_doubted, "too little is known of it"
    learn(known, attempt(waited_for, **{**where, **ended}))
    assert known.tenths == MOST


def test_the_doubts_outlive_the_process():
    kept: list[tuple[str, float, float]] = []
    known, later = (EndpointStatistics(ttft=Rolling(), line=None) for _ in range(2))
    known.keep = lambda *one: kept.append(one)
    for _ in range(5):
        known.learn(attempt(**UNHEARD, **STALLED, doubted_at=3.0))
    for one in kept:
        later.recall(*one)
    assert not later.silences.may_be_doubted


def stalled(candidate: Candidate, limit_s: float) -> AttemptState:
    """Its heir has written, 0.1 s after it was silent for so long."""
    doubted_at = 2.0 + limit_s
    return attempt(
        candidate,
        **{**STALLED, "doubted_at": doubted_at, "ended_at": doubted_at + 0.1, "longest_gap_s": 0.02},
    )


def test_a_server_that_stalls_and_never_comes_back_changes_nothing():
    known = Silences()
    for _ in range(25):
        learn(known, attempt(longest_gap_s=0.02))
    limit_s = known.silence_s()
    for _ in range(10):
        learn(known, stalled(SERVER, limit_s))
    assert known.may_be_doubted
    assert known.silence_s() <= limit_s


@pytest.mark.parametrize("candidate", [SERVER, DEVICE], ids=["now and then it is back in time", "never"])
def test_who_is_slower_as_a_whole_is_believed_after_a_few_doubts(candidate):
    """Of a server that is back in time now and then; of a model on this machine even if its heir always wins."""
    known, doubts = Silences(), 0
    for _ in range(200):
        learn(known, attempt(candidate, longest_gap_s=0.02))
    for number in range(200):
        limit_s = known.silence_s()
        if limit_s is None or limit_s >= 3.0 or not known.may_be_doubted:
            learn(known, attempt(candidate, longest_gap_s=3.0))
            continue
        doubts += 1
        if candidate is SERVER and number % 2:
            learn(known, attempt(longest_gap_s=3.0, doubted_at=1.5))
        else:
            learn(known, stalled(candidate, limit_s))
    assert doubts <= 2 * MOST / DOUBT + 2
    assert known.silence_s() > 3.0


def test_what_was_observed_can_be_recalled_elsewhere():
    """As from the state file, with whatever kinds another version has written."""
    first, second = (EndpointStatistics(ttft=Rolling(prior=Empirical.from_samples([0.4]))) for _ in range(2))
    kept: list[tuple[str, float, float]] = []
    first.keep = lambda *observation: kept.append(observation)
    for number in range(60):
        first.learn(attempt(longest_gap_s=0.05 + 0.001 * number, first_content_at=0.2 + 0.01 * number))
    first.learn(attempt(**{**STALLED, "doubted_at": 3.0}))
    for observation in [*kept, ("something else", 1.0, 0.0)]:
        second.recall(*observation)
    able = Capabilities()
    assert first.candidate("s", "any", Rates(), able) == second.candidate("s", "any", Rates(), able)
    assert first.silences.silence_s() is not None
