"""The event-accurate evaluator: queue, loading, failures, moves."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from made_stations import trace

from disco.cost import Phase, Rates
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError, FailureKind
from disco.playback import reader_metrics as metrics
from disco.profiles import DeviceProfile, Empirical
from disco.replay.metrics.outcome import Outcome
from disco.replay.simulator.device_queue import SharedDevice
from disco.replay.simulator.event_evaluator import answer_lengths, simulate
from disco.replay.simulator.reader_columns import FLUIDITY_TTFT_S
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve
from disco.replay.workload.trace import Trace

DEVICE = DeviceProfile(
    name="phone", source="made up for tests", prefill_tps=100.0, decode_tps=20.0, c_s=0.1, load_s=2.0
)
CHEAP_DEVICE = Rates(1e-8, 1e-7, cached_share=0.0)
DEAR_DEVICE = Rates(1e-4, 1e-3, cached_share=0.0)
SERVER = Rates(1e-6, 1e-5)


SCENARIO = Scenario(
    name="test",
    device=DEVICE,
    device_rates=CHEAP_DEVICE,
    server_rates=SERVER,
    ttft=Empirical.from_samples([0.2, 0.3, 0.5, 0.9]),
)
scenario = partial(replace, SCENARIO)


def workload(where: Scenario, *, arrivals=(0.0,), prompts=50, answers=60, ttfts=0.5) -> Workload:
    prompt, answer, ttft_s = (np.broadcast_to(column, len(arrivals)) for column in (prompts, answers, ttfts))
    load = Trace.of(
        arrival_s=arrivals, prompt_tokens=prompt, output_tokens=answer, ttft_s=ttft_s.astype(float)
    )
    return resolve(load, where, seed=0)


def alone(where: Scenario, arm: Arm, **load) -> Outcome:
    """What becomes of these requests."""
    return simulate(workload(where, **load), where, arm, seed=0)


def many(where: Scenario, n: int) -> Workload:
    return resolve(trace(n), where, seed=3)


# ---------------------------------------------------------------- one request


def test_a_loser_that_keeps_its_prefill_need_not_do_it_again():
    out = alone(scenario(), Arm("race", migrate=True, order="make_before_break"), answers=400, ttfts=0.3)
    loser, target = out.example.attempts[0], out.example.attempts[2]
    assert (loser.endpoint, loser.outcome, loser.prompt_tokens) == ("device", "parked", 50)
    assert (out.reading.moved.tolist(), out.reading.handover_late_tokens.tolist()) == ([True], [0.0])
    np.testing.assert_array_equal(out.reading.moved_tbt_s, out.reading.tbt_s)
    assert target.cached_tokens == 50
    assert out.example.migrations[0].took_s == pytest.approx(0.1 + out.example.migrations[0].cut_tokens / 100)


@pytest.mark.parametrize("slots", [None, 1])
def test_a_server_stops_while_the_loser_still_reads_what_it_goes_on_with(slots):
    where = scenario(device_slots=slots)
    out = alone(where, Arm("race", migrate=True), answers=400, prompts=100, ttfts=0.2)
    loser, server, target = out.example.attempts
    assert (server.ended_s, target.started_s) == (out.example.migrations[0].decided_s,) * 2
    assert target.started_s < loser.ended_s == pytest.approx(0.1 + 100 / 100)
    assert (loser.outcome, target.cached_tokens, out.reading.late_tokens[0]) == ("parked", 100, 0)
    # The target begins when the loser has read the prompt.
    cut = out.example.migrations[0].cut_tokens
    assert target.first_content_s == pytest.approx(loser.ended_s + 0.1 + cut / 100)
    named = alone(
        where, Arm("race", migrate=True, order="break_before_make"), answers=400, prompts=100, ttfts=0.2
    )
    assert named.example.attempts[1].ended_s > loser.ended_s
    assert out.cost_usd[0] < named.cost_usd[0]


def test_the_server_as_a_target_takes_a_time_of_its_own():
    where = scenario(device_rates=DEAR_DEVICE, ttft=Empirical.from_samples([0.25]))
    out = alone(where, Arm("device_only", migrate=True), answers=400, ttfts=3.0)
    assert out.example.migrations[0].took_s == pytest.approx(0.25)
    assert out.server_prompt_tokens[0] == 0


# ---------------------------------------------------------------- a shared device


def test_whoever_loses_in_the_queue_has_done_nothing_and_costs_nothing():
    where = scenario(device_slots=1)
    load = workload(where, arrivals=(0.0, 0.1), prompts=300, ttfts=1.0)
    out = simulate(load, where, Arm("race"), seed=0)
    assert out.ttft_s.tolist() == pytest.approx([1.0, 1.0])
    # The first is cancelled at 1.0 in the middle of its prefill; the second begins then and is cancelled at 1.1.
    assert out.device_prompt_tokens.tolist() == [300, 300]
    load = workload(where, arrivals=(0.0, 0.1, 0.1), prompts=300, ttfts=[0.95, 0.95, 0.9])
    out = simulate(load, where, Arm("race"), seed=0)
    assert out.device_prompt_tokens.tolist() == [300, 300, 0]
    assert out.cost_usd[2] == pytest.approx(SERVER.cost(300, 60), rel=1e-12)
    assert out.cost_usd[1] == pytest.approx(SERVER.cost(300, 60) + CHEAP_DEVICE.cost(300, 0), rel=1e-12)


def test_a_model_that_a_move_needs_is_loaded_first():
    where = scenario(idle_unload_s=60.0)
    moves = alone(where, Arm("server_only", migrate=True), answers=400).example
    assert moves.attempts[1].cold
    move = moves.migrations[0]
    assert move.took_s == pytest.approx(2.0 + 0.1 + (50 + move.cut_tokens) / 100)
    assert move.expected_s == pytest.approx(move.took_s, abs=0.03), "it counts the word behind the cut, too"
    unknown = replace(where, device=DEVICE.model_copy(update={"load_s": None}))
    with pytest.raises(ConfigurationError, match="load_s"):
        alone(unknown, Arm("device_only"))


def test_a_prefill_is_kept_until_its_slot_is_needed():
    device = SharedDevice(slots=1)
    parked, other, same = mock.Mock(player="a"), mock.Mock(player="b"), mock.Mock(player="b")
    device.enter(parked, 0.0)
    device.leave(parked, 1.0, keeps=True)
    assert not parked.forget.called
    device.enter(other, 2.0)
    assert parked.forget.called
    device.leave(other, 3.0, keeps=True)
    device.enter(same, 3.0)
    assert not other.forget.called, "it goes on from it, in the same slot"


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(("after_tokens", "pace_tps"), [(0, 4.8), (25, 4.8), (25, None)])
def test_a_dead_server_is_replaced_by_the_device(after_tokens, pace_tps):
    dead = Fault(after_tokens=after_tokens, kind=FailureKind.CONNECTION)
    out = alone(scenario(server_fault=dead, pace_tps=pace_tps), Arm("server_only"))
    assert (out.failed[0], out.reading.failed_over[0], out.reading.tbt_s.size) == (False, True, 59)
    assert out.device_won[0] == (after_tokens == 0)
    assert out.ttft_s[0] == pytest.approx(0.5 if after_tokens else 0.5 + 0.6)
    assert not after_tokens or out.cost_by["device", Phase.FAILOVER] > 0


def test_an_endpoint_that_hangs_is_given_up():
    hangs = Fault(after_tokens=0, silence_s=math.inf, kind=None)
    out = alone(scenario(server_fault=hangs), Arm("server_only"))
    assert out.ttft_s[0] == pytest.approx(30.6)
    assert out.device_won[0]


def test_a_server_that_keeps_failing_is_left_alone_but_by_the_oracle_whose_starts_are_given():
    where = scenario(server_fault=Fault(after_tokens=0, silence_s=3.0, kind=FailureKind.SERVER))
    load = {"arrivals": tuple(np.arange(30) * 10.0), "answers": 5}
    out = alone(where, Arm("server_only"), **load)
    assert out.device_won.all()
    tried = out.server_prompt_tokens > 0
    assert tried[:3].all()  # until it has failed often enough
    assert 4 <= tried.sum() <= 12
    assert (out.ttft_s[~tried] < 1.0).all()
    told = alone(where, Arm("oracle", 0.5), **load)
    assert (told.server_prompt_tokens > 0).sum() != tried.sum()
    # Of a crowd, one tries it when it has rested.
    out = alone(where, Arm("server_only"), arrivals=(0.0, 5.0, 10.0, *[40.0] * 5), answers=5)
    assert (out.server_prompt_tokens > 0).tolist()[:3] == [True] * 3
    assert (out.server_prompt_tokens[3:] > 0).sum() == 1


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("pace_tps", [4.8, 12.0, 60.0])
def test_readings_are_those_of_the_metrics(pace_tps):
    """The columns are worked out all at once; `playback.reader_metrics` does it token by token."""
    where = scenario(pace_tps=pace_tps, server_fault=Fault(20, silence_s=4.0, kind=None, probability=0.3))
    targets = {"ttft_target_s": FLUIDITY_TTFT_S, "tbt_target_s": 1 / pace_tps}
    for row in range(12):
        load = many(where, 12).take(row, row + 1)
        out = simulate(load, where, Arm("server_only", migrate=True), seed=0)
        reading, prompt = out.reading, int(load.prompt_tokens[0])
        times = np.concatenate([out.ttft_s, out.ttft_s + np.cumsum(reading.tbt_s)])
        timeline = [(at, 1) for at in times.tolist()]
        found = reading.late_tokens, reading.stall_ratio, reading.qoe, reading.fluidity
        assert [column[0] for column in found] == [
            metrics.late_tokens(timeline, pace_tps),
            pytest.approx(metrics.stall_ratio(timeline, pace_tps), abs=1e-9),
            pytest.approx(metrics.qoe(timeline, pace_tps, submitted_at=0.0, prompt_tokens=prompt), abs=1e-9),
            pytest.approx(metrics.fluidity(timeline, submitted_at=0.0, **targets)),
        ]


def test_answers_at_the_limit_count_as_cut_short():
    where = scenario(max_tokens=50)
    load = workload(where, arrivals=(0, 0, 0, 0), answers=[10, 20, 90, 90])
    lengths = answer_lengths(load)
    assert lengths.survival(20) == pytest.approx(0.5)
    assert 20.0 < lengths.expected_remaining(20) < 30.0
    assert answer_lengths(workload(where, answers=90)).expected_remaining(10) > 20
