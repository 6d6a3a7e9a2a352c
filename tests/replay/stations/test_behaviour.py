"""What stations do in a replay (queues, models to load, faults, limits, scripts), and what is said about mistakes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_stations import ALL, CLOUD, HOME, PHONE, at, one, trace

from disco.dispatch import Plan, Start
from disco.endpoints.simulation.simulated_script import Fault, prose
from disco.errors import ConfigurationError, FailureKind
from disco.events import Ended, Usage
from disco.profiles import DeviceProfile
from disco.replay.stations import KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.stations.station_scripts import Answers
from disco.replay.workload.scenario import Scenario
from disco.replay.workload.trace import Gaps, Trace
from disco.request import Prefix
from disco.session.effects import StartAttempt

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


def test_a_station_that_keeps_failing_is_left_alone():
    dead = replace(CLOUD, fault=Fault(0, silence_s=3.0, kind=FailureKind.SERVER))
    stations = (PHONE, HOME, dead)
    workload = resolve_stations(one(5, arrivals=np.arange(30) * 10.0), stations, seed=0)
    offered = []

    def plan(features, candidates):
        names = tuple(c.name for c in candidates)
        offered.append(names)
        return Plan((Start(names[-1]),), names[:-1])

    out = simulate_stations(workload, stations, plan)
    tried = out.failures[:, 2] > 0
    assert 4 <= tried.sum() <= 12
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
    records = {}

    def plan(features, candidates):
        return Plan((Start(candidates[-1].name),))

    simulate_stations(workload, (frail, dead), plan, on_record=records.__setitem__)
    assert [r.endpoint for r in records[5].deprioritised] == ["cloud"]
    assert records[5].starts == (("phone", 0.0),)


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
    workload = resolve_stations(trace(), ALL, seed=1)
    best = workload.ttft_s.argmin(axis=1)

    class Oracle:
        def plan_row(self, row, features, candidates, *, resting, probing):
            return Plan((Start(candidates[best[row]].name),))

    told = []
    out = simulate_stations(workload, ALL, Oracle(), progress=lambda *at: told.append(at))
    assert told == [(40, 40)]
    np.testing.assert_allclose(out.ttft_s, workload.ttft_s.min(axis=1), atol=1e-9)
    assert (np.count_nonzero(out.prompt_tokens, axis=1) == 1).all()
    assert sum(out.share_of_prompts(name) for name in out.names) == pytest.approx(1.0)


def test_from_profiles_they_are_the_scenarios_stations():
    where = Scenario(
        name="test",
        device=DeviceProfile(name="phone", source="made up for tests", prefill_tps=100.0, decode_tps=20.0),
        device_rates=PHONE.rates,
        server_rates=CLOUD.rates,
        ttft=CLOUD.ttft,
    )
    device, server = where.stations()
    assert Station.of_device(where.device, where.device_rates) == device
    assert (device.candidate(), server.candidate()) == where.candidates()
    # With slots its answers wait for their turn, and it says when it comes.
    queues, own = replace(device, slots=2), replace(device, slots=2, reach="own")
    assert [s.candidate().announces for s in (device, queues, own)] == [False, True, False]
    assert (device.parks, device.candidate().parks, server.candidate().parks) == (None, True, False)


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
    workload = resolve_stations(one(), (PHONE, CLOUD), seed=0)
    with pytest.raises(ConfigurationError, match="for the stations phone, cloud, not for cloud, phone"):
        simulate_stations(workload, (CLOUD, PHONE), at("cloud"))
    with pytest.raises(ConfigurationError, match=r"names the station 'clout'.*cloud"):
        simulate_stations(workload, (PHONE, CLOUD), at("clout"))
    two = resolve_stations(one(arrivals=(0.0, 1.0)), (PHONE, CLOUD), seed=0)
    with pytest.raises(ConfigurationError, match="column arrival_s is not in order"):
        replace(two, arrival_s=np.array([1.0, 0.0])).check()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"slots": 0}, "at least 1 slot"), ({"decode_tps": 0.0}, "more than 0"), ({"load_s": -1.0}, "load its model")],
)  # fmt: skip
def test_a_station_that_cannot_be_is_refused(change, said):
    with pytest.raises(ConfigurationError, match=said):
        replace(PHONE, **change)


TEXT = [packet[0].text for packet in prose(64)]


def scripts(*stations, known=None, answer=10):
    workload = resolve_stations(one(answer), stations, seed=7, max_tokens=40, known=known)
    return Answers(workload, stations).of(0)


def tried(of, name, *, written=0, withheld=0, holds=False, limit=None):
    """One attempt from the answer's first `written` tokens on, the last `withheld` of which are to be written again."""
    prefix = Prefix("".join(TEXT[:written]), written, withheld="".join(TEXT[written - withheld : written]))
    events, prompt_tokens, cached_tokens = of.script(StartAttempt(0, name, prefix, limit), holds_prompt=holds)
    return list(events), prompt_tokens, cached_tokens


