"""Replay on any number of stations: two of them are the two-sided evaluator, and the luck of each is its own."""

from __future__ import annotations

import importlib.util
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.cost import Phase, Rates
from disco.dispatch import Dispatcher, Features, Move, Plan, Preset, Start
from disco.dispatch.presets import DispatchSection, MigrationSection
from disco.endpoints.simulated_script import Fault, prose
from disco.errors import ConfigurationError, FailureKind
from disco.plan import Candidate
from disco.profiles import DeviceProfile, Empirical, Lengths, LinearFit
from disco.replay.arms import _POLICY_STREAM
from disco.replay.events import as_stations, simulate
from disco.replay.outcome import Outcome
from disco.replay.scenario import Arm, Scenario, resolve
from disco.replay.stations import (
    KnownTimes,
    Station,
    StationOutcome,
    StationWorkload,
    resolve_stations,
    simulate_stations,
)
from disco.replay.trace import Gaps, Trace
from disco.replay.vectorised import evaluate
from disco.session.record import RouteRecord

LENGTHS = Lengths.from_samples([50])
MOVES_MORE_THAN_ONCE = importlib.util.find_spec("disco.session.transcript") is not None


def line(tps: float, overhead_s: float = 0.1) -> LinearFit:
    return LinearFit(k_s_per_token=1.0 / tps, c_s=overhead_s, r2=1.0, n=0)


PHONE = Station("phone", "device", Rates(1e-8, 1e-7, cached_share=0.0), line(100.0), decode_tps=20.0)
HOME = Station("home", "own", Rates(1e-7, 1e-6, cached_share=0.0), line(400.0, 0.2), decode_tps=30.0)
CLOUD = Station("cloud", "any", Rates(1e-6, 1e-5), Empirical.from_quantiles([0, 1], [0.2, 0.9]), rank=2)
BACKUP = replace(CLOUD, name="backup", rates=Rates(2e-6, 2e-5), tpot=Empirical.from_samples([0.01, 0.05]))
BIG = replace(CLOUD, name="big", rates=Rates(5e-6, 5e-5), ttft=Empirical.from_quantiles([0, 1], [1, 2]))
ALL = (PHONE, HOME, CLOUD, BACKUP, BIG)


def trace(n: int = 40, *, seed: int = 3, gap_s: float = 4.0) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace.of(
        arrival_s=np.sort(rng.uniform(0, gap_s * n, n)),
        prompt_tokens=rng.integers(5, 400, n),
        output_tokens=rng.integers(1, 200, n),
    )


def one(answer: int = 60, prompt: int = 50, arrivals: Sequence[float] = (0.0,)) -> Trace:
    n = len(arrivals)
    return Trace.of(arrival_s=arrivals, prompt_tokens=[prompt] * n, output_tokens=[answer] * n)


def at(name: str, *, moves: dict[str, Move] | None = None, after_s: float = 0.0) -> Callable[..., Plan]:
    """Starts there; the others, as they are given, stand by."""

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        rest = tuple(c.name for c in candidates if c.name != name)
        return Plan((Start(name, after_s),), rest, moves or {})

    return plan


def columns(out: object) -> dict[str, np.ndarray]:
    return {f.name: v for f in fields(out) if isinstance(v := getattr(out, f.name), np.ndarray)}


def same(a: StationOutcome, b: StationOutcome) -> None:
    for left, right in ((a, b), (a.reading, b.reading)):
        for name, values in columns(left).items():
            np.testing.assert_array_equal(values, getattr(right, name), err_msg=name)
    assert a.cost_by == b.cost_by
    assert [r.to_dict(timelines=True) for r in a.examples.values()] == [
        r.to_dict(timelines=True) for r in b.examples.values()
    ]


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
SITUATIONS = {
    "plain": SCENARIO,
    "unpaced, a dear device": replace(
        SCENARIO, pace_tps=None, device_rates=Rates(1e-4, 1e-3, cached_share=0.0)
    ),
    "a queue and a model to load": replace(SCENARIO, device_slots=1, idle_unload_s=20.0, max_tokens=120),
    "faults": replace(
        SCENARIO, server_fault=Fault(10, probability=0.3), device_fault=Fault(0, probability=0.2)
    ),
    "all of it": replace(
        SCENARIO, device_slots=1, idle_unload_s=20.0, server_fault=Fault(10, probability=0.3), pace_tps=12.0
    ),
}


