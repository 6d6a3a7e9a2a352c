"""Moves of an answer: along a chain, to a target that is late or fails, from a source that dies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from playing import run_session
from session.plays import FAST, NO_CLOCKS, REQUEST, SERVER_ALONE, check, play, record_of, session_of

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace

ORDERS = ("make_before_break", "break_before_make")
TO_THE_DEVICE = {"server": 1e-4, "device": 1e-9}
NAMES = ("alder", "birch", "cedar", "durian", "elm")


def moving(order: str = "make_before_break") -> Plan:
    return Plan((Start("server"),), ("device",), {"server": Migration("device")}, order)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ORDERS)
def test_an_answer_moves_to_the_cheaper_endpoint_and_no_token_is_late(order):
    profiles = {"server": FAST, "device": SimulatedProfile(ttft_s=0.4, decode_tps=60.0, answer_tokens=120)}
    run = play(profiles, moving(order), costs=TO_THE_DEVICE, pace=Pace(tps=10.0))
    record = record_of(run.session)
    assert [h.outcome for h in run.session.migrations] == ["switched"]
    assert [p.endpoint for p in record.segments] == ["server", "device"]
    assert record.migrations[0].late_tokens == 0
    # Both endpoints hold the same text here, so the moved answer is that very text.
    assert run.text == play({"server": FAST}, SERVER_ALONE).text


def test_a_loser_that_is_named_as_target_keeps_its_prefill_and_is_stopped_with_the_answer():
    slow = SimulatedProfile(ttft_s=0.3, decode_tps=60.0, answer_tokens=120, fault=Fault(0, 30.0, None))
    plan = Plan((Start("server"), Start("device")), (), {"server": Migration("device")})
    run = play({"server": FAST, "device": slow}, plan, costs=TO_THE_DEVICE, streams=False)
    assert run.session.attempts[1].outcome == "parked"
    assert run.now < 5.0, "the answer waited for a prefill that no attempt needed any more"


# ---------------------------------------------------------------------- a target that is late, or a source that is gone


def late_move(source: SimulatedProfile, order: str, first: Delta | None = None):
    """From the server to a device that takes far longer than it was believed to."""
    profiles = {
        "server": source,
        "device": SimulatedProfile(ttft_s=8.0, decode_tps=60.0, answer_tokens=120),
    }
    session = session_of(
        profiles,
        moving(order),
        costs=TO_THE_DEVICE,
        pace=Pace(tps=20.0),
        timeouts=NO_CLOCKS,
        believed={"overhead_s": 0.2},
    )
    woken, wake, give = itertools.count(), session.woken, session.deltas

    def count(now: float):
        assert next(woken) < 2000, "the driver is woken over and over for nothing"
        return wake(now)

    def with_first(number: int, deltas: list[Delta], now: float):
        """The device says something else before it writes."""
        silent = number == 1 and session.attempts[1].first_content_at is None and session.attempts[1].active
        return give(number, [first] if silent else deltas, now)

    session.woken = count  # type: ignore[method-assign]
    if first is not None:
        session.deltas = with_first  # type: ignore[method-assign]
    run = run_session(session, profiles, REQUEST, np.random.default_rng(0))
    assert run.finished == "stop"
    assert session.transcript.tokens == 120
    return session


def test_a_target_that_is_late_is_given_up_and_the_reader_does_not_notice():
    session = late_move(FAST, "make_before_break")
    assert session.migrations
    assert all(h.outcome != "switched" for h in session.migrations)
    assert record_of(session).pace.late_tokens == 0


def test_a_source_that_dies_while_its_answer_moves_leaves_it_to_the_target():
    fault = Fault(after_tokens=25, kind=FailureKind.CONNECTION)
    dying = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120, fault=fault)
    session = late_move(dying, "make_before_break")
    assert [h.outcome for h in session.migrations] == ["switched"]


def test_a_target_that_is_late_is_waited_for_where_the_source_was_stopped_at_the_cut():
    session = late_move(FAST, "break_before_make")
    assert [h.outcome for h in session.migrations] == ["switched"]


def test_a_target_that_thinks_instead_of_going_on_is_replaced_where_the_source_was_stopped():
    session = late_move(FAST, "break_before_make", first=Delta("", kind=DeltaKind.REASONING))
    assert [h.outcome for h in session.migrations] == ["target_failed"]
    assert [a.candidate.name for a in session.attempts] == ["server", "device", "server"]


# ---------------------------------------------------------------------- several hand-overs in one answer


def chain(count: int, order: str = "make_before_break"):
    """Each endpoint is a hundred times cheaper than the one before it, and hands over to the next one."""
    names = NAMES[:count]
    profiles = {n: SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=200) for n in names}
    plan = Plan((Start(names[0]),), names[1:], {a: Migration(b) for a, b in itertools.pairwise(names)}, order)  # type: ignore[arg-type]
    return profiles, plan, {name: 1e-4 / 100**i for i, name in enumerate(names)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("streams", "pace"), [(False, None), (True, Pace(tps=10.0))], ids=["whole", "paced"])
@pytest.mark.parametrize("count", [3, 5])
def test_an_answer_is_handed_over_along_a_chain(count, streams, pace, order):
    profiles, plan, costs = chain(count, order)
    run = play(profiles, plan, costs=costs, streams=streams, pace=pace, timeouts=NO_CLOCKS)
    check(run)
    record = record_of(run.session)
    assert run.finished == "stop"
    hops = list(itertools.pairwise(NAMES[:count]))
    assert [(t.source, t.target) for t in record.migrations if t.outcome == "switched"] == hops
    writers = [piece.endpoint for piece in record.segments]
    assert (writers[0], writers[-1]) == (NAMES[0], NAMES[count - 1])
    # An endpoint whose only word is cut off again, because the next one is cheaper still, has no piece.
    assert writers == (sorted(writers) if not streams else list(NAMES[:count]))


def test_a_second_target_that_fails_gives_the_answer_back_to_the_first():
    profiles, plan, costs = chain(3)
    profiles["cedar"] = SimulatedProfile(ttft_s=0.2, fault=Fault(kind=FailureKind.SERVER))
    run = play(profiles, plan, costs=costs, streams=False, timeouts=NO_CLOCKS)
    check(run)
    record = record_of(run.session)
    assert run.finished == "stop"
    assert [(t.source, t.target, t.outcome == "switched") for t in record.migrations][:2] == [
        ("alder", "birch", True),
        ("birch", "cedar", False),
    ]
    assert record.answer_tokens == 200
    assert {piece.endpoint for piece in record.segments} == {"alder", "birch"}


@pytest.mark.parametrize("tokens", [0, 1, 4], ids=lambda tokens: f"the source writes {tokens}")
def test_text_of_an_earlier_writer_stays_its_own_where_a_move_is_given_up(tokens):
    """The cut of the move falls into what the failed writer wrote before its source took over."""
    base = {"ttft_s": 1.0, "decode_tps": 2.0, "packet_tokens": 1, "answer_tokens": 0}
    profiles = {
        # It is asked at its first sign.
        "alder": SimulatedProfile(**{**base, "answer_tokens": tokens}, role_at_s=0.0),
        "birch": SimulatedProfile(
            **{**base, "answer_tokens": 3}, fault=Fault(3, kind=FailureKind.CONNECTION)
        ),
        "cedar": SimulatedProfile(**base),
    }
    plan = Plan((Start("birch"),), ("alder",), {"alder": Migration("cedar")})
    run = play(profiles, plan, costs={"alder": 1e-7, "birch": 1e-9, "cedar": 1e-9}, streams=False)
    handover = run.session.migrations[0]
    assert handover.cut_chars < len("".join(run.session.attempts[0].parts))
    assert handover.outcome in ("target_empty", "source_finished")
    check(run)
