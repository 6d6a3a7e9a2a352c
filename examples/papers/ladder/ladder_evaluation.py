"""All arms on one ladder: quality with its interval, bytes at every node, the distance to the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.judging import MOST_SCORES
from disco.replay import Figure, mean_interval, paired_difference, wilson
from papers.ladder.arms import (
    LadderRun,
    Rises,
    by_confidence,
    by_length,
    climb,
    fixed_thresholds,
    one_tier,
    random_share,
)
from papers.ladder.ladder_columns import Ladder, Rows
from papers.ladder.ladder_oracle import LadderOracle
from papers.ladder.node_bytes import chain_bytes, request_bytes, star_bytes
from papers.ladder.theory import bytes_ratio
from papers.ladder.threshold_tuning import tuned_thresholds

__all__ = [
    "EXACT",
    "FIXED",
    "LENGTH",
    "PAPER",
    "RANDOM",
    "SHARE_ARMS",
    "ArmFigures",
    "evaluate_arms",
    "oracles_of",
    "orders_of",
    "single_tiers",
    "summarise_arm",
]

RANDOM: Final = "ColServe"
LENGTH: Final = "by length"
FIXED: Final = "CasServe"
PAPER: Final = "RecServe paper"
EXACT: Final = "RecServe exact"
SHARE_ARMS: Final = (RANDOM, LENGTH, FIXED, PAPER, EXACT)
"""The arms that have a share: of answers handed up, or (CasServe) of bytes in the tuning."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm on one ladder: means over all orders of the requests.

    Attributes:
        arm: name.
        share: alpha or beta; of CasServe, the beta whose bytes it was tuned for; None for a single tier.
        quality: mean, in [0, 1], with the 95 % interval of one pass over so many texts.
        order_sd: standard deviation of the mean quality over the orders.
        nodes: bytes that pass each node of the chain, in one pass.
        star: the same where the client asks each tier itself.
        ratio, star_ratio: total bytes relative to all requests sent directly to the top.
        reached: share of requests that each tier worked on.
        oracle: the most quality for as many bytes on the chain, every answer known.
        lead: quality minus that of ColServe with the same share, with the 95 % interval over texts; None without a
            share.
    """

    arm: str
    share: float | None
    quality: Figure
    order_sd: float
    nodes: tuple[float, ...]
    star: tuple[float, ...]
    ratio: float
    star_ratio: float
    reached: tuple[float, ...]
    oracle: float
    lead: Figure | None = None

    @property
    def regret(self) -> float:
        """How much more quality the oracle has for the same bytes."""
        return self.oracle - self.quality.mean

    @property
    def label(self) -> str:
        """The arm with its share, such as "ColServe .2"."""
        return self.arm if self.share is None else f"{self.arm} {f'{self.share:g}'.removeprefix('0')}"


def orders_of(n: int, runs: int, seed: int = 0) -> list[Rows]:
    """Return `runs` random orders of n requests."""
    return [np.random.default_rng((seed, run)).permutation(n) for run in range(runs)]


def single_tiers(tiers: int) -> tuple[str, ...]:
    """Return the names of the arms that use one tier only; the paper's for three tiers."""
    middle = ["EdgeServe"] if tiers == 3 else [f"tier {tier + 1} only" for tier in range(1, tiers - 1)]
    return ("EndServe", *middle, "CloudServe")


def evaluate_arms(
    ladder: Ladder,
    tuning: Ladder,
    orders: Sequence[Rows],
    shares: Sequence[float],
    *,
    groups: NDArray[np.int64] | None = None,
    capacity: int = MOST_SCORES,
    seed: int = 0,
) -> list[ArmFigures]:
    """Run every single tier, and the arms of `SHARE_ARMS` at every share.

    Args:
        ladder: the requests that are evaluated.
        tuning: other requests of the same tiers, for the fixed thresholds.
        orders: each is one pass over all requests; the arms have the same ones.
        shares: values of alpha and beta, each in (0, 1).
        groups: shape (n,); requests with one number are not independent of each other. None: all are.
        capacity: k, scores that a tier's history keeps.
        seed: of random decisions; those of a pass also depend on its number.
    """
    oracles = oracles_of(ladder, orders)
    found = []
    for tier, name in enumerate(single_tiers(ladder.tiers)):
        runs = [one_tier(ladder, tier, order) for order in orders]
        found.append(summarise_arm(ladder, name, None, runs, oracles, groups=groups))
    for share in shares:
        thresholds = tuned_thresholds(tuning, bytes_ratio(share, ladder.tiers))
        makers = _makers(ladder, share, thresholds, capacity)
        blind: list[LadderRun] = []
        for name in SHARE_ARMS:
            runs = [climb(ladder, makers[name](seed + number), order) for number, order in enumerate(orders)]
            blind = blind or runs
            found.append(summarise_arm(ladder, name, share, runs, oracles, blind, groups=groups))
    return found


