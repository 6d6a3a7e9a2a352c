"""A source that pauses: the reader never waits for a late target, nothing is lost or doubled, and all is charged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import NO_CLOCKS, REQUEST, check, play, record_of, run_session, session_of

from disco.candidate import Candidate
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, Ended, Usage
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.rates import Rates
from disco.request import Timeouts
from disco.session.effects import Effect, Finish, PauseAttempt, ResumeAttempt, StartAttempt
from disco.session.switching.answer_lengths import AnswerLengths
from disco.session.switching.migration_rule import (
    MigrationVerdict,
    Snapshot,
    decide,
    handover_order,
)

WRITES = SimulatedProfile(ttft_s=0.2, decode_tps=20.0, answer_tokens=120)
PLAN = Plan((Start("device"),), ("server",), {"device": Migration("server")})
COSTS = {"device": 1e-3, "server": 1e-9}
MOVES = {"costs": COSTS, "pace": Pace(tps=5.0), "timeouts": NO_CLOCKS}


def believed(*quantiles: float, **more) -> dict:
    """What is known of the server's time to first token."""
    return {"server": {"ttft_quantiles": quantiles, **more}}


# ---------------------------------------------------------------- the rule


@settings(max_examples=50)
@given(
    st.lists(st.floats(0.01, 20.0), min_size=1, max_size=32).map(sorted),
    st.floats(0.0, 1e-4),
    st.floats(8.0, 100.0),
)
def test_the_slack_to_wait_for_costs_least_over_all_tries(quantiles, cost_in, decode_tps):
    source = Candidate("device", "device", rates=Rates(0.0, 1e-3), decode_tps=decode_tps, pauses=True)
    target = Candidate(
        "server",
        "any",
        rates=Rates(cost_in, 0.0),
        overhead_s=9.0,
        ttft_quantiles=tuple(quantiles),
        continues=True,
    )
    lengths = AnswerLengths.geometric(1e6)
    snapshot = Snapshot(source, target, 100, 0, None, False, 0.0, 4.8, lengths, 1.0, "pause")
    per_token_s = 1 / 4.8 - 1 / decode_tps

    def until_one_succeeds(slack_s: float) -> float:
        tokens = slack_s / per_token_s
        in_time = sum(each <= slack_s + 1e-12 for each in quantiles) / len(quantiles)
        return (tokens * 1e-3 + cost_in * (100 + tokens)) / in_time

    chosen = decide(snapshot).missing_s
    assert decide(replace(snapshot, slack_s=chosen)).verdict is MigrationVerdict.GO
    assert until_one_succeeds(chosen) <= min(map(until_one_succeeds, quantiles)) * (1 + 1e-9)


def test_auto_pauses_what_can_pause_and_stops_a_server_only_where_the_targets_time_is_known():
    phone = Candidate("phone", "device", prefill_tps=100.0, pauses=True)
    stiff = replace(phone, pauses=False)
    cloud = Candidate("cloud", "any", ttft_quantiles=(0.5, 1.0))
    assert handover_order("auto", phone, cloud) == "pause"
    assert handover_order("auto", stiff, cloud) == "make_before_break"
    assert handover_order("auto", cloud, phone) == "break_before_make"
    assert handover_order("auto", cloud, replace(phone, load_s=2.0)) == "make_before_break"
    assert handover_order("auto", cloud, replace(phone, queue_s=2.0)) == "make_before_break"
    for order in ("make_before_break", "break_before_make"):
        assert handover_order(order, phone, cloud) == order


# ---------------------------------------------------------------- whole answers


