"""A preset that is replayed gives the records that the same answers give live, with the same draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lived import LONGEST, Asked, Side, both, differences
from lived_pairs import pair_of

from disco.dispatch import Plan, Preset, Start
from disco.errors import ConfigurationError
from disco.judging import HistoryKey, StoredHistory
from disco.rates import Rates
from disco.replay.pairs import Pair, Split
from disco.replay.stations import AsLive, KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.workload.trace import Trace
from disco.speculate.chunks import PassTimes
from disco.speculate.seen import VerifyCurve

PACES = st.sampled_from([6.0, 12.0, 25.0, "off"])


def asked(sides, draw, *, longest_prompt: int = 300, longest: int = LONGEST) -> list[Asked]:
    count = draw(st.integers(1, 6))
    gaps = draw(st.lists(st.sampled_from([0.11, 0.37, 2.0, 30.0]), min_size=count, max_size=count))
    lengths = st.integers(1, longest)
    found, at = [], 0.0
    for gap in gaps:
        at += gap
        found.append(
            Asked(at, draw(st.integers(4, longest_prompt)), {side.name: draw(lengths) for side in sides})
        )
    return found


class Given:
    """A store of histories, the same for every model."""

    def __init__(self, scores, names) -> None:
        self.scores, self.names = tuple(scores), names

    def load(self):
        kinds = ("sum", "weakest", "lowest_mean", "mean")
        return {
            HistoryKey("default", f"{name}/", kind): StoredHistory(self.scores, len(self.scores))
            for name in self.names
            for kind in kinds
        }

    def save(self, histories):
        raise AssertionError("a replay saves no history")


CASCADE = (
    Side("device", 0, prefill_tps=200.0, ttft_s=0.2013, decode_tps=30.7, mean_logp=-0.5),
    Side("middle", 1, ttft_s=0.4037, decode_tps=61.3, usd_per_token=1e-6, mean_logp=-0.3),
    Side("best", 2, ttft_s=0.8171, decode_tps=45.9, usd_per_token=8e-6),
)


@settings(max_examples=40)
@given(
    st.data(),
    st.fixed_dictionaries(
        {
            "beta": st.sampled_from([0.1, 0.5, 0.8]),
            "rule": st.sampled_from(["exact", "paper"]),
            "confidence": st.sampled_from(["auto", "mean", "sum", "weakest"]),
            "stream": st.sampled_from(["guard", "whole", "revise"]),
            "guard_tokens": st.sampled_from([1, 4, 16]),
            "early_exit": st.booleans(),
        }
    ),
    st.sampled_from([{}, {"aim": "money", "usd_per_answer": 2e-4}]),
    st.sampled_from([{}, {"server_tokens": 600, "window_s": 60.0}, {"usd": 1e-3, "per": "hour"}]),
    PACES,
    st.lists(st.floats(0.01, 1.0), max_size=40),
)
def test_a_cascade_rises_as_live(data, cascade, aim, limits, pace, scores):
    sides = CASCADE[: data.draw(st.integers(1, 3))]
    preset = Preset(
        name="rises",
        dispatch={"policy": "cascade"},
        cascade={**cascade, **aim},
        limits=limits,
        migration={"enabled": False},
        playback={"pace_tps": pace},
    )
    histories = Given(scores, [side.name for side in sides])
    limit = data.draw(st.sampled_from([None, 20]))
    lived, replayed = both(preset, sides, asked(sides, data.draw), max_tokens=limit, histories=histories)
    assert not differences(lived, replayed)


ASSIST = (
    # A simulated device needs its fixed time for each batch that it reads as an heir; a station has none there.
    Side("device", 0, prefill_tps=311.0, ttft_s=0.0, decode_tps=30.7, mean_logp=-0.5),
    Side("server", 1, ttft_s=0.4037, decode_tps=61.3, usd_per_token=8e-6),
)


@settings(max_examples=20)
@given(
    st.data(),
    st.fixed_dictionaries(
        {
            "tokens": st.sampled_from(["auto", 12]),
            "tempo": st.sampled_from(["follow", "once"]),
            "beta": st.sampled_from(["off", 0.3]),
        }
    ),
    st.sampled_from([6.0, 10.0, 14.0]),
)
def test_an_answer_is_divided_as_live(data, assist, pace):
    preset = Preset(name="divides", dispatch={"policy": "assist"}, assist=assist, playback={"pace_tps": pace})
    limit = data.draw(st.sampled_from([None, 40]))
    requests = [
        replace(one, answer_tokens=dict.fromkeys(("device", "server"), one.answer_tokens["server"]))
        for one in asked(ASSIST, data.draw, longest_prompt=1500, longest=200)
    ]
    lived, replayed = both(preset, ASSIST, requests, max_tokens=limit)
    assert not differences(lived, replayed)


def test_a_class_is_chosen_and_judged_by_its_scores():
    """The device is unsure of every second text; the server's class replaces those."""
    classes, n = ("spam", "ham"), 40
    rng = np.random.default_rng(0)
    sure = [(-0.05, -3.0) if i % 2 else (-0.69, -0.70) for i in range(n)]
    device_scores = [tuple(v - 0.01 * rng.random() for v in row) for row in sure]
    stations = [side.station for side in CASCADE[::2]]
    known = {
        "device": KnownTimes(label_scores=device_scores),
        "best": KnownTimes(label_scores=[(-4.0, -0.02)] * n),
    }
    trace = Trace.of(arrival_s=range(0, 10 * n, 10), prompt_tokens=[50] * n, output_tokens=[1] * n)
    workload = resolve_stations(trace, stations, seed=0, known=known, classes=classes, tasks=["triage"] * n)
    records = {}
    preset = Preset(dispatch={"policy": "cascade"}, cascade={"beta": 0.5})
    simulate_stations(workload, stations, AsLive(preset), on_record=records.__setitem__)
    judged = [records[row].judgements[0] for row in range(n)]
    assert {(one.task, one.kind) for one in judged} == {("triage", "class")}
    rose = [records[row].segments[-1].endpoint == "best" for row in range(n)]
    assert rose == [one.outcome == "handed_up" for one in judged]
    assert sum(rose[::2]) > sum(rose[1::2])
    assert 0.35 <= sum(rose) / n <= 0.65


