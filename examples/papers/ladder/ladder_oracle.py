"""The best that any rule could do on a ladder: an oracle that knows every answer's quality."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LadderOracle"]


class LadderOracle:
    """The most quality that can be had for a number of bytes.

    Each request has one choice per tier, with its quality and its bytes (a multiple-choice knapsack). Bytes are spent
    where they raise quality most per byte; the last request may be served in part. So the curve is an upper bound of
    every rule that decides on whole requests, and above the best of them by less than one request.
    """

    __slots__ = ("_base", "_bytes", "_gains", "requests")

    def __init__(self, quality: NDArray[np.float64], request_bytes: NDArray[np.float64]) -> None:
        """Make the curve.

        Args:
            quality: shape (n, tiers), of every tier's answer to every request.
            request_bytes: shape (n, tiers), bytes of a request that ends at this tier; rising, from 0.
        """
        self.requests = len(quality)
        gains: list[float] = []
        costs: list[float] = []
        base = 0.0
        for values, spent in zip(quality.tolist(), request_bytes.tolist(), strict=True):
            tier = 0
            base += values[0]
            # Along the upper hull of the request's points, so that every step is worth less per byte than the last.
            while True:
                steps = [
                    ((values[up] - values[tier]) / (spent[up] - spent[tier]), up)
                    for up in range(tier + 1, len(values))
                    if spent[up] > spent[tier] and values[up] > values[tier]
                ]
                if not steps:
                    break
                _, up = max(steps)
                gains.append(values[up] - values[tier])
                costs.append(spent[up] - spent[tier])
                tier = up
        gained, cost = np.asarray(gains), np.asarray(costs)
        order = np.argsort(-gained / cost, kind="stable") if len(gained) else np.zeros(0, dtype=np.intp)
        self._base = base
        self._gains = np.concatenate(([0.0], np.cumsum(gained[order])))
        self._bytes = np.concatenate(([0.0], np.cumsum(cost[order])))

    @property
    def most_bytes(self) -> float:
        """Total bytes of all requests beyond which the oracle gains nothing."""
        return float(self._bytes[-1])

    def quality(self, total_bytes: float) -> float:
        """Return the mean quality for this many bytes, of all requests together."""
        gained = np.interp(total_bytes, self._bytes, self._gains)
        return float((self._base + gained) / self.requests)
