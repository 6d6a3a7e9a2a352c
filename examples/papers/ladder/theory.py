"""What the paper's formulas say of a ladder in which every tier hands up a share beta (Eqs. 30-47)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disco.judging import expected_cost

__all__ = ["break_even", "bytes_ratio", "end_shares"]


def end_shares(beta: float, tiers: int) -> tuple[float, ...]:
    """Return the share of requests that end at each tier (Eqs. 30-33)."""
    below = [beta**tier * (1.0 - beta) for tier in range(tiers - 1)]
    return (*below, beta ** (tiers - 1))


def bytes_ratio(beta: float, tiers: int) -> float:
    """Return the bytes on the chain, relative to all requests sent directly to the top: Eq. 36, simplified."""
    return expected_cost(beta, (0.0, *(1.0,) * (tiers - 1)))


def break_even(costs: Sequence[float]) -> float | None:
    """Return the beta below which climbing costs less than the top tier alone (Eqs. 38-41 and 44-47).

    Args:
        costs: cost of a request at each tier, in any one unit. For compute, each tier's; the top tier alone costs
            `costs[-1]`. For bytes on the chain (0, 1, 1, ...): a direct link to the top costs one hop.

    Returns:
        1 where climbing is cheaper for every beta up to 1; None where it never is.
    """
    top = costs[-1]
    if expected_cost(0.0, costs) >= top:
        return None
    if expected_cost(1.0, costs) <= top:
        return 1.0
    # The cost rises with beta, from below the top's to above it, so exactly one root is positive.
    roots = np.roots([*costs[:0:-1], costs[0] - top])
    return float(next(root.real for root in roots if root.imag == 0.0 and root.real > 0.0))
