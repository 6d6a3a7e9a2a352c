"""Two evaluators, one truth: on every shipped device and server, in both regimes, they say the same."""

from __future__ import annotations

import itertools
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


def check_all(device, server, regime, arms, *, n: int, seed: int, **how) -> None:
    here, there = load_profile(device), load_profile(server)
    assert isinstance(here, DeviceProfile)
    assert isinstance(there, ServerProfile)
    where = scenario_for(here, there, exchange_rate=REGIMES[regime], **{"pace_tps": None, **how})
    load = workload(where, n, seed)
    for arm in arms:
        agree(simulate(load, where, arm, seed=seed), evaluate(load, where, arm, seed=seed))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("number", range(len(SERVERS)), ids=[path.stem for path in SERVERS])
def test_both_evaluators_agree(number, regime):
    """Every server in both regimes, and every device twice with each regime."""
    check_all(DEVICES[number % len(DEVICES)], SERVERS[number], regime, ARMS, n=60, seed=7)


@pytest.mark.parametrize("pace_tps", [4.8, 60.0])
def test_a_readers_pace_changes_neither_first_token_nor_price(pace_tps):
    check_all(DEVICES[0], SERVERS[0], "device", ARMS, n=100, seed=8, pace_tps=pace_tps, max_tokens=9)


def test_every_budget_is_kept_alike():
    policies = ("length_threshold", "wait_time", "optimal_wait", "random", "oracle")
    arms = [Arm(policy, budget) for policy, budget in itertools.product(policies, (0.0, 0.1, 0.5, 0.9, 1.0))]
    check_all(DEVICES[0], SERVERS[0], "device", arms, n=60, seed=9)
