"""Who starts, who wins, and who goes on when an attempt fails."""

from __future__ import annotations

import math

import pytest
from session.plays import FAST, ON_SERVER, SERVER_ALONE, play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, simulated_failure
from disco.errors import FailureKind
from disco.plan import Plan, Start
from disco.playback import Pace
from disco.request import Timeouts

RETRIED = {"connection", "timeout", "stalled", "rate_limit", "server", "incomplete"}


def names(run) -> list[str]:
    return [attempt.candidate.name for attempt in run.session.attempts]


def test_the_first_content_wins_not_the_first_role_chunk():
    chatty = SimulatedProfile(ttft_s=1.0, role_at_s=0.0, answer_tokens=20)
    quick = SimulatedProfile(ttft_s=0.5, answer_tokens=20)
    run = play({"server": chatty, "device": quick}, Plan((Start("server"), Start("device"))))
    assert {a.candidate.name: a.outcome for a in run.session.attempts} == {
        "server": "lost",
        "device": "finished",
    }


def test_a_delayed_start_never_happens_when_the_other_speaks_in_time():
    assert names(play({"server": FAST, "device": FAST}, Plan((Start("server"), Start("device", 0.5))))) == [
        "server"
    ]


def test_a_hedge_starts_at_once_when_the_other_side_fails():
    broken = SimulatedProfile(fault=Fault(silence_s=0.1, kind=FailureKind.CONNECTION))
    run = play({"server": broken, "device": FAST}, Plan((Start("server"), Start("device", 30.0))))
    assert run.finished == "stop"
    assert run.session.attempts[1].started_at == pytest.approx(0.1)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("pace", [None, Pace(tps=10.0)])
def test_an_answer_survives_its_writer(pace, streams):
    fault = Fault(after_tokens=30, kind=FailureKind.CONNECTION)
    dying = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120, fault=fault)
    run = play({"server": dying, "device": FAST}, ON_SERVER, pace=pace, streams=streams)
    assert run.finished == "stop"
    assert run.text == play({"server": FAST}, SERVER_ALONE).text
    assert run.session.attempts[0].failure is FailureKind.CONNECTION


def test_a_stalled_writer_is_replaced_after_the_gap_clock():
    stalls = SimulatedProfile(ttft_s=0.2, answer_tokens=120, fault=Fault(20, math.inf, None))
    run = play({"server": stalls, "device": FAST}, ON_SERVER, timeouts=Timeouts(gap_s=2.0))
    assert run.finished == "stop"
    assert run.session.attempts[0].failure is FailureKind.STALLED


@pytest.mark.parametrize("after_tokens", [0, 10])
def test_a_failure_starts_the_next_endpoint_at_once_unless_it_is_the_callers_fault(after_tokens):
    """Before the first token, and from the last good prefix."""
    plan = Plan((Start("server"), Start("device", 60.0)))
    for kind in FailureKind:
        dying = SimulatedProfile(ttft_s=0.1, answer_tokens=120, fault=Fault(after_tokens, kind=kind))
        run = play({"server": dying, "device": FAST}, plan)
        dead, *others = run.session.attempts
        assert (dead.candidate.name, dead.failure) == ("server", kind)
        if kind.is_callers_fault:
            assert type(run.error).__name__ == "BadRequestError"
            assert not others
            continue
        assert run.finished == "stop"
        assert [a.candidate.name for a in others] == ["device"]
        assert others[0].started_at == dead.ended_at
        assert bool(others[0].prefix) == (after_tokens > 0)


def test_the_only_endpoint_is_tried_again_where_that_may_help_and_nowhere_else():
    for kind in FailureKind:
        run = play({"server": SimulatedProfile(fault=Fault(kind=kind))}, SERVER_ALONE, max_retries=1)
        assert len(run.session.attempts) == (2 if kind in RETRIED else 1), kind
        assert type(run.error) is type(simulated_failure(kind).error)


def test_the_only_endpoint_is_tried_again_after_a_back_off_and_no_more_than_allowed():
    broken = SimulatedProfile(fault=Fault(kind=FailureKind.SERVER))
    run = play({"server": broken}, SERVER_ALONE, max_retries=2)
    assert type(run.error).__name__ == "InternalServerError"
    assert [a.started_at for a in run.session.attempts] == pytest.approx([0.0, 0.5, 1.5])


def test_of_several_failures_the_first_is_raised():
    refused = SimulatedProfile(fault=Fault(kind=FailureKind.AUTHENTICATION))
    crashed = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
    run = play({"server": refused, "device": crashed}, ON_SERVER)
    assert type(run.error).__name__ == "AuthenticationError"
    assert [a.failure for a in run.session.attempts] == ["authentication", "crashed"]


def test_text_already_delivered_stays_when_no_endpoint_can_go_on():
    dying = SimulatedProfile(answer_tokens=120, continues=False, fault=Fault(10, kind=FailureKind.CONNECTION))
    run = play({"server": dying}, SERVER_ALONE)
    assert run.error is not None
    assert run.session.transcript.tokens == 10
    assert run.text == run.session.transcript.text != ""
