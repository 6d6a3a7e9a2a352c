"""Answers that rise: what the reader gets, and what stands where no higher tier answers, in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import FAST, REQUEST, Run, check, record_of, run_session, session_of
from situations import profiles_of_one

from disco.candidate import Candidate
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind, Ended, Usage
from disco.judging import Verdict
from disco.plan import Cascade, Plan, Start
from disco.playback import Pace, last_sentence_end
from disco.request import Timeouts
from disco.session.effects import StartAttempt

NAMES, RELEASES = ("device", "home", "cloud", "zenith"), st.sampled_from(["word", "sentence"])
UP, KEEP = Verdict(rises=True, score=0.1, threshold=0.5, history=9), Verdict(False, 0.9, 0.5, 9)


@dataclass
class Doubting:
    """Judges as told. `at`: after how many tokens; None: at the end."""

    verdict: Verdict | None
    at: int | None = None
    trusts_from: int = 0
    task: str = "chat"
    model: str = "small"
    kind: str = "weakest"
    is_blind: bool = False
    tokens: int = 0

    @property
    def trusts(self) -> bool:
        return self.tokens >= self.trusts_from

    def read(self, deltas: list[Delta]) -> list[Delta]:
        self.tokens += sum(d.tokens for d in deltas if d.text)
        return deltas

    def check(self) -> Verdict | None:
        return self.verdict if self.at is not None and self.tokens >= self.at else None

    def settled(self, text: str, finish_reason: str) -> str | None:
        return text if finish_reason == "stop" else None

    def end(self) -> Verdict | None:
        return self.verdict


class Judges:
    """One for each endpoint; an endpoint that is missing is not judged."""

    def __init__(self, of: dict[str, Doubting]) -> None:
        self._of = of

    def of(self, candidate: Candidate, *, is_highest: bool) -> Doubting | None:
        judge = self._of.get(candidate.name)
        return None if judge is None or is_highest else replace(judge)


def ladder(
    profiles: dict[str, SimulatedProfile], judges: dict[str, Doubting], display: str = "whole", **how: Any
) -> Run:
    """One answer on tiers in this order, the first of which starts."""
    names = tuple(profiles)
    cascade = Cascade(tuple((name,) for name in names), display)  # type: ignore[arg-type]
    plan = Plan((Start(names[0]),), names[1:], wants=frozenset({"logp"}), cascade=cascade)
    ends = {key: how.pop(key) for key in ("cancel_at", "cancel_takes_s") if key in how}
    session = session_of(profiles, plan, judge=Judges(judges), **how)
    return run_session(session, profiles, REQUEST, **ends)


def written(profile: SimulatedProfile) -> str:
    """What a tier writes by itself."""
    return ladder({"alone": replace(profile, fault=None)}, {}).text


def outcomes(run: Run) -> list[str]:
    return [j.outcome for j in run.session.rise.judgements]


LOW, HIGH = replace(FAST, answer_tokens=40), replace(FAST, answer_tokens=60, seed=1)
TOP = replace(FAST, answer_tokens=30, seed=2)
DIES = {
    "at once": Fault(0, kind=FailureKind.SERVER),
    "rate limit": Fault(0, kind=FailureKind.RATE_LIMIT),
    "in mid-stream": Fault(9, kind=FailureKind.CONNECTION),
    "bad request": Fault(0, kind=FailureKind.BAD_REQUEST),
}
STREAMS = pytest.mark.parametrize("streams", [False, True])


@STREAMS
def test_an_answer_in_doubt_is_replaced_before_anything_of_it_is_shown(streams):
    run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(UP)}, streams=streams)
    record = check(run)
    assert run.text == written(HIGH)
    assert [a.outcome for a in record.attempts] == ["overruled", "finished"]
    assert outcomes(run) == ["handed_up"]
    phases = {c.phase for c in record.ledger.charges if c.endpoint == "device"}
    assert phases == {"overruled"}
    assert record.migrations == ()


@STREAMS
def test_an_answer_without_doubt_stays(streams):
    run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(KEEP)}, streams=streams)
    check(run)
    assert (run.text, outcomes(run), len(run.session.attempts)) == (written(LOW), ["kept"], 1)


def test_each_tier_judges_its_own_answer():
    judges = {"device": Doubting(UP), "home": Doubting(UP)}
    run = ladder({"device": LOW, "home": HIGH, "cloud": TOP}, judges)
    record = check(run)
    assert run.text == written(TOP)
    assert [a.outcome for a in record.attempts] == ["overruled", "overruled", "finished"]
    assert [(j.endpoint, j.outcome) for j in record.judgements] == [
        ("device", "handed_up"),
        ("home", "handed_up"),
    ]


@STREAMS
@pytest.mark.parametrize("fault", DIES.values(), ids=DIES)
def test_the_lower_answer_is_delivered_where_no_higher_tier_answers(fault, streams):
    judges = {"device": Doubting(UP), "home": Doubting(UP)}
    profiles = {"device": LOW, "home": replace(HIGH, fault=fault), "cloud": replace(TOP, fault=fault)}
    run = ladder(profiles, judges, streams=streams, max_retries=0)
    record = check(run)
    if streams and fault.after_tokens:  # the highest tier is not judged: its shown text is continued
        assert run.text[:30] == written(TOP)[:30]
        assert record.attempts[-1].endpoint == "device"
    else:
        assert run.text == written(LOW)
        assert outcomes(run)[0] == "stood"
        assert record.attempts[0].outcome == "finished"
    assert run.finished == "stop"


def test_a_tier_that_is_down_is_skipped():
    down = replace(HIGH, fault=DIES["at once"])
    run = ladder({"device": LOW, "home": down, "cloud": TOP}, {"device": Doubting(UP)})
    check(run)
    assert (run.text, outcomes(run)) == (written(TOP), ["handed_up"])


def test_a_tier_that_cannot_be_in_time_is_not_asked():
    slow = replace(HIGH, ttft_s=50.0)
    run = ladder({"device": LOW, "cloud": slow}, {"device": Doubting(UP)}, timeouts=Timeouts(total_s=20.0))
    check(run)
    assert (run.text, outcomes(run), len(run.session.attempts)) == (written(LOW), ["stood"], 1)


@pytest.mark.parametrize(
    ("kind", "max_tokens", "outcome"),
    [("sum", None, "stood"), ("sum", 20, "handed_up"), ("class", None, "handed_up")],
)
def test_no_tier_is_expected_to_write_more_than_the_request_allows(kind, max_tokens, outcome):
    """At the mean length of 150 tokens it would need 3 s; it may write 20, or a class."""
    profiles = {"device": replace(LOW, answer_tokens=9), "cloud": replace(HIGH, decode_tps=50.0)}
    judge = Doubting(UP, kind=kind)
    run = ladder(profiles, {"device": judge}, timeouts=Timeouts(total_s=3.0), max_tokens=max_tokens)
    assert outcomes(run) == [outcome]


@STREAMS
def test_at_the_deadline_the_answer_that_stands_is_delivered(streams):
    silent = replace(HIGH, ttft_s=50.0)  # and believed to be quick
    believed = {"cloud": {"overhead_s": 0.1}}
    clocks = Timeouts(total_s=20.0, first_content_s=None)
    how = {"timeouts": clocks, "believed": believed, "streams": streams}
    run = ladder({"device": LOW, "cloud": silent}, {"device": Doubting(UP)}, **how)
    check(run)
    assert (run.text, run.now) == (written(LOW), pytest.approx(20.0))
    assert outcomes(run) == ["stood"]


def test_guard_shows_sentences_behind_the_judge_and_moves_up_from_the_last_one():
    text = "This is sure. So is this one. But here it becomes doubtful and then ends. Never shown."
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer=text)
    higher = SimulatedProfile(
        ttft_s=0.5, decode_tps=50.0, answer="This is sure. So is this one. The higher tier goes on."
    )
    run = ladder({"device": lower, "cloud": higher}, {"device": Doubting(UP, at=12, trusts_from=3)}, "guard")
    record = check(run)
    assert run.text == "This is sure. So is this one. The higher tier goes on."
    assert [m.reason for m in record.migrations] == ["confidence"]
    assert [a.outcome for a in record.attempts] == ["handed_over", "finished"]


def test_guard_shows_a_sentence_without_an_end_word_by_word():
    text = "on and " * 120 + "on."
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer=text)
    run = ladder({"device": lower, "cloud": HIGH}, {"device": Doubting(KEEP, trusts_from=3)}, "guard")
    check(run)
    assert run.text == text
    assert run.out[0][0] < run.now / 2, "the reader has its beginning long before its end"


def test_at_its_end_a_higher_tier_goes_on_behind_the_sentence_that_the_reader_has():
    lower = SimulatedProfile(
        ttft_s=0.1, decode_tps=500.0, answer="This is sure. " + "So is this one. " * 9 + "The end."
    )
    higher = SimulatedProfile(ttft_s=0.1, decode_tps=500.0, answer="This is sure. The higher tier goes on.")
    run = ladder(
        {"device": lower, "cloud": higher},
        {"device": Doubting(UP)},
        "guard",
        pace=Pace(tps=5.0, max_hold_s=60.0),
    )
    record = check(run)
    assert run.text == "This is sure. The higher tier goes on."
    assert record.migrations[0].cut_char == len("This is sure.")


def test_an_answer_that_the_reader_has_whole_stands():
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer="This is sure. So is this.\n")
    run = ladder({"device": lower, "cloud": HIGH}, {"device": Doubting(UP)}, "guard")
    check(run)
    assert (run.text, outcomes(run), len(run.session.attempts)) == (lower.answer, ["stood"], 1)


def test_a_doubt_before_anything_is_shown_begins_the_answer_again():
    judges = {"device": Doubting(UP, at=4, trusts_from=8)}
    run = ladder({"device": LOW, "cloud": replace(HIGH, continues=False)}, judges, "guard")
    record = check(run)
    assert run.text == written(HIGH)
    assert record.attempts[0].outcome == "overruled"
    assert record.attempts[0].tokens < 40, "the lower tier was stopped"


def test_a_tier_that_cannot_continue_is_not_asked_once_text_is_shown():
    text = "This is sure. So is this one. But here it becomes doubtful and then ends. Shown."
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer=text)
    judges = {"device": Doubting(UP, at=12, trusts_from=3)}
    run = ladder({"device": lower, "cloud": replace(HIGH, continues=False)}, judges, "guard")
    check(run)
    assert (run.text, outcomes(run)) == (text, ["stood"])


@pytest.mark.parametrize("fault", DIES.values(), ids=DIES)
def test_a_doubted_answer_goes_on_where_the_higher_tier_fails_in_mid_sentence(fault):
    text = "This is sure. So is this one. But here it becomes doubtful and then ends. Shown."
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer=text)
    higher = SimulatedProfile(ttft_s=0.5, decode_tps=50.0, answer=text, fault=fault)
    judges = {"device": Doubting(UP, at=12, trusts_from=3)}
    run = ladder({"device": lower, "cloud": higher}, judges, "guard", max_retries=0)
    check(run)
    assert (run.text, run.finished) == (text, "stop")


LONG = "This is sure. So is this one. But here it becomes doubtful and then it goes on for some more words. Shown."
GUARDED = {"judges": {"device": Doubting(UP, at=12, trusts_from=3)}, "display": "guard", "max_retries": 0}


def test_a_higher_tier_that_asks_for_another_prefix_is_asked_once_more():
    """A server may find out only at the seam how it can be made to continue; its second failure is one."""
    seam = Fault(0, kind=FailureKind.SEAM, retry_after_s=0.0)
    lower = SimulatedProfile(ttft_s=0.1, decode_tps=20.0, answer=LONG)
    run = ladder({"device": lower, "cloud": replace(HIGH, fault=seam)}, **GUARDED)
    record = check(run)
    assert (run.text, outcomes(run)) == (LONG, ["stood"])
    assert [a.failure for a in record.attempts] == [None, "seam", "seam"]


@pytest.mark.parametrize("higher", [Fault(0, kind=FailureKind.SERVER), None], ids=["fails", "is empty"])
def test_where_the_doubted_writer_fails_too_any_other_endpoint_goes_on(higher):
    """The last tier has failed before; what the device wrote behind the cut is not lost."""
    lower = SimulatedProfile(
        ttft_s=0.1, decode_tps=20.0, answer=LONG, fault=Fault(15, kind=FailureKind.CRASHED)
    )
    above = SimulatedProfile(ttft_s=0.6, decode_tps=50.0, answer=LONG if higher else LONG[:29], fault=higher)
    slow = SimulatedProfile(ttft_s=0.2, decode_tps=50.0, answer=LONG)
    believed = {"cloud": {"overhead_s": 1e3}}  # too slow to be asked, unless there is nothing else
    profiles = {"device": lower, "home": above, "cloud": slow}
    run = ladder(profiles, **GUARDED, believed=believed, timeouts=Timeouts(total_s=60.0))
    record = check(run)
    assert (run.text, run.finished) == (LONG, "stop")
    assert [a.endpoint for a in record.attempts] == ["device", "home", "cloud"]
    assert [s.endpoint for s in record.segments] == ["device", "cloud"]
    assert outcomes(run) == ["stood"]


def test_a_tool_call_does_not_continue_a_text_so_the_doubted_writer_goes_on():
    pieces = [word + " " for word in LONG.split(" ")]
    profiles = {"device": SimulatedProfile(), "cloud": SimulatedProfile()}
    plan = Plan((Start("device"),), ("cloud",), cascade=Cascade((("device",), ("cloud",)), "guard"))
    session = session_of(profiles, plan, judge=Judges(GUARDED["judges"]))
    session.start(0.0)
    session.deltas(0, [Delta(piece) for piece in pieces[:8]], 0.1)
    doubted = session.deltas(0, [Delta(piece) for piece in pieces[8:12]], 0.1)
    assert [effect.prefix.text for effect in doubted if isinstance(effect, StartAttempt)] == [LONG[:29]]
    session.deltas(1, [Delta("", kind=DeltaKind.TOOL)], 0.2)
    session.deltas(0, [Delta(piece) for piece in pieces[12:]], 0.3)
    session.ended(0, Ended("stop"), 0.4)
    for number in (0, 1):
        session.stopped(number, Usage(20, 5), 0.5)
    record = record_of(session)
    assert session.transcript.text == "".join(pieces)
    assert [(a.outcome, a.failure) for a in record.attempts] == [("finished", None), ("failed", "seam")]
    assert record.judgements[0].outcome == "stood"
    assert (session.finish_reason, session.transcript.playback.gate) == ("stop", None)


def test_revise_shows_all_and_then_replaces_it():
    for pace in (None, Pace(tps=20.0)):
        run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(UP)}, "revise", pace=pace)
        parts = [d for _, deltas in run.out for d in deltas]
        at = next(n for n, d in enumerate(parts) if d.kind is DeltaKind.RETRACT)
        assert written(LOW).startswith("".join(d.text for d in parts[:at]))
        assert "".join(d.text for d in parts[at:]) == written(HIGH) == run.session.transcript.text
        assert record_of(run.session).attempts[0].outcome == "overruled"


@pytest.mark.parametrize("fault", [DIES["at once"], DIES["bad request"]])
def test_nothing_is_replaced_where_no_higher_tier_answers(fault):
    profiles = {"device": LOW, "cloud": replace(HIGH, fault=fault)}
    run = ladder(profiles, {"device": Doubting(UP)}, "revise", pace=Pace(tps=20.0), max_retries=0)
    check(run)
    assert (run.text, outcomes(run)) == (written(LOW), ["stood"])


def test_what_a_limit_has_cut_short_is_not_judged():
    short = replace(LOW, context_tokens=30)  # of which the prompt takes 20
    run = ladder({"device": short, "cloud": HIGH}, {"device": Doubting(UP)})
    check(run)
    assert [(j.outcome, j.why) for j in run.session.rise.judgements] == [("not_judged", "cut_short")]
    assert (run.text, run.finished) == (written(short), "length")


def test_what_the_judge_has_no_score_for_stays():
    run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(None)})
    check(run)
    assert (run.text, run.session.rise.judgements[0].why) == (written(LOW), "no_score")


def test_what_cannot_be_judged_is_shown_as_it_comes():
    run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(UP, is_blind=True)}, "guard")
    check(run)
    assert [(j.outcome, j.why) for j in run.session.rise.judgements] == [("not_judged", "no_score")]
    assert len(run.out) > 20
    assert run.text == written(LOW)


def test_only_judged_tiers_are_asked_for_log_probabilities():
    run = ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(UP)})
    wants = [run.session.plan.wants_of(a.candidate) for a in run.session.attempts]
    assert wants == [{"logp"}, frozenset()]


@st.composite
def ladders(draw: st.DrawFn) -> dict[str, Any]:
    names = NAMES[: draw(st.integers(2, 4))]
    verdicts = st.sampled_from([UP, KEEP, None])
    moments = st.none() | st.integers(1, 40)
    judged = draw(st.sets(st.sampled_from(names)))
    return {
        "profiles": {name: draw(profiles_of_one) for name in names},
        "judges": {
            name: Doubting(draw(verdicts), draw(moments), draw(st.sampled_from([0, 4, 16])))
            for name in judged
        },
        "display": draw(st.sampled_from(["whole", "guard"])),
        "pace": draw(st.none() | st.builds(Pace, st.floats(3.0, 60.0), release=RELEASES)),
        "streams": draw(st.booleans()),
        "timeouts": draw(st.sampled_from([Timeouts(), Timeouts(gap_s=1.0), Timeouts(total_s=3.0)])),
        "max_retries": draw(st.integers(0, 2)),
        "max_tokens": draw(st.none() | st.integers(1, 120)),
        "cancel_at": draw(st.just(math.inf) | st.floats(0.0, 5.0)),
        "cancel_takes_s": draw(st.sampled_from([0.0, 0.05])),
    }


@settings(max_examples=150)
@given(ladders())
def test_whatever_the_judges_say_every_token_comes_once_and_is_charged(situation):
    """`check` holds: the text is seamless, delivered as it stands at the end, and the ledger is the sum of charges."""
    run = ladder(**situation)
    check(run)
    session = run.session
    for attempt in session.attempts:
        if attempt.role == "rise" and attempt.prefix:
            assert last_sentence_end(attempt.prefix.text + " ") == len(attempt.prefix.text)
    assert session.transcript.playback.gate is None or run.finished == "cancelled"
    if run.finished not in (None, "cancelled"):
        assert session.transcript.text == session.transcript.written
        assert all(a.outcome != "running" for a in session.attempts)
        assert session.rise.standing is None