def first_at(tried):
    return tried[0][0][0]


def ended(tried):
    return tried[0][-1][1]


def test_a_drawn_time_is_the_columns_once_and_drawn_anew_after_that():
    of = scripts(CLOUD, known={"cloud": KnownTimes(ttft_s=[5.0])})
    assert first_at(tried(of, "cloud")) == 5.0
    again = [first_at(tried(of, "cloud")) for _ in range(3)]
    moved = first_at(tried(scripts(CLOUD), "cloud", written=3))
    assert len({*again, moved}) == 3, "the first of a request's later draws is the same, whatever it is for"
    assert all(0.2 <= at <= 0.9 for at in (*again, moved))


def test_a_line_tells_every_time_in_advance_and_reads_on_from_what_it_holds():
    of = scripts(PHONE, known={"phone": KnownTimes(ttft_s=[5.0])})
    assert first_at(tried(of, "phone")) == first_at(tried(of, "phone")) == 5.0
    assert tried(of, "phone", written=4)[1:] == (54, 0)
    assert first_at(tried(of, "phone", written=4)) == pytest.approx(0.1 + 54 / 100)
    assert tried(of, "phone", written=4, holds=True)[1:] == (54, 50)
    assert first_at(tried(of, "phone", written=4, holds=True)) == pytest.approx(0.1 + 4 / 100)


def test_faults_befall_first_attempts_by_the_column_and_later_ones_by_their_share():
    dying = replace(CLOUD, fault=Fault(3, probability=0.5))
    workload = resolve_stations(one(arrivals=np.arange(400.0)), (dying,), seed=7)
    answers = Answers(workload, (dying,))
    attempts = [[len(tried(of, "cloud")[0]) == 4 for _ in range(2)] for of in map(answers.of, range(400))]
    first, second = np.array(attempts).T
    assert first.tolist() == workload.faulty[:, 0].tolist()
    assert (first.mean(), second.mean()) == pytest.approx((0.5, 0.5), abs=0.1)
    assert (second != first).sum() > 100


def test_an_attempt_goes_on_where_the_prefix_ends_in_text_in_gaps_and_in_usage():
    gaps = Gaps(np.array([0, 5]), np.array([0.5, 0.0, 1.5, 0.25, 2.0]))
    of = scripts(PHONE, known={"phone": KnownTimes(gaps=gaps)}, answer=7)
    events = tried(of, "phone", written=2)[0]
    assert [event[0].text for _, event in events[:-1]] == TEXT[2:7]
    assert np.diff([at for at, _ in events]) == pytest.approx([1.5, 0.25, 2.0, 0.05, 0.0])
    assert events[-1][1] == Ended("stop", Usage(52, 5, 0))


def test_what_is_withheld_is_written_again_timed_and_charged_but_not_delivered():
    of = scripts(PHONE)
    plain, behind = tried(of, "phone", written=6), tried(of, "phone", written=6, withheld=2)
    assert [event[0].text for _, event in behind[0][:-1]] == TEXT[6:10]
    assert first_at(behind) == pytest.approx(first_at(plain) + 2 / 20)
    assert (ended(plain).usage.completion_tokens, ended(behind).usage.completion_tokens) == (4, 6)


def test_an_answer_ends_by_itself_or_at_its_limit():
    own, cut, lowered, over = (
        tried(scripts(PHONE, answer=answer), "phone", **how)
        for answer, how in ((10, {}), (60, {}), (60, {"limit": 15}), (10, {"written": 20}))
    )
    assert [ended(of).finish_reason for of in (own, cut, lowered)] == ["stop", "length", "length"]
    assert [len(of[0]) for of in (own, cut, lowered)] == [11, 41, 16]
    assert ended(lowered).usage.completion_tokens == 15
    assert len(over[0]) == 1, "a station whose answer is shorter than what is written has nothing to add"
