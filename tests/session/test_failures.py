"""Who goes on when an attempt fails, what is raised, and what a session tells of its endpoints as it happens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from session.plays import FAST, ON_SERVER, SERVER_ALONE, play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, simulated_failure
from disco.errors import FailureKind
from disco.plan import Plan, Start
from disco.playback import Pace
from disco.request import Timeouts

RETRIED = {"connection", "timeout", "stalled", "rate_limit", "server", "incomplete"}
WHOLE = play({"server": FAST}, SERVER_ALONE).text
READERS = [{}, {"pace": Pace(tps=10.0)}, {"streams": False}, {"pace": Pace(tps=10.0), "streams": False}]


def dying(kind: FailureKind, after_tokens: int = 0, **more) -> SimulatedProfile:
    return SimulatedProfile(ttft_s=0.1, answer_tokens=120, fault=Fault(after_tokens, kind=kind), **more)


@pytest.mark.parametrize("plan", [ON_SERVER, Plan((Start("server"), Start("device", 60.0)))])
@pytest.mark.parametrize("after_tokens", [0, 10])
def test_a_failure_starts_the_next_endpoint_at_once_unless_it_is_the_callers_fault(after_tokens, plan):
    """Before the first token, and from the last good prefix: the answer is the same."""
    for number, kind in enumerate(FailureKind):
        run = play({"server": dying(kind, after_tokens), "device": FAST}, plan, **READERS[number % 4])
        dead, *others = run.session.attempts
        assert (dead.candidate.name, dead.failure) == ("server", kind)
        if kind.is_callers_fault:
            assert type(run.error).__name__ == "BadRequestError"
            assert not others
            continue
        assert (run.finished, run.text) == ("stop", WHOLE)
        assert [(a.candidate.name, a.started_at) for a in others] == [("device", dead.ended_at)]
        assert bool(others[0].prefix) == (after_tokens > 0)


def test_the_only_endpoint_is_tried_again_after_a_back_off_where_that_may_help_and_no_more_than_allowed():
    for kind in FailureKind:
        run = play({"server": SimulatedProfile(fault=Fault(kind=kind))}, SERVER_ALONE, max_retries=2)
        assert type(run.error) is type(simulated_failure(kind).error)
        tried = [0.0, 0.5, 1.5] if kind in RETRIED else [0.0]
        assert [a.started_at for a in run.session.attempts] == pytest.approx(tried), kind


def test_of_several_failures_the_first_is_raised_and_text_already_delivered_stays():
    refused, crashed = dying(FailureKind.AUTHENTICATION), dying(FailureKind.CRASHED)
    run = play({"server": refused, "device": crashed}, ON_SERVER)
    assert type(run.error).__name__ == "AuthenticationError"
    assert [a.failure for a in run.session.attempts] == ["authentication", "crashed"]
    run = play({"server": dying(FailureKind.CONNECTION, 10, continues=False)}, SERVER_ALONE)
    assert run.error is not None
    assert run.session.transcript.tokens == 10
    assert run.text == run.session.transcript.text != ""


# ---------------------------------------------------------------------- what a listener is told

QUICK = SimulatedProfile(ttft_s=0.1, answer_tokens=10)
SLOW = SimulatedProfile(ttft_s=50.0)
ABOUT_TO_SPEAK = SimulatedProfile(ttft_s=50.0, role_at_s=0.05)
DYING = [dying(FailureKind.SERVER), dying(FailureKind.SERVER, 3), QUICK]
FIRST, SECOND = Start("a"), Start("b", 1.0)


@pytest.mark.parametrize(
    ("profiles", "starts", "how", "told"),
    [
        ([QUICK], [FIRST], {}, ["a answered 0 0.1"]),
        ([SimulatedProfile(ttft_s=0.1, answer="")], [FIRST], {}, ["a answered 0 0.1"]),
        ([SLOW], [FIRST], {"timeouts": Timeouts(first_content_s=2.0)}, ["a timeout 0 2"]),
        ([SLOW], [FIRST], {"cancel_at": 0.5}, ["a stopped 0 0.5"]),
        # A loser is overdue only when it was slower than such endpoints are, and well when it was about to speak.
        ([SLOW, QUICK], [FIRST, Start("b")], {}, ["a stopped 0 0.1", "b answered 0 0.1"]),
        ([SLOW, QUICK], [FIRST, SECOND], {}, ["a overdue 0 1.1", "b answered 1 1.1"]),
        ([ABOUT_TO_SPEAK, QUICK], [FIRST, SECOND], {}, ["a answered 0 1.1", "b answered 1 1.1"]),
        (
            DYING,
            [FIRST],
            {},
            ["a server 0 0.1", "b answered 0.1 0.2", "b server 0.1 0.2667", "c answered 0.2667 0.4"],
        ),
    ],
)
def test_first_words_failures_and_silence_of_endpoints_are_told_once(profiles, starts, how, told):
    heard = []

    def hear(what, endpoint, started_at, now):
        heard.append(f"{endpoint} {what} {started_at:.4g} {now:.4g}")

    listener = SimpleNamespace(
        answered=lambda *told: hear("answered", *told),
        stopped=lambda *told, overdue: hear("overdue" if overdue else "stopped", *told),
        failed=lambda endpoint, failure, *when: hear(failure.kind, endpoint, *when),
    )
    named = dict(zip("abc", profiles, strict=False))
    believed = {name: {"overhead_s": 1.0} for name in named}
    plan = Plan(tuple(starts), ("b", "c") if len(named) == 3 else ())
    play(named, plan, listener=listener, believed=believed, max_retries=0, **how)
    assert heard == told
