"""Properties of the session, on simulated endpoints in virtual time: whatever is drawn, nothing is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from playing import Run, run_session
from situations import NAMES, situations

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, simulated_failure
from disco.errors import FailureKind
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.request import Request, Timeouts
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.switching.migration_rule import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
FAST = SimulatedProfile(ttft_s=0.2, decode_tps=80.0, answer_tokens=120)


def candidate(name: str, profile: SimulatedProfile, cost: float = 1e-6) -> Candidate:
    return Candidate(
        name=name,
        reach="device" if name == "device" else "any",
        parks=name == "device",
        rates=Rates(cost / 10, cost),
        prefill_tps=profile.prefill_tps,
        overhead_s=profile.overhead_s + (profile.ttft_s if isinstance(profile.ttft_s, float) else 0.3),
        decode_tps=profile.decode_tps,
        continues=profile.continues,
    )


def run(
    profiles: dict[str, SimulatedProfile],
    plan: Plan,
    *,
    costs: dict[str, float] | None = None,
    pace: Pace | None = None,
    streams: bool = True,
    cancel_at: float = math.inf,
    cancel_takes_s: float = 0.0,
    seed: int = 0,
    timeouts: Timeouts | None = None,
    max_retries: int = 2,
) -> Run:
    costs = costs or {}
    candidates = {n: candidate(n, p, costs.get(n, 1e-6)) for n, p in profiles.items()}
    config = SessionConfig(
        prompt_tokens=20,
        streams=streams,
        pace_tps=pace.tps if pace else None,
        timeouts=timeouts or Timeouts(),
        max_retries=max_retries,
    )
    session = Session(plan, candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    return run_session(
        session,
        profiles,
        REQUEST,
        np.random.default_rng(seed),
        cancel_at=cancel_at,
        cancel_takes_s=cancel_takes_s,
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_whatever_happens_every_token_comes_once_in_order_and_is_charged(situation):
    result = run(**situation)
    session = result.session
    assert (result.finished is None) != (result.error is None)
    assert not result.running, "an attempt was left running"
    assert all(a.stopped for a in session.attempts)

    # The reader's text is, piece by piece, what the writers wrote: nothing twice, nothing missing.
    record = make_record(session, settle_accounts(session), preset="test")
    assert record.seamless
    assert result.text == session.transcript.text
    if record.segments:
        assert record.segments[-1].end_char == len(result.text)
    text = result.text
    for piece in record.segments:
        state = session.attempts[piece.attempt]
        offset = piece.start_char - len(state.prefix.text)
        assert "".join(state.parts)[offset:].startswith(text[piece.start_char : piece.end_char])
        assert text[: len(state.prefix.text)] == state.prefix.text[: len(text)]

    # Nothing is released before it was written.
    written = released = 0
    events = [(t, 0, n) for t, n in session.transcript.generated] + [
        (t, 1, n) for t, n in session.transcript.released
    ]
    for _, kind, tokens in sorted(events, key=lambda e: (e[0], e[1])):
        written, released = (written + tokens, released) if kind == 0 else (written, released + tokens)
        assert released <= written

    # The ledger is the sum of its charges, and charges all that any attempt used.
    ledger = record.ledger
    assert ledger.total_cost == math.fsum(c.cost for c in ledger.charges)
    used = sum(a.usage.prompt_tokens + a.usage.completion_tokens for a in session.attempts)
    assert sum(c.prompt_tokens + c.completion_tokens for c in ledger.charges) == used


RATES = {name: Rates(1e-7, 1e-6) for name in NAMES}


@settings(max_examples=100, deadline=None)
@given(situations())
def test_the_same_seed_gives_the_same_run(situation):
    first, second = run(**situation), run(**situation)
    assert first.out == second.out
    assert first.now == second.now


def test_the_first_content_wins_not_the_first_role_chunk():
    chatty = SimulatedProfile(ttft_s=1.0, role_at_s=0.0, answer_tokens=20)
    quick = SimulatedProfile(ttft_s=0.5, answer_tokens=20)
    result = run({"server": chatty, "device": quick}, Plan((Start("server"), Start("device"))))
    outcomes = {a.candidate.name: a.outcome for a in result.session.attempts}
    assert outcomes == {"server": AttemptOutcome.LOST, "device": AttemptOutcome.FINISHED}


def test_a_delayed_start_never_happens_when_the_other_speaks_in_time():
    plan = Plan((Start("server"), Start("device", 0.5)))
    result = run({"server": FAST, "device": FAST}, plan)
    assert [a.candidate.name for a in result.session.attempts] == ["server"]


def test_a_loser_that_is_named_as_target_keeps_its_prefill_and_is_stopped_with_the_answer():
    slow = SimulatedProfile(ttft_s=0.3, decode_tps=60.0, answer_tokens=120, fault=Fault(0, 30.0, None))
    plan = Plan((Start("server"), Start("device")), (), {"server": Migration("device")})
    result = run(
        {"server": FAST, "device": slow}, plan, costs={"server": 1e-4, "device": 1e-9}, streams=False
    )
    parked = result.session.attempts[1]
    assert parked.outcome is AttemptOutcome.PARKED
    assert result.now < 5.0, "the answer waited for a prefill that nobody needed any more"


def test_a_hedge_starts_at_once_when_the_other_side_fails():
    broken = SimulatedProfile(fault=Fault(silence_s=0.1, kind=FailureKind.CONNECTION))
    result = run({"server": broken, "device": FAST}, Plan((Start("server"), Start("device", 30.0))))
    device = result.session.attempts[1]
    assert result.finished == "stop"
    assert device.started_at == pytest.approx(0.1)


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
def test_an_answer_moves_to_the_cheaper_endpoint_and_nobody_is_late(order):
    profiles = {"server": FAST, "device": SimulatedProfile(ttft_s=0.4, decode_tps=60.0, answer_tokens=120)}
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")}, order)
    result = run(profiles, plan, costs={"server": 1e-4, "device": 1e-9}, pace=Pace(tps=10.0))
    session = result.session
    assert [h.outcome for h in session.migrations_run] == ["switched"]
    assert [s.writer.candidate.name for s in session.transcript.segments] == ["server", "device"]
    record = make_record(session, settle_accounts(session), preset="test")
    assert record.migrations[0].late_tokens == 0
    assert record.seamless
    # Both endpoints hold the same canonical text here, so the moved answer is that very text.
    alone = run({"server": FAST}, Plan((Start("server"),)))
    assert result.text == alone.text


def test_a_target_that_is_late_is_given_up_and_nobody_notices():
    late = SimulatedProfile(ttft_s=8.0, decode_tps=60.0, answer_tokens=120)
    believed = {"device": 0.2}
    profiles = {"server": FAST, "device": late}
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")})
    candidates = {n: candidate(n, p, 1e-4 if n == "server" else 1e-9) for n, p in profiles.items()}
    import dataclasses

    candidates["device"] = dataclasses.replace(candidates["device"], overhead_s=believed["device"])
    pace = Pace(tps=20.0)
    session = Session(
        plan, candidates, SessionConfig(20, pace_tps=20.0), Playback(pace), AnswerLengths.geometric(150)
    )
    result = run_session(session, profiles, REQUEST, np.random.default_rng(0))
    assert result.finished == "stop"
    assert result.text == run({"server": FAST}, Plan((Start("server"),))).text
    assert session.migrations_run
    assert all(h.outcome != "switched" for h in session.migrations_run)
    record = make_record(session, settle_accounts(session), preset="test")
    assert record.pace.late_tokens == 0


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("pace", [None, Pace(tps=10.0)])
def test_an_answer_survives_its_writer(pace, streams):
    dying = SimulatedProfile(
        ttft_s=0.2,
        decode_tps=80.0,
        answer_tokens=120,
        fault=Fault(after_tokens=30, kind=FailureKind.CONNECTION),
    )
    result = run(
        {"server": dying, "device": FAST}, Plan((Start("server"),), ("device",)), pace=pace, streams=streams
    )
    assert result.finished == "stop"
    assert result.text == run({"server": FAST}, Plan((Start("server"),))).text
    assert result.session.attempts[0].failure is FailureKind.CONNECTION


def test_a_stalled_writer_is_replaced_after_the_gap_clock():
    stalls = SimulatedProfile(ttft_s=0.2, answer_tokens=120, fault=Fault(20, math.inf, None))
    result = run(
        {"server": stalls, "device": FAST},
        Plan((Start("server"),), ("device",)),
        timeouts=Timeouts(gap_s=2.0),
    )
    assert result.finished == "stop"
    assert result.session.attempts[0].failure is FailureKind.STALLED


@pytest.mark.parametrize("kind", [FailureKind.BAD_REQUEST, FailureKind.CONTENT_FILTER])
@pytest.mark.parametrize("after_tokens", [0, 10])
def test_a_callers_fault_is_raised_and_starts_nobody_else(kind, after_tokens):
    refused = SimulatedProfile(answer_tokens=40, fault=Fault(after_tokens, kind=kind))
    result = run({"server": refused, "device": FAST}, Plan((Start("server"), Start("device", 5.0)), ()))
    assert type(result.error).__name__ == "BadRequestError"
    assert len(result.session.attempts) == 1


FAILS_OVER = sorted(kind for kind in FailureKind if not kind.is_callers_fault)
RETRIED = {"connection", "timeout", "stalled", "rate_limit", "server", "incomplete"}


@pytest.mark.parametrize("kind", FAILS_OVER)
@pytest.mark.parametrize("after_tokens", [0, 10])
def test_any_other_failure_starts_the_next_endpoint_at_once(kind, after_tokens):
    """The device's turn, or another server's; before the first token, and from the last good prefix."""
    dying = SimulatedProfile(ttft_s=0.1, answer_tokens=120, fault=Fault(after_tokens, kind=kind))
    result = run({"server": dying, "device": FAST}, Plan((Start("server"), Start("device", 60.0)), ()))
    assert result.finished == "stop"
    dead, next_one = result.session.attempts
    assert (dead.candidate.name, dead.failure) == ("server", kind)
    assert next_one.candidate.name == "device"
    assert next_one.started_at == dead.ended_at
    assert bool(next_one.prefix) == (after_tokens > 0)


@pytest.mark.parametrize("kind", sorted(FailureKind))
def test_the_only_endpoint_is_tried_again_where_that_may_help_and_nowhere_else(kind):
    broken = SimulatedProfile(fault=Fault(kind=kind))
    result = run({"server": broken}, Plan((Start("server"),)), max_retries=1)
    assert len(result.session.attempts) == (2 if kind in RETRIED else 1)
    assert type(result.error) is type(simulated_failure(kind).error)


def test_of_several_failures_the_first_is_raised():
    refused = SimulatedProfile(fault=Fault(kind=FailureKind.AUTHENTICATION))
    crashed = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
    result = run({"server": refused, "device": crashed}, Plan((Start("server"),), ("device",)))
    assert type(result.error).__name__ == "AuthenticationError"
    assert [a.failure for a in result.session.attempts] == ["authentication", "crashed"]


def test_the_only_endpoint_is_tried_again_after_a_back_off_and_no_more_than_allowed():
    broken = SimulatedProfile(fault=Fault(kind=FailureKind.SERVER))
    result = run({"server": broken}, Plan((Start("server"),)), max_retries=2)
    assert type(result.error).__name__ == "InternalServerError"
    assert [a.started_at for a in result.session.attempts] == pytest.approx([0.0, 0.5, 1.5])


def test_text_already_delivered_stays_when_nobody_can_go_on():
    dying = SimulatedProfile(answer_tokens=120, continues=False, fault=Fault(10, kind=FailureKind.CONNECTION))
    result = run({"server": dying}, Plan((Start("server"),)))
    assert result.error is not None
    assert result.session.transcript.tokens == 10
    assert result.text == result.session.transcript.text != ""
