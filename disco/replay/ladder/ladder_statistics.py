"""Intervals and correlations for figures of a ladder."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "normal_interval", "paired_difference", "spearman", "wilson"]

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


def paired_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> Interval:
    """Return the mean of one - other over texts, both of shape (n,), with its normal 95 % interval.

    Both arms answered the same texts, so that the texts' difficulty cancels out.
    """
    difference = one - other
    return normal_interval(float(difference.mean()), float(difference.std()), len(difference))


def normal_interval(mean: float, deviation: float, n: int) -> Interval:
    """Return the 95 % interval of a mean over n texts, from their standard deviation."""
    half = Z_95 * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the rank correlation, ties at their mean rank; NaN where one of the two is constant."""
    a, b = _ranks(one), _ranks(other)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0.0 else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse])
