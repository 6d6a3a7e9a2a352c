"""Properties of the session on one to five endpoints, and who goes on when an attempt fails or another is cheaper."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import (
    FAST,
    NO_CLOCKS,
    ON_SERVER,
    REQUEST,
    SERVER_ALONE,
    check,
    play,
    run_session,
    session_of,
)
from situations import profiles_of_one

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, simulated_failure
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.request import Timeouts

NAMES = ("device", "birch", "cedar", "durian", "elm")


@st.composite
def crowds(draw: st.DrawFn) -> dict[str, object]:
    """Endpoints, who starts, who stands by, and where each may hand over; often down a chain of falling prices."""
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    order = draw(st.permutations(names))
    starters = order[: draw(st.integers(1, len(names)))]
    rest = order[len(starters) :]
    fallbacks = tuple(draw(st.permutations(rest))[: draw(st.integers(0, len(rest)))])
    if draw(st.booleans()):  # a -> b -> c ...
        chain = draw(st.permutations(names))
        moves = {a: Migration(b, draw(st.booleans())) for a, b in itertools.pairwise(chain)}
        costs = {name: 10.0 ** -(4 + i) for i, name in enumerate(chain)}
    else:
        targets = {a: draw(st.none() | st.sampled_from(names)) for a in names}
        moves = {a: Migration(b, draw(st.booleans())) for a, b in targets.items() if b not in (None, a)}
        costs = {name: draw(st.sampled_from([1e-9, 1e-7, 1e-6, 1e-4])) for name in names}
    starts = tuple(Start(name, draw(st.sampled_from([0.0, 0.1, 1.0]))) for name in starters)
    hand_over = draw(st.sampled_from(["make_before_break", "break_before_make"]))
    return {
        "profiles": {name: draw(profiles_of_one) for name in names},
        "plan": Plan(starts, fallbacks, moves, hand_over),  # type: ignore[arg-type]
        "costs": costs,
        "pace": draw(st.none() | st.floats(3.0, 60.0).map(lambda tps: Pace(tps=tps))),
        "streams": draw(st.booleans()),
        "timeouts": draw(st.sampled_from([Timeouts(), Timeouts(gap_s=1.0), Timeouts(total_s=3.0)])),
        "max_retries": draw(st.integers(0, 2)),
        "cancel_at": draw(st.just(math.inf) | st.floats(0.0, 5.0)),
        "cancel_takes_s": draw(st.sampled_from([0.0, 0.05])),
        "seed": draw(st.integers(0, 3)),
    }


def texts(item: object) -> list[str]:
    """All strings in what JSON gave."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list):
        return [text for value in item for text in texts(value)]
    return [item] if isinstance(item, str) else []


@settings(max_examples=200)
@given(crowds())
def test_whatever_happens_every_token_comes_once_in_order_is_charged_and_is_recorded_without_text(crowd):
    record = check(play(**crowd))
    written = json.loads(json.dumps(record.to_dict(timelines=True), allow_nan=False))
    assert {e["name"] for e in written["endpoints"]} == set(crowd["profiles"])
    for tried in written["attempts"]:
        assert (tried["place"] == "device") == (tried["endpoint"] == "device")
    assert max(map(len, texts(written))) <= 20, (
        "nothing but names of endpoints, phases and outcomes is that long"
    )


RETRIED = {"connection", "timeout", "stalled", "rate_limit", "server", "incomplete"}
WHOLE = play({"server": FAST}, SERVER_ALONE).text
READERS = [{}, {"pace": Pace(tps=10.0)}, {"streams": False}, {"pace": Pace(tps=10.0), "streams": False}]


@pytest.mark.parametrize("plan", [ON_SERVER, Plan((Start("server"), Start("device", 60.0)))])
@pytest.mark.parametrize("after_tokens", [0, 10])
def test_a_failure_starts_the_next_endpoint_at_once_unless_it_is_the_callers_fault(after_tokens, plan):
    """Before the first token, and from the last good prefix: the answer is the same."""
    for number, kind in enumerate(FailureKind):
        dying = SimulatedProfile(ttft_s=0.1, answer_tokens=120, fault=Fault(after_tokens, kind=kind))
        run = play({"server": dying, "device": FAST}, plan, **READERS[number % 4])
        dead, *others = run.session.attempts
        assert (dead.candidate.name, dead.failure) == ("server", kind)
        if kind.is_callers_fault:
            assert (type(run.error).__name__, others) == ("BadRequestError", [])
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


def test_a_target_that_thinks_instead_of_going_on_is_replaced_where_the_source_was_stopped():
    profiles = {"server": FAST, "device": SimulatedProfile(ttft_s=8.0, answer_tokens=120)}
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")}, "break_before_make")
    how = {"costs": {"server": 1e-4, "device": 1e-9}, "pace": Pace(tps=20.0), "timeouts": NO_CLOCKS}
    session = session_of(profiles, plan, **how, believed={"device": {"overhead_s": 0.2}})
    give = session.deltas

    def thinking(number: int, deltas: list[Delta], now: float):
        thinks = [Delta("", kind=DeltaKind.REASONING)]
        return give(number, thinks if number == 1 and session.attempts[1].active else deltas, now)

    session.deltas = thinking  # type: ignore[method-assign]
    run = run_session(session, profiles, REQUEST, np.random.default_rng(0))
    assert (run.finished, session.transcript.tokens) == ("stop", 120)
    assert [move.outcome for move in session.migrations] == ["target_failed"]
    assert [a.candidate.name for a in session.attempts] == ["server", "device", "server"]


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
@pytest.mark.parametrize("pace", [None, Pace(tps=10.0)])
def test_an_answer_is_handed_over_along_a_chain_and_no_token_is_late(pace, order):
    """Each endpoint is a hundred times cheaper than the one before it."""
    names = ("alder", "birch", "cedar", "durian", "elm")
    hops = list(itertools.pairwise(names))
    profiles = {name: SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=200) for name in names}
    costs = {name: 1e-4 / 100**i for i, name in enumerate(names)}
    plan = Plan((Start(names[0]),), names[1:], {a: Migration(b) for a, b in hops}, order)
    run = play(profiles, plan, costs=costs, streams=pace is not None, pace=pace, timeouts=NO_CLOCKS)
    record = check(run)
    assert (run.finished, record.answer_tokens) == ("stop", 200)
    assert [(t.source, t.target) for t in record.migrations if t.outcome == "switched"] == hops
    writers = tuple(piece.endpoint for piece in record.segments)
    assert (writers[0], writers[-1]) == (names[0], names[-1])
    # An endpoint whose only word is cut off again, because the next one is cheaper still, has no piece.
    assert writers == (names if pace else tuple(sorted(writers)))
    assert sum(t.late_tokens for t in record.migrations) == 0


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
