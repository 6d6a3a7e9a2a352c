"""The order of a sample near one rank, without the order of all.

Sorting 10,000 times costs ten times more on one processor than on another, and so does `np.partition`: both
depend on which vector instructions numpy may use and on how fast they are there. Comparing all with two bounds
costs the same everywhere. So a part of the sample, sorted, gives two bounds that the wanted rank lies between;
what lies between them is a few per cent of the whole, and only that is sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranks"]

Floats = NDArray[np.float64]

# Fewer values are sorted at once.
_SELECT_FROM = 2_500
# The bounds lie so many standard deviations of the part's rank away: 1 miss in 2,000 on independent values.
_DEVIATIONS = 3.5


class Ranks:
    """Order statistics of a sample.

    Mutable: `_sorted` (None until all are sorted), `_part` (None until one is needed).
    """

    __slots__ = ("_part", "_sorted", "_values")

    def __init__(self, values: Floats) -> None:
        """Keeps `values`: float64, shape (n,), n >= 1; not to be written to meanwhile."""
        self._values = values
        self._sorted: Floats | None = np.sort(values) if values.size < _SELECT_FROM else None
        self._part: Floats | None = None

    def near(self, rank: int) -> tuple[Floats, int]:
        """A stretch of the sorted sample.

        Args:
            rank: in [0, n), that the stretch must hold.

        Returns:
            All values between two bounds, ascending, shape (k,); and how many lie below them. A value that
            occurs in the stretch occurs nowhere else.
        """
        if self._sorted is None:
            low, high = self._bounds(rank)
            below = self._values < low
            within = self._values <= high
            within ^= below
            first = int(np.count_nonzero(below))
            stretch = self._values[within]
            if first <= rank < first + stretch.size:
                if low == high:
                    return stretch, first
                if 2 * stretch.size > self._values.size:  # atoms, or a sample too small for bounds
                    return np.sort(stretch), first
                # What a large sample leaves is a large sample itself, with narrower bounds.
                inner, before = Ranks(stretch).near(rank - first)
                return inner, first + before
        return self.all(), 0

    def before(self, value: float) -> float | None:
        """The largest value below `value`; None: there is none."""
        below = self._values[self._values < value]
        return float(below.max()) if below.size else None

    def beyond(self, value: float) -> int:
        """How many are above `value`."""
        if self._sorted is None:
            return int(np.count_nonzero(self._values > value))
        return len(self._sorted) - int(self._sorted.searchsorted(value, side="right"))

    def all(self) -> Floats:
        """The whole sample, ascending; sorted when first asked for."""
        if self._sorted is None:
            self._sorted = np.sort(self._values)
        return self._sorted

    def _bounds(self, rank: int) -> tuple[float, float]:
        """Two values that the wanted one most likely lies between."""
        n = len(self._values)
        if self._part is None:
            # n^(2/3) of them: sorting them and sorting what lies between the bounds cost about the same.
            self._part = np.sort(self._values[:: max(int(n ** (1 / 3)), 1)])
        part = self._part
        level = (rank + 0.5) / n
        margin = _DEVIATIONS * (level * (1.0 - level) * len(part)) ** 0.5 + 2.0
        low, high = int(level * len(part) - margin), int(level * len(part) + margin)
        return (
            float(part[low] if low > 0 else self._values.min()),
            float(part[high] if high < len(part) else self._values.max()),
        )
