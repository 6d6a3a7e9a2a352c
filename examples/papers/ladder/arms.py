"""Which tier ends each request: the paper's method, its rivals and simpler ones, one arm after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.judging import Rule, ScoreHistory, ShareControl, check_beta, judge
from papers.ladder.ladder_columns import Ladder, Rows

__all__ = [
    "LadderRun",
    "Rises",
    "aimed",
    "by_confidence",
    "by_length",
    "climb",
    "fixed_thresholds",
    "one_tier",
    "random_share",
]

Rises = Callable[[int, Rows, NDArray[np.float64]], NDArray[np.bool_]]
"""Which answers of a tier go up: from the tier, the rows that reach it in this order, and their confidences."""


@dataclass(frozen=True, slots=True, eq=False)
class LadderRun:
    """One arm over all requests, in one order.

    Attributes:
        ends: shape (n,), the tier whose answer each request got.
        quality: shape (n,), of that answer.
        direct: requests went to that tier over a link of their own; else each climbed from tier 0.
    """

    ends: NDArray[np.intp]
    quality: NDArray[np.float64]
    direct: bool = False

    def reached(self, tiers: int) -> NDArray[np.float64]:
        """Return the share of requests that each tier worked on, shape (tiers,)."""
        levels = np.arange(tiers)
        worked = self.ends[:, None] == levels if self.direct else self.ends[:, None] >= levels
        return np.asarray(worked.mean(axis=0))


def climb(ladder: Ladder, rises: Rises, order: Rows) -> LadderRun:
    """Run an arm in which every request starts at tier 0.

    The tiers are worked off one after the other: what a tier decides depends only on the requests that reach it and
    on their order, so this gives the same as one request after the other.

    Args:
        ladder: the requests and the tiers' answers.
        rises: the arm.
        order: shape (n,), the rows in the order in which they come.
    """
    ends = np.zeros(len(order), dtype=np.intp)
    quality = np.zeros(len(order))
    rows = order
    for tier in range(ladder.tiers):
        answers = ladder.answers(tier, rows)
        top = tier == ladder.tiers - 1
        up = np.zeros(len(rows), dtype=bool) if top else rises(tier, rows, answers.confidence)
        kept = rows[~up]
        ends[kept] = tier
        quality[kept] = answers.quality[~up]
        rows = rows[up]
    return LadderRun(ends, quality)


def one_tier(ladder: Ladder, tier: int, order: Rows) -> LadderRun:
    """Send every request directly to one tier (EndServe, EdgeServe, CloudServe)."""
    quality = np.zeros(len(order))
    quality[order] = ladder.answers(tier, order).quality
    return LadderRun(np.full(len(order), tier, dtype=np.intp), quality, direct=True)


def random_share(alpha: float, seed: int) -> Rises:
    """Return the arm that goes up with probability `alpha` at every tier, whatever the answer (ColServe)."""
    generator = np.random.default_rng(seed)
    return lambda _tier, rows, _confidence: generator.random(len(rows)) < alpha


def fixed_thresholds(thresholds: Sequence[float]) -> Rises:
    """Return the arm that goes up where the confidence is below the tier's threshold (CasServe). NaN stays."""
    return lambda tier, _rows, confidence: confidence < thresholds[tier]


def by_confidence(beta: float, *, rule: Rule = "exact", capacity: int = 1_000, seed: int = 0) -> Rises:
    """Return RecServe: every tier judges by the history of its own scores. What is not judged (NaN) stays.

    Args:
        beta: share of its answers that every tier hands up.
        rule: see `disco.judging.Rule`.
        capacity: k, scores that a tier's history keeps.
        seed: of the tie breaker.
    """
    check_beta(beta)

    def rises(tier: int, _rows: Rows, confidence: NDArray[np.float64]) -> NDArray[np.bool_]:
        history = ScoreHistory(capacity)
        mine = _seed(seed, tier)
        return np.fromiter(
            (
                not math.isnan(score) and judge(score, history, beta, rule=rule, seed=mine).rises
                for score in confidence.tolist()
            ),
            dtype=bool,
            count=len(confidence),
        )

    return rises


def by_length(ladder: Ladder, beta: float, *, capacity: int = 1_000, seed: int = 0) -> Rises:
    """Return the arm that judges by the prompt's length: of what reaches a tier, the longest go up."""
    judged = by_confidence(beta, capacity=capacity, seed=seed)
    return lambda tier, rows, _confidence: judged(tier, rows, -ladder.sent_bytes[rows])


def aimed(
    ladder: Ladder,
    control: ShareControl,
    cost_of: Callable[[int, int], float],
    order: Rows,
    *,
    rule: Rule = "exact",
    capacity: int = 1_000,
    seed: int = 0,
) -> tuple[LadderRun, NDArray[np.float64]]:
    """Run RecServe with a beta that follows what requests cost.

    Here beta depends on all requests before, so that the tiers cannot be worked off one after the other.

    Args:
        ladder: as in `climb`.
        control: gives beta, and is told every request's cost. Changed.
        cost_of: from a row and the tier that ended it to the request's cost.
        order: as in `climb`.
        rule: as in `by_confidence`.
        capacity: as in `by_confidence`.
        seed: as in `by_confidence`.

    Returns:
        The run, and the beta with which each request was judged, shape (n,), in the order of `order`.
    """
    lowest = ladder.answers(0, order)  # every request reaches it, whatever beta is
    above = [ladder.in_turn(tier) for tier in range(1, ladder.tiers)]
    histories = [ScoreHistory(capacity) for _ in above]
    seeds = [_seed(seed, tier) for tier in range(len(above))]
    ends = np.zeros(len(order), dtype=np.intp)
    quality = np.zeros(len(order))
    betas = np.zeros(len(order))
    each = zip(order.tolist(), lowest.confidence.tolist(), lowest.quality.tolist(), strict=True)
    for number, (row, *first) in enumerate(each):
        beta = betas[number] = control.beta
        tier, (score, value) = 0, first
        while tier < len(above) and not math.isnan(score):
            if not judge(score, histories[tier], beta, rule=rule, seed=seeds[tier]).rises:
                break
            score, value = above[tier](row)
            tier += 1
        ends[row], quality[row] = tier, value
        control.spent(cost_of(row, tier))
    return LadderRun(ends, quality), betas


def _seed(seed: int, tier: int) -> int:
    if seed < 0:
        raise ConfigurationError(f"seed must be at least 0, not {seed}")
    return seed * 256 + tier
