"""Windows, each against what its rule says."""

from __future__ import annotations

import json
from itertools import pairwise
from math import exp
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.speculate import WINDOWS, window_of
from disco.speculate.messages import LONGEST_DRAFT
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve
from disco.speculate.windows.answer_windows import window_for
from disco.speculate.windows.network import INPUTS, Block, Network, inputs_of
from disco.speculate.windows.stabilised import Stabilised

CURVE = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
A_SEEN = st.builds(
    Seen,
    acceptance=st.floats(0, 1),
    draft_s=st.floats(0, 0.1),
    round_trip_s=st.floats(0, 1),
    queue_s=st.floats(0, 1),
    utilisation=st.floats(0, 1),
    token_s=st.floats(0, 1),
    last_window=st.integers(0, 12),
    verify=st.just(CURVE),
)


class Asks:
    """Asks for what it is told to."""

    stop_below = 0.25

    def __init__(self, *windows: int) -> None:
        self.windows = list(windows)
        self.verdicts: list[tuple[int, int]] = []

    def choose(self, seen):
        return self.windows.pop(0) if len(self.windows) > 1 else self.windows[0]

    def judged(self, drafted, accepted):
        self.verdicts.append((drafted, accepted))


def a_network(width: int = 8, seed: int = 0, out: float = 4.0) -> Network:
    chance = np.random.default_rng(seed)
    blocks = tuple(
        Block(
            *(chance.normal(size=shape) / width for shape in ((width, width), width, (width, width), width))
        )
        for _ in range(2)
    )
    return Network(
        mean=np.array([0.5, 0.7, 20.0, 40.0, 4.0]),
        scale=np.array([0.3, 0.2, 15.0, 20.0, 3.0]),
        w_in=chance.normal(size=(width, 5)),
        b_in=chance.normal(size=width),
        blocks=blocks,
        w_out=chance.normal(size=width),
        b_out=out,
    )


def test_static_is_always_the_same():
    window = window_of("static")
    assert {window.choose(Seen(acceptance=a)) for a in (0.0, 0.5, 1.0)} == {4}
    assert window_of("static", n=0).choose(Seen()) == 0


def test_dynamic_moves_by_one_for_each_verdict_within_its_bounds():
    window = window_of("dynamic")
    seen = Seen(acceptance=0.5)  # which it does not look at
    assert [window.choose(seen), window.choose(seen)] == [4, 4]
    chosen = []
    for _ in range(10):
        window.judged(4, 4)
        chosen.append(window.choose(seen))
    assert chosen == [5, 6, 7, 8, 9, 10, 11, 12, 12, 12]
    for _ in range(3):  # of the last five rounds, some were right as a whole: neither above nor below
        window.judged(12, 5)
        assert window.choose(seen) == 12
    window.judged(0, 0)  # a token of the target alone is no verdict
    assert window.choose(seen) == 12
    for _ in range(30):
        window.judged(4, 0)
        low = window.choose(seen)
    assert low == 1


@pytest.mark.parametrize(
    ("acceptance", "least", "most"), [(0.5, 1, 3), (0.7, 2, 6), (0.8, 4, 9), (0.97, 10, 12)]
)
def test_dynamic_settles_where_accepted_of_drafted_lies_between_its_bounds(acceptance, least, most):
    window, rng = window_of("dynamic"), Random(3)
    chosen = []
    for _ in range(400):
        drafted = window.choose(Seen(acceptance=acceptance))
        right = next((n for n in range(drafted) if rng.random() >= acceptance), drafted)
        window.judged(drafted, right)
        chosen.append(drafted)
    assert least <= sum(chosen[50:]) / len(chosen[50:]) <= most


def test_confidence_leaves_the_end_to_the_drafter():
    window = window_of("confidence", eta=0.7, most=9)
    assert (window.choose(Seen()), window.stop_below) == (9, 0.7)


@pytest.mark.parametrize("min_gain", [None, 0.05])
@pytest.mark.parametrize(("eta", "stops_below"), [(0.3, 0.3), (0.0, 0.0), (None, 0.6)])
def test_an_answers_window_takes_the_threshold_of_its_drafts(min_gain, eta, stops_below):
    made = window_for("confidence", most=8, parallel=1, min_gain=min_gain, eta=eta)
    assert made().stop_below == stops_below
    others = window_for("dynamic", most=8, parallel=1, min_gain=min_gain, eta=eta)  # have no such threshold
    assert others().stop_below == 0.0


