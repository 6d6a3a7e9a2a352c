"""Answers taken in stretches are the same, to the last bit, as answers played token by token."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from made_stations import columns

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


@pytest.mark.parametrize(
    ("pace_tps", "order", "policy", "slots"),
    [
        (2.0, "make_before_break", "race", None),
        (4.8, "make_before_break", "server_only", None),
        (4.8, "break_before_make", "race", None),
        (4.8, "break_before_make", "server_only", 1),
        (30.0, "make_before_break", "server_only", None),
        (30.0, "break_before_make", "race", 1),
    ],
)
def test_stretches_change_nothing(pace_tps, order, policy, slots):
    scenario = replace(SCENARIO, pace_tps=pace_tps, device_slots=slots)
    load, arm = resolve(TRACE, scenario, seed=1), Arm(policy, migrate=True, order=order)
    with mock.patch.object(virtual_driver, "take_stretch", wraps=virtual_driver.take_stretch) as taken:
        at_once = simulate(load, scenario, arm, seed=1)
    with mock.patch.object(virtual_driver, "take_stretch", return_value=0):
        one_by_one = simulate(load, scenario, arm, seed=1)
    assert taken.called or slots  # on a shared heap packets come one by one anyway
    for left, right in ((at_once, one_by_one), (at_once.reading, one_by_one.reading)):
        for name, values in columns(left).items():
            np.testing.assert_array_equal(values, getattr(right, name), err_msg=name)
    assert at_once.cost_by == one_by_one.cost_by
    if slots is None and pace_tps < 30.0:
        assert at_once.reading.moved.any(), "moves are what is hard"
