"""An endpoint that has yet to prove that it continues an answer: for failover only, and last; in virtual time."""

from __future__ import annotations

import pytest
from session.plays import FAST, NO_CLOCKS, check, play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace

DIES = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120, fault=Fault(40))
REPHRASES = SimulatedProfile(ttft_s=0.2, fault=Fault(0, kind=FailureKind.SEAM, retry_after_s=0.0))
REFUSES = SimulatedProfile(ttft_s=0.2, fault=Fault(0, kind=FailureKind.SEAM))
UNPROVED = {"continues": False, "continues_if_proved": True}
KNOWN = {"continues": True}


def tried(run) -> list[tuple[str, str | None]]:
    return [(t.endpoint, t.failure) for t in check(run).attempts]


@pytest.mark.parametrize(
    ("b", "c", "asked"),
    [
        (UNPROVED, KNOWN, ["c"]),  # whatever the order
        (UNPROVED, UNPROVED, ["b"]),
        ({"continues": False}, UNPROVED, ["c"]),
    ],
)
def test_it_takes_over_where_no_endpoint_is_known_to(b, c, asked):
    plan = Plan((Start("a"),), ("b", "c"))
    run = play({"a": DIES, "b": FAST, "c": FAST}, plan, believed={"b": b, "c": c}, max_retries=0)
    assert tried(run) == [("a", "connection"), *((name, None) for name in asked)]
    assert (run.finished, run.session.transcript.tokens) == ("stop", 120)


def test_it_begins_anew_where_nothing_is_shown_and_does_not_where_the_answer_must_have_one_writer():
    plan = Plan((Start("a"),), ("b",))
    how = {"believed": {"b": UNPROVED}, "max_retries": 0}
    whole = play({"a": DIES, "b": FAST}, plan, streams=False, **how)
    assert [t.prefix_chars for t in check(whole).attempts] == [0, 0]
    structured = play({"a": DIES, "b": FAST}, plan, may_continue=False, **how)
    assert tried(structured) == [("a", "connection")]


@pytest.mark.parametrize(("second", "times"), [(REPHRASES, 2), (REFUSES, 1)])
@pytest.mark.parametrize("c", [UNPROVED, None])
def test_one_that_rephrases_is_asked_once_more_then_the_next_one(second, times, c):
    """With a word withheld, it is asked again from the word's end in any case."""
    profiles, plan = {"a": DIES, "b": second, "c": FAST}, Plan((Start("a"),), ("b", "c") if c else ("b",))
    run = play(profiles, plan, believed={"b": UNPROVED, "c": c or {}}, pace=Pace(tps=20.0), max_retries=0)
    last = [("c", None)] if c else []
    assert tried(run) == [("a", "connection"), *[("b", "seam")] * times, *last]
    first, *again = (a.prefix for a in run.session.attempts if a.candidate.name == "b")
    assert not first.asked_again
    assert [(p.asked_again, p.ends_in_word, p.text) for p in again] == [(True, False, first.text)] * (
        times - 1
    )
    if c is None:
        assert "'a'" in str(run.error), "the first error, not that of the one that could not take over"
        assert run.session.transcript.tokens == 40, "what was kept back for the next writer is delivered"
    else:
        assert run.finished == "stop"


def test_a_shown_word_that_it_does_not_write_again_is_tried_from_its_end_once():
    profiles, plan = {"a": DIES, "b": REPHRASES}, Plan((Start("a"),), ("b",))
    run = play(profiles, plan, believed={"b": UNPROVED}, max_retries=0)  # unpaced: all of it was shown
    first, second = (a.prefix for a in run.session.attempts[1:])
    assert (bool(first.withheld), first.asked_again) == (True, False)
    assert (second.text, second.withheld) == (first.text, "")
    assert (second.asked_again, second.ends_in_word) == (True, True)


def test_no_answer_moves_there_to_save_money():
    plan = Plan((Start("a"),), ("b",), {"a": Migration("b")})
    how = {"costs": {"a": 1e-4, "b": 1e-9}, "pace": Pace(tps=20.0), "timeouts": NO_CLOCKS}
    for believed, moves in ((KNOWN, 1), (UNPROVED, 0)):
        run = play({"a": FAST, "b": FAST}, plan, believed={"b": believed}, **how)
        assert len(check(run).migrations) == moves
        assert run.finished == "stop"
