"""Moves of an answer: along a chain, to a target that is late or fails, from a source that dies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from playing import run_session
from session.plays import FAST, NO_CLOCKS, REQUEST, check, play, record_of, session_of

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace

MAKE, BREAK = "make_before_break", "break_before_make"
TO_THE_DEVICE = {"server": 1e-4, "device": 1e-9}
NAMES = ("alder", "birch", "cedar", "durian", "elm")


def test_a_loser_that_is_named_as_target_keeps_its_prefill_and_is_stopped_with_the_answer():
    slow = SimulatedProfile(ttft_s=0.3, decode_tps=60.0, answer_tokens=120, fault=Fault(0, 30.0, None))
    plan = Plan((Start("server"), Start("device")), (), {"server": Migration("device")})
    run = play({"server": FAST, "device": slow}, plan, costs=TO_THE_DEVICE, streams=False)
    assert run.session.attempts[1].outcome == "parked"
    assert run.now < 5.0, "the answer waited for a prefill that no attempt needed any more"


DIES = SimulatedProfile(
    ttft_s=0.2, decode_tps=80.0, answer_tokens=120, fault=Fault(25, kind=FailureKind.CONNECTION)
)
THINKS = Delta("", kind=DeltaKind.REASONING)


@pytest.mark.parametrize(
    ("source", "order", "first", "outcomes", "attempts"),
    [
        (FAST, MAKE, None, {"late", "source_finished"}, None),  # given up, and the reader does not notice
        (DIES, MAKE, None, {"switched"}, 2),  # left to the target
        (FAST, BREAK, None, {"switched"}, 2),  # waited for, as the source was stopped at the cut
        (FAST, BREAK, THINKS, {"target_failed"}, 3),  # one that thinks instead of going on is replaced
    ],
)
def test_a_target_that_takes_far_longer_than_believed(source, order, first, outcomes, attempts):
    device = SimulatedProfile(ttft_s=8.0, decode_tps=60.0, answer_tokens=120)
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")}, order)
    how = {"costs": TO_THE_DEVICE, "pace": Pace(tps=20.0), "timeouts": NO_CLOCKS}
    profiles = {"server": source, "device": device}
    session = session_of(profiles, plan, **how, believed={"device": {"overhead_s": 0.2}})
    give = session.deltas

    def with_first(number: int, deltas: list[Delta], now: float):
        """The device says something else before it writes."""
        silent = number == 1 and session.attempts[1].first_content_at is None and session.attempts[1].active
        return give(number, [first] if silent and first else deltas, now)

    session.deltas = with_first  # type: ignore[method-assign]
    run = run_session(session, profiles, REQUEST, np.random.default_rng(0))
    assert (run.finished, session.transcript.tokens) == ("stop", 120)
    assert {move.outcome for move in session.migrations} == outcomes
    if attempts is None:
        assert record_of(session).pace.late_tokens == 0
    else:
        assert [a.candidate.name for a in session.attempts] == ["server", "device", "server"][:attempts]


def chain(count: int, order: str = MAKE):
    """Each endpoint is a hundred times cheaper than the one before it, and hands over to the next one."""
    names = NAMES[:count]
    profiles = {n: SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=200) for n in names}
    plan = Plan((Start(names[0]),), names[1:], {a: Migration(b) for a, b in itertools.pairwise(names)}, order)  # type: ignore[arg-type]
    return profiles, plan, {name: 1e-4 / 100**i for i, name in enumerate(names)}


@pytest.mark.parametrize("order", [MAKE, BREAK])
@pytest.mark.parametrize("pace", [None, Pace(tps=10.0)])
@pytest.mark.parametrize("count", [2, 5])
def test_an_answer_is_handed_over_along_a_chain_and_no_token_is_late(count, pace, order):
    profiles, plan, costs = chain(count, order)
    run = play(profiles, plan, costs=costs, streams=pace is not None, pace=pace, timeouts=NO_CLOCKS)
    record = check(run)
    assert (run.finished, record.answer_tokens) == ("stop", 200)
    hops = list(itertools.pairwise(NAMES[:count]))
    assert [(t.source, t.target) for t in record.migrations if t.outcome == "switched"] == hops
    writers = [piece.endpoint for piece in record.segments]
    assert (writers[0], writers[-1]) == (NAMES[0], NAMES[count - 1])
    # An endpoint whose only word is cut off again, because the next one is cheaper still, has no piece.
    assert writers == (list(NAMES[:count]) if pace else sorted(writers))
    assert sum(t.late_tokens for t in record.migrations) == 0


def test_a_second_target_that_fails_gives_the_answer_back_to_the_first():
    profiles, plan, costs = chain(3)
    profiles["cedar"] = SimulatedProfile(ttft_s=0.2, fault=Fault(kind=FailureKind.SERVER))
    run = play(profiles, plan, costs=costs, streams=False, timeouts=NO_CLOCKS)
    record = check(run)
    assert (run.finished, record.answer_tokens) == ("stop", 200)
    moves = [(t.source, t.target, t.outcome == "switched") for t in record.migrations][:2]
    assert moves == [("alder", "birch", True), ("birch", "cedar", False)]
    assert {piece.endpoint for piece in record.segments} == {"alder", "birch"}


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_text_of_an_earlier_writer_stays_its_own_where_a_move_is_given_up(tokens):
    """The cut of the move falls into what the failed writer wrote before its source took over."""
    base = {"ttft_s": 1.0, "decode_tps": 2.0, "packet_tokens": 1}
    profiles = {
        "alder": SimulatedProfile(
            **base, answer_tokens=tokens, role_at_s=0.0
        ),  # it is asked at its first sign
        "birch": SimulatedProfile(**base, answer_tokens=3, fault=Fault(3, kind=FailureKind.CONNECTION)),
        "cedar": SimulatedProfile(**base, answer_tokens=0),
    }
    plan = Plan((Start("birch"),), ("alder",), {"alder": Migration("cedar")})
    run = play(profiles, plan, costs={"alder": 1e-7, "birch": 1e-9, "cedar": 1e-9}, streams=False)
    handover = run.session.migrations[0]
    assert handover.cut_chars < len("".join(run.session.attempts[0].parts))
    assert handover.outcome in ("target_empty", "source_finished")
    check(run)