@pytest.mark.parametrize("migrate", [False, True], ids=["stays", "moves"])
@pytest.mark.parametrize("policy", ["server_only", "race", "random", "auto", "wait_time"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_two_stations_and_a_dispatcher_are_the_two_sided_evaluator(situation, policy, migrate):
    where, seed = SITUATIONS[situation], 5
    load = resolve(trace(), where, seed=seed)
    two_sided = simulate(load, where, Arm(policy, 0.4, migrate=migrate), seed=seed)
    stations, workload = as_stations(load, where, seed=seed)
    share = {"budget": 0.4} if policy in ("random", "auto", "wait_time") else {}
    dispatcher = Dispatcher(
        Preset(dispatch=DispatchSection(policy=policy, **share), migration=MigrationSection(enabled=migrate)),
        lengths=where.planning_lengths(load.prompt_tokens),
        ttft=where.ttft,
        rng=np.random.default_rng([seed, _POLICY_STREAM]),
    )
    out = simulate_stations(workload, stations, dispatcher, pace_tps=where.pace_tps)
    assert out.names == ("device", "server")
    np.testing.assert_allclose(out.ttft_s, two_sided.ttft_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(out.total_usd, two_sided.cost_usd, rtol=1e-9)
    np.testing.assert_array_equal(out.winner == 0, two_sided.device_won)
    np.testing.assert_array_equal(out.started_tokens[:, 0], two_sided.device_prompt_tokens)
    np.testing.assert_array_equal(out.started_tokens[:, 1], two_sided.server_prompt_tokens)
    np.testing.assert_array_equal(out.failed, two_sided.failed)
    np.testing.assert_array_equal(out.moves > 0, two_sided.reading.moved)
    for name, values in columns(two_sided.reading).items():
        np.testing.assert_allclose(getattr(out.reading, name), values, rtol=0, atol=1e-9, err_msg=name)
    if migrate and situation == "plain" and policy == "server_only":
        assert out.moves.sum() > 5, "a comparison in which nothing moves shows nothing"


@pytest.mark.parametrize("policy", ["device_only", "server_only", "race", "wait_time", "length_threshold"])
def test_two_stations_agree_with_the_vectorised_kernel(policy):
    """Which shares no code with what plays stations."""
    where = replace(SCENARIO, pace_tps=None)
    load = resolve(trace(150), where, seed=2)
    fast: Outcome = evaluate(load, where, Arm(policy, 0.3), seed=2)
    stations, workload = as_stations(load, where, seed=2)
    share = {"budget": 0.3} if policy in ("wait_time", "length_threshold") else {}
    dispatcher = Dispatcher(
        Preset(dispatch=DispatchSection(policy=policy, **share), migration=MigrationSection(enabled=False)),
        lengths=where.planning_lengths(load.prompt_tokens),
        ttft=where.ttft,
        rng=np.random.default_rng([2, _POLICY_STREAM]),
    )
    out = simulate_stations(workload, stations, dispatcher, pace_tps=None)
    np.testing.assert_allclose(out.ttft_s, fast.ttft_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(out.total_usd, fast.cost_usd, rtol=1e-9)
    np.testing.assert_array_equal(out.winner == 0, fast.device_won)
    np.testing.assert_array_equal(out.started_tokens[:, 0], fast.device_prompt_tokens)
    np.testing.assert_array_equal(out.started_tokens[:, 1], fast.server_prompt_tokens)


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
    starters = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    starts = tuple(Start(name, draw(st.sampled_from([0.0, 0.0, 0.4]))) for name in starters)
    moves = {
        name: Move(target, keep_prefill=draw(st.booleans()))
        for name in names
        if (target := draw(st.sampled_from(names))) != name
    }
    rest = tuple(name for name in names if name not in starters)
    order = draw(st.sampled_from(["make_before_break", "break_before_make"]))
    return (
        tuple(stations),
        Plan(starts, rest, moves, order),
        draw(st.sampled_from([4.8, 12.0, None])),
        draw(st.integers(0, 9)),
    )


def check_record(record: RouteRecord, answer: int) -> None:
    """Every token once and in order, and every token that was worked on charged once."""
    text = "".join(packet[0].text for packet in prose(256)[: record.answer_tokens])
    assert record.seamless
    assert [p.start_char for p in record.pieces] == [0, *(p.end_char for p in record.pieces[:-1])][
        : len(record.pieces)
    ]
    for piece in record.pieces:
        assert piece.delivered_crc32 == zlib.crc32(text[piece.start_char : piece.end_char].encode())
    assert sum(tokens for _, tokens in record.released) == record.answer_tokens
    if record.finish_reason is not None:
        assert record.answer_tokens == answer
        assert sum(t.kept_tokens for t in record.tries) == answer
    assert sum(c.cost for c in record.ledger.charges) == pytest.approx(record.cost, rel=1e-12)
    assert sum(t.cost for t in record.tries) == pytest.approx(record.cost, rel=1e-12)
    released = [released_s for released_s, _ in record.released]
    assert released == sorted(released)


@given(situation=situations())
@settings(max_examples=60, deadline=None)
def test_whatever_the_stations_every_token_comes_once_and_is_charged_once(situation):
    stations, plan, pace_tps, seed = situation
    workload = resolve_stations(trace(8, seed=seed, gap_s=3.0), stations, seed=seed)
    records: dict[int, RouteRecord] = {}
    out = simulate_stations(
        workload,
        stations,
        lambda features, candidates: plan,
        pace_tps=pace_tps,
        on_record=records.__setitem__,
    )
    assert sorted(records) == list(range(8))
    for row, record in records.items():
        check_record(record, int(workload.answer_tokens[row]))
        assert out.failed[row] == (record.finish_reason is None)
        assert out.total_usd[row] == record.cost
        assert out.answer_tokens[row] == record.answer_tokens
        assert out.moves[row] == sum(t.outcome == "switched" for t in record.transfers)
        assert (out.failures[row] > 0).any() == any(t.outcome == "failed" for t in record.tries)
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


@pytest.mark.parametrize("k", range(1, 6))
def test_the_first_of_many_to_write_wins_and_the_others_are_charged_for_the_prompt(k):
    stations = ALL[:k]
    workload = resolve_stations(trace(), stations, seed=1)
    out = simulate_stations(workload, stations, lambda f, c: Plan(tuple(Start(x.name) for x in c)))
    np.testing.assert_allclose(out.ttft_s, workload.ttft_s.min(axis=1), atol=1e-9)
    np.testing.assert_array_equal(out.winner, workload.ttft_s.argmin(axis=1))
    np.testing.assert_array_equal(out.prompt_tokens, np.repeat(workload.prompt_tokens[:, None], k, axis=1))
    np.testing.assert_array_equal(out.started_tokens, out.prompt_tokens)
    np.testing.assert_array_equal(out.completion_tokens.sum(axis=1), workload.answer_tokens)
    assert sum(out.share_won(name) for name in out.names) == pytest.approx(1.0)
    assert out.share_of_prompts(stations[-1].name) == 1.0


@pytest.mark.skipif(not MOVES_MORE_THAN_ONCE, reason="a session moves its answer once")
def test_an_answer_goes_down_from_station_to_station():
    """From the dearest to the cheapest by the plan's moves, each time as the rule finds it pays."""
    stations = (PHONE, HOME, CLOUD, BIG)
    down = {"big": Move("cloud"), "cloud": Move("home"), "home": Move("phone")}
    workload = resolve_stations(one(900, prompt=20), stations, seed=0)
    records: dict[int, RouteRecord] = {}
    plan = at("big", moves=down)
    out = simulate_stations(workload, stations, plan, on_record=records.__setitem__)
    assert out.moves.tolist() == [3]
    assert list(out.examples) == [("big", "cloud", "home", "phone")]
    assert [p.endpoint for p in records[0].pieces] == ["big", "cloud", "home", "phone"]
    assert out.reading.handover_late_tokens.tolist() == [0.0]
    check_record(records[0], 900)
    stays = simulate_stations(workload, stations, at("big"))
    assert out.total_usd[0] < stays.total_usd[0] / 10
    assert out.ttft_s[0] == stays.ttft_s[0]


def test_an_answer_moves_to_the_middle_of_three():
    stations = (PHONE, HOME, CLOUD)
    workload = resolve_stations(one(400), stations, seed=0)
    out = simulate_stations(workload, stations, at("cloud", moves={"cloud": Move("home")}))
    assert out.moves.tolist() == [1]
    (record,) = out.examples.values()
    move, target = record.transfers[0], record.tries[1]
    assert (move.source, move.target) == ("cloud", "home")
    assert move.took_s == pytest.approx(0.2 + (50 + move.cut_tokens) / 400)
    assert target.prompt_tokens == 50 + move.cut_tokens
    assert out.prompt_tokens[0].tolist() == [0, 50 + move.cut_tokens, 50]
    assert out.started_tokens[0].tolist() == [0, 0, 50]
    assert ("home", Phase.MIGRATION) in out.cost_by


# ---------------------------------------------------------------- luck


def test_a_station_more_or_another_order_leaves_the_others_luck_as_it_was():
    faulty = [replace(s, fault=Fault(5, probability=0.4), tpot=BACKUP.tpot) for s in ALL]
    whole = resolve_stations(trace(), faulty, seed=4)
    for some in ([faulty[2]], faulty[::-1], [faulty[4], faulty[0]]):
        part = resolve_stations(trace(), some, seed=4)
        for column, name in enumerate(part.names):
            there = whole.names.index(name)
            for values in ("ttft_s", "tpot_s", "faulty"):
                np.testing.assert_array_equal(
                    getattr(part, values)[:, column], getattr(whole, values)[:, there]
                )
            assert part.again[column] == whole.again[there]
    assert len({tuple(whole.faulty[:, c]) for c in range(5)}) == 5
    assert len({tuple(whole.ttft_s[:, c]) for c in (2, 3)}) == 2, (
        "of one distribution, but not the same draws"
    )
    other = resolve_stations(trace(), faulty, seed=5)
    assert (other.ttft_s[:, 2:] != whole.ttft_s[:, 2:]).any()


def test_what_comes_after_first_attempts_is_a_stations_own_too():
    """Second tries and moves of two stations, alone and among five."""
    cloud = replace(CLOUD, fault=Fault(0, probability=0.5))
    backup = replace(BACKUP, fault=Fault(20, probability=0.5))
    two = (cloud, backup)
    five = (backup, PHONE, HOME, BIG, cloud)

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        return Plan((Start("backup"),), ("cloud",), {"backup": Move("cloud")})

    few = simulate_stations(resolve_stations(trace(), two, seed=6), two, plan, breakers=False)
    many = simulate_stations(resolve_stations(trace(), five, seed=6), five, plan, breakers=False)
    assert few.failures.sum() > 20
    assert few.moves.sum() > 5
    np.testing.assert_array_equal(few.ttft_s, many.ttft_s)
    np.testing.assert_array_equal(few.total_usd, many.total_usd)
    for name in few.names:
        here, there = few.names.index(name), many.names.index(name)
        for values in ("prompt_tokens", "completion_tokens", "cost_usd", "failures"):
            np.testing.assert_array_equal(getattr(few, values)[:, here], getattr(many, values)[:, there])
    assert not many.cost_usd[:, [1, 2, 3]].any()


# ---------------------------------------------------------------- what stations do


def test_each_station_has_a_queue_of_its_own():
    stations = (replace(PHONE, slots=1), replace(HOME, slots=1), CLOUD)
    workload = resolve_stations(one(60, arrivals=(0.0, 0.1, 0.2)), stations, seed=0)
    turns = iter(["phone", "home", "phone"])
    out = simulate_stations(workload, stations, lambda f, c: Plan((Start(next(turns)),)))
    assert out.ttft_s[:2].tolist() == pytest.approx([0.6, 0.2 + 50 / 400])
    assert out.ttft_s[2] == pytest.approx(0.6 + 59 / 20 - 0.2 + 0.6)


def test_a_station_without_a_model_in_memory_is_planned_as_cold():
    home = replace(HOME, load_s=3.0, idle_unload_s=60.0)
    workload = resolve_stations(one(60, arrivals=(0.0, 30.0, 200.0)), (home, CLOUD), seed=0)
    seen: list[float] = []

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        seen.append(candidates[0].load_s)
        return Plan((Start("home"),))

    out = simulate_stations(workload, (home, CLOUD), plan)
    assert seen == [3.0, 0.0, 3.0]
    assert out.ttft_s.tolist() == pytest.approx([3.325, 0.325, 3.325])


def test_a_station_that_keeps_failing_is_left_alone():
    dead = replace(CLOUD, fault=Fault(0, silence_s=3.0, kind=FailureKind.SERVER))
    stations = (PHONE, HOME, dead)
    workload = resolve_stations(one(5, arrivals=np.arange(60) * 10.0), stations, seed=0)
    offered: list[tuple[str, ...]] = []

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        names = tuple(c.name for c in candidates)
        offered.append(names)
        return Plan((Start(names[-1]),), names[:-1])

    out = simulate_stations(workload, stations, plan)
    tried = out.failures[:, 2] > 0
    assert tried[:3].all()
    assert 4 <= tried.sum() <= 15
    assert ("phone", "home") in offered
    assert not out.failed.any()
    assert out.share_won("home") == pytest.approx(1.0 - tried.mean())
    assert out.share_won("phone") == pytest.approx(tried.mean())
    always = simulate_stations(workload, stations, at("cloud"), breakers=False)
    assert (always.failures[:, 2] > 0).all()


def test_a_station_that_rests_is_the_last_resort_of_a_plan_that_does_not_see_it():
    dead = replace(CLOUD, fault=Fault(0, kind=FailureKind.SERVER))
    frail = replace(PHONE, fault=Fault(3, kind=FailureKind.SERVER, probability=0.0))
    workload = resolve_stations(one(5, arrivals=np.arange(6) * 1.0), (frail, dead), seed=0)
    records: dict[int, RouteRecord] = {}

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        return Plan((Start(candidates[-1].name),))

    simulate_stations(workload, (frail, dead), plan, on_record=records.__setitem__)
    assert [r.endpoint for r in records[5].rested] == ["cloud"]
    assert records[5].starts == (("phone", 0.0),)


def test_a_dispatcher_with_a_preset_plans_for_three():
    """The cheapest server takes part; the other one takes over where it dies."""
    dying = replace(CLOUD, fault=Fault(20, kind=FailureKind.CONNECTION))
    stations = (PHONE, replace(BACKUP, rank=1), dying)
    workload = resolve_stations(one(60), stations, seed=0)
    preset = Preset(dispatch=DispatchSection(policy="server_only"), migration=MigrationSection(enabled=False))
    dispatcher = Dispatcher(preset, lengths=LENGTHS, ttft=CLOUD.ttft, rng=np.random.default_rng(0))
    out = simulate_stations(workload, stations, dispatcher, policy="mine")
    assert not out.failed[0]
    assert out.names[out.winner[0]] == "cloud"
    ((writers, record),) = out.examples.items()
    assert writers == ("cloud", "phone")
    assert record.policy == "mine"
    assert out.failures[0].tolist() == [0, 0, 1]
    assert ("phone", Phase.FAILOVER) in out.cost_by


def test_a_prompt_that_fits_one_station_goes_there_and_one_that_fits_none_fails():
    small, smaller = replace(PHONE, context_tokens=200), replace(HOME, context_tokens=120)
    load = Trace.of(arrival_s=[0, 0, 0], prompt_tokens=[20, 100, 300], output_tokens=[5, 5, 5])
    workload = resolve_stations(load, (small, smaller), seed=0)
    out = simulate_stations(workload, (small, smaller), lambda f, c: Plan((Start(c[-1].name),)))
    assert out.winner.tolist() == [1, 0, -1]
    assert out.failed.tolist() == [False, False, True]
    assert np.isnan(out.ttft_s[2])


def test_each_station_may_answer_at_its_own_length_and_limits_hold_for_all():
    known = {"phone": KnownTimes(answer_tokens=[10]), "home": KnownTimes(answer_tokens=[90])}
    workload = resolve_stations(one(60), (PHONE, HOME, CLOUD), seed=0, max_tokens=80, known=known)
    assert workload.answer_tokens.tolist() == [[10, 80, 60]]
    for name, tokens in (("phone", 10), ("home", 80), ("cloud", 60)):
        out = simulate_stations(workload, (PHONE, HOME, CLOUD), at(name))
        assert out.answer_tokens.tolist() == [tokens]


def test_what_is_known_comes_before_what_is_drawn():
    gaps = Gaps(np.array([0, 3, 3]), np.array([0.5, 0.0, 1.5]))
    known = {
        "cloud": KnownTimes(ttft_s=[7.0, math.nan], tpot_s=[math.nan, 0.25], gaps=gaps),
        "phone": KnownTimes(cached_tokens=[30, 999]),
    }
    load = one(6, arrivals=(0.0, 1.0))
    workload = resolve_stations(load, (PHONE, CLOUD), seed=0, known=known)
    plain = resolve_stations(load, (PHONE, CLOUD), seed=0)
    assert workload.ttft_s[:, 1].tolist() == [7.0, plain.ttft_s[1, 1]]
    assert workload.cached_tokens.tolist() == [[30, 0], [50, 0]]
    out = simulate_stations(workload, (PHONE, CLOUD), at("cloud"), pace_tps=None)
    np.testing.assert_allclose(out.reading.tbt_s, [0.5, 0.0, 1.5, 0.02, 0.02, *[0.25] * 5], atol=1e-12)
    cached = simulate_stations(workload, (PHONE, CLOUD), at("phone"))
    assert cached.cached_tokens.tolist() == [[30, 0], [50, 0]]


def test_a_planner_may_know_which_request_it_plans():
    class Oracle:
        def __init__(self, workload: StationWorkload) -> None:
            self.best = workload.ttft_s.argmin(axis=1)

        def plan_row(self, row, features, candidates, *, resting, probing):
            return Plan((Start(candidates[self.best[row]].name),))

    workload = resolve_stations(trace(), ALL, seed=1)
    out = simulate_stations(workload, ALL, Oracle(workload))
    np.testing.assert_allclose(out.ttft_s, workload.ttft_s.min(axis=1), atol=1e-9)
    assert (np.count_nonzero(out.prompt_tokens, axis=1) == 1).all()


def test_from_profiles_they_are_the_scenarios_stations():
    device, server = SCENARIO.stations()
    assert Station.of_device(SCENARIO.device, SCENARIO.device_rates).candidate() == replace(
        device.candidate(), announces=True
    )
    assert server.candidate() == SCENARIO.candidates()[1]
    assert device.parks is None
    assert device.candidate().parks
    assert not server.candidate().parks


def test_progress_is_told_to_the_end():
    told: list[tuple[int, int]] = []
    workload = resolve_stations(trace(70), ALL, seed=1)
    simulate_stations(workload, ALL, at("phone"), progress=lambda done, n: told.append((done, n)))
    assert told == [(64, 70), (70, 70)]


# ---------------------------------------------------------------- mistakes


def test_mistakes_are_named():
    workload = resolve_stations(one(), (PHONE, CLOUD), seed=0)
    with pytest.raises(ConfigurationError, match="at least one station"):
        resolve_stations(one(), (), seed=0)
    with pytest.raises(ConfigurationError, match="two stations are called 'phone'"):
        resolve_stations(one(), (PHONE, PHONE), seed=0)
    with pytest.raises(ConfigurationError, match=r"no station is called 'cluod'.*cloud"):
        resolve_stations(one(), (PHONE, CLOUD), seed=0, known={"cluod": KnownTimes()})
    with pytest.raises(ConfigurationError, match=r"'cloud': column ttft_s has shape \(2,\) for 1 requests"):
        resolve_stations(one(), (PHONE, CLOUD), seed=0, known={"cloud": KnownTimes(ttft_s=[1.0, 2.0])})
    with pytest.raises(ConfigurationError, match="column tpot_s holds a value that is negative"):
        resolve_stations(one(), (PHONE, CLOUD), seed=0, known={"cloud": KnownTimes(tpot_s=[-1.0])})
    with pytest.raises(
        ConfigurationError, match="resolved for the stations phone, cloud, not for cloud, phone"
    ):
        simulate_stations(workload, (CLOUD, PHONE), at("cloud"))
    with pytest.raises(ConfigurationError, match=r"names the station 'clout'.*cloud"):
        simulate_stations(workload, (PHONE, CLOUD), at("clout"))
    twice = replace(workload, **{f: np.repeat(getattr(workload, f), 2, axis=0) for f in columns(workload)})
    with pytest.raises(ConfigurationError, match="column arrival_s is not in order"):
        replace(twice, arrival_s=np.array([1.0, 0.0])).check()
    for change, message in (
        ({"slots": 0}, "at least 1 slot"),
        ({"decode_tps": 0.0}, "more than 0"),
        ({"load_s": -1.0}, "load its model"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            replace(PHONE, **change)
