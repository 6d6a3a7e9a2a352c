"""Aims beta at a budget: the cost that theory expects of a beta, and the feedback that corrects it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from disco.judging.threshold_rules import Rule, check_beta

__all__ = ["LEAST_BETA", "MOST_BETA", "ShareControl", "beta_for", "expected_cost"]

LEAST_BETA: Final = 0.001
MOST_BETA: Final = 0.999
"""The feedback keeps beta within these: at 0 or 1 no further observation could move it."""


def expected_cost(beta: float, costs: Sequence[float]) -> float:
    """Return the expected cost of a request, if every tier hands up a share `beta` of what reaches it.

    A request pays every tier that it reaches, and it reaches tier i (from 0) with probability beta**i. With compute
    as the cost this is Eq. 43. With bytes it is Eq. 36: the first tier costs 0, every other one the bytes of its hop.

    Args:
        beta: in [0, 1].
        costs: cost of a request at each tier, the first one included; any one unit.
    """
    return math.fsum(cost * beta**tier for tier, cost in enumerate(costs))


def beta_for(target: float, costs: Sequence[float]) -> float:
    """Return the beta at which the expected cost is `target`: the paper's beta_0 (Eq. 50).

    Args:
        target: cost of a request, in the unit of `costs`.
        costs: as in `expected_cost`.

    Returns:
        A beta between `LEAST_BETA` and `MOST_BETA`; the nearer of the two where no beta gives the target.

    Raises:
        ValueError: fewer than two tiers, a cost that is negative or not finite, or a target that is not positive.
    """
    if len(costs) < 2 or not all(0.0 <= cost < math.inf for cost in costs):
        raise ValueError(
            "The costs are one number per tier, at least two, each finite and not negative; "
            f"these are not: {list(costs)}."
        )
    _check_target(target)
    low, high = LEAST_BETA, MOST_BETA
    for _ in range(60):  # bisection: the cost rises with beta
        middle = (low + high) / 2
        if expected_cost(middle, costs) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


class ShareControl:
    """Corrects beta by what requests really cost, so that their mean meets a target. Mutable: `beta`, `_pending`.

    One object outlives requests; `spent` tells it what each request cost, in any order of completion, and `beta` is
    the value for the next request. The unit is the caller's: bytes, money, or 1 for a request that went up (then
    the target is a share). It uses no clock and no random numbers.

    Rule "paper" is Eqs. 51-53: after every `window` requests `beta <- beta / gamma**speed`, where gamma is the mean
    cost of these requests divided by the target. Two guards are ours: one step changes beta by a factor of 2 at most
    (so gamma = 0 does no harm), and beta stays within `LEAST_BETA` and `MOST_BETA`. This rule makes the mean of
    log(gamma) 0, so that the mean of gamma itself is above 1: costs of requests differ widely, and requests cost more
    than the target, the more so the shorter the window.

    Rule "exact" is `beta <- beta * exp(-(speed/window) * (cost/target - 1))` after each request. For small deviations
    a window of it is the paper's step. Over n requests the mean of cost/target is
    `1 + log(first beta / last beta) * window / (speed * n)`, as long as beta was not at its bounds: the target is met
    exactly in the long run, however widely costs differ. A request without cost divides nothing by zero.

    The default speed of 1 undoes a deviation in one window where cost is proportional to beta. With more hops cost
    rises faster than beta, for three tiers by up to 1.5 % for 1 %; the feedback is stable while that figure times the
    speed is below 2. With the default window of 100, beta itself fluctuates by a fifth at beta = 0.1, and by less
    above.
    """

    __slots__ = ("_pending", "beta", "rule", "speed", "target", "window")

    def __init__(
        self, target: float, *, beta: float, window: int = 100, speed: float = 1.0, rule: Rule = "exact"
    ) -> None:
        """Make a control.

        Args:
            target: mean cost of a request to aim at, above 0.
            beta: the first value, such as `beta_for(target, costs)`, or the last one of an earlier process.
            window: the paper's R, requests.
            speed: the paper's eta.
            rule: see the class.

        Raises:
            ValueError: a number out of range.
        """
        if window < 1 or not 0.0 < speed <= 2.0:
            raise ValueError(
                f"The window is at least 1 request and the speed in (0, 2], not {window} and {speed}."
            )
        self.target = _check_target(target)
        self.beta = _within_bounds(check_beta(beta))
        self.window = window
        self.speed = speed
        self.rule: Rule = rule
        self._pending: list[float] = []

    def spent(self, cost: float) -> None:
        """Take the cost of one completed request. Raises ValueError where it is negative or not finite."""
        if not 0.0 <= cost < math.inf:
            raise ValueError(f"The cost of a request must be finite and not negative; {cost!r} is not.")
        if self.rule == "exact":
            step = self.speed / self.window * (cost / self.target - 1.0)
            self.beta = _within_bounds(self.beta * math.exp(-min(step, 50.0)))
            return
        self._pending.append(cost)
        if len(self._pending) == self.window:
            gamma = math.fsum(self._pending) / self.window / self.target
            divisor = min(max(gamma**self.speed, 0.5), 2.0)
            self.beta = _within_bounds(self.beta / divisor)
            self._pending.clear()


def _check_target(target: float) -> float:
    if not 0.0 < target < math.inf:
        raise ValueError(f"The target is the mean cost of a request, above 0 and finite; {target!r} is not.")
    return target


def _within_bounds(beta: float) -> float:
    return min(max(beta, LEAST_BETA), MOST_BETA)
