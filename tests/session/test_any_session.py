"""Properties of the session on one to five endpoints: moves, failovers, cancellation, whatever is drawn."""

from __future__ import annotations

import itertools
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from session.plays import check, play
from situations import profiles_of_one

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


@settings(max_examples=300)
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
