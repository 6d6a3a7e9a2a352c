"""Intervals and correlations for figures of a ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "mean_interval", "paired_difference", "spearman", "sum_by_group", "wilson"]

Z_95: Final = 1.959963984540054


class Interval(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(share: float, n: int) -> Interval:
    """Return Wilson's 95 % interval of a share of n texts (0 <= share <= 1)."""
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(max(share * (1 - share) / n + z2 / (4 * n * n), 0.0))
    return Interval(share, max(centre - half, 0.0), min(centre + half, 1.0))


def paired_difference(
    one: NDArray[np.float64], other: NDArray[np.float64], groups: NDArray[np.int64] | None = None
) -> Interval:
    """Return the mean of one - other over texts, both of shape (n,), with its normal 95 % interval.

    Both arms answered the same texts, so that the texts' difficulty cancels out.

    Args:
        one: shape (n,).
        other: shape (n,).
        groups: shape (n,); texts with one number belong together. None: each text stands for itself.
    """
    return mean_interval([one - other], groups)


def mean_interval(passes: Sequence[NDArray[np.float64]], groups: NDArray[np.int64] | None = None) -> Interval:
    """Return the mean over passes and texts, with the normal 95 % interval that one pass over so many texts has.

    Args:
        passes: each of shape (n,), one value for each text.
        groups: as in `paired_difference`.
    """
    mean = float(np.mean(passes))
    variance = np.mean(
        [np.square(sum_by_group((one - one.mean()) / len(one), groups)).sum() for one in passes]
    )
    half = Z_95 * math.sqrt(float(variance))
    return Interval(mean, mean - half, mean + half)


def sum_by_group(parts: NDArray[np.float64], groups: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Return the parts of shape (n,) summed over each group, shape (groups,), so that groups count as independent."""
    if groups is None:
        return parts
    _, place = np.unique(groups, return_inverse=True)
    return np.bincount(place, weights=parts).astype(np.float64)


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the rank correlation, ties at their mean rank; NaN where one of the two is constant."""
    a, b = _ranks(one), _ranks(other)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0.0 else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse])
