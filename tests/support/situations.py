"""Drawn situations of a session: endpoints that are slow, wordy, mute or mortal, plans, readers."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Migration, Plan, Start
from disco.playback import Pace

NAMES = ("device", "server", "edge")

faults = st.none() | st.builds(
    Fault,
    after_tokens=st.integers(0, 40),
    silence_s=st.sampled_from([0.0, 0.3, 20.0, math.inf]),
    kind=st.sampled_from([None, FailureKind.CONNECTION, FailureKind.SERVER, FailureKind.INCOMPLETE]),
)
profiles_of_one = st.builds(
    SimulatedProfile,
    ttft_s=st.floats(0.01, 3.0),
    decode_tps=st.floats(2.0, 300.0),
    packet_tokens=st.integers(1, 7),
    answer_tokens=st.integers(0, 90),
    continues=st.booleans(),
    role_at_s=st.none() | st.just(0.0),
    seam=st.sampled_from(["exact", "echoes", "restarts"]),
    fault=faults,
)


# What is learnt of an endpoint's silences: nothing, or that it hardly ever is silent for so long.
learnt = st.fixed_dictionaries(
    {
        "silence_s": st.none() | st.sampled_from([0.004, 0.1, 0.25, 1.0]),
        "slow_start": st.none() | st.floats(0.1, 3.0),
    }
)


def heirs(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Who may start because another one is silent; often nobody."""
    return st.just(()) | st.permutations(names).map(tuple)


@st.composite
def situations(draw: st.DrawFn) -> dict[str, object]:
    names = NAMES[: draw(st.integers(1, 3))]
    starters = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    starts = tuple(Start(n, draw(st.sampled_from([0.0, 0.1, 1.0]))) for n in starters)
    rest = tuple(n for n in names if n not in starters)
    moves = {
        a: Migration(b, draw(st.booleans())) for a in names for b in names if a != b and draw(st.booleans())
    }
    order = draw(st.sampled_from(["auto", "make_before_break", "break_before_make"]))
    pace = draw(st.none() | st.floats(3.0, 60.0).map(lambda tps: Pace(tps=tps)))
    return {
        "profiles": {n: draw(profiles_of_one) for n in names},
        "plan": Plan(starts, rest, moves, order, heirs=draw(heirs(names))),  # type: ignore[arg-type]
        "believed": {n: draw(learnt) for n in names},
        "costs": {n: draw(st.sampled_from([1e-9, 1e-6, 1e-4])) for n in names},
        "pace": pace,
        "streams": draw(st.booleans()),
        "cancel_at": draw(st.just(math.inf) | st.floats(0.0, 5.0)),
        "cancel_takes_s": draw(st.sampled_from([0.0, 0.05])),
        "seed": draw(st.integers(0, 3)),
    }
