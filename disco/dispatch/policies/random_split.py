"""Stoch-S and Stoch-D, the paper's baselines: random routing under the same budget.

A request of any length goes to the constrained endpoint with probability `b`. So, in expectation, does a share `b` of
all tokens.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from disco.candidate import Candidate
from disco.dispatch.policies.policy import alone, check_share
from disco.dispatch.request_features import Features
from disco.plan import Start, Why

__all__ = ["RandomSplit"]


class RandomSplit:
    """Random routing."""

    name = "random"

    # Mutable: the state of _rng.
    __slots__ = ("_budget", "_constrained", "_rng")

    def __init__(
        self,
        *,
        budget: float,
        constrained: Literal["device", "server"],
        rng: np.random.Generator,
    ) -> None:
        """Make the policy.

        Args:
            budget: share `b` in [0, 1] of all prompt tokens that the constrained endpoint may process.
            constrained: "server" (Stoch-S) or "device" (Stoch-D).
            rng: drawn from once for every request that both sides may serve.
        """
        self._budget = check_share("budget", budget)
        self._constrained = constrained
        self._rng = rng

    def starts(
        self,
        features: Features,
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server, features.prompt_tokens)
        scarce, free = (server, device) if self._constrained == "server" else (device, server)
        drawn = float(self._rng.random())
        chosen = scarce if drawn < self._budget else free
        return (Start(chosen.name, 0.0, Why("drawn", drawn, self._budget)),)
