"""Properties of the session on one to five endpoints of any name: chains of moves, failovers, cancellation."""

from __future__ import annotations

import itertools
import math

import pytest
from defects.parts import Migration, Pace, Plan, Start, play, record_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from situations import profiles_of_one

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.request import Timeouts

NAMES = ("alder", "birch", "cedar", "durian", "elm")
SILENT = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)


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


def check(run, costs=None) -> None:
    """What holds of every answer, however it was made."""
    session = run.session
    assert (run.finished is None) != (run.error is None)
    assert not run.running, "an attempt was left running"
    record = record_of(run, costs)
    assert all(t.ended_s is not None for t in record.attempts)
    allowed = {s.endpoint for s in session.plan.starts} | set(session.plan.fallbacks)
    allowed |= {move.target for move in session.plan.migrations.values()}
    assert {t.endpoint for t in record.attempts} <= allowed

    # Every token once and in order: what the reader got is, piece by piece, what the writers wrote.
    assert record.seamless
    assert run.text == getattr(session, "transcript", session).text
    ends = [0]
    for piece in record.segments:
        assert piece.start_char == ends[-1]
        assert piece.end_char > piece.start_char
        ends.append(piece.end_char)
    assert ends[-1] == len(run.text)
    if run.finished not in (None, "cancelled"):
        assert sum(tokens for _, tokens in record.released) == record.answer_tokens
        assert sum(t.kept_tokens for t in record.attempts) == record.answer_tokens

    # Nothing is released before it was written.
    written = released = 0
    events = [(t, 0, n) for t, n in record.generated] + [(t, 1, n) for t, n in record.released]
    for _, kind, tokens in sorted(events, key=lambda event: (event[0], event[1])):
        written, released = (written + tokens, released) if kind == 0 else (written, released + tokens)
        assert released <= written

    # The ledger is the sum of its charges, and charges all that any attempt used.
    ledger = record.ledger
    assert ledger.total_cost == math.fsum(charge.cost for charge in ledger.charges)
    used = sum(t.prompt_tokens + t.completion_tokens for t in record.attempts)
    assert sum(c.prompt_tokens + c.completion_tokens for c in ledger.charges) == used
    assert ledger.total_cost == pytest.approx(sum(t.cost for t in record.attempts))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crowds())
def test_whatever_happens_every_token_comes_once_in_order_and_is_charged(crowd):
    check(play(**crowd), crowd["costs"])


@settings(max_examples=50, deadline=None)
@given(crowds())
def test_the_same_seed_gives_the_same_run(crowd):
    first, second = play(**crowd), play(**crowd)
    assert first.out == second.out
    assert first.now == second.now


# ---------------------------------------------------------------------- several hand-overs in one answer


def chain(count: int, **more) -> tuple[dict[str, SimulatedProfile], Plan, dict[str, float]]:
    """Each endpoint is a hundred times cheaper than the one before it, and hands over to the next one."""
    order = more.pop("order", "make_before_break")
    names = NAMES[:count]
    profiles = {
        name: SimulatedProfile(**{"ttft_s": 0.2, "decode_tps": 80.0, "answer_tokens": 200, **more})
        for name in names
    }
    moves = {a: Migration(b) for a, b in itertools.pairwise(names)}
    plan = Plan((Start(names[0]),), names[1:], moves, order)
    return profiles, plan, {name: 1e-4 / 100**i for i, name in enumerate(names)}


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
@pytest.mark.parametrize(("streams", "pace"), [(False, None), (True, Pace(tps=10.0))], ids=["whole", "paced"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_an_answer_is_handed_over_along_a_chain(count, streams, pace, order):
    """Two hand-overs or more in one answer, each on purpose.

    On c5a62d7 there was one hand-over an answer: ["switched"], from the first endpoint to the second.
    """
    profiles, plan, costs = chain(count, order=order)
    run = play(profiles, plan, costs=costs, streams=streams, pace=pace, timeouts=SILENT)
    check(run, costs)
    record = record_of(run, costs)
    assert run.finished == "stop"
    hops = list(itertools.pairwise(NAMES[:count]))
    assert [(t.source, t.target) for t in record.migrations if t.outcome == "switched"] == hops
    writers = [piece.endpoint for piece in record.segments]
    assert (writers[0], writers[-1]) == (NAMES[0], NAMES[count - 1])
    # An endpoint whose only word is cut off again, because the next one is cheaper still, has no piece.
    assert writers == (sorted(writers) if not streams else list(NAMES[:count]))
    alone = play({"alder": profiles["alder"]}, Plan((Start("alder"),)), streams=streams)
    assert run.text == alone.text  # they hold the same text


def test_a_second_target_that_fails_gives_the_answer_back_to_the_first():
    """On c5a62d7 the second hand-over was never tried."""
    profiles, plan, costs = chain(3)
    profiles["cedar"] = SimulatedProfile(ttft_s=0.2, fault=Fault(kind=FailureKind.SERVER))
    run = play(profiles, plan, costs=costs, streams=False, timeouts=SILENT)
    check(run, costs)
    record = record_of(run, costs)
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
    broken = SimulatedProfile(**{**base, "answer_tokens": 3}, fault=Fault(3, kind=FailureKind.CONNECTION))
    source = SimulatedProfile(
        **{**base, "answer_tokens": tokens}, role_at_s=0.0
    )  # it is asked at its first sign
    profiles = {"alder": source, "birch": broken, "cedar": SimulatedProfile(**base)}
    plan = Plan((Start("birch"),), ("alder",), {"alder": Migration("cedar")})
    costs = {"alder": 1e-7, "birch": 1e-9, "cedar": 1e-9}
    run = play(profiles, plan, costs=costs, pace=None, streams=False)
    handover = run.session.migrations_run[0]
    assert handover.cut_chars < len("".join(run.session.attempts[0].parts))
    assert handover.outcome in ("target_empty", "source_finished")
    check(run, costs)
