"""A drafter and a verify server in virtual time: the text is the server's, the times are the predicted ones, the
ledger is that of a live client, and the session treats the pair as any other endpoint."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace  # noqa

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_stations import CLOUD, HOME, PHONE, at, check_record, one, same, trace

from disco.cost import Phase, Rates
from disco.dispatch import Migration, Plan, Start
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError, FailureKind
from disco.profiles import Empirical
from disco.replay.fleet.configuration.fleet_toml import scenario_from
from disco.replay.fleet.requests.fleet_trace import FleetRequest
from disco.replay.fleet.results.fleet_figures import answer_record
from disco.replay.fleet.simulation.fleet_simulator import simulate_fleet
from disco.replay.pairs import Pair
from disco.replay.stations import KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve

CURVE = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
"""Measured: an F32 target on one core."""
PAIR = Pair(
    0.0093,
    CURVE,
    0.8,
    round_trip_s=0.01,
    read_tps=100.0,
    drafter="phone",
    rates=PHONE.rates,
    window=4,
    min_gain=None,
)


def served(pair: Pair | None = PAIR, **changed: object) -> Station:
    """A verify server whose first token takes 0.3 s, with the phone as its drafter."""
    ttft = Empirical.from_quantiles([0, 1], [0.3, 0.3])
    given = {"decode_tps": 1 / CURVE.s(1), "pair": pair, **changed}
    return Station("served", "any", Rates(1e-6, 1e-5), ttft, **given)


def replayed(load: Trace, stations, plan, *, seed=0, pace_tps=None, **more):
    """Outcome and records of a replay."""
    workload = resolve_stations(load, stations, seed=seed, max_tokens=more.pop("max_tokens", None))
    records: dict[int, RouteRecord] = {}
    out = simulate_stations(
        workload, stations, plan, pace_tps=pace_tps, on_record=records.__setitem__, **more
    )
    return out, [records[row] for row in sorted(records)]


def check_pair(record: RouteRecord) -> None:
    """What a pair's attempts are charged agrees with what is reported of their rounds."""
    charged: Counter[tuple[int, str, Phase]] = Counter()
    read: Counter[tuple[int, str]] = Counter()
    for charge in record.ledger.charges:
        charged[charge.attempt, charge.endpoint, charge.phase] += charge.completion_tokens
        read[charge.attempt, charge.endpoint] += charge.prompt_tokens
    for number, attempt in enumerate(record.attempts):
        if attempt.endpoint != "served":
            assert attempt.speculation is None
            continue
        told = attempt.speculation
        if told is None:  # it never began
            continue
        written = told.distributed_tokens + told.alone_tokens
        assert charged[number, "phone", Phase.DRAFT] == told.drafted
        in_vain = charged[number, "served", Phase.DRAFT]
        assert told.rejected == max(
            in_vain, told.judged - told.accepted
        )  # some are refuted without computing
        by_server = sum(n for key, n in charged.items() if key[:2] == (number, "served"))
        assert by_server == written + in_vain
        assert told.accepted <= told.judged <= told.drafted
        assert sum(n * count for n, count in told.windows) >= told.judged
        assert read[number, "served"] == attempt.prompt_tokens > 0


# ---------------------------------------------------------------- the text, and the ledger


SEQUENCES = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=30).map(bytes)
WINDOWS = st.one_of(st.integers(1, 12), st.sampled_from(["optimal", "dynamic", "confidence"]))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    sequences = tuple(
        FleetRequest(1, 1, accepts, confidence=draw(st.sampled_from([(0.9, 0.2), (0.5,), (0.9, 0.9, 0.3)])))
        for accepts in draw(st.lists(SEQUENCES, min_size=1, max_size=2))
    )
    return Pair(
        draw(st.sampled_from([0.0, 0.002, 0.0093, 0.2])),
        CURVE,
        sequences,
        round_trip_s=draw(st.sampled_from([0.0, 0.01, 0.2])),
        jitter_s=draw(st.sampled_from([0.0, 0.0, 0.02])),
        queue_s=draw(st.sampled_from([0.0, 0.0, 0.01, 0.1])),
        read_tps=draw(st.sampled_from([None, 50.0, 2000.0])),
        drafter="phone",
        rates=PHONE.rates,
        window=draw(WINDOWS),
        max_window=draw(st.integers(1, 12)),
        parallel=draw(st.integers(1, 4)),
        min_gain=draw(st.sampled_from([None, 0.0, 0.1])),
    )


FAULTS = st.builds(
    Fault,
    st.one_of(st.none(), st.integers(0, 80)),
    st.sampled_from([0.0, 0.5, 3.0, math.inf]),
    st.sampled_from([FailureKind.CONNECTION, FailureKind.SERVER, None]),
    st.sampled_from([1.0, 0.5]),
)


@given(
    pair=pairs(),
    fault=st.one_of(st.none(), FAULTS),
    starts=st.sampled_from([("served",), ("served", "phone"), ("phone",)]),
    migrations=st.sampled_from(
        [{}, {"served": "phone"}, {"phone": "served"}, {"served": "home", "phone": "served"}]
    ),
    pace_tps=st.sampled_from([None, 4.8, 12.0]),
    limit=st.sampled_from([None, 1, 40]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_accepted_every_token_is_the_servers_and_is_charged_once(
    pair, fault, starts, migrations, pace_tps, limit, seed
):
    stations = (served(pair, fault=fault), PHONE, HOME)

    def plan(features, candidates):
        moves = {source: Migration(target) for source, target in migrations.items()}
        rest = tuple(name for name in ("served", "phone", "home") if name not in starts)
        return Plan(tuple(Start(name) for name in starts), rest, moves)

    load = trace(3, seed=seed, gap_s=2.0, longest=150)
    out, records = replayed(load, stations, plan, seed=seed, pace_tps=pace_tps, max_tokens=limit)
    for row, record in enumerate(records):
        length = int(load.output_tokens[row])
        check_record(record, length if limit is None else min(length, limit))
        check_pair(record)
        assert out.total_usd[row] == record.cost
    np.testing.assert_allclose(out.cost_usd.sum(axis=1), out.total_usd, rtol=1e-12)
    assert math.fsum(out.cost_by.values()) == pytest.approx(out.total_usd.sum(), rel=1e-9)
    again, _ = replayed(load, stations, plan, seed=seed, pace_tps=pace_tps, max_tokens=limit)
    same(out, again)
