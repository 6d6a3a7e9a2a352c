"""What a session tells of its endpoints as it happens: each attempt's first word, its failure, or its silence."""

from __future__ import annotations

from session.plays import play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Plan, Start
from disco.request import Timeouts

QUICK = SimulatedProfile(ttft_s=0.1, answer_tokens=10)


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def answered(self, endpoint, started_at, now):
        self.heard.append(("answered", endpoint, started_at, round(now, 6)))

    def stopped(self, endpoint, started_at, now, *, overdue):
        self.heard.append(("overdue" if overdue else "stopped", endpoint, started_at, round(now, 6)))

    def failed(self, endpoint, failure, started_at, now):
        self.heard.append((str(failure.kind), endpoint, started_at, round(now, 6)))


def heard(profiles, *starts, fallbacks=(), **how):
    listener = Listener()
    believed = {"overhead_s": 1.0}
    play(profiles, Plan(starts, fallbacks), listener=listener, believed=believed, max_retries=0, **how)
    return listener.heard


def test_the_first_word_or_an_empty_answer_is_told_once():
    for profile in (QUICK, SimulatedProfile(ttft_s=0.1, answer="")):
        assert heard({"a": profile}, Start("a")) == [("answered", "a", 0.0, 0.1)]


def test_failures_are_told_before_and_after_the_first_word():
    dies = [
        SimulatedProfile(ttft_s=0.2, answer_tokens=10, fault=Fault(n, kind=FailureKind.SERVER))
        for n in (0, 3)
    ]
    profiles = {"a": dies[0], "b": dies[1], "c": QUICK}
    told = heard(profiles, Start("a"), fallbacks=("b", "c"))
    assert [t[:2] for t in told] == [("server", "a"), ("answered", "b"), ("server", "b"), ("answered", "c")]
    assert told[1][2] == told[0][3]  # when it was started


def test_a_clock_that_ran_out_is_a_failure():
    mute = SimulatedProfile(ttft_s=100.0)
    assert heard({"a": mute}, Start("a"), timeouts=Timeouts(first_content_s=2.0)) == [
        ("timeout", "a", 0.0, 2.0)
    ]


def test_a_loser_was_stopped_and_overdue_only_when_it_was_slower_than_such_endpoints_are():
    slow = SimulatedProfile(ttft_s=50.0)
    assert heard({"a": slow, "b": QUICK}, Start("a"), Start("b")) == [
        ("stopped", "a", 0.0, 0.1),
        ("answered", "b", 0.0, 0.1),
    ]
    assert ("overdue", "a", 0.0, 1.1) in heard({"a": slow, "b": QUICK}, Start("a"), Start("b", 1.0))
    assert heard({"a": slow}, Start("a"), cancel_at=0.5) == [("stopped", "a", 0.0, 0.5)]


def test_a_loser_that_was_about_to_speak_is_well():
    slow = SimulatedProfile(ttft_s=50.0, role_at_s=0.05)
    assert ("answered", "a", 0.0, 1.1) in heard({"a": slow, "b": QUICK}, Start("a"), Start("b", 1.0))
