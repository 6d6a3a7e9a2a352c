"""Replay on any number of stations: two of them are the two-sided evaluator, and the luck of each is its own."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_stations import (
    ALL,
    BACKUP,
    BIG,
    CLOUD,
    HOME,
    PHONE,
    at,
    check_record,
    columns,
    one,
    same,
    trace,
)

from disco.cost import Phase, Rates
from disco.dispatch import Dispatcher, Migration, Plan, Preset, Start
from disco.dispatch.presets import DispatchSection
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.profiles import DeviceProfile, Empirical
from disco.replay.simulator.event_evaluator import as_stations, simulate
from disco.replay.stations import Station, resolve_stations, simulate_stations
from disco.replay.vector.arm_delays import _POLICY_STREAM
from disco.replay.workload.scenario import Arm, Scenario, resolve
from disco.session.records.route_record import RouteRecord

# ---------------------------------------------------------------- two of them

SCENARIO = Scenario(
    name="test",
    device=DeviceProfile(
        name="phone", source="made up for tests", prefill_tps=100.0, decode_tps=20.0, c_s=0.1, load_s=2.0
    ),
    device_rates=Rates(1e-8, 1e-7, cached_share=0.0),
    server_rates=Rates(1e-6, 1e-5),
    ttft=Empirical.from_samples([0.2, 0.3, 0.5, 0.9]),
)


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("server_only", {}),
        ("auto", {"pace_tps": None, "device_rates": Rates(1e-4, 1e-3, cached_share=0.0)}),
        ("wait_time", {"device_slots": 1, "idle_unload_s": 20.0, "max_tokens": 120}),
        ("length_threshold", {"device_slots": 1, "server_fault": Fault(10, probability=0.3), "pace_tps": 12.0}),
    ],
)  # fmt: skip
def test_two_stations_and_a_dispatcher_are_the_two_sided_evaluator(policy, changes):
    where, seed = replace(SCENARIO, **changes), 5
    load = resolve(trace(), where, seed=seed)
    two_sided = simulate(load, where, Arm(policy, 0.4, migrate=True), seed=seed)
    stations, workload = as_stations(load, where, seed=seed)
    share = {} if policy == "server_only" else {"budget": 0.4}
    dispatcher = Dispatcher(
        Preset(dispatch=DispatchSection(policy=policy, **share)),
        lengths=where.planning_lengths(load.prompt_tokens),
        ttft=where.ttft,
        rng=np.random.default_rng([seed, _POLICY_STREAM]),
    )
    out = simulate_stations(workload, stations, dispatcher, pace_tps=where.pace_tps)
    assert out.names == ("device", "server")
    np.testing.assert_allclose(out.ttft_s, two_sided.ttft_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(out.total_usd, two_sided.cost_usd, rtol=1e-9)
    device_tokens, server_tokens = out.started_tokens.T
    for mine, theirs in (
        (out.winner == 0, two_sided.device_won),
        (device_tokens, two_sided.device_prompt_tokens),
        (server_tokens, two_sided.server_prompt_tokens),
        (out.failed, two_sided.failed),
        (out.migrations > 0, two_sided.reading.moved),
    ):
        np.testing.assert_array_equal(mine, theirs)
    for name, values in columns(two_sided.reading).items():
        np.testing.assert_allclose(getattr(out.reading, name), values, rtol=0, atol=1e-9, err_msg=name)
    if policy == "server_only":
        assert out.migrations.sum() > 5, "a comparison in which nothing moves shows nothing"


# ---------------------------------------------------------------- one to five of them


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[Station, ...], Plan, float | None, int]:
    """Stations, a plan that names some of them, a pace, a seed."""
    stations = list(draw(st.permutations(ALL)))[: draw(st.integers(1, 5))]
    kinds = st.sampled_from([FailureKind.CONNECTION, FailureKind.SERVER, None])
    for i, station in enumerate(stations):
        fault = None
        if draw(st.integers(0, 3)) == 0:
            fault = Fault(draw(st.integers(0, 60)), draw(st.sampled_from([0.0, 3.0])), draw(kinds), 0.6)
        stations[i] = replace(
            station,
            slots=draw(st.sampled_from([None, None, 1, 2])),
            load_s=1.5,
            idle_unload_s=draw(st.sampled_from([None, None, 30.0])),
            continues=draw(st.integers(0, 4)) > 0,
            fault=fault,
        )
    names = [station.name for station in stations]
    if draw(st.booleans()):
        # Left to chance, few answers move more than once: from the dearest down, step by step.
        down = sorted(names, key=lambda name: -next(s.rates.cost_out for s in stations if s.name == name))
        starters, targets = [down[0]], dict(itertools.pairwise(down))
    else:
        starters = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        targets = {name: draw(st.sampled_from(names)) for name in names}
    starts = tuple(Start(name, draw(st.sampled_from([0.0, 0.0, 0.4]))) for name in starters)
    moves = {
        name: Migration(target, keep_prefill=draw(st.booleans()))
        for name, target in targets.items()
        if target != name
    }
    rest = tuple(name for name in names if name not in starters)
    order = draw(st.sampled_from(["make_before_break", "break_before_make"]))
    return (
        tuple(stations),
        Plan(starts, rest, moves, order),
        draw(st.sampled_from([4.8, 12.0, None])),
        draw(st.integers(0, 9)),
    )


@given(situation=situations())
@settings(max_examples=40, deadline=None)
def test_whatever_the_stations_every_token_comes_once_and_is_charged_once(situation):
    stations, plan, pace_tps, seed = situation
    workload = resolve_stations(trace(6, seed=seed, gap_s=3.0, longest=400), stations, seed=seed)
    records: dict[int, RouteRecord] = {}
    out = simulate_stations(
        workload, stations, lambda f, c: plan, pace_tps=pace_tps, on_record=records.__setitem__
    )
    assert sorted(records) == list(range(6))
    for row, record in records.items():
        check_record(record, int(workload.answer_tokens[row]))
        assert out.failed[row] == (record.finish_reason is None)
        assert out.total_usd[row] == record.cost
        assert out.answer_tokens[row] == record.answer_tokens
        assert out.migrations[row] == sum(t.outcome == "switched" for t in record.migrations)
        assert (out.failures[row] > 0).any() == any(t.outcome == "failed" for t in record.attempts)
        if record.winner is not None:
            assert out.names[out.winner[row]] == record.winner
        for column, name in enumerate(out.names):
            charged = record.ledger.by_endpoint().get(name)
            assert out.prompt_tokens[row, column] == (charged.prompt_tokens if charged else 0)
            assert out.completion_tokens[row, column] == (charged.completion_tokens if charged else 0)
    np.testing.assert_allclose(out.cost_usd.sum(axis=1), out.total_usd, rtol=1e-12)
    assert math.fsum(out.cost_by.values()) == pytest.approx(out.total_usd.sum(), rel=1e-9)
    for (name, phase), usd in out.cost_by.items():
        assert isinstance(phase, Phase)
        assert usd <= out.cost_usd[:, out.names.index(name)].sum() * (1 + 1e-9)
    same(out, simulate_stations(workload, stations, lambda f, c: plan, pace_tps=pace_tps))


def test_an_answer_goes_down_from_station_to_station():
    """Where the bank covers the next move at once, a station in between is paid and writes nothing."""
    stations, writers = (PHONE, HOME, CLOUD, BIG), ("big", "home", "phone")
    down = {"big": Migration("cloud"), "cloud": Migration("home"), "home": Migration("phone")}
    workload = resolve_stations(one(900, prompt=20), stations, seed=0)
    out = simulate_stations(workload, stations, at("big", migrations=down))
    assert list(out.examples) == [writers]
    record = out.examples[writers]
    assert [(t.source, t.target) for t in record.migrations] == [(s, m.target) for s, m in down.items()]
    assert tuple(p.endpoint for p in record.segments) == writers
    assert out.prompt_tokens[0].all()
    assert out.reading.handover_late_tokens.tolist() == [0.0]
    stays = simulate_stations(workload, stations, at("big"))
    assert out.total_usd[0] < stays.total_usd[0] / 5


# ---------------------------------------------------------------- luck


def test_a_station_more_or_another_order_leaves_the_others_luck_as_it_was():
    faulty = [replace(s, fault=Fault(5, probability=0.4), tpot=BACKUP.tpot) for s in ALL]
    whole, other = (resolve_stations(trace(), faulty, seed=seed) for seed in (4, 5))
    for some in ([faulty[2]], faulty[::-1], [faulty[4], faulty[0]]):
        part = resolve_stations(trace(), some, seed=4)
        there = [whole.names.index(name) for name in part.names]
        for values in ("ttft_s", "tpot_s", "faulty"):
            np.testing.assert_array_equal(getattr(part, values), getattr(whole, values)[:, there])
        assert part.again == tuple(whole.again[column] for column in there)
    assert len(set(whole.again)) == len({tuple(column) for column in whole.faulty.T}) == 5
    assert (whole.ttft_s[:, 2] != whole.ttft_s[:, 3]).any(), "of one distribution, but not the same draws"
    assert (other.ttft_s[:, 2:] != whole.ttft_s[:, 2:]).any()


def test_what_comes_after_first_attempts_is_a_stations_own_too():
    """Second tries and moves of two stations, alone and among five."""
    cloud = replace(CLOUD, fault=Fault(0, probability=0.5))
    backup = replace(BACKUP, fault=Fault(20, probability=0.5))
    two, five = (cloud, backup), (backup, PHONE, HOME, BIG, cloud)

    def plan(features, candidates):
        return Plan((Start("backup"),), ("cloud",), {"backup": Migration("cloud")})

    few = simulate_stations(resolve_stations(trace(), two, seed=6), two, plan, breakers=False)
    many = simulate_stations(resolve_stations(trace(), five, seed=6), five, plan, breakers=False)
    assert few.failures.sum() > 20
    assert few.migrations.sum() > 5
    np.testing.assert_array_equal(few.ttft_s, many.ttft_s)
    np.testing.assert_array_equal(few.total_usd, many.total_usd)
    for name in few.names:
        here, there = few.names.index(name), many.names.index(name)
        for values in ("prompt_tokens", "completion_tokens", "cost_usd", "failures"):
            np.testing.assert_array_equal(getattr(few, values)[:, here], getattr(many, values)[:, there])
    assert not many.cost_usd[:, [1, 2, 3]].any()
