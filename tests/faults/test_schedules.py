"""Whatever fails, whenever, as often as it likes: as long as one endpoint is well, the answer is complete and exact.

In virtual time. All endpoints would write the same text; so what the reader has must be that text, to the character.
"""

from __future__ import annotations

import math
from dataclasses import replace

import anyio
import moved_clock
import pytest
from faults.cases import CASES, FAILING, RETRIED, simulated
from faults.in_memory import MemoryServer, befallen
from faults.lab import asking, calm, device, get
from faults.proxy_server.origin import TEXT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session.plays import play
from situations import situations

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.request import Timeouts
from disco.session.attempt.attempt_state import AttemptOutcome

# ---------------------------------------------------------------------- clients

device_faults = st.builds(
    Fault,
    after_tokens=st.integers(0, 60) | st.none(),
    kind=st.sampled_from([FailureKind.CRASHED, FailureKind.INCOMPLETE, FailureKind.SEAM]),
)
ANY, AGAIN = (
    st.none() | st.sampled_from([case for case in CASES if case.failure is None or case in failing])
    for failing in (FAILING, RETRIED)
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    # The device is well; the server is; the server gets well before the retries are used up, by the device, too: it is
    # tried again while the server asks for 3 s.
    st.tuples(st.lists(ANY, max_size=4), st.none(), st.just(0))
    | st.tuples(st.just([]), device_faults, st.just(0))
    | st.tuples(st.lists(AGAIN, max_size=2), device_faults, st.just(8)),
    st.sampled_from(["server_only", "device_only", "race"]),
)
def test_a_client_gets_the_whole_answer_as_long_as_one_endpoint_is_well(what, policy):
    cases, fault, max_retries = what

    async def main():
        server = MemoryServer(*(befallen(case and case.fault) for case in cases), befallen(None))
        async with asking(server, device(fault=fault), policy=policy, max_retries=max_retries) as client:
            for stream in [True] if max_retries else [True, False]:
                calm(await get(client, stream=stream))
        assert server.open == 0

    name, options = moved_clock.virtual("asyncio")
    anyio.run(main, backend=name, backend_options=options)


# ---------------------------------------------------------------------- sessions

LONG = TEXT * 3
FAULTS = [fault for case in FAILING if (fault := simulated(case)) is not None]
GONE, SILENT = Fault(0, at_once=True), Fault(0, silence_s=math.inf, kind=None)
SOURCE = SimulatedProfile(answer=LONG, ttft_s=0.1, decode_tps=100.0)

faults = st.sampled_from(FAULTS) | st.builds(
    Fault,
    after_tokens=st.integers(0, 200) | st.none(),
    silence_s=st.sampled_from([0.0, 0.3, 20.0, math.inf]),
    kind=st.none() | st.sampled_from([k for k in FailureKind if not k.is_callers_fault]),
)


@st.composite
def schedules(draw: st.DrawFn, well: int) -> dict[str, object]:
    """So many endpoints are well, 0 or 1."""
    drawn = draw(situations())
    profiles = drawn["profiles"]
    names = draw(st.permutations(list(profiles)))
    for number, name in enumerate(names):
        exact = "exact" if profiles[name].seam == "restarts" else profiles[name].seam
        profile = replace(profiles[name], answer=LONG, continues=True, seam=exact)
        if number < well:  # reading an echo of all there is must not take longer than a first token may
            profiles[name] = replace(profile, decode_tps=max(50.0, profile.decode_tps), fault=None)
        else:
            profiles[name] = replace(profile, decode_tps=max(5.0, profile.decode_tps), fault=draw(faults))
    # Slower than the gap allows is a failure; slower than a deadline is late.
    more = {"max_retries": draw(st.integers(0, 2)), "timeouts": Timeouts(total_s=None), "cancel_at": math.inf}
    return {**drawn, **more}


@settings(max_examples=120)
@given(schedules(1))
def test_one_endpoint_that_is_well_is_enough(schedule):
    run = play(**schedule)
    assert (run.error, run.finished, run.text, run.running) == (None, "stop", LONG, set())
    assert all(a.stopped for a in run.session.attempts)


def test_who_was_silent_while_another_went_on_is_asked_again_when_that_one_dies():
    """Also without retries: the edge is well, and only takes longer than is believed to read an echo."""
    profiles = {
        "device": replace(SOURCE, fault=Fault(52, silence_s=math.inf, kind=None)),
        "server": replace(SOURCE, fault=Fault(3, kind=FailureKind.CONNECTION)),
        "edge": replace(SOURCE, decode_tps=50.0, ttft_s=1.0, seam="echoes"),
    }
    run = play(
        profiles=profiles,
        plan=Plan((Start("device"),), ("edge",), heirs=("device", "server", "edge")),
        believed={
            name: {"silence_s": None, "slow_start": 1.0 if name == "edge" else None} for name in profiles
        },
        costs=dict.fromkeys(profiles, 1e-9),
        pace=None,
        streams=False,
        max_retries=0,
    )
    assert (run.error, run.finished, run.text) == (None, "stop", LONG)
    assert [a.candidate.name for a in run.session.attempts] == ["device", "edge", "server", "edge"]


@settings(max_examples=60)
@given(schedules(0))
def test_with_nobody_well_nothing_is_repeated_and_the_first_error_is_raised(schedule):
    run = play(**schedule)
    assert LONG.startswith(run.text)
    if run.finished is None:
        assert run.error is run.session.error
        assert any(a.failure is not None for a in run.session.attempts)
    else:
        assert run.text == LONG
    assert not run.running


# What became of the move, whether its source failed, whether its target did: must be among what happens.
WELL, TWICE = ("switched", True, False), ("target_failed", True, True)


@pytest.mark.parametrize(
    ("target_fault", "among"),
    [(None, WELL), (SILENT, TWICE), (GONE, TWICE), (Fault(3), ("switched", True, True))],
    ids=["well", "silent", "gone", "later"],
)
def test_wherever_the_source_of_a_move_fails_the_answer_is_whole(target_fault, among):
    """It is dear where it begins and cheap elsewhere; a third one could take over."""
    there = {"device": replace(SOURCE, ttft_s=1.0, seam="echoes", fault=target_fault), "edge": SOURCE}
    plan = Plan((Start("server"),), ("device", "edge"), {"server": Migration("device")})
    settings = {
        "costs": {"server": 1e-3, "device": 1e-9, "edge": 1e-3},
        "pace": Pace(tps=10.0),
        "max_retries": 0,
    }
    seen = set()
    for number, fault in enumerate((None, *map(Fault, range(1, 80, 3)))):
        order = ("make_before_break", "break_before_make")[number % 2]
        there = {name: replace(each, packet_tokens=1 + number % 4) for name, each in there.items()}
        run = play({"server": replace(SOURCE, fault=fault), **there}, replace(plan, order=order), **settings)
        assert (run.text, run.finished) == (LONG, "stop"), fault
        failed = {a.number for a in run.session.attempts if a.outcome is AttemptOutcome.FAILED}
        seen |= {(m.outcome, m.source in failed, m.target in failed) for m in run.session.migrations}
        if fault is None and target_fault is GONE:  # a target that fails is given up at once
            assert [a.candidate.name for a in run.session.attempts] == ["server", "device"]
    assert among in seen
