"""Replay on one to five stations: what each does, that every token comes once, and what is said about mistakes."""

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
    one,
    same,
    trace,
)

from disco.cost import Phase
from disco.dispatch import Migration, Plan, Start
from disco.endpoints.simulation.simulated_script import Fault, prose
from disco.errors import ConfigurationError, FailureKind
from disco.events import Ended, Usage
from disco.replay.stations import KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.stations.station_scripts import Answers
from disco.replay.workload.trace import Gaps, Trace
from disco.request import Prefix
from disco.session.effects import StartAttempt
from disco.session.records.route_record import RouteRecord

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
    seen = []

    def plan(features, candidates):
        seen.append(candidates[0].load_s)
        return Plan((Start("home"),))

    out = simulate_stations(workload, (home, CLOUD), plan)
    assert seen == [3.0, 0.0, 3.0]
    assert out.ttft_s.tolist() == pytest.approx([3.325, 0.325, 3.325])


def test_a_prompt_that_fits_one_station_goes_there_and_one_that_fits_none_fails():
    small, smaller = replace(PHONE, context_tokens=200), replace(HOME, context_tokens=120)
    load = Trace.of(arrival_s=[0, 0, 0], prompt_tokens=[20, 150, 300], output_tokens=[5, 5, 5])
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


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("stations", "known", "said"),
    [
        ((), {}, "at least one station"),
        ((PHONE, PHONE), {}, "two stations are called 'phone'"),
        ((PHONE, CLOUD), {"cluod": KnownTimes()}, r"no station is called 'cluod'.*cloud"),
        ((CLOUD,), {"cloud": KnownTimes(ttft_s=[1.0, 2.0])}, r"'cloud': column ttft_s has shape \(2,\) for 1 requests"),
        ((CLOUD,), {"cloud": KnownTimes(tpot_s=[-1.0])}, "column tpot_s holds a value that is negative"),
    ],
)  # fmt: skip
def test_stations_that_do_not_fit_the_requests_are_refused(stations, known, said):
    with pytest.raises(ConfigurationError, match=said):
        resolve_stations(one(), stations, seed=0, known=known)


def test_other_mistakes_are_named():
    two = resolve_stations(one(arrivals=(0.0, 1.0)), (PHONE, CLOUD), seed=0)
    for said, mistake in {
        "for the stations phone, cloud, not for": lambda: simulate_stations(two, (CLOUD, PHONE), at("cloud")),
        r"names the station 'clout'.*cloud": lambda: simulate_stations(two, (PHONE, CLOUD), at("clout")),
        "column arrival_s is not in order": lambda: replace(two, arrival_s=np.array([1.0, 0.0])).check(),
        "at least 1 slot": lambda: replace(PHONE, slots=0),
        "it is 0 s or more, and without slots and": lambda: replace(PHONE, slots=None, overlap_s=-1.0),
        "more than 0": lambda: replace(PHONE, decode_tps=0.0),
        "load its model": lambda: replace(PHONE, load_s=-1.0),
    }.items():  # fmt: skip
        with pytest.raises(ConfigurationError, match=said):
            mistake()


def test_where_prompts_are_read_in_turn_none_writes_before_those_ahead_and_the_network_passes_meanwhile():
    server = replace(CLOUD, overlap_s=0.4)
    workload = resolve_stations(
        one(arrivals=(0.0, 0.01, 0.02)), [server], seed=0, known={"cloud": KnownTimes(ttft_s=[0.5, 0.1, 0.6])}
    )
    found = simulate_stations(workload, [server], at("cloud"))
    # The second one's own 0.1 s are over long before its turn; the third one reads for the 0.2 s behind its overlap.
    assert found.ttft_s.tolist() == pytest.approx([0.5, 0.49, 0.68])


