"""The rank correlation of figures of a ladder."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["spearman"]


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the rank correlation, ties at their mean rank; NaN where one of the two is constant."""
    a, b = _ranks(one), _ranks(other)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0.0 else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse])
