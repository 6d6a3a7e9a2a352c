"""Divided answers: the server's beginning, the heir's rest, and what happens when either fails, in virtual time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from session.plays import REQUEST, ProfileScripts, Run, check, play

from disco.cost import Rates
from disco.dispatch.assist_solver import AssistCase, NoShare, least_tokens
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import FOLLOW_TOKENS, Assist, Migration, Plan, Start
from disco.playback import Pace, reader_metrics
from disco.request import Timeouts
from disco.session.effects import StartAttempt
from disco.session.records.route_record import RouteRecord
from disco.session.switching.answer_lengths import AnswerLengths

LONG = 1_000  # prompt tokens
ANSWER = 120
TTFT_S, SERVER_TPS, READ_TPS, DEVICE_TPS, PACE_TPS = 0.6, 50.0, 250.0, 30.0, 10.0
PLAIN = (
    "A word after another one and so on without a stop " * 40
)  # each token is a word, so one is lost at a cut


def divided(
    tokens: int = 40,
    *,
    prompt_tokens: int = LONG,
    server: dict[str, Any] | None = None,
    device: dict[str, Any] | None = None,
    fallbacks: tuple[str, ...] = (),
    believed: dict[str, Any] | None = None,
    max_tokens: int | None = ANSWER,
    **how: Any,
) -> Run:
    profiles = {
        "device": SimulatedProfile(
            **{"prefill_tps": READ_TPS, "decode_tps": DEVICE_TPS, "answer": PLAIN, **(device or {})}
        ),
        "server": SimulatedProfile(
            **{"ttft_s": TTFT_S, "decode_tps": SERVER_TPS, "answer": PLAIN, **(server or {})}
        ),
    }
    assist = Assist("server", "device", tokens)
    plan = Plan((Start("server"), Start("device")), fallbacks, assist=assist)
    facts = {"device": {"follows": True}, "server": {"limits": True}}
    for name, more in (believed or {}).items():
        facts[name] = {**facts[name], **more}
    request = REQUEST if max_tokens is None else REQUEST.capped(max_tokens)
    how = {"pace": Pace(PACE_TPS), "costs": {"server": 1e-6, "device": 1e-8}, **how}
    return play(
        profiles,
        plan,
        request=request,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        believed=facts,
        **how,
    )


def record(run: Run) -> RouteRecord:
    found = check(run)
    assert found.assist is not None
    return found


def of(found: RouteRecord, endpoint: str) -> list[Any]:
    return [attempt for attempt in found.attempts if attempt.endpoint == endpoint]


def test_the_server_writes_its_share_and_the_device_goes_on_without_a_seam():
    run = divided(40)
    found = record(run)
    assert found.assist.outcome == "handed_over"
    assert found.finish_reason == "length"  # of the request's limit; that of the server's share is not shown
    assert found.answer_tokens == ANSWER
    assert PLAIN.startswith(run.text)
    (server,) = of(found, "server")
    assert server.tokens <= 40 < found.answer_tokens
    follower, target = of(found, "device")
    assert (follower.outcome, target.outcome) == ("parked", "finished")
    assert target.cached_tokens >= LONG + server.kept_tokens - 1  # nothing is read twice
    assert found.pace.late_tokens == 0
    assert found.released[0][0] == pytest.approx(TTFT_S)
    assert found.assist.read_s == pytest.approx(LONG / READ_TPS)


class Pauses:
    """Gaps between tokens: a pause before every fourteenth one, 11 tokens/s on the whole."""

    def sample(self, rng: Any, n: int, /) -> np.ndarray:
        return np.resize([0.6] + [0.05] * 13, n // 14 * 14)


def test_a_device_that_pauses_now_and_then_is_shown_without_a_gap():
    found = record(divided(60, device={"gap_s": Pauses()}))
    assert found.assist.outcome == "handed_over"
    times = [at for at, _ in found.released]
    assert max(later - at for at, later in pairwise(times)) < 1.05 / PACE_TPS


def test_a_device_that_is_ready_first_writes_the_whole_answer():
    found = record(divided(40, prompt_tokens=100))
    assert found.assist.outcome == "heir_first"
    assert found.winner == "device"
    assert [a.outcome for a in of(found, "server")] == ["lost"]
    assert len(found.segments) == 1


def test_a_device_that_catches_up_early_goes_on_before_the_share_is_used_up():
    found = record(divided(110, prompt_tokens=250))
    (server,) = of(found, "server")
    assert server.tokens < 60
    assert found.pace.late_tokens == 0


def test_an_answer_that_is_complete_within_the_share_ends_there():
    found = record(divided(40, server={"answer": "Yes, it is."}))
    assert found.assist.outcome == "complete"
    assert found.finish_reason == "stop"
    assert len(found.segments) == 1


@pytest.mark.parametrize("after", [0, 3, 39])
def test_when_the_server_dies_the_device_goes_on_where_it_was(after):
    run = divided(40, server={"fault": Fault(after, kind=FailureKind.CONNECTION)})
    found = record(run)
    assert found.answer_tokens == ANSWER
    assert PLAIN.startswith(run.text)
    assert found.segments[-1].endpoint == "device"
    assert found.assist.outcome == ("heir_first" if after == 0 else "handed_over")
    # The prompt was read once.
    assert sum(a.prompt_tokens - a.cached_tokens for a in of(found, "device")) <= LONG + after + 5


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("at_s", [0.1, 1.5])
def test_when_the_device_dies_while_it_reads_a_server_completes_the_answer(continues, at_s):
    fault = Fault(0, kind=FailureKind.CRASHED, silence_s=at_s, at_once=True)
    run = divided(40, server={"continues": continues}, device={"fault": fault})
    if at_s > TTFT_S and not continues:
        # The reader has text, and no endpoint can go on with it: what there is stays, and the error says why.
        check(run)
        assert run.error is not None
        assert PLAIN.startswith(run.text)
        assert len(run.text.split()) >= 38
        return
    found = record(run)
    assert found.answer_tokens == ANSWER
    assert PLAIN.startswith(run.text)
    assert {segment.endpoint for segment in found.segments} == {"server"}
    assert found.assist.outcome == "heir_lost"


class Unlimited(ProfileScripts):
    """A server that does not keep to a limit."""

    def script(self, start: StartAttempt, *, kept: int | None) -> Any:
        return super().script(replace(start, cap=None), kept=kept)


def test_a_server_that_ignores_its_limit_is_stopped_just_behind_it():
    run = divided(20, prompt_tokens=800, scripts=Unlimited)
    found = record(run)
    (server,) = of(found, "server")
    assert 20 < server.tokens <= 26
    assert found.assist.over_limit
    assert found.answer_tokens == ANSWER
    assert PLAIN.startswith(run.text)


def test_a_device_that_stays_silent_is_given_up():
    clocks = Timeouts(connect_s=None, first_content_s=5.0, gap_s=None, total_s=None)
    fault = Fault(0, kind=None, silence_s=math.inf)
    found = record(divided(40, device={"fault": fault}, timeouts=clocks))
    assert found.answer_tokens == ANSWER
    assert found.assist.outcome == "heir_lost"
    assert found.segments[-1].endpoint == "server"


@settings(max_examples=60, deadline=None)
@given(
    prompt_tokens=st.integers(200, 4_000),
    read_tps=st.floats(60.0, 2_000.0),
    server_tps=st.floats(12.0, 200.0),
    device_tps=st.floats(12.0, 60.0),
    ttft_s=st.floats(0.05, 2.0),
    pace_tps=st.floats(4.0, 12.0),
)
def test_no_token_is_late_where_the_solver_says_so_and_one_is_with_a_token_less(
    prompt_tokens, read_tps, server_tps, device_tps, ttft_s, pace_tps
):
    case = AssistCase(
        prompt_tokens=prompt_tokens,
        server_ttft_s=ttft_s,
        server_tpot_s=1 / server_tps,
        device_read_s=1 / read_tps,
        device_tpot_s=1 / device_tps,
        device_overhead_s=1 / read_tps,  # the last token is always computed again
        slowest_tpot_s=1 / pace_tps,
        lengths=AnswerLengths.geometric(300.0),
        server_rates=Rates(1e-7, 1e-6),
        lost_at_cut=1,
        batch_tokens=2 * FOLLOW_TOKENS,
    )
    tokens = least_tokens(case, case.read_s())
    assume(not isinstance(tokens, NoShare) and tokens <= 300)
    fewer = replace(case, batch_tokens=1)  # as if the device read every token when it comes
    is_exact = fewer.ready_s(case.read_s(), tokens - 1) > fewer.due_s(tokens - 1) + 0.02 and tokens > 2

    def late(share: int) -> int:
        run = divided(
            share,
            prompt_tokens=prompt_tokens,
            server={"ttft_s": ttft_s, "decode_tps": server_tps},
            device={"prefill_tps": read_tps, "decode_tps": device_tps},
            pace=Pace(pace_tps),
            max_tokens=share + 30,
        )
        found = record(run)
        assert PLAIN.startswith(run.text)
        return reader_metrics.late_tokens(found.released, pace_tps)

    assert late(tokens) == 0
    if is_exact:
        assert late(tokens - 1) > 0


FAULTS = st.none() | st.builds(
    Fault,
    after_tokens=st.sampled_from([0, 1, 3, 20, 39, 40]),
    silence_s=st.sampled_from([0.0, 0.4, math.inf]),
    kind=st.sampled_from([None, FailureKind.CONNECTION, FailureKind.CRASHED, FailureKind.RATE_LIMIT]),
)


@settings(max_examples=80, deadline=None)
@given(
    tokens=st.integers(1, 60),
    prompt_tokens=st.sampled_from([20, 140, 160, 400, LONG]),
    faults=st.tuples(FAULTS, FAULTS),
    seam=st.sampled_from(["exact", "echoes", "restarts"]),
    continues=st.booleans(),
    follows=st.booleans(),
    parks=st.booleans(),
    words=st.sampled_from([PLAIN, None, "unbroken" * 60, "", "Short."]),
    cancel_at=st.none() | st.floats(0.0, 12.0),
    cancel_takes_s=st.sampled_from([0.0, 0.7]),
    ignores=st.booleans(),
)
def test_nothing_is_lost_and_nothing_comes_twice_whatever_happens(
    tokens, prompt_tokens, faults, seam, continues, follows, parks, words, cancel_at, cancel_takes_s, ignores
):
    written = {"answer": words} if words is not None else {"answer": None, "answer_tokens": 70}
    run = divided(
        tokens,
        prompt_tokens=prompt_tokens,
        server={**written, "fault": faults[0], "continues": continues, "seam": seam},
        device={**written, "fault": faults[1], "seam": seam},
        believed={"device": {"follows": follows, "parks": parks}},
        timeouts=Timeouts(connect_s=None, first_content_s=6.0, gap_s=3.0, total_s=60.0),
        cancel_at=math.inf if cancel_at is None else cancel_at,
        cancel_takes_s=cancel_takes_s,
        **({"scripts": Unlimited} if ignores else {}),
    )
    record(run)
    if words:
        assert words.startswith(run.text)
    if cancel_at is None and words != "" and run.error is None:
        assert run.finished in ("stop", "length")


def test_a_due_move_waits_for_a_target_that_reads_along_and_gives_it_no_more():
    """The target reads eight tokens more slowly than the next eight come, so it would never be done."""
    slow = {"prefill_tps": 40.0, "decode_tps": DEVICE_TPS, "answer_tokens": 400}
    profiles = {
        "device": SimulatedProfile(**slow),
        "server": SimulatedProfile(ttft_s=0.1, decode_tps=60.0, answer_tokens=400),
    }
    moves = {"server": Migration("device")}
    plan = Plan((Start("server"), Start("device")), migrations=moves, order="make_before_break")
    run = play(
        profiles,
        plan,
        pace=Pace(PACE_TPS),
        costs={"server": 1e-6, "device": 1e-9},
        believed={"device": {"follows": True}},
    )
    found = check(run)
    (move,) = found.migrations
    assert (move.outcome, move.late_tokens) == ("switched", 0)
    assert found.segments[-1].endpoint == "device"
