"""Whatever fails, whenever, as often as it likes: as long as one endpoint is well, the answer is complete and exact.

In virtual time, with moves under way: their source fails, their target fails, either falls silent. All endpoints
would write the same text; so what the reader has must be that text, to the character.
"""

from __future__ import annotations

import math
from dataclasses import replace

from defects.parts import play
from faults.cases import FAILING
from faults.proxy_server.origin import TEXT
from faults.proxy_server.simulate import simulated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.request import Timeouts
from disco.session.attempt.attempt_state import Role

NAMES = ("device", "server", "edge")
FAULTS = [fault for case in FAILING if (fault := simulated(case)) is not None]
LONG = TEXT * 3

faults = st.sampled_from(FAULTS) | st.builds(
    Fault,
    after_tokens=st.integers(0, 200) | st.none(),
    silence_s=st.sampled_from([0.0, 0.3, 20.0, math.inf]),
    kind=st.none() | st.sampled_from([k for k in FailureKind if not k.is_callers_fault]),
)
profiles = st.builds(
    SimulatedProfile,
    answer=st.just(LONG),
    ttft_s=st.floats(0.01, 2.0),
    decode_tps=st.floats(5.0, 300.0),
    packet_tokens=st.integers(1, 7),
    role_at_s=st.none() | st.just(0.0),
    seam=st.sampled_from(["exact", "echoes"]),
)


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, object]:
    names = NAMES[: draw(st.integers(2, 3))]
    well = draw(st.sampled_from(names))
    drawn = {name: draw(profiles) for name in names}
    for name in names:
        if name == well:  # reading an echo of all there is must not take longer than a first token may
            drawn[name] = replace(drawn[name], decode_tps=max(50.0, drawn[name].decode_tps))
        else:
            drawn[name] = replace(drawn[name], fault=draw(faults))
    starters = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    starts = tuple(Start(n, draw(st.sampled_from([0.0, 0.1, 1.0]))) for n in starters)
    rest = tuple(n for n in names if n not in starters)
    moves = {
        a: Migration(b, draw(st.booleans())) for a in names for b in names if a != b and draw(st.booleans())
    }
    order = draw(st.sampled_from(["make_before_break", "break_before_make"]))
    return {
        "profiles": drawn,
        "plan": Plan(starts, rest, moves, order),  # type: ignore[arg-type]
        "costs": {n: draw(st.sampled_from([1e-9, 1e-6, 1e-4])) for n in names},
        "pace": draw(st.none() | st.floats(3.0, 60.0).map(lambda tps: Pace(tps=tps))),
        "streams": draw(st.booleans()),
        "cancel_takes_s": draw(st.sampled_from([0.0, 0.05])),
        "max_retries": draw(st.integers(0, 2)),
        "timeouts": Timeouts(
            total_s=None
        ),  # slower than the gap allows is a failure; slower than a deadline is late
        "seed": draw(st.integers(0, 3)),
    }


@st.composite
def moves_under_way(draw: st.DrawFn) -> dict[str, object]:
    """A dear source, a cheap target that takes its time, and faults of both about the time of the move."""
    source, target, third = draw(st.permutations(NAMES))
    near = st.builds(
        Fault,
        after_tokens=st.integers(0, 60),
        silence_s=st.sampled_from([0.0, 0.0, 0.3, math.inf]),
        kind=st.none()
        | st.sampled_from([FailureKind.CONNECTION, FailureKind.INCOMPLETE, FailureKind.GARBAGE]),
    )
    fast = SimulatedProfile(answer=LONG, ttft_s=0.1, decode_tps=100.0, packet_tokens=draw(st.integers(1, 5)))
    slow = replace(fast, ttft_s=draw(st.floats(0.1, 1.5)))
    return {
        "profiles": {
            source: replace(fast, fault=draw(st.none() | near)),
            target: replace(
                slow, fault=draw(st.none() | near), seam=draw(st.sampled_from(["exact", "echoes"]))
            ),
            third: fast,
        },
        "plan": Plan(
            (Start(source),),
            tuple(draw(st.permutations([target, third]))),
            {source: Migration(target)},
            draw(st.sampled_from(["make_before_break", "break_before_make"])),
        ),
        "costs": {source: 1e-3, target: 1e-9, third: 1e-3},
        "pace": Pace(tps=draw(st.floats(4.0, 30.0))),
        "streams": draw(st.booleans()),
        "max_retries": 0,
        "timeouts": Timeouts(total_s=None),
    }


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules() | moves_under_way())
def test_one_endpoint_that_is_well_is_enough(schedule):
    run = play(**schedule)
    assert run.error is None
    assert run.finished == "stop"
    assert run.text == LONG
    assert not run.running
    assert all(a.stopped for a in run.session.attempts)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.data())
def test_with_nobody_well_nothing_is_repeated_and_the_first_error_is_raised(schedule, data):
    befallen = {
        name: profile if profile.fault else replace(profile, fault=data.draw(st.sampled_from(FAULTS)))
        for name, profile in schedule["profiles"].items()
    }
    run = play(**{**schedule, "profiles": befallen})
    assert LONG.startswith(run.text)
    if run.finished is None:
        assert run.error is run.session.error
        assert any(a.failure is not None for a in run.session.attempts)
    else:
        assert run.text == LONG
    assert not run.running


def test_a_first_word_that_nobody_has_seen_is_written_anew_by_whoever_is_asked_again():
    """There is nothing to go on from; whoever is asked again is a starter, and heard as one."""
    gone = Fault(0, at_once=True)
    there = {
        "server": SimulatedProfile(answer=TEXT, fault=Fault(2, kind=FailureKind.GARBAGE)),  # not asked again
        "edge": SimulatedProfile(answer=TEXT, fault=replace(gone, probability=0.5)),
    }
    runs = [
        play(there, Plan((Start("server"),), ("edge",)), streams=False, max_retries=1, seed=seed)
        for seed in range(20)
    ]
    again = [run for run in runs if len(run.session.attempts) == 3]
    assert {run.session.attempts[2].role for run in again} == {Role.STARTER}
    assert {run.finished for run in again} == {None, "stop"}
    assert {run.text for run in again if run.finished} == {TEXT}