@settings(max_examples=60, deadline=None)
@given(
    takes_s=st.floats(0.01, 8.0),
    quantiles=st.lists(st.floats(0.1, 4.0), min_size=1, max_size=6).map(sorted),
    pace_tps=st.floats(2.0, 10.0),
    faster=st.floats(1.3, 10.0),
    tokens=st.integers(1, 150),
    cancel_at=st.just(math.inf) | st.floats(0.0, 20.0),
    fault=st.none() | st.builds(Fault, st.integers(0, 30), kind=st.just(FailureKind.SERVER)),
)
def test_no_token_is_late_however_long_the_target_takes_and_all_is_charged_once(
    takes_s, quantiles, pace_tps, faster, tokens, cancel_at, fault
):
    device = replace(WRITES, decode_tps=faster * pace_tps, answer_tokens=tokens)
    server = replace(WRITES, ttft_s=takes_s, decode_tps=100.0, answer_tokens=tokens, fault=fault)
    how = {**MOVES, "pace": Pace(tps=pace_tps), "believed": believed(*quantiles)}
    record = check(play({"device": device, "server": server}, PLAN, cancel_at=cancel_at, **how))
    moved = any(move.outcome == "switched" for move in record.migrations)
    if fault is None or not moved:  # a target that dies in mid-answer is replaced, which takes its time
        assert record.pace.late_tokens == 0
    if record.finish_reason == "stop":
        assert record.answer_tokens == tokens
    for move in record.migrations:
        assert move.paused_s >= 0.0
        assert move.wasted_tokens <= 2  # the word at the cut
        if move.outcome == "switched":
            assert move.paused_s == pytest.approx(move.took_s)


def test_a_late_target_is_given_up_and_the_next_try_may_succeed():
    """The first try takes too long; of the second the record says what it cost."""
    late = replace(WRITES, ttft_s=1.22)
    tried = check(play({"device": WRITES, "server": late}, PLAN, **MOVES, believed=believed(1.0)))
    assert [move.outcome for move in tried.migrations] == ["late", "switched"]
    first, second = tried.migrations
    assert first.paused_s == pytest.approx(first.slack_s, abs=0.01)
    assert (first.wasted_tokens, second.paused_s) == (0, pytest.approx(1.22))
    assert 1 <= second.wasted_tokens <= 2
    assert tried.pace.late_tokens == 0
    device = tried.attempts[0]
    assert device.paused_s == pytest.approx(first.paused_s + second.paused_s)
    assert device.tokens == device.kept_tokens + second.wasted_tokens


def test_a_pause_is_no_silence_but_what_follows_it_is():
    """Silence of 1 s is a failure; the source is paused for 2 s, and is never silent for long."""
    clocks = Timeouts(connect_s=None, first_content_s=5.0, gap_s=1.0, total_s=None)
    slow = replace(WRITES, ttft_s=2.0)
    how = {**MOVES, "timeouts": clocks, "believed": believed(2.5)}
    moved = check(play({"device": WRITES, "server": slow}, PLAN, **how))
    assert [a.outcome for a in moved.attempts] == ["handed_over", "finished"]
    session, _, _ = paused(how | {"believed": believed(0.5)})
    while ResumeAttempt(0) not in session.woken(now := session.wake_at):
        assert session.attempts[0].paused_at is not None
    session.woken(now + 0.9)
    assert session.attempts[0].active
    session.woken(now + 1.0)
    assert session.attempts[0].failure is FailureKind.STALLED


# ---------------------------------------------------------------- at the moment of the pause


def paused(how: dict | None = None):
    """A session whose source has just been asked to pause; the time then, and the text written."""
    how = {**MOVES, "believed": believed(0.5), **(how or {})}
    session = session_of({"device": WRITES, "server": WRITES}, PLAN, **how)
    assert [type(effect) for effect in session.start(0.0)] == [StartAttempt]
    now, text = 0.2, ""
    while True:
        delta = Delta(" word")
        text += delta.text
        out: list[Effect] = session.deltas(0, [delta], now)
        if PauseAttempt(0) in out:
            assert [e.endpoint for e in out if type(e) is StartAttempt] == ["server"]
            return session, now, text
        now += 0.05
        assert now < 10.0


