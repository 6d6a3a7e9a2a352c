"""Answers for a voice, played by the session in virtual time: pieces, migrations, failures, a listener who leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.plays import FAST, SERVER_ALONE, Run, check, play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.playback.reader_metrics import silences_s
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.workload.scenario import Arm, resolve, scenario_for
from disco.replay.workload.trace import Trace

VOICE = Pace(3.5, max_hold_s=2.0, release="sentence")
BOTH = {"server": FAST, "device": replace(FAST, decode_tps=20.0, prefill_tps=400.0)}


def pieces(run: Run) -> list[str]:
    return [delta.text for _, deltas in run.out for delta in deltas if delta.text]


def test_each_release_is_a_sentence_and_the_record_says_how_the_voice_fared():
    run = play({"server": FAST}, SERVER_ALONE, pace=VOICE)
    found = check(run)
    assert len(pieces(run)) > 5
    assert all(piece.rstrip().endswith(".") for piece in pieces(run)[:-1])
    assert (found.pace.release, found.pace.pieces) == ("sentence", len(pieces(run)))
    assert (found.pace.silences, found.pace.silent_s, found.pace.late_tokens) == (0, 0.0, 0)
    assert found.pace.ttft_raw_s < found.pace.ttft_released_s < found.pace.ttft_raw_s + 20 / FAST.decode_tps


def test_a_slow_writer_leaves_silences_which_are_counted_and_no_longer_than_the_longest_wait():
    slow = SimulatedProfile(ttft_s=0.2, decode_tps=3.0, answer_tokens=80)
    found = check(play({"server": slow}, SERVER_ALONE, pace=VOICE))
    silences = [s for s in silences_s(found.released, VOICE.tps) if s]
    assert (found.pace.silences, found.pace.silent_s) == (len(silences), pytest.approx(sum(silences)))
    assert 0 < max(silences) <= VOICE.max_hold_s + 1 / slow.decode_tps


@pytest.mark.parametrize("order", ["auto", "make_before_break", "break_before_make"])
def test_a_migration_is_not_heard(order):
    """The voice has more in hand than a reader, so the move is in time; the seam may lie inside a sentence."""
    plan = Plan((Start("server"),), migrations={"server": Migration("device", False)}, order=order)
    run = play(BOTH, plan, pace=VOICE, costs={"server": 1e-4, "device": 1e-9})
    found = check(run)
    assert [m.outcome for m in found.migrations] == ["switched"]
    assert (found.pace.silences, found.pace.late_tokens, found.seamless) == (0, 0, True)
    alone = play({"server": FAST}, SERVER_ALONE, pace=VOICE)
    assert pieces(run) == pieces(alone)


def test_a_writer_that_fails_leaves_its_complete_sentences_and_another_one_goes_on():
    broken = replace(FAST, fault=Fault(30, kind=FailureKind.SERVER))
    plan = replace(SERVER_ALONE, fallbacks=("device",))
    run = play({**BOTH, "server": broken}, plan, pace=VOICE)
    check(run)
    assert pieces(run) == pieces(play({"server": FAST}, SERVER_ALONE, pace=VOICE))


def test_where_nobody_goes_on_the_listener_gets_what_was_written_and_the_record_says_how_much():
    broken = replace(FAST, fault=Fault(30, kind=FailureKind.SERVER))
    run = play({"server": broken}, SERVER_ALONE, pace=VOICE, max_retries=0)
    found = check(run)
    assert run.error is not None
    assert found.answer_tokens == sum(tokens for _, tokens in found.released) == 30
    assert not pieces(run)[-1].rstrip().endswith(".")


def test_a_listener_who_leaves_has_whole_sentences_and_the_record_says_what_was_held():
    run = play({"server": FAST}, SERVER_ALONE, pace=VOICE, cancel_at=0.2 + 40.5 / FAST.decode_tps)
    found = check(run)
    assert found.finish_reason == "cancelled"
    assert all(piece.rstrip().endswith(".") for piece in pieces(run))
    held = found.answer_tokens - sum(tokens for _, tokens in found.released)
    assert 0 < held < 20


def test_a_replay_by_sentences_is_the_same_session_and_begins_with_the_first_sentence():
    from disco.cost import PAPER_SERVER_CONSTRAINED
    from disco.profiles import load_device, load_server

    scenario = scenario_for(
        load_device("xiaomi14-qwen1.5-0.5b"),
        load_server("gpt-4o-mini-2024"),
        exchange_rate=PAPER_SERVER_CONSTRAINED,
        pace_tps=3.5,
    )
    trace = Trace.of(arrival_s=[0.0, 60.0], prompt_tokens=[50, 80], output_tokens=[60, 90])
    workload = resolve(trace, scenario, seed=0)
    arm = Arm("server_only", migrate=True)
    by_words = simulate(workload, scenario, arm, seed=0)
    by_sentences = simulate(workload, replace(scenario, release="sentence"), arm, seed=0)
    assert (by_sentences.ttft_s > by_words.ttft_s).all()
    assert by_sentences.reading.stall_ratio.tolist() == pytest.approx([0.0, 0.0])
    assert by_sentences.cost_usd == pytest.approx(by_words.cost_usd, rel=0.5)
    assert by_sentences.reading.tbt_s.max() > by_words.reading.tbt_s.max()
