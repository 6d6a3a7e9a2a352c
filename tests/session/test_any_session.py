"""Properties of the session on one to five endpoints, and who goes on when an attempt fails or another is cheaper."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import FAST, NO_CLOCKS, REQUEST, check, play, run_session, session_of
from situations import heirs, learnt, profiles_of_one

from disco.candidate import Payer
from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.rates import Rates
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
    hand_over = draw(st.sampled_from(["auto", "make_before_break", "break_before_make"]))
    max_tokens = draw(st.none() | st.integers(1, 120))
    return {
        "max_tokens": max_tokens,
        "request": replace(REQUEST, params={} if max_tokens is None else {"max_tokens": max_tokens}),
        "profiles": {name: draw(profiles_of_one) for name in names},
        "plan": Plan(starts, fallbacks, moves, hand_over, heirs=draw(heirs(names))),  # type: ignore[arg-type]
        "costs": costs,
        "believed": {name: {"pauses": draw(st.booleans()), **draw(learnt)} for name in names},
        "pace": draw(
            st.none()
            | st.builds(Pace, tps=st.floats(3.0, 60.0), release=st.sampled_from(["word", "sentence"]))
        ),
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


class Watched(BudgetReservation):
    """Writes down what every attempt reserved."""

    def open(self, attempt, endpoint, prefix, now):
        allowed = super().open(attempt, endpoint, prefix, now)
        if allowed is not None:
            self.reserved[attempt] = self._held[attempt].held[0][3]
        return allowed


@settings(max_examples=200)
@given(crowds(), st.none() | st.integers(85, 500))
def test_whatever_happens_every_token_comes_once_in_order_is_charged_and_is_recorded_without_text(
    crowd, budget
):
    """Under a budget none takes more than was reserved for it, and all reservations are given back."""
    limiter, limit = BudgetLimiter(), Limit("server_tokens", "server", "tokens", budget or 1, 60.0)
    free, names = Rates(0.0, 0.0), crowd["profiles"]
    payers = {n: (Payer(n, "device" if n == "device" else "server", free),) for n in names}
    watched = Watched(limiter, (limit,) if budget else (), payers, 20, max_tokens=crowd["max_tokens"])
    watched.reserved = {}
    run = play(**crowd, reservation=watched)
    record = check(run)
    for number, reserved in watched.reserved.items():
        state = run.session.attempts[number]
        over = state.usage.prompt_tokens + state.usage.completion_tokens - reserved
        # Nobody told it to stop: what was in its last packet, and what it wrote until it heard of it.
        late = crowd["profiles"][state.candidate.name].packet_tokens + 0.1 * state.candidate.decode_tps
        assert over <= (late if crowd["max_tokens"] is None else 0)
    assert not limiter.counter(limit)._tally._open, "a reservation was never given back"
    written = json.loads(json.dumps(record.to_dict(timelines=True), allow_nan=False))
    assert {e["name"] for e in written["endpoints"]} == set(crowd["profiles"])
    for tried in written["attempts"]:
        assert (tried["place"] == "device") == (tried["endpoint"] == "device")
    assert max(map(len, texts(written))) <= 20, (
        "nothing but names of endpoints, phases and outcomes is that long"
    )


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


@pytest.mark.parametrize("others", [{}, {"b": SimulatedProfile(ttft_s=50.0)}])
def test_a_hedge_does_not_wait_for_its_time_once_an_endpoint_has_failed(others):
    """Whether it is all that is left, or another start is still silent."""
    fails = SimulatedProfile(ttft_s=1.0, fault=Fault(0, kind=FailureKind.SERVER))
    profiles = {"a": fails, **others, "z": FAST}
    plan = Plan((Start("a"), *map(Start, others), Start("z", 30.0)))
    run = play(profiles, plan, max_retries=0)
    assert run.finished == "stop"
    assert run.session.attempts[-1].candidate.name == "z"
    assert run.session.attempts[-1].started_at == pytest.approx(1.0)


class Heard(list):
    """A listener; by event: what, endpoint, when the attempt started, when it happened."""

    def answered(self, *told):
        self.append(("answered", *told))

    def stopped(self, *told, overdue):
        self.append(("overdue" if overdue else "stopped", *told))

    def failed(self, endpoint, failure, *told):
        self.append((str(failure.kind), endpoint, *told))


QUICK, SLOW = SimulatedProfile(ttft_s=0.1, answer_tokens=10), SimulatedProfile(ttft_s=50.0)
DIES = replace(QUICK, decode_tps=20.0, fault=Fault(3, kind=FailureKind.SERVER))
BOTH, LATER = Plan((Start("a"), Start("b"))), Plan((Start("a"), Start("b", 1.0)))


@pytest.mark.parametrize(
    ("profiles", "plan", "how", "heard"),
    [
        ([QUICK], Plan((Start("a"),)), {}, [("answered", "a", 0.0, 0.1)]),
        ([replace(QUICK, answer="")], Plan((Start("a"),)), {}, [("answered", "a", 0.0, 0.1)]),
        (
            [SLOW],
            Plan((Start("a"),)),
            {"timeouts": Timeouts(first_content_s=2.0)},
            [("timeout", "a", 0.0, 2.0)],
        ),
        ([SLOW], Plan((Start("a"),)), {"cancel_at": 0.5}, [("stopped", "a", 0.0, 0.5)]),
        ([SLOW, QUICK], BOTH, {}, [("stopped", "a", 0.0, 0.1), ("answered", "b", 0.0, 0.1)]),
        ([SLOW, QUICK], LATER, {}, [("overdue", "a", 0.0, 1.1), ("answered", "b", 1.0, 1.1)]),
        ([DIES], Plan((Start("a"),)), {}, [("answered", "a", 0.0, 0.1), ("server", "a", 0.0, 0.2)]),
    ],
)
def test_a_listener_is_told_of_first_words_failures_and_silence(profiles, plan, how, heard):
    told, named = Heard(), dict(zip("ab", profiles, strict=False))
    believed = {name: {"overhead_s": 1.0} for name in named}
    play(named, plan, listener=told, believed=believed, max_retries=0, **how)
    assert [(*event[:-1], round(event[-1], 6)) for event in told] == heard
