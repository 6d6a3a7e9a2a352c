"""DiSCo-S: short prompts stay on the device, long ones race, and the server sees a share `b` of all tokens.

The boundary length `l_th` solves `Σ_{l<l_th} l·p(l) = (1−b)·E[l]`. Lengths are whole numbers, so a threshold alone
cannot meet the budget exactly. Therefore a share of the prompts of exactly the boundary length race, such that
`E[I_s(l)·l] = b·E[l]` is exact. Error diffusion (`policy.ErrorDiffusion`) selects them, so the budget holds on every
sequence drawn from the fitted lengths to within one prompt, not only in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch.planners.token_shares import TokenShares
from disco.dispatch.policies.policy import ErrorDiffusion, alone, check_share, source_of
from disco.dispatch.request_features import Features
from disco.plan import Source, Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["LengthThreshold", "ThresholdPlan", "plan_threshold", "plan_threshold_samples"]


@dataclass(frozen=True, slots=True)
class ThresholdPlan:
    """Where the race begins.

    Attributes:
        boundary_tokens: shorter prompts run on the device only, longer ones race; `inf`: none races.
        race_share: share of the prompts of exactly the boundary length that race.
    """

    boundary_tokens: float
    race_share: float


def plan_threshold(lengths: Lengths, budget: float) -> ThresholdPlan:
    """Return the plan for a distribution of prompt lengths (paper, server-constrained dispatch).

    Args:
        lengths: prompt lengths in tokens.
        budget: share `b` in [0, 1] of all prompt tokens that the server may process.

    Raises:
        ValueError: a budget out of range, or no prompt with tokens.
    """
    return _plan(TokenShares.of(lengths), budget)


def plan_threshold_samples(lengths: NDArray[np.int64], budget: float) -> ThresholdPlan:
    """Return the plan for a sample of prompt lengths: tokens, int64, shape (n,).

    Args:
        lengths: prompt lengths, tokens, int64, shape (n,).
        budget: share of all prompt tokens that the server may process, in [0, 1].
    """
    return _plan(TokenShares.of_samples(lengths), budget)


def _plan(shares: TokenShares, budget: float) -> ThresholdPlan:
    check_share("budget", budget)
    if budget >= 1.0:
        return ThresholdPlan(-1.0, 1.0)  # all race, also prompts shorter than any observed one
    boundary_tokens, part_below = shares.split(1.0 - budget)
    return ThresholdPlan(boundary_tokens, 1.0 - part_below)


class LengthThreshold:
    """The policy. Its decisions on prompts of the boundary length depend on `rng` and on earlier decisions.

    Args:
        plan: which lengths stay on the device.
        budget: share of all prompt tokens that the server may process, in [0, 1].
        rng: decides on prompts of the boundary length.
    """

    name = "length_threshold"

    # Mutable: plan and _source (through refit), _diffusion.
    __slots__ = ("_budget", "_diffusion", "_source", "plan")

    def __init__(self, plan: ThresholdPlan, *, budget: float, rng: np.random.Generator) -> None:
        self.plan = plan
        self._budget = check_share("budget", budget)
        self._diffusion = ErrorDiffusion(rng)
        self._source: tuple[Source, int] = ("preset", 0)

    @classmethod
    def fitted(cls, lengths: Lengths, *, budget: float, rng: np.random.Generator) -> LengthThreshold:
        """Make the policy with a plan for these lengths; see `plan_threshold`.

        Args:
            lengths: prompt lengths, tokens.
            budget: share of all prompt tokens that the server may process, in [0, 1].
            rng: decides on prompts of the boundary length.
        """
        made = cls(plan_threshold(lengths, budget), budget=budget, rng=rng)
        made._source = source_of(lengths)
        return made

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:  # noqa: ARG002 - the plan depends on lengths only
        self.plan = plan_threshold(lengths, self._budget)
        self._source = source_of(lengths)

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server, features.prompt_tokens)
        tokens = features.prompt_tokens
        plan = self.plan
        if tokens < plan.boundary_tokens or (
            tokens == plan.boundary_tokens and not self._diffusion.take(plan.race_share, tokens)
        ):
            why = Why("short", tokens, plan.boundary_tokens, *self._source)
            if plan.boundary_tokens == float("inf"):
                why = Why("none_race", tokens, self._budget)
            return (Start(device.name, 0.0, why),)
        long = Why("long", tokens, max(plan.boundary_tokens, 0.0), *self._source)
        return Start(device.name, 0.0, long), Start(server.name, 0.0, long)