def test_what_a_judge_reads_must_belong_to_the_requests():
    stations = [side.station for side in CASCADE[:2]]
    trace = Trace.of(arrival_s=[0, 1], prompt_tokens=[9, 9], output_tokens=[3, 3])
    for known, more, message in (
        ({"device": KnownTimes(logp=[(-0.5,)])}, {}, r"logp of 'device' has 1 entries for 2 requests"),
        ({"device": KnownTimes(logp=[(0.5,), ()])}, {}, r"logp of 'device' holds .* above 0"),
        ({}, {"classes": ("spam", "ham")}, r"label_scores of 'device' must have"),
        ({}, {"tasks": ("triage",)}, r"tasks has 1 entries for 2 requests"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            resolve_stations(trace, stations, seed=0, known=known, **more)
    preset = {"dispatch": {"policy": "cascade"}, "cascade": {"aim": "bytes", "bytes_per_answer": 1e4}}
    with pytest.raises(ConfigurationError, match="knows no bytes"):
        AsLive(Preset(**preset))


CURVE = VerifyCurve([(1, 0.0291), (2, 0.0313), (5, 0.0432), (9, 0.0611)])
DRAFTING = Side("device", 0, prefill_tps=201.3, ttft_s=0.0, decode_tps=61.7)
VERIFIES = Side("served", 1, ttft_s=0.4037, decode_tps=1 / CURVE.s(1), usd_per_token=8e-6)


@settings(max_examples=25)
@given(
    st.data(),
    st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    st.sampled_from([0.0, 0.0107, 0.1]),
    st.sampled_from(["optimal", "dynamic", 3]),
    st.sampled_from([None, 0.1]),
    PACES,
)
def test_an_answer_is_drafted_as_live(data, acceptance, round_trip_s, window, min_gain, pace):
    pair = Pair(
        1 / DRAFTING.decode_tps,
        CURVE,
        acceptance,
        round_trip_s=round_trip_s,
        read_tps=201.3,
        rates=Rates(1e-9, 2e-9),
        window=window,
        parallel=1,
        min_gain=min_gain,
    )
    stations = [DRAFTING.station, replace(VERIFIES.station, pair=pair, parks=False, pauses=False)]
    drafted_alike(data, stations, pace)


# The figures of the live split's tests: states of 1,000 bytes on a link of 1 MB/s up and 2 MB/s down, and a layer
# server for which a pass of 64 rows is quicker than one of 63 (tests/endpoints/split/test_link_meter.py).
LAYERS = PassTimes([(1, 0.02), (63, 0.9), (64, 0.25), (256, 0.9)], pass_rows=256)
SPLIT = Split(
    device_s=PassTimes([(1, 0.0031), (64, 0.0407)]),
    server_s=LAYERS,
    up_bps=1e6,
    down_bps=2e6,
    rtt_s=0.0503,
    state_bytes=1000,
    head_s=0.0017,
)


@settings(max_examples=12)
@given(
    st.data(),
    st.sampled_from([None, 0.0043, 0.031]),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from(["makespan", "equation3", "all", 16]),
    st.sampled_from(["last", "all"]),
    st.sampled_from(["optimal", 4]),
    st.sampled_from([None, 0.05]),
    st.sampled_from([0, 1, 2]),
)
def test_a_model_is_split_as_live(data, draft_s, acceptance, chunks, reply, window, min_gain, branches):
    split = replace(
        SPLIT,
        draft_s=draft_s,
        acceptance=acceptance,
        chunks=chunks,
        reply=reply,
        window=window,
        min_gain=min_gain,
        branches=branches,
    )
    cut = Station.of_split(split, Rates(1e-7, 4e-7), name="served", slots=None, rank=1)
    drafted_alike(data, [DRAFTING.station, cut], "off")


def drafted_alike(data, stations, pace):
    """The records of answers of a pair are those of the live rounds.

    In turn, and one answer after the other: what two windows or two answers learn at the same moment, a live event loop
    learns in any order. The pair is alone: of a loser in a race, a live client estimates what it has read.
    """
    preset = Preset(
        name="drafts",
        dispatch={"policy": "server_only"},
        playback={"pace_tps": pace},
        migration={"enabled": False},
    )
    sides = (DRAFTING, VERIFIES)
    requests = [
        replace(
            one,
            arrival_s=60.0 * i,
            answer_tokens=dict.fromkeys(("device", "served"), one.answer_tokens["served"]),
        )
        for i, one in enumerate(asked(sides, data.draw, longest=120))
    ]
    limit = data.draw(st.sampled_from([None, 50]))
    made = {"served": pair_of(stations[1], 1)}
    lived, replayed = both(preset, sides, requests, max_tokens=limit, stations=stations, endpoints=made)
    assert not differences(lived, replayed)


def test_a_split_that_cannot_be_is_refused():
    for change, message in (
        ({"up_bps": 0.0}, "the link or the times of a split model are wrong"),
        ({"draft_s": 0.0}, "draft_s of a split model must be a time above 0 s"),
        ({"head_s": -1.0}, "head_s of a split model"),
        ({"chunks": 0}, "a chunk of a split model's prompt has at least 1 token"),
        ({"branch_hits": 2.0}, "branch_hits a share from 0 to 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            replace(SPLIT, **change)


def test_a_chunked_prompt_and_right_drafts_are_quicker_on_a_slow_link():
    """As the recursion and the window's arithmetic say: the first token, and the time per token of a long answer."""
    trace = Trace.of(arrival_s=[0.0], prompt_tokens=[600], output_tokens=[400])
    found = {}
    for name, changes in {
        "whole": {"chunks": "all", "batch_tokens": 1024},
        "cut": {},
        "drafted": {"draft_s": 0.0043, "acceptance": 1.0, "window": 4, "min_gain": None},
    }.items():
        split = replace(SPLIT, **changes)
        station = Station.of_split(split, Rates(1e-7, 4e-7))
        workload = resolve_stations(trace, [station], seed=0)
        records = []
        simulate_stations(
            workload,
            [station],
            lambda f, c: Plan((Start("split"),)),
            pace_tps=None,
            on_record=lambda _, record, records=records: records.append(record),
        )
        assert records[0].pace.ttft_raw_s == pytest.approx(split.ttft_s(600))
        at = [at for at, tokens in records[0].generated for _ in range(tokens)]
        found[name] = at[0], (at[-1] - at[100]) / (len(at) - 101)
    assert found["cut"][0] < 0.9 * found["whole"][0]
    assert found["cut"][1] == pytest.approx(SPLIT.round_s(1), rel=1e-3)
    assert found["drafted"][1] < 0.5 * found["cut"][1]