def test_a_threshold_out_of_range_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="eta"):
        window_for("confidence", most=8, parallel=1, min_gain=None, eta=1.5)


@given(A_SEEN, st.integers(1, 3), st.floats(0, 0.5))
def test_optimal_is_the_brute_force_minimum(seen, parallel, min_gain):
    window = window_of("optimal", parallel=parallel, min_gain=min_gain, stabilised=False).choose(seen)
    alone_s = token_s(0, seen)
    best_s = min(token_s(n, seen, parallel) for n in range(1, 13))
    if best_s < (1 - min_gain) * alone_s:
        assert token_s(window, seen, parallel) == best_s
    else:
        assert window == 0


def test_optimal_on_measured_times():
    """F32 target, Q8_0 draft, 10 ms (drafting pays) and a Q4_0 target with the same draft (it does not)."""
    q4 = VerifyCurve([(1, 0.0072), (2, 0.016), (5, 0.035), (9, 0.050), (16, 0.054)])
    window = window_of("optimal", stabilised=False)
    assert window.choose(Seen(acceptance=0.97, draft_s=0.0093, round_trip_s=0.01, verify=CURVE)) >= 7
    assert window.choose(Seen(acceptance=0.97, draft_s=0.0093, round_trip_s=0.01, verify=q4)) == 0


@given(st.lists(st.integers(-5, 100), min_size=1, max_size=60), st.sampled_from((0, 1)))
def test_a_stabilised_window_stays_within_its_bounds(asked, lowest):
    window = Stabilised(Asks(*asked), lowest=lowest)
    for _ in range(2 * len(asked)):
        assert 0 <= window.choose(Seen()) <= 12


def test_the_newest_value_weighs_04():
    window = Stabilised(Asks(10, 5, 5, 5))
    assert [window.choose(Seen()) for _ in range(4)] == [10, 8, 7, 6]  # 10, 8, 6.8, 6.08


def test_the_target_alone_takes_two_steps_in_and_two_out():
    window = Stabilised(Asks(4, 1))
    assert window.stop_below == 0.25
    chosen = [window.choose(Seen()) for _ in range(6)]  # smoothed: 4, 2.8, 2.08, 1.65, 1.39, 1.23
    assert chosen == [4, 3, 2, 2, 1, 0]
    assert window.is_alone
    window._inner.windows = [12]
    assert [window.choose(Seen()) for _ in range(3)] == [0, 8, 10]
    assert not window.is_alone


def test_probes_come_back_from_the_target_alone_ever_less_often():
    window = Stabilised(Asks(1), probe=3)
    chosen = [window.choose(Seen()) for _ in range(300)]
    places = [place for place, one in enumerate(chosen) if one and place > 1]
    assert {chosen[place] for place in places} == {3}
    assert [b - a for a, b in pairwise(places)] == [16, 32, 64, 64, 64]


def test_without_probes_stale_acceptance_would_never_recover():
    """Acceptance is low at first; only a probe can show that it has risen."""
    window = window_of("optimal")
    seen = Seen(acceptance=0.05, draft_s=0.005, round_trip_s=0.001, verify=CURVE)
    chosen = []
    for _ in range(60):
        count = window.choose(seen)
        chosen.append(count)
        if count and len(chosen) > 10:
            seen.acceptance = 0.95  # what a round shows now
    assert 0 in chosen[:10]
    assert min(chosen[-20:]) >= 4


def test_verdicts_reach_the_window_inside():
    inner = Asks(4)
    Stabilised(inner).judged(4, 2)
    assert inner.verdicts == [(4, 2)]


