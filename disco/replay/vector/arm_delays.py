"""When each side starts under an arm, for every request of a workload at once."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.policies.policy import Delays, Policy
from disco.dispatch.policies.policy_registry import AUTO, build_policy
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError
from disco.replay.vector.oracle import oracle_delays
from disco.replay.vector.policy_delays import delays
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Scenario, Workload

__all__ = [
    "ORACLE",
    "RECORDED",
    "Objective",
    "arm_delays",
    "arm_policy",
    "policy_delays",
    "policy_name",
    "recorded_delays",
    "server_leads",
]

Objective = Literal["mean", "p99"]
ORACLE: Final = "oracle"
RECORDED: Final = "recorded"

_POLICY_STREAM = 7  # apart from the streams that `scenario.resolve` draws from under the same seed
_SERVER_LEADS = frozenset(("optimal_wait", "wait_time"))  # their `starts` names the server first


def policy_name(scenario: Scenario, arm: Arm) -> str:
    """The arm's policy, or what "auto" stands for in that regime."""
    if arm.policy != AUTO:
        return arm.policy
    return "length_threshold" if scenario.constrained == "server" else "wait_time"


def server_leads(scenario: Scenario, arm: Arm) -> bool:
    """Of two that start at the same time and would write at the same time, whether the server comes first."""
    return policy_name(scenario, arm) in _SERVER_LEADS


def arm_delays(
    workload: Workload, scenario: Scenario, arm: Arm, *, seed: int, objective: Objective = "mean"
) -> Delays:
    """When each side starts, in seconds after its request came.

    A policy without `delays` is asked request by request, which is slower and gives the same.

    Args:
        workload: the requests; policies see their prompt lengths, only the oracle sees their times.
        scenario: where.
        arm: what.
        seed: of the policy's own randomness.
        objective: what an oracle makes small.

    Raises:
        ConfigurationError: nobody knows the policy, it cannot be planned on this workload, or it needs more of a
            request than a trace holds.
    """
    if arm.policy == ORACLE:
        return oracle_delays(
            workload, constrained=scenario.constrained, budget=arm.budget, objective=objective
        )
    if arm.policy == RECORDED:
        return recorded_delays(workload)
    policy = arm_policy(scenario, arm, workload.prompt_tokens, seed=seed)
    return policy_delays(policy, scenario, arm, workload.prompt_tokens)


def recorded_delays(workload: Workload) -> Delays:
    """When a live client started each side.

    Raises:
        ConfigurationError: the trace is not a recording.
    """
    if workload.starts is None:
        raise ConfigurationError(
            f"the policy {RECORDED!r} starts what a live client started, and this trace does not say; record one "
            "with disco.RouteLog, or name another policy"
        )
    return workload.starts


def arm_policy(scenario: Scenario, arm: Arm, prompt_tokens: NDArray[np.int64], *, seed: int) -> Policy:
    """The arm's policy, fitted; it carries what rounding owes from one request to the next.

    Args:
        scenario: where.
        arm: what; not the oracle.
        prompt_tokens: what it is planned on, unless the scenario has lengths of its own.
        seed: of the policy's own randomness.

    Raises:
        ConfigurationError: nobody knows the policy, or it cannot be planned on these lengths.
    """
    name = policy_name(scenario, arm)
    device, _ = scenario.candidates()
    try:
        return build_policy(
            name,
            lengths=scenario.planning_lengths(prompt_tokens),
            ttft=scenario.ttft,
            device=device,
            budget=arm.budget,
            tail=arm.tail,
            rng=np.random.default_rng([seed, _POLICY_STREAM]),
            server_constrained=scenario.constrained == "server",
        )
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"policy {name!r} cannot be planned on this trace: {error}") from error


def policy_delays(policy: Policy, scenario: Scenario, arm: Arm, prompt_tokens: NDArray[np.int64]) -> Delays:
    """What the arm's policy decides for the next requests, as `arm_delays`."""
    at_once = delays(policy, prompt_tokens)
    if at_once is not None:
        return at_once
    return _one_by_one(policy, policy_name(scenario, arm), scenario, prompt_tokens)


def _one_by_one(policy: Policy, name: str, scenario: Scenario, prompt_tokens: NDArray[np.int64]) -> Delays:
    device, server = scenario.candidates()
    after_s = {endpoint: np.full(prompt_tokens.size, np.inf) for endpoint in (DEVICE, SERVER)}
    for row, tokens in enumerate(prompt_tokens.tolist()):
        features = Features(prompt_tokens=tokens, max_tokens=scenario.max_tokens)
        try:
            starts = policy.starts(features, device, server)
        except AttributeError as error:
            if error.obj is not features:
                raise
            raise ConfigurationError(
                f"policy {name!r} needs {error.name!r} of a request, which this replay cannot give it; "
                "it gives prompt_tokens and max_tokens"
            ) from error
        for start in starts:
            if start.endpoint not in after_s:
                raise ConfigurationError(
                    f"policy {name!r} starts {start.endpoint!r}; a replay has {DEVICE!r} and {SERVER!r}"
                )
            after_s[start.endpoint][row] = min(after_s[start.endpoint][row], start.after_s)
    return Delays(after_s[DEVICE], after_s[SERVER])
