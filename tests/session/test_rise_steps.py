"""Rises event by event: what the reader may see of a tier, whatever the tiers below it did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.plays import FAST, session_of
from session.test_rise import KEEP, LONG, NAMES, UP, Doubting, Judges

from disco.endpoints.simulation.simulated_script import simulated_failure
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind, Ended
from disco.judging import Verdict
from disco.plan import Cascade, Plan, Start
from disco.playback import Pace
from disco.session.machine import Session

FAILURE = simulated_failure(FailureKind.SERVER)


def tiers(
    verdict: Verdict, *, count: int = 3, at: int | None = None, continues: bool = True, **how: object
) -> Session:
    """A session under guard that has started; all tiers but the highest get this verdict after `at` tokens."""
    names = NAMES[:count]
    profiles = {name: replace(FAST, continues=continues) for name in names}
    plan = Plan((Start(names[0]),), names[1:], cascade=Cascade(tuple((name,) for name in names), "guard"))
    judges = Judges({name: Doubting(verdict, at, trusts_from=3) for name in names[:-1]})
    session = session_of(profiles, plan, judge=judges, **{"pace": Pace(tps=20.0), **how})
    session.start(0.0)
    return session


def words(text: str) -> list[Delta]:
    return [Delta(word + " ") for word in text.split(" ")]


def test_a_tier_that_begins_anew_is_shown_by_its_own_sentences():
    """What the failed tier had written, which no reader has seen, does not count."""
    session = tiers(KEEP, continues=False)
    session.deltas(0, [Delta("It"), Delta(" is")], 0.1)
    session.failed(0, FAILURE, 0.2)
    session.deltas(1, [Delta(word) for word in ("One", " is", " sure.", " Two", " is", " not")], 0.3)
    playback = session.transcript.playback
    assert (session.transcript.written[: playback.gate], playback.banking) == ("One is sure.", True)


@pytest.mark.parametrize("word", ["\u0e01\u0e02\u0e03\u0e04", "0123456789abcdef", "and so on "])
def test_a_text_without_sentences_is_shown_before_its_end(word):
    session = tiers(KEEP, pace=None)
    for number in range(200):
        session.deltas(0, [Delta(word)], 0.1 + number / 100)
    written, shown = session.transcript.written, session.transcript.shown_chars
    assert len(written) - 410 < shown < len(written)


@pytest.mark.parametrize("slow", [True, False])
def test_a_higher_tier_that_is_slower_than_the_reader_spares_what_is_banked(slow):
    session = tiers(
        UP, count=2, at=12, believed={"cloud": {}, "home": {"decode_tps": 10.0 if slow else 80.0}}
    )
    session.deltas(0, words(LONG)[:8], 0.1)
    session.deltas(0, words(LONG)[8:12], 0.2)
    session.deltas(1, [Delta(" It goes on.")], 0.3)
    playback = session.transcript.playback
    assert (playback.gate, playback.banking) == (None, slow)


def test_a_tier_is_judged_whatever_the_tier_that_failed_before_it_had_begun():
    """Of four: the first is doubted, the second reasons and dies, and the third writes text."""
    session = tiers(UP, count=4, streams=False)
    session.deltas(0, words(LONG), 0.1)
    session.ended(0, Ended("stop"), 0.2)
    session.deltas(1, [Delta("", kind=DeltaKind.REASONING)], 0.3)
    session.failed(1, FAILURE, 0.4)
    session.deltas(2, words(LONG), 0.5)
    session.ended(2, Ended("stop"), 0.6)
    assert [(j.attempt, j.outcome) for j in session.rise.judgements if j.verdict] == [
        (0, "handed_up"),
        (2, "handed_up"),
    ]


@pytest.mark.parametrize("blank", [[], [Delta("\n")]])
def test_an_empty_answer_goes_up(blank):
    session = tiers(KEEP)
    if blank:  # a batch is never empty
        session.deltas(0, blank, 0.1)
    session.ended(0, Ended("stop"), 0.2)
    session.deltas(1, words("It is here."), 0.3)
    session.ended(1, Ended("stop"), 0.4)
    assert session.transcript.written.strip() == "It is here."
    assert [(j.outcome, j.why) for j in session.rise.judgements] == [("handed_up", "empty"), ("kept", None)]


def test_an_empty_answer_is_delivered_where_no_higher_tier_answers():
    session = tiers(KEEP)
    session.ended(0, Ended("stop"), 0.1)
    session.failed(1, FAILURE, 0.2)
    session.failed(2, FAILURE, 0.3)
    assert [(j.outcome, j.why) for j in session.rise.judgements] == [("stood", "empty")]
    assert (session.finish_reason, session.transcript.written) == ("stop", "")


@pytest.mark.parametrize("display", ["whole", "guard"])
def test_a_judged_tier_is_held_whatever_an_unjudged_one_before_it_left_open(display):
    """The first is not judged, so its text would not wait; it has no answer, and the second is doubted."""
    names = NAMES[:3]
    plan = Plan((Start(names[0]),), names[1:], cascade=Cascade(tuple((name,) for name in names), display))
    judges = Judges({names[1]: Doubting(UP)})
    session = session_of(dict.fromkeys(names, FAST), plan, judge=judges)
    session.start(0.0)
    session.deltas(0, [Delta("")], 0.1)
    session.ended(0, Ended("stop"), 0.2)
    session.deltas(1, words("It is here"), 0.3)
    session.woken(0.4)
    session.ended(1, Ended("stop"), 0.5)
    session.deltas(2, words("It is there"), 0.6)
    session.ended(2, Ended("stop"), 0.7)
    assert session.transcript.written.strip() == "It is there"
    assert outcomes_of(session) == ["handed_up"]


def outcomes_of(session: Session) -> list[str]:
    return [judgement.outcome for judgement in session.rise.judgements]
