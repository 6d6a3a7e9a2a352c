"""Two evaluators, one truth: on every shipped device and server, in both regimes, they say the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disco._resources import resource_dir
from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED
from disco.profiles import DeviceProfile, ServerProfile, load_lengths, load_profile
from disco.profiles.profile_toml import read_toml
from disco.replay.metrics.outcome import Outcome
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve, scenario_for
from disco.replay.workload.trace import Trace

KINDS = {path: read_toml(path).get("kind") for path in sorted(resource_dir("profiles").glob("*.toml"))}
DEVICES = [path for path, kind in KINDS.items() if kind == "device"]
SERVERS = [path for path, kind in KINDS.items() if kind == "server"]
REGIMES = {"device": PAPER_DEVICE_CONSTRAINED, "server": PAPER_SERVER_CONSTRAINED}
ARMS = (
    *(Arm(policy, 0.3) for policy in ("length_threshold", "wait_time", "optimal_wait", "random", "oracle")),
    Arm("auto", 0.7),
    *(Arm(policy) for policy in ("race", "device_only", "server_only")),
)


def workload(where: Scenario, n: int, seed: int) -> Workload:
    """Prompts as people ask them; answers short, since neither evaluator's TTFT or price depends on more."""
    rng = np.random.default_rng(seed)
    trace = Trace.of(
        arrival_s=np.cumsum(rng.exponential(1.0, n)),
        prompt_tokens=np.maximum(load_lengths("lengths-azure-conv-2023").prompt().sample(rng, n), 1),
        output_tokens=rng.integers(1, 12, n),
    )
    return resolve(trace, where, seed=seed)


def agree(exact: Outcome, fast: Outcome) -> None:
    np.testing.assert_allclose(exact.ttft_s, fast.ttft_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(exact.cost_usd, fast.cost_usd, rtol=1e-12)
    for column in ("device_won", "device_prompt_tokens", "server_prompt_tokens", "failed"):
        np.testing.assert_array_equal(getattr(exact, column), getattr(fast, column), err_msg=column)
    assert exact.cost_by.keys() == fast.cost_by.keys()
    for key, usd in exact.cost_by.items():
        assert math.isclose(usd, fast.cost_by[key], rel_tol=1e-12), key


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("number", range(len(SERVERS)), ids=[path.stem for path in SERVERS])
def test_both_evaluators_agree(number, regime):
    """Every server in both regimes, and every device twice with each regime; a reader's pace changes neither side."""
    here, there = load_profile(DEVICES[number % len(DEVICES)]), load_profile(SERVERS[number])
    assert isinstance(here, DeviceProfile)
    assert isinstance(there, ServerProfile)
    pace_tps, max_tokens = [(None, None), (4.8, 9), (60.0, 9)][number % 3]
    how = {"exchange_rate": REGIMES[regime], "pace_tps": pace_tps, "max_tokens": max_tokens}
    where = scenario_for(here, there, **how)
    load = workload(where, 60, 7)
    for arm in ARMS:
        agree(simulate(load, where, arm, seed=7), evaluate(load, where, arm, seed=7))
