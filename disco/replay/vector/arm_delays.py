"""Starting times of both sides under an arm, for all requests of a workload at once.

A property test checks that the vectorised form of each policy gives the same decisions as its `starts`, to the last
bit. A policy of another package may have its own form, as a method `delays`.
"""

# ruff: noqa: ARG001, SLF001 - dispatched by the policy's type; works on the policies' private state

from __future__ import annotations

from functools import singledispatch
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.dispatch import (
    Delays,
    DeviceOnly,
    ErrorDiffusion,
    LengthThreshold,
    OptimalWait,
    Race,
    RandomSplit,
    ServerOnly,
    SplitWait,
    VectorPolicy,
    WaitByLength,
    WaitTime,
)
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.policies.policy import Policy
from disco.dispatch.policies.policy_registry import AUTO, build_policy
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError
from disco.replay.vector.oracle import Objective, oracle_delays
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Scenario, Workload

__all__ = [
    "ORACLE",
    "RECORDED",
    "Objective",
    "arm_delays",
    "arm_policy",
    "delays",
    "policy_delays",
    "policy_name",
    "server_leads",
]

Tokens = NDArray[np.int64]


@singledispatch
def delays(policy: object, prompt_tokens: Tokens) -> Delays | None:
    """Return what `policy.starts` would decide for these requests in order, with a device and a server available.

    Args:
        policy: any policy.
        prompt_tokens: of each request, in order of arrival; int64, shape (n,).

    Returns:
        The delays; None if the policy has no vectorised form.
    """
    return policy.delays(prompt_tokens) if isinstance(policy, VectorPolicy) else None


@delays.register
def _(policy: DeviceOnly, prompt_tokens: Tokens) -> Delays:
    n = prompt_tokens.size
    return Delays(np.zeros(n), np.full(n, np.inf))


@delays.register
def _(policy: ServerOnly, prompt_tokens: Tokens) -> Delays:
    n = prompt_tokens.size
    return Delays(np.full(n, np.inf), np.zeros(n))


@delays.register
def _(policy: Race, prompt_tokens: Tokens) -> Delays:
    n = prompt_tokens.size
    return Delays(np.zeros(n), np.zeros(n))


@delays.register
def _(policy: RandomSplit, prompt_tokens: Tokens) -> Delays:
    n = prompt_tokens.size
    chosen = policy._rng.random(n) < policy._budget
    scarce_s = np.where(chosen, 0.0, np.inf)
    free_s = np.where(chosen, np.inf, 0.0)
    return Delays(free_s, scarce_s) if policy._constrained == "server" else Delays(scarce_s, free_s)


@delays.register
def _(policy: LengthThreshold, prompt_tokens: Tokens) -> Delays:
    plan = policy.plan
    server_s = np.where(prompt_tokens > plan.boundary_tokens, 0.0, np.inf)
    tied = np.flatnonzero(prompt_tokens == plan.boundary_tokens)
    if tied.size:
        race = policy._diffusion.take_many(plan.race_share, int(plan.boundary_tokens), tied.size)
        server_s[tied[race]] = 0.0
    return Delays(np.zeros(prompt_tokens.size), server_s)


@delays.register
def _(policy: OptimalWait, prompt_tokens: Tokens) -> Delays:
    return Delays(policy.waits_s(prompt_tokens), np.zeros(prompt_tokens.size))


@delays.register
def _(policy: WaitTime, prompt_tokens: Tokens) -> Delays:
    plan = policy.plan
    later = plan.tail if plan.slope is None else plan.slope
    device_s = np.where(prompt_tokens < later.tokens, later.early, later.late)
    edge = np.flatnonzero(prompt_tokens == plan.boundary_tokens)
    edge_s = _picked(plan.edge, policy._edge, plan.boundary_tokens, edge.size)
    if later.tokens > plan.boundary_tokens:
        _divide(policy, device_s, later, np.flatnonzero(prompt_tokens == later.tokens))
    if plan.slope is None:
        device_s[edge] = edge_s
    else:
        if later.tokens == plan.boundary_tokens:
            _divide(policy, device_s, later, edge[edge_s != 0.0])
        device_s *= prompt_tokens
        np.minimum(device_s, plan.tail.late, out=device_s)
        device_s[edge[edge_s == 0.0]] = 0.0
    np.copyto(device_s, 0.0, where=prompt_tokens < plan.boundary_tokens)
    return Delays(device_s, np.zeros(prompt_tokens.size))


