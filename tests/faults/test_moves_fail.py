"""A move is under way when its source or its target fails; a hedge waits when the first side fails. In virtual time."""

from __future__ import annotations

import math

import pytest
from defects.parts import play
from faults.proxy_server.origin import TEXT

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.session.attempt.attempt_state import AttemptOutcome

LONG = TEXT * 3
SOURCE = {"answer": LONG, "ttft_s": 0.1, "decode_tps": 100.0}
GONE, SILENT = Fault(0, at_once=True), Fault(0, silence_s=math.inf, kind=None)


def moved(order, *, source_fault=None, target_fault=None):
    """An answer that is dear where it begins and cheap elsewhere; a third one could take over."""
    return play(
        {
            "server": SimulatedProfile(**SOURCE, fault=source_fault),
            "device": SimulatedProfile(**{**SOURCE, "ttft_s": 1.0}, fault=target_fault),
            "edge": SimulatedProfile(**SOURCE),
        },
        Plan((Start("server"),), ("device", "edge"), {"server": Migration("device")}, order),
        costs={"server": 1e-3, "device": 1e-9, "edge": 1e-3},
        pace=Pace(tps=10.0),
        max_retries=0,
    )


# (what became of the move, its source failed, its target failed): must be among what happens
WELL, TWICE = ("switched", True, False), ("target_failed", True, True)


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
@pytest.mark.parametrize(
    ("target_fault", "among"),
    [(None, WELL), (SILENT, TWICE), (GONE, TWICE), (Fault(3), ("switched", True, True))],
    ids=["well", "silent", "gone", "later"],
)
def test_wherever_the_source_fails_the_answer_is_whole(order, target_fault, among):
    seen = set()
    for after in range(1, 80, 3):
        run = moved(order, source_fault=Fault(after), target_fault=target_fault)
        assert run.text == LONG, after
        assert run.finished == "stop"
        failed = {a.number for a in run.session.attempts if a.outcome is AttemptOutcome.FAILED}
        seen |= {(m.outcome, m.source in failed, m.target in failed) for m in run.session.migrations}
    if order == "make_before_break":  # else the source has stopped by then
        assert among in seen


def test_a_target_that_fails_is_given_up_at_once():
    run = moved("make_before_break", target_fault=GONE)
    first = run.session.migrations[0]
    assert first.outcome == "target_failed"
    assert [a.candidate.name for a in run.session.attempts] == ["server", "device"]
    assert run.text == LONG


def test_a_hedge_does_not_wait_once_one_side_has_failed():
    there = {
        "server": SimulatedProfile(answer=TEXT, fault=SILENT),
        "edge": SimulatedProfile(answer=TEXT, fault=GONE),
        "device": SimulatedProfile(answer=TEXT),
    }
    plan = Plan((Start("server"), Start("edge"), Start("device", 5.0)))
    run = play(there, plan)
    assert run.text == TEXT
    assert run.session.attempts[2].started_at == 0.0


def test_nobody_who_has_failed_is_asked_as_a_successor():
    there = {name: SimulatedProfile(answer=TEXT, fault=Fault(4)) for name in ("server", "device")}
    run = play(there, Plan((Start("server"),), ("device",)), max_retries=0)
    assert [a.candidate.name for a in run.session.attempts] == ["server", "device"]
    assert run.error is not None
