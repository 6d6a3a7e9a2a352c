"""Answers taken in stretches are the same, to the last bit, as answers played token by token."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from disco.cost import Rates
from disco.profiles import DeviceProfile, Empirical
from disco.replay.simulator import virtual_driver
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.workload.scenario import Arm, Scenario, resolve
from disco.replay.workload.trace import Trace

RNG = np.random.default_rng(3)
N = 25
TRACE = Trace.of(
    arrival_s=np.cumsum(RNG.exponential(1.0, N)),
    prompt_tokens=RNG.integers(20, 400, N),
    output_tokens=RNG.integers(1, 300, N),
)
SCENARIO = Scenario(
    name="stretches",
    device=DeviceProfile(name="phone", source="made up", prefill_tps=300.0, decode_tps=25.0, c_s=0.1),
    device_rates=Rates(1e-8, 1e-7, cached_share=0.0),
    server_rates=Rates(1e-6, 1e-5),
    ttft=Empirical.from_samples([0.2, 0.3, 0.5, 0.9]),
    max_tokens=256,
)
COLUMNS = ("ttft_s", "device_won", "cost_usd", "device_prompt_tokens", "server_prompt_tokens", "failed")
READ = (
    "late_tokens",
    "handover_late_tokens",
    "stall_ratio",
    "qoe",
    "fluidity",
    "moved",
    "tbt_s",
    "moved_tbt_s",
)


@pytest.mark.parametrize("pace_tps", [2.0, 4.8, 30.0])
@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
@pytest.mark.parametrize("policy", ["race", "server_only"])
@pytest.mark.parametrize("slots", [None, 1])
def test_stretches_change_nothing(pace_tps, order, policy, slots):
    scenario = replace(SCENARIO, pace_tps=pace_tps, device_slots=slots)
    load, arm = resolve(TRACE, scenario, seed=1), Arm(policy, migrate=True, order=order)
    with mock.patch.object(virtual_driver, "take_stretch", wraps=virtual_driver.take_stretch) as taken:
        at_once = simulate(load, scenario, arm, seed=1)
    with mock.patch.object(virtual_driver, "take_stretch", return_value=0):
        one_by_one = simulate(load, scenario, arm, seed=1)
    assert taken.called or slots  # on a shared heap packets come one by one anyway
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(at_once, name), getattr(one_by_one, name))
    for name in READ:
        np.testing.assert_array_equal(getattr(at_once.reading, name), getattr(one_by_one.reading, name))
    assert at_once.cost_by == one_by_one.cost_by
    if slots is None and pace_tps < 30.0:
        assert at_once.reading.moved.any(), "moves are what is hard"