def test_the_network_computes_what_its_definition_says():
    network = a_network()
    seen = Seen(0.8, 0.01, 0.03, 0.002, 0.4, 0.05, 6)
    inputs = inputs_of(seen)
    assert inputs == (0.4, 0.8, 30.0, 50.0, 6.0)
    hidden = [
        sum(w * (x - m) / s for w, x, m, s in zip(row, inputs, network.mean, network.scale, strict=True)) + b
        for row, b in zip(network.w_in, network.b_in, strict=True)
    ]
    hidden = [x / (1 + exp(-x)) for x in hidden]
    for block in network.blocks:
        inner = [
            sum(w * x for w, x in zip(row, hidden, strict=True)) + b
            for row, b in zip(block.w1, block.b1, strict=True)
        ]
        inner = [x / (1 + exp(-x)) for x in inner]
        more = [
            sum(w * x for w, x in zip(row, inner, strict=True)) + b
            for row, b in zip(block.w2, block.b2, strict=True)
        ]
        hidden = [a + b for a, b in zip(hidden, more, strict=True)]
    expected = sum(w * x for w, x in zip(network.w_out, hidden, strict=True)) + network.b_out
    assert float(network(inputs)) == pytest.approx(expected)
    assert network([inputs, inputs]).tolist() == pytest.approx([expected] * 2)


def test_weights_survive_a_file(tmp_path):
    network = a_network()
    path = tmp_path / "awc.json"
    path.write_text(json.dumps(json.loads(network.to_json()) | {"trained_on": "a sweep"}), encoding="utf-8")
    seen = Seen(0.8, 0.01, 0.03, 0.002, 0.4, 0.05, 6)
    asked = round(min(max(float(network(inputs_of(seen))), 0), 12))
    assert window_of("adaptive", weights=str(path), stabilised=False).choose(seen) == asked
    assert window_of("adaptive", weights=network, stabilised=False).choose(seen) == asked


@pytest.mark.parametrize("asks", [-1e9, -0.4, 0.4, 4.4, 1e9, float("inf")])
def test_adaptive_stays_within_its_bounds(asks):
    window = window_of("adaptive", weights=a_network(out=asks), stabilised=False)
    assert 0 <= window.choose(Seen()) <= 12
    assert 0 <= window_of("adaptive", weights=a_network(out=asks)).choose(Seen()) <= 12


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": INPUTS[::-1]},
        {"w_in": [[1.0]]},
        {"mean": [0.0] * 4},
        {"scale": [0.0] * 5},
        {"b_out": "four"},
        {"b_out": float("nan")},
        {"blocks": [{"w1": []}]},
        {"blocks": None},
        {"b_in": 3},
    ],
)
def test_weights_that_are_none_are_refused(tmp_path, change):
    path = tmp_path / "awc.json"
    path.write_text(json.dumps(json.loads(a_network().to_json()) | change), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not weights of the adaptive window"):
        window_of("adaptive", weights=path)


def test_a_missing_file_of_weights_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.json cannot be read"):
        window_of("adaptive", weights=tmp_path / "none.json")
    path = tmp_path / "broken.json"
    path.write_bytes(b"\xff{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        window_of("adaptive", weights=path)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("optimum", {}, "Did you mean 'optimal'"),
        ("static", {"m": 4}, "no setting 'm'"),
        ("static", {"n": LONGEST_DRAFT + 1}, "n must be a whole number from 0 to 64"),
        ("static", {"n": True}, "n must be a whole number"),
        ("dynamic", {"low": 0.8, "high": 0.2}, "must rise"),
        ("dynamic", {"start": 0}, "start must be"),
        ("confidence", {"eta": 1.5}, "eta must be a number"),
        ("optimal", {"parallel": 0}, "parallel must be"),
        ("optimal", {"min_gain": -0.1}, "min_gain must be"),
        ("static", {"min_gain": 1}, "min_gain must be"),
    ],
)
def test_a_wrong_name_or_setting_is_explained(name, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        window_of(name, **settings)


@given(st.sampled_from(sorted(WINDOWS)), st.lists(A_SEEN, min_size=1, max_size=20))
def test_no_window_asks_for_more_than_a_message_holds(name, all_seen):
    window = window_of(name)
    for seen in all_seen:
        count = window.choose(seen)
        assert 0 <= count <= LONGEST_DRAFT
        window.judged(count, count // 2)


@pytest.mark.parametrize("name", ["static", "dynamic", "confidence"])
def test_a_least_gain_makes_any_window_stop_where_it_does_not_pay(name):
    window = window_of(name, min_gain=0.1)
    bad = Seen(acceptance=0.1, draft_s=0.03, round_trip_s=0.06, verify=CURVE)
    chosen = [window.choose(bad) for _ in range(7)]
    assert chosen[-3:] == [0, 0, 0]
    good = Seen(acceptance=0.95, draft_s=0.002, round_trip_s=0.001, verify=CURVE)
    assert [window.choose(good) for _ in range(8)][-1] >= 4
