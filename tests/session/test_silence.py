"""A silent writer and its heir: who goes on, what it costs, and when nobody else starts."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import check, play, session_of

from disco.candidate import Candidate
from disco.cost import Phase
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Assist, Migration, Plan, Start
from disco.playback import Pace
from disco.request import Timeouts
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.switching.silence_rule import MOST_HEIRS, SilentWriter, doubted_at

TEXT = "".join(f" word{i}" for i in range(80))
WRITER = SimulatedProfile(answer=TEXT, ttft_s=0.1, decode_tps=50.0)
HEIR = replace(WRITER, ttft_s=0.3, decode_tps=60.0)
PLAN = Plan((Start("server"),), ("device",), heirs=("device",))
LEARNT = {"server": {"silence_s": 0.2, "slow_start": 3.0}, "device": {"silence_s": 0.2, "slow_start": 3.0}}


def silent(after: int, for_s: float = math.inf) -> Fault:
    return Fault(after, silence_s=for_s, kind=None)


def run(fault: Fault | None, *, heir: SimulatedProfile = HEIR, plan: Plan = PLAN, **how):
    """An answer whose server is silent, checked; with its record."""
    profiles = {"server": replace(WRITER, fault=fault), "device": heir}
    played = play(profiles, plan, **{"believed": LEARNT, **how})
    return played, check(played)


def longest_gap_s(played) -> float:
    at = [t for t, _ in played.session.transcript.released]
    return max(b - a for a, b in itertools.pairwise(at))


# ---------------------------------------------------------------------- the rule

RULE = SilentWriter(silent_from=10.0, limit_s=0.5, dry_at=-math.inf)
DEVICE = Candidate("device", "device", overhead_s=0.2, prefill_tps=100.0, continues=True)


@pytest.mark.parametrize(
    ("writer", "at"),
    [
        (RULE, 10.5),  # nothing is on the buffer
        (replace(RULE, dry_at=20.0), 20.0 - 1.25 * 0.3),  # so late that the reader does not wait
        (replace(RULE, dry_at=10.6), 10.5),  # no earlier than the doubt
        (replace(RULE, false_alarms=2), 12.0),
        (replace(RULE, limit_s=math.inf, dry_at=20.0), math.inf),  # nothing is known
    ],
)
def test_an_heir_starts_when_the_writer_is_in_doubt_and_the_reader_would_wait_for_it_otherwise(writer, at):
    assert doubted_at(writer, DEVICE, 10) == pytest.approx(at)


@given(st.floats(0, 100), st.floats(0.01, 5), st.floats(-10, 200), st.integers(0, 4), st.integers(0, 2000))
def test_more_on_the_buffer_never_starts_an_heir_sooner_and_it_is_never_sooner_than_the_doubt(
    from_at, silence_s, dry_at, alarms, unread
):
    at = doubted_at(SilentWriter(from_at, silence_s, dry_at, alarms), DEVICE, unread)
    assert at >= from_at + silence_s
    assert doubted_at(SilentWriter(from_at, silence_s, dry_at + 1, alarms), DEVICE, unread) >= at


# ---------------------------------------------------------------------- who goes on


def test_the_heir_goes_on_where_the_writer_stays_silent_and_the_writer_has_stalled():
    played, record = run(silent(20))
    source, heir = played.session.attempts
    assert (played.text, played.finished) == (TEXT, "stop")
    assert (source.outcome, source.failure) == (AttemptOutcome.FAILED, FailureKind.STALLED)
    assert (heir.role.value, heir.outcome) == ("heir", AttemptOutcome.FINISHED)
    assert [(m.reason, m.outcome) for m in record.migrations] == [("silence", "switched")]
    assert [(a.endpoint, b.endpoint) for a, b in record.failovers] == [("server", "device")]
    assert longest_gap_s(played) == pytest.approx(0.2 + 0.3, abs=0.05), (
        "the doubt, and the heir's first token"
    )
    assert {c.phase for c in record.ledger.charges if c.attempt == 1} == {Phase.FAILOVER, Phase.ANSWER}


def test_the_writer_goes_on_where_it_writes_first_and_the_heir_is_charged_as_a_hedge():
    played, record = run(silent(20, 0.4))
    source, heir = played.session.attempts
    assert (played.text, played.finished, source.outcome) == (TEXT, "stop", AttemptOutcome.FINISHED)
    assert (source.failure, heir.outcome) == (None, AttemptOutcome.ABANDONED)
    assert [m.outcome for m in record.migrations] == ["source_back"]
    assert [c.phase for c in record.ledger.charges if c.attempt == 1] == [Phase.HEDGE]
    assert source.longest_gap_s == pytest.approx(0.42)


def test_a_writer_that_comes_back_is_doubted_later_the_next_time():
    """Its second silence of the same length is none for this answer."""
    gaps = {"server": {"silence_s": 0.2}}
    profile = replace(WRITER, gap_s=0.3)
    played = play({"server": profile, "device": replace(HEIR, ttft_s=9.0)}, PLAN, believed=gaps)
    assert [m.outcome for m in played.session.migrations] == ["source_back"]


def test_text_on_the_buffer_puts_the_heir_off_so_that_the_reader_does_not_wait():
    played, _ = run(silent(40), pace=Pace(tps=5.0))
    heir = played.session.attempts[1]
    assert heir.started_at == pytest.approx(0.1 + 40 / 5.0 - 1.25 * 0.3, abs=0.05)
    shown = [(at - 0.1, sum(d.tokens for d in deltas)) for at, deltas in played.out]
    read = 0
    for at, tokens in shown:
        assert at <= read / 5.0 + 0.05, "the reader waited"
        read += tokens
    assert run(silent(40, 5.0), pace=Pace(tps=5.0))[0].session.migrations == [], "it is back long before"


def test_if_the_writer_fails_while_its_heir_reads_the_heir_is_the_failover():
    fault = Fault(20, silence_s=0.3, kind=FailureKind.SERVER)
    played, record = run(fault)
    assert (played.text, [a.candidate.name for a in played.session.attempts]) == (TEXT, ["server", "device"])
    assert played.session.attempts[0].failure is FailureKind.SERVER
    assert [m.outcome for m in record.migrations] == ["switched"]


@pytest.mark.parametrize("order", ["heir first", "writer first"])
def test_where_both_fail_the_answer_is_still_whole(order):
    plan = replace(PLAN, fallbacks=("device", "edge"), heirs=("device",))
    heir = replace(HEIR, fault=Fault(0, silence_s=0.0 if order == "heir first" else 2.0))
    profiles = {"server": replace(WRITER, fault=silent(20)), "device": heir, "edge": HEIR}
    played = play(profiles, plan, believed=LEARNT, timeouts=Timeouts(gap_s=1.0))
    check(played)
    assert (played.text, played.finished) == (TEXT, "stop")
    assert played.session.attempts[-1].candidate.name == "edge"


def test_an_heir_with_nothing_to_add_ends_the_answer():
    played, _ = run(silent(79), heir=replace(HEIR, answer="".join(TEXT.rpartition(" ")[:1])))
    assert (played.finished, played.session.attempts[1].outcome) == ("stop", AttemptOutcome.FINISHED)
    assert TEXT.startswith(played.text)


def test_the_watch_hears_of_a_writer_that_lost_and_not_of_one_that_came_back():
    class Watch(list):
        def answered(self, name, *_):
            self.append(("answered", name))

        def stopped(self, name, *_, overdue):
            self.append(("stopped", name))

        def failed(self, name, failure, *_):
            self.append((failure.kind.value, name))

    heard = Watch()
    run(silent(20), listener=heard)
    assert heard == [("answered", "server"), ("stalled", "server"), ("answered", "device")]
    heard.clear()
    run(silent(20, 0.4), listener=heard)
    assert heard == [("answered", "server"), ("stopped", "device")]
    heard.clear()
    run(silent(0), listener=heard)
    assert heard == [("timeout", "server"), ("answered", "device")]


# ---------------------------------------------------------------------- when there is no heir


@pytest.mark.parametrize(
    ("how", "plan"),
    [
        ({"believed": {}}, PLAN),  # before there is data
        ({"believed": {"server": {"slow_start": 3.0}}}, PLAN),
        ({}, replace(PLAN, heirs=())),  # the preset spares the device
        ({"may_continue": False}, PLAN),  # tools, a schema, log probabilities
        ({"believed": {**LEARNT, "device": {"continues": False}}}, PLAN),
        ({"believed": {**LEARNT, "device": {"context_tokens": 30}}}, PLAN),
        ({}, replace(PLAN, assist=Assist("server", "device", 200))),  # it has its own heir
    ],
)
def test_no_heir_starts_in_mid_answer(how, plan):
    played, _ = run(silent(20, 2.0), plan=plan, **how)
    assert (played.text, len(played.session.attempts)) == (TEXT, 1)


def test_no_heir_starts_once_a_tool_call_has_begun():
    profiles = {"server": replace(WRITER, fault=silent(20, 2.0)), "device": HEIR}
    session = session_of(profiles, PLAN, believed=LEARNT)
    session.start(0.0)
    session.deltas(0, [Delta("", kind=DeltaKind.TOOL)], 0.1)
    assert session.silence is not None
    assert session.silence.next_at == math.inf


def test_an_answer_has_few_heirs():
    refuses = replace(HEIR, fault=Fault(0, silence_s=0.0, kind=FailureKind.SERVER))
    names = ("a", "b", "c", "d")
    profiles = {"server": replace(WRITER, fault=silent(20, 3.0)), **dict.fromkeys(names, refuses)}
    played = play(profiles, Plan((Start("server"),), names, heirs=names), believed=LEARNT)
    assert played.text == TEXT
    assert len(played.session.attempts) == 1 + MOST_HEIRS


def test_while_an_answer_migrates_the_move_is_the_only_one():
    plan = replace(PLAN, migrations={"server": Migration("device")}, heirs=("edge",))
    profiles = {
        "server": replace(WRITER, fault=silent(12, 3.0)),
        "device": replace(HEIR, ttft_s=2.0),
        "edge": HEIR,
    }
    costs = {"server": 1e-3, "device": 1e-9, "edge": 1e-3}
    believed = {**LEARNT, "device": {"overhead_s": 0.2}}
    played = play(profiles, plan, costs=costs, pace=Pace(tps=5.0), believed=believed)
    check(played)
    _, target, heir = played.session.attempts
    assert (target.candidate.name, heir.candidate.name) == ("device", "edge")
    assert heir.started_at >= target.ended_at, "the move was given up first"


# ---------------------------------------------------------------------- before the first word


def test_a_hedge_starts_once_the_first_word_is_late_and_the_first_to_write_goes_on():
    played, record = run(silent(0))
    assert (played.text, [a.role.value for a in played.session.attempts]) == (TEXT, ["starter", "hedge"])
    assert played.session.attempts[1].started_at == pytest.approx(3 * 0.1)
    assert record.ledger.charges[0].phase is Phase.RACE_LOSER
    assert Phase.HEDGE not in {c.phase for c in record.ledger.charges}
    played, record = run(silent(0, 0.4))
    assert (played.text, played.session.attempts[1].outcome) == (TEXT, AttemptOutcome.LOST)
    assert [c.phase for c in record.ledger.charges if c.attempt == 1] == [Phase.HEDGE]


@pytest.mark.parametrize("how", [{"may_continue": False}, {"may_migrate": False}, {"streams": False}])
def test_answers_that_nobody_may_continue_are_hedged_before_their_first_word(how):
    played, _ = run(silent(0), **how)
    assert (played.text, played.session.attempts[1].role.value) == (TEXT, "hedge")


def test_a_race_is_hedged_once_all_who_run_are_late_and_only_where_all_are_known():
    plan = Plan((Start("server"), Start("device")), ("edge",), heirs=("edge",))
    profiles = {
        "server": replace(WRITER, fault=silent(0)),
        "device": replace(HEIR, fault=silent(0)),
        "edge": HEIR,
    }
    played = play(profiles, plan, believed=LEARNT)
    assert played.session.attempts[2].started_at == pytest.approx(3 * 0.3), "the slower of the two"
    believed = {"server": LEARNT["server"]}
    played = play(profiles, plan, believed=believed, timeouts=Timeouts(first_content_s=2.0))
    assert played.session.attempts[2].started_at == pytest.approx(2.0), "the fixed clock"


def test_who_was_silent_until_a_hedge_wrote_gets_no_more_of_this_answer():
    plan = replace(PLAN, starts=(Start("device"),), fallbacks=("server",), heirs=("server",))
    plan = replace(plan, migrations={"server": Migration("device")})
    profiles = {"server": WRITER, "device": replace(HEIR, fault=silent(0))}
    costs = {"server": 1e-3, "device": 1e-9}
    played = play(profiles, plan, costs=costs, pace=Pace(tps=5.0), believed=LEARNT)
    assert (played.text, [a.candidate.name for a in played.session.attempts]) == (TEXT, ["device", "server"])


def test_a_wait_for_ones_turn_is_no_silence():
    believed = {**LEARNT, "server": {**LEARNT["server"], "announces": True}}
    session = session_of({"server": WRITER, "device": HEIR}, PLAN, believed=believed)
    session.start(0.0)
    assert session.silence is not None
    assert session.silence.next_at == math.inf
    session.began(0, 5.0)
    assert session.silence.next_at == pytest.approx(5.0 + 3 * 0.1)


def test_a_process_that_was_busy_reads_what_came_meanwhile_before_it_doubts_anybody():
    session = session_of({"server": WRITER, "device": HEIR}, PLAN, believed=LEARNT)
    session.start(0.0)
    session.deltas(0, [Delta(" word")], 0.1)
    assert session.silence is not None
    assert session.wake_at == pytest.approx(0.3)
    session.woken(0.8)  # the event loop stood still
    assert len(session.attempts) == 1
    assert session.wake_at == pytest.approx(0.83)
    session.deltas(0, [Delta(" word")], 0.81)
    session.woken(session.wake_at)
    assert len(session.attempts) == 1
    session.woken(session.wake_at)
    assert [a.role.value for a in session.attempts] == ["starter", "heir"]


# ---------------------------------------------------------------------- schedules


@settings(max_examples=80)
@given(
    after=st.integers(0, 80),
    for_s=st.floats(0.0, 1.5) | st.just(math.inf),
    kind=st.none() | st.sampled_from([FailureKind.SERVER, FailureKind.INCOMPLETE]),
    heir_s=st.sampled_from([0.01, 0.3, 0.7]),
    heir_fault=st.none() | st.builds(Fault, after_tokens=st.integers(0, 60)),
    pace=st.sampled_from([None, 5.0, 20.0]),
    packet=st.integers(1, 5),
    seam=st.sampled_from(["exact", "echoes"]),
    streams=st.booleans(),
)
def test_whenever_a_doubted_writer_comes_back_or_fails_the_answer_is_whole(
    after, for_s, kind, heir_s, heir_fault, pace, packet, seam, streams
):
    """Every token once and in order, the ledger the sum of its charges, everything stopped."""
    writer = replace(WRITER, packet_tokens=packet, fault=Fault(after, silence_s=for_s, kind=kind))
    heir = replace(HEIR, ttft_s=heir_s, fault=heir_fault, seam=seam)
    plan = replace(PLAN, fallbacks=("device", "edge"), heirs=("device", "edge"))
    played = play(
        {"server": writer, "device": heir, "edge": HEIR},
        plan,
        believed=LEARNT,
        pace=None if pace is None else Pace(tps=pace),
        streams=streams,
    )
    check(played)
    assert (played.text, played.finished, played.running) == (TEXT, "stop", set())