def released(session) -> str:
    """The answer, once everything has been released."""
    now = session.wake_at
    while session.ending.closed_at is None and now < math.inf:
        session.woken(now)
        now = session.wake_at
    return session.transcript.text


def test_a_source_that_ends_just_when_it_is_paused_ends_the_answer():
    session, now, text = paused()
    out = session.ended(0, Ended("stop", Usage(20, 9)), now)
    assert ResumeAttempt(0) not in out
    session.stopped(0, Usage(20, 9), now)
    session.stopped(1, Usage(29, 0), now)
    assert (released(session), session.finish_reason) == (text, "stop")
    assert [move.outcome for move in session.migrations] == ["source_finished"]


def test_a_source_that_fails_while_it_is_paused_is_replaced_by_its_target():
    session, now, _ = paused()
    crash = EndpointFailure(FailureKind.CRASHED, RuntimeError("gone"))
    session.failed(0, crash, now + 0.1)
    session.stopped(0, Usage(20, 9), now + 0.1)
    cut = session.attempts[1].prefix.text
    session.deltas(1, [Delta(" and more.")], now + 0.2)
    session.ended(1, Ended("stop", Usage(29, 3)), now + 0.2)
    session.stopped(1, Usage(29, 3), now + 0.2)
    assert released(session) == cut + " and more."
    (move,) = record_of(session).migrations
    assert (move.outcome, move.paused_s) == ("switched", pytest.approx(0.1))


def test_what_a_paused_source_still_had_on_its_way_stands_behind_the_cut():
    """It is given back with the rest where the target fails, and the source goes on."""
    session, now, text = paused()
    session.deltas(0, [Delta(" late")], now + 0.01)
    out = session.failed(1, EndpointFailure(FailureKind.SERVER, RuntimeError("gone")), now + 0.1)
    assert ResumeAttempt(0) in out
    session.stopped(1, Usage(29, 0), now + 0.1)
    session.deltas(0, [Delta(" end.")], now + 0.2)
    session.ended(0, Ended("stop", Usage(20, 11)), now + 0.2)
    session.stopped(0, Usage(20, 11), now + 0.2)
    assert released(session) == text + " late end."


def test_a_reader_who_leaves_ends_a_paused_attempt():
    session, now, _ = paused()
    session.cancelled(now + 0.1)
    session.stopped(0, Usage(20, 9), now + 0.1)
    out = session.stopped(1, Usage(29, 0), now + 0.1)
    assert out == [Finish("cancelled")]
    assert record_of(session).migrations[0].paused_s == pytest.approx(0.1)


# ---------------------------------------------------------------- a target that still reads


@pytest.mark.parametrize("fault", [None, Fault(0, kind=FailureKind.CRASHED)])
@pytest.mark.parametrize("cancel_at", [math.inf, 1.05])
def test_a_server_is_stopped_while_its_target_still_reads_and_whatever_comes_nothing_is_lost(
    fault, cancel_at
):
    """The device loses the race, reads on, and crashes on its way or not; or the reader leaves meanwhile."""
    device = SimulatedProfile(ttft_s=0.1, prefill_tps=20.0, decode_tps=40.0, answer_tokens=120)
    first = replace(device, fault=fault)
    plan = Plan((Start("server"), Start("device")), (), {"server": Migration("device")})
    how = {**MOVES, "costs": {"device": 1e-9, "server": 1e-3}}
    session = session_of({"device": first, "server": WRITES}, plan, **how)
    run = run_session(session, {"device": first, "server": WRITES}, REQUEST, cancel_at=cancel_at)
    record = check(run)
    if cancel_at < math.inf:
        assert run.finished == "cancelled"
    else:
        assert (run.finished, record.answer_tokens) == ("stop", 120)
    (move, *_) = record.migrations
    server = record.attempts[0]
    assert move.decided_s < 1.1, "the device reads for as long"
    assert server.ended_s == move.decided_s
    assert server.tokens - server.kept_tokens <= 2