def _makers(
    ladder: Ladder, share: float, thresholds: Sequence[float], capacity: int
) -> dict[str, Callable[[int], Rises]]:
    """Return, for each of `SHARE_ARMS`, what makes the arm from the number of the pass."""
    return {
        RANDOM: lambda number: random_share(share, number),
        LENGTH: lambda number: by_length(ladder, share, capacity=capacity, seed=number),
        FIXED: lambda _number: fixed_thresholds(thresholds),
        PAPER: lambda number: by_confidence(share, rule="paper", capacity=capacity, seed=number),
        EXACT: lambda number: by_confidence(share, rule="exact", capacity=capacity, seed=number),
    }


def oracles_of(ladder: Ladder, orders: Sequence[Rows]) -> list[LadderOracle]:
    """Return the oracle of each order, on a ladder whose tiers each answer all requests."""
    spent = request_bytes(ladder)
    found = []
    for order in orders:
        quality = [ladder.answers(tier, order).quality for tier in range(ladder.tiers)]
        found.append(LadderOracle(np.stack(quality, axis=1), spent[order]))
    return found


def summarise_arm(
    ladder: Ladder,
    arm: str,
    share: float | None,
    runs: Sequence[LadderRun],
    oracles: Sequence[LadderOracle],
    blind: Sequence[LadderRun] = (),
    *,
    groups: NDArray[np.int64] | None = None,
) -> ArmFigures:
    """Return the figures of one arm from its passes.

    Args:
        ladder: that was run.
        arm: see `ArmFigures`.
        share: see `ArmFigures`.
        runs: one for each pass.
        oracles: one for each pass; see `oracles_of`.
        blind: the passes of ColServe with the same share.
        groups: as in `evaluate_arms`.
    """
    top = 2.0 * float((ladder.sent_bytes + ladder.answer_bytes[:, -1]).sum())
    nodes = np.mean([chain_bytes(ladder, run) for run in runs], axis=0)
    star = np.mean([star_bytes(ladder, run) for run in runs], axis=0)
    each = _per_text(runs)
    means = [float(run.quality.mean()) for run in runs]
    return ArmFigures(
        arm=arm,
        share=share,
        quality=_interval(runs, groups),
        order_sd=float(np.std(means, ddof=1)) if len(means) > 1 else 0.0,
        nodes=tuple(nodes.tolist()),
        star=tuple(star.tolist()),
        ratio=float(nodes.sum()) / top,
        star_ratio=float(star.sum()) / top,
        reached=tuple(np.mean([run.reached(ladder.tiers) for run in runs], axis=0).tolist()),
        oracle=float(np.mean([oracle.quality(float(nodes.sum())) for oracle in oracles])),
        lead=paired_difference(each, _per_text(blind), groups) if blind else None,
    )


def _per_text(runs: Sequence[LadderRun]) -> NDArray[np.float64]:
    return np.asarray(np.mean([run.quality for run in runs], axis=0))


def _interval(runs: Sequence[LadderRun], groups: NDArray[np.int64] | None) -> Figure:
    """Wilson's where an answer is right or wrong and texts are independent; else from the spread over texts."""
    passes = [run.quality for run in runs]
    if groups is None and np.isin(passes[0], (0.0, 1.0)).all():
        return wilson(float(np.mean(passes)), len(passes[0]))
    return mean_interval(passes, groups)