def _divide(
    policy: WaitTime, device_s: NDArray[np.float64], wait: WaitByLength, tied: NDArray[np.intp]
) -> None:
    """Give the early wait to the policy's share of the requests whose length is the boundary of `wait`."""
    if tied.size:
        early = policy._later.take_many(wait.part, int(wait.tokens), tied.size)
        device_s[tied[early]] = wait.early


def _picked(wait: SplitWait, diffusion: ErrorDiffusion, tokens: float, n: int) -> NDArray[np.float64]:
    p_early = wait.p_early
    if not n or p_early <= 0.0:
        return np.full(n, wait.late_s)
    if p_early >= 1.0:
        return np.full(n, wait.early_s)
    return np.where(diffusion.take_many(p_early, int(tokens), n), wait.early_s, wait.late_s)


ORACLE: Final = "oracle"
RECORDED: Final = "recorded"

_POLICY_STREAM = 7  # different from the streams that `scenario.resolve` draws from under the same seed
_SERVER_LEADS = frozenset(("optimal_wait", "wait_time"))  # policies whose `starts` names the server first


def policy_name(scenario: Scenario, arm: Arm) -> str:
    """Return the arm's policy, or the policy that "auto" stands for in the scenario's regime."""
    if arm.policy != AUTO:
        return arm.policy
    return "length_threshold" if scenario.constrained == "server" else "wait_time"


def server_leads(scenario: Scenario, arm: Arm) -> bool:
    """Return whether the server wins if both sides start and would write at the same times."""
    return policy_name(scenario, arm) in _SERVER_LEADS


def arm_delays(
    workload: Workload, scenario: Scenario, arm: Arm, *, seed: int, objective: Objective = "mean"
) -> Delays:
    """Return when each side starts, in seconds after the request.

    A policy without `delays` is asked request by request, which is slower and gives the same result.

    Args:
        workload: the requests; policies see their prompt lengths, only the oracle sees their times.
        scenario: device, server and reader.
        arm: the policy and its numbers.
        seed: seed of the policy's own random draws.
        objective: the figure that an oracle minimises.

    Raises:
        ConfigurationError: the policy is unknown, cannot be planned on this workload, or needs more of a request than
            a trace has.
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
    """Return when a live client started each side.

    Raises:
        ConfigurationError: the trace is not a recording.
    """
    if workload.starts is None:
        raise ConfigurationError(
            f"the policy {RECORDED!r} needs the starts of a live client, and this trace has none; record a trace "
            "with disco.RouteLog, or name another policy"
        )
    return workload.starts


def arm_policy(scenario: Scenario, arm: Arm, prompt_tokens: NDArray[np.int64], *, seed: int) -> Policy:
    """Return the arm's policy, fitted; the policy carries rounding errors from one request to the next.

    Args:
        scenario: device, server and reader.
        arm: the policy and its numbers; not the oracle.
        prompt_tokens: lengths that the policy is planned on, unless the scenario has its own.
        seed: seed of the policy's own random draws.

    Raises:
        ConfigurationError: the policy is unknown, or cannot be planned on these lengths.
    """
    name, options = policy_spec(policy_name(scenario, arm))
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
            options=options,
        )
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"policy {name!r} cannot be planned on this trace: {error}") from error


def policy_delays(policy: Policy, scenario: Scenario, arm: Arm, prompt_tokens: NDArray[np.int64]) -> Delays:
    """Return what the arm's policy decides for the next requests, as `arm_delays`."""
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
        except ConfigurationError as error:
            cause = error.__cause__
            if not (isinstance(cause, AttributeError) and cause.obj is features):
                raise
            raise ConfigurationError(
                f"policy {name!r} needs {cause.name!r} of a request, but a replay has only prompt_tokens and "
                "max_tokens; name another policy"
            ) from cause
        for start in starts:
            if start.endpoint not in after_s:
                raise ConfigurationError(
                    f"policy {name!r} starts {start.endpoint!r}; a replay has only {DEVICE!r} and {SERVER!r}"
                )
            after_s[start.endpoint][row] = min(after_s[start.endpoint][row], start.after_s)
    return Delays(after_s[DEVICE], after_s[SERVER])
