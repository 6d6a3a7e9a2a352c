"""Vectorised forms of the policies' `starts`, for replay: decisions for many requests at once.

A property test checks that each gives the same decisions as `starts`, to the last bit. A policy of another package may
have its own form, as a method `delays`.
"""

# ruff: noqa: ARG001, SLF001 - dispatched by the policy's type; works on the policies' private state

from __future__ import annotations

from functools import singledispatch

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

__all__ = ["delays"]

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
