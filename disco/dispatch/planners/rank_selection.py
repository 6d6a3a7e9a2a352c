"""Order statistics of a sample near one rank, without sorting the whole sample.

Sorting 10,000 times costs ten times more on one processor than on another, and so does `np.partition`: both depend on
the vector instructions that numpy may use and on their speed. Comparing all values with two bounds costs the same
everywhere. So a part of the sample is sorted and gives two bounds around the wanted rank. A few per cent of the
sample lie between the bounds, and only these are sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranks"]

Floats = NDArray[np.float64]

# A smaller sample is sorted as a whole.
_SELECT_FROM = 2_500
# Distance of the bounds in standard deviations of the part's rank: 1 miss in 2,000 on independent values.
_DEVIATIONS = 3.5


class Ranks:
    """Order statistics of a sample.

    Mutable: `_sorted` (None until all are sorted), `_part` (None until one is needed).
    """

    __slots__ = ("_part", "_sorted", "_values")

    def __init__(self, values: Floats) -> None:
        """Keep a reference to `values`: float64, shape (n,), n >= 1; the caller must not change them."""
        self._values = values
        self._sorted: Floats | None = np.sort(values) if values.size < _SELECT_FROM else None
        self._part: Floats | None = None

    def near(self, rank: int) -> tuple[Floats, int]:
        """Return a stretch of the sorted sample that contains a rank.

        Args:
            rank: the rank, in [0, n).

        Returns:
            All values between two bounds, ascending, shape (k,); and the number of values below them. A value that
            occurs in the stretch does not occur outside it.
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
                # The stretch of a large sample may itself be large: select again, with narrower bounds.
                inner, before = Ranks(stretch).near(rank - first)
                return inner, first + before
        return self.all(), 0

    def before(self, value: float) -> float | None:
        """Return the largest value below `value`; None: there is none."""
        below = self._values[self._values < value]
        return float(below.max()) if below.size else None

    def beyond(self, value: float) -> int:
        """Return how many values are above `value`."""
        if self._sorted is None:
            return int(np.count_nonzero(self._values > value))
        return len(self._sorted) - int(self._sorted.searchsorted(value, side="right"))

    def all(self) -> Floats:
        """Return the whole sample, ascending; it is sorted at the first call."""
        if self._sorted is None:
            self._sorted = np.sort(self._values)
        return self._sorted

    def _bounds(self, rank: int) -> tuple[float, float]:
        """Return two values between which the value of this rank most likely lies."""
        n = len(self._values)
        if self._part is None:
            # n^(2/3) values: sorting them and sorting the values between the bounds cost about the same.
            self._part = np.sort(self._values[:: max(int(n ** (1 / 3)), 1)])
        part = self._part
        level = (rank + 0.5) / n
        margin = _DEVIATIONS * (level * (1.0 - level) * len(part)) ** 0.5 + 2.0
        low, high = int(level * len(part) - margin), int(level * len(part) + margin)
        return (
            float(part[low] if low > 0 else self._values.min()),
            float(part[high] if high < len(part) else self._values.max()),
        )
