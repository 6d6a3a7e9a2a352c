"""Heirs that fail or may not write, and what a doubted writer, its answer and its deadline make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.plays import check, play, session_of
from session.test_silence import HEIR, LEARNT, PLAN, TEXT, WRITER, longest_gap_s, run, silent

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import AnswerTimeoutError, FailureKind
from disco.events import Delta, Ended, Usage
from disco.plan import Migration
from disco.playback import Pace
from disco.request import Timeouts


def test_who_took_over_from_a_failed_writer_gets_an_heir_as_well():
    profiles = {
        "server": replace(WRITER, fault=Fault(20, kind=FailureKind.SERVER)),
        "device": replace(HEIR, fault=silent(10)),
        "edge": HEIR,
    }
    plan = replace(PLAN, fallbacks=("device", "edge"), heirs=("device", "edge"))
    played = play(profiles, plan, believed=LEARNT)
    check(played)
    assert (played.text, [a.role.value for a in played.session.attempts]) == (
        TEXT,
        ["starter", "takeover", "heir"],
    )
    assert longest_gap_s(played) == pytest.approx(0.2 + 0.3, abs=0.05)


@pytest.mark.parametrize("kind", [None, FailureKind.SERVER])
def test_an_heir_that_failed_at_the_seam_is_asked_once_more_whether_or_not_the_writer_has_failed(kind):
    profiles = {
        "server": replace(WRITER, fault=Fault(20, silence_s=2.0 if kind is None else 0.4, kind=kind)),
        "device": replace(HEIR, seam="restarts"),
        "edge": HEIR,
    }
    plan = replace(PLAN, fallbacks=("device", "edge"), heirs=("device",))
    played = play(profiles, plan, believed=LEARNT)
    check(played)
    assert (played.text, played.finished) == (TEXT, "stop")
    tried = [(a.candidate.name, a.role.value) for a in played.session.attempts]
    asked = [("server", "starter"), ("device", "heir"), ("device", "heir")]
    assert tried == (asked if kind is None else [*asked, ("edge", "takeover")])


def test_the_failure_of_an_heir_does_not_hide_a_missed_deadline():
    heir = replace(HEIR, fault=Fault(0, kind=FailureKind.SERVER))
    played, _ = run(silent(20), heir=heir, timeouts=Timeouts(total_s=3.0))
    assert played.session.attempts[1].failure is FailureKind.SERVER
    assert isinstance(played.error, AnswerTimeoutError)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_heir_that_may_not_write_does_not_end_the_answer_of_a_writer_that_may_come_back(reason):
    session = session_of({"server": WRITER, "device": HEIR}, PLAN, believed=LEARNT)
    session.start(0.0)
    session.deltas(0, [Delta("Two words")], 0.1)
    session.woken(session.wake_at)
    session.ended(1, Ended(reason, Usage(20, 0)), 0.6)
    assert session.finish_reason is None
    assert session.migrations[0].outcome == "target_empty"
    session.stopped(1, Usage(20, 0), 0.6)
    session.deltas(0, [Delta(" and two more.")], 0.7)
    session.ended(0, Ended("stop"), 0.8)
    assert (session.finish_reason, session.transcript.text) == ("stop", "Two words and two more.")


def test_at_the_deadline_the_reader_gets_the_word_that_an_heir_was_to_write_again():
    clocks = Timeouts(total_s=0.5)
    pace = Pace(tps=5.0)
    session = session_of(
        {"server": WRITER, "device": replace(HEIR, ttft_s=9.0)},
        PLAN,
        pace=pace,
        believed=LEARNT,
        timeouts=clocks,
    )
    session.start(0.0)
    session.deltas(0, [Delta(f" word{i}") for i in range(8)], 0.1)
    while session.wake_at < 0.5:
        session.woken(session.wake_at)
    assert session.migration.is_doubt
    session.woken(0.5)
    for number in (0, 1):
        session.stopped(number, Usage(20, 8), 0.5)
    assert session.finish_reason is None
    assert session.transcript.text == "".join(f" word{i}" for i in range(8))


def test_a_false_alarm_is_no_migration_that_was_given_up():
    """After it, the answer may still try to migrate as often as without it."""
    plan = replace(PLAN, migrations={"server": Migration("device")}, heirs=("edge",))
    profiles = {
        "server": replace(WRITER, fault=silent(3, 0.3)),
        "device": replace(HEIR, ttft_s=9.0),
        "edge": replace(HEIR, ttft_s=3.0),
    }
    believed = {
        "server": {"silence_s": 0.1, "pauses": False},
        "device": {"overhead_s": 0.05},
        "edge": {"overhead_s": 0.2},
    }
    costs = {"server": 1e-3, "device": 1e-9, "edge": 1e-3}
    played = play(profiles, plan, costs=costs, pace=Pace(tps=30.0), believed=believed)
    check(played)
    assert [m.reason for m in played.session.migrations] == ["silence", "cost", "cost"]
