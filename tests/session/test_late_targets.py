"""A move whose source is gone cannot be given up: there is nobody to go back to."""

from __future__ import annotations

import numpy as np
from playing import Run, run_session

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.rates import Rates
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
PACE = Pace(tps=20.0)


def run(source: SimulatedProfile, order: str, first: Delta | None = None) -> tuple[Run, list[float]]:
    """An answer that moves from the server to a device that takes far longer than it was believed to."""
    target = SimulatedProfile(ttft_s=8.0, decode_tps=60.0, answer_tokens=120)
    candidates = {
        "server": Candidate("server", "any", Rates(1e-5, 1e-4), decode_tps=80.0, continues=True),
        "device": Candidate(
            "device", "device", Rates(1e-10, 1e-9), overhead_s=0.2, decode_tps=60.0, continues=True
        ),
    }
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")}, order)  # type: ignore[arg-type]
    config = SessionConfig(20, pace_tps=PACE.tps, timeouts=NO_CLOCKS)
    session = Session(plan, candidates, config, Playback(PACE), AnswerLengths.geometric(150))
    woken = []
    wake = session.woken

    def count(now: float):
        woken.append(now)
        assert len(woken) < 2000, "the driver is woken over and over for nothing"
        return wake(now)

    session.woken = count  # type: ignore[method-assign]
    if first is not None:
        give = session.deltas

        def with_first(number: int, deltas: list[Delta], now: float):
            """The device says something else before it writes."""
            if number == 1 and session.attempts[1].first_content_at is None and session.attempts[1].active:
                return give(number, [first], now)
            return give(number, deltas, now)

        session.deltas = with_first  # type: ignore[method-assign]
    profiles = {"server": source, "device": target}
    return run_session(session, profiles, REQUEST, np.random.default_rng(0)), woken


def test_a_source_that_dies_while_its_answer_moves_leaves_it_to_the_target():
    dying = SimulatedProfile(
        ttft_s=0.2,
        decode_tps=80.0,
        answer_tokens=120,
        fault=Fault(after_tokens=25, kind=FailureKind.CONNECTION),
    )
    result, _ = run(dying, "make_before_break")
    assert result.finished == "stop"
    assert [h.outcome for h in result.session.migrations_run] == ["switched"]


def test_a_target_that_is_late_is_waited_for_where_the_source_was_stopped_at_the_cut():
    source = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120)
    result, _ = run(source, "break_before_make")
    assert result.finished == "stop"
    assert [h.outcome for h in result.session.migrations_run] == ["switched"]
    assert result.session.transcript.tokens == 120


def test_a_target_that_thinks_instead_of_going_on_is_replaced_where_the_source_was_stopped():
    source = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120)
    result, _ = run(source, "break_before_make", first=Delta("", kind=DeltaKind.REASONING))
    (handover,) = result.session.migrations_run
    assert handover.outcome == "target_failed"
    assert result.finished == "stop"  # the server took the answer up again
    assert [a.candidate.name for a in result.session.attempts] == ["server", "device", "server"]
    assert result.session.transcript.tokens == 120