def test_on_the_device_answers_wait_for_a_slot_and_it_says_when_it_comes():
    stations = (PHONE, replace(PHONE, slots=2), replace(PHONE, slots=2, reach="own"), CLOUD)
    candidates = [station.candidate() for station in stations]
    assert [c.announces for c in candidates[:3]] == [False, True, False]
    assert [c.parks for c in candidates[::3]] == [True, False]


TEXT = [packet[0].text for packet in prose(64)]


def scripts(*stations, known=None, answer=10):
    workload = resolve_stations(one(answer), stations, seed=7, max_tokens=40, known=known)
    return Answers(workload, stations).of(0)


def tried(of, name, *, written=0, withheld=0):
    """One attempt from the answer's first `written` tokens on, the last `withheld` of which are to be written again."""
    prefix = Prefix("".join(TEXT[:written]), written, withheld="".join(TEXT[written - withheld : written]))
    return list(of.script(StartAttempt(0, name, prefix, None), kept=None)[0])


def test_a_drawn_time_is_the_columns_once_and_drawn_anew_after_that():
    of = scripts(CLOUD, known={"cloud": KnownTimes(ttft_s=[5.0])})
    first, *again = [tried(of, "cloud")[0][0] for _ in range(4)]
    again.append(tried(scripts(CLOUD), "cloud", written=3)[0][0])
    assert first == 5.0
    assert len(set(again)) == 3, "the first of a request's later draws is the same, whatever it is for"
    assert all(0.2 <= at <= 0.9 for at in again)


def test_faults_befall_first_attempts_by_the_column_and_later_ones_by_their_share():
    dying = replace(CLOUD, fault=Fault(3, probability=0.5))
    workload = resolve_stations(one(arrivals=np.arange(400.0)), (dying,), seed=7)
    answers = Answers(workload, (dying,))
    attempts = [[len(tried(of, "cloud")) == 4 for _ in range(2)] for of in map(answers.of, range(400))]
    first, second = np.array(attempts).T
    assert first.tolist() == workload.faulty[:, 0].tolist()
    assert (first.mean(), second.mean()) == pytest.approx((0.5, 0.5), abs=0.1)
    assert (second != first).sum() > 100


def test_an_attempt_goes_on_where_the_prefix_ends_in_text_in_gaps_and_in_usage():
    gaps = Gaps(np.array([0, 5]), np.array([0.5, 0.0, 1.5, 0.25, 2.0]))
    of = scripts(PHONE, known={"phone": KnownTimes(gaps=gaps)}, answer=7)
    events = tried(of, "phone", written=2)
    assert [event[0].text for _, event in events[:-1]] == TEXT[2:7]
    assert np.diff([at for at, _ in events]) == pytest.approx([1.5, 0.25, 2.0, 0.05, 0.0])
    assert events[-1][1] == Ended("stop", Usage(52, 5, 0))
    # What is withheld is written again, timed and charged, but not delivered.
    plain, behind = (tried(scripts(PHONE), "phone", written=6, withheld=n) for n in (0, 2))
    assert [event[0].text for _, event in behind[:-1]] == TEXT[6:10]
    assert behind[0][0] == pytest.approx(plain[0][0] + 2 / 20)
    assert [of[-1][1].usage.completion_tokens for of in (plain, behind)] == [4, 6]
    over = tried(scripts(PHONE), "phone", written=20)
    assert len(over) == 1, "a station whose answer is shorter than what is written has nothing to add"


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
    order = draw(st.sampled_from(["auto", "make_before_break", "break_before_make"]))
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
        assert out.total_usd[row] == record.policy_cost
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


# ---------------------------------------------------------------- luck


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
    # Two of one distribution do not have the same draws, nor one of them with another seed.
    whole, other = (
        resolve_stations(trace(), (CLOUD, replace(CLOUD, name="x")), seed=seed) for seed in (4, 5)
    )
    assert (whole.ttft_s[:, 0] != whole.ttft_s[:, 1]).any()
    assert (other.ttft_s != whole.ttft_s).any()
    assert len(set(whole.again)) == 2
