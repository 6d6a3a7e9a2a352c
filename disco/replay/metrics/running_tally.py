"""The figures of a run that is too long to hold in memory, counted chunk by chunk in constant memory.

Means, shares, budget and cost are exact. Quantiles are exact to `RELATIVE_ERROR`: times are counted in cells that
grow geometrically. A cell `(γ^(i−1), γ^i]` with `γ = (1 + ε)/(1 − ε)` is represented by `2·γ^i/(γ + 1)`, which
differs by at most `ε` from any value in the cell (the mapping of DDSketch, Masson, Rim & Lee, VLDB 2019, on a fixed
range).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from disco.replay.metrics.outcome import Outcome
from disco.replay.metrics.per_seed import SeedFigures, Sums

__all__ = ["RELATIVE_ERROR", "Sketch", "Tally"]

RELATIVE_ERROR: Final = 0.0005
"""ε of every quantile of times between 1 µs and 10⁷ s."""

_LEAST, _MOST = 1e-6, 1e7  # a smaller value counts as 0, a larger one as the largest value seen
_GAMMA = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)
_PER_E = 1.0 / math.log(_GAMMA)
_OFFSET = math.ceil(math.log(_LEAST) * _PER_E)
# The first cell counts values below _LEAST, the last one values above _MOST.
_CELLS = math.ceil(math.log(_MOST) * _PER_E) - _OFFSET + 2
_PIECE = 1 << 15  # values processed together


class Sketch:
    """Counts of non-negative values by size. Quantiles as in `per_seed.Exact`, within the stated error."""

    # Mutable: all.
    __slots__ = ("_counts", "_high", "_low")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_CELLS, dtype=np.int64)
        self._low, self._high = math.inf, -math.inf

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values of at least 0, shape (n,); NaNs are left out."""
        for start in range(0, values.size, _PIECE):
            piece = values[start : start + _PIECE]
            low, high = float(piece.min()), float(piece.max())
            if math.isnan(low):
                piece = piece[~np.isnan(piece)]
                if not piece.size:
                    continue
                low, high = float(piece.min()), float(piece.max())
            self._low, self._high = min(self._low, low), max(self._high, high)
            cells = np.clip(piece, _LEAST, _MOST)
            np.log(cells, out=cells)
            cells *= _PER_E
            np.ceil(cells, out=cells)
            at = cells.astype(np.intp)
            at -= _OFFSET - 1
            at[piece < _LEAST] = 0
            at[piece > _MOST] = _CELLS - 1
            self._counts += np.bincount(at, minlength=_CELLS)

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        ranks = self._counts.cumsum()
        n = int(ranks[-1])
        if not n:
            return [math.nan] * len(levels)
        position = np.asarray(levels) * (n - 1)
        low = position.astype(np.int64)
        below = self._at(ranks, low)
        above = self._at(ranks, np.minimum(low + 1, n - 1))
        found: list[float] = (below + (above - below) * (position - low)).tolist()
        return found

    def _at(self, ranks: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values at these positions of the sorted order, counted from 0."""
        cells = ranks.searchsorted(order, side="right")
        values = np.exp((cells + (_OFFSET - 1)) / _PER_E) * (2.0 / (_GAMMA + 1.0))
        values[cells == 0] = 0.0
        values[cells == _CELLS - 1] = self._high
        return np.clip(values, self._low, self._high)


class Tally:
    """Sum of outcomes of the vectorised evaluator; chunks may come in any order.

    Mutable: all but `_constrained`.
    """

    __slots__ = ("_constrained", "_sums", "_ttft")

    def __init__(self, constrained: Literal["device", "server"]) -> None:
        """Start with no requests. `constrained`: the side that the budget limits."""
        self._constrained: Literal["device", "server"] = constrained
        self._sums = Sums()
        self._ttft = Sketch()

    def add(self, outcome: Outcome) -> None:
        """Count a chunk."""
        self._sums.add(outcome, self._constrained)
        self._ttft.add(outcome.ttft_s)

    def figures(self) -> SeedFigures:
        """Return the figures so far, without reading figures: the vectorised evaluator has none."""
        return self._sums.figures(self._ttft, None)
