"""The last scores of one model on one task: a window that is always sorted."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator

__all__ = ["MOST_SCORES", "ScoreHistory"]

MOST_SCORES = 10_000
"""The paper's k."""


class ScoreHistory:
    """The newest `capacity` scores (RecServe's H, Eqs. 5-6). Mutable.

    Iterates over the scores from the oldest to the newest. A score takes microseconds at 10,000 scores: the window is
    kept sorted by insertion.
    """

    __slots__ = ("_in_order", "_sorted", "capacity", "seen")

    def __init__(self, capacity: int = 1_000, scores: Iterable[float] = (), *, seen: int = 0) -> None:
        """Make a history.

        Args:
            capacity: how many scores are kept, at least 1.
            scores: earlier ones, from the oldest to the newest.
            seen: how many scores were pushed in all before now, at least the number of `scores`.
        """
        if not 1 <= capacity <= 1_000_000:
            raise ValueError(f"A history keeps 1 to 1,000,000 scores; {capacity} were asked for.")
        self.capacity = capacity
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self.seen = 0
        for score in scores:
            self.push(score)
        self.seen = max(self.seen, seen)

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[float]:
        return iter(self._in_order)

    def push(self, score: float) -> None:
        """Add the newest score and drop the oldest beyond the capacity. Raises ValueError unless it is finite."""
        if not math.isfinite(score):
            raise ValueError("A score must be a finite number: an answer without one is not judged.")
        if len(self._in_order) >= self.capacity:
            oldest = self._in_order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._in_order.append(score)
        insort(self._sorted, score)
        self.seen += 1

    def rank(self, score: float) -> tuple[int, int]:
        """Return how many scores of the window are lower, and how many are equal.

        Args:
            score: the score to compare.
        """
        lower = bisect_left(self._sorted, score)
        return lower, bisect_right(self._sorted, score) - lower

    def lowest(self, place: int) -> float:
        """Return the `place`-th lowest score, from 1. Raises IndexError where there are fewer."""
        if not 1 <= place <= len(self._sorted):
            raise IndexError(f"A history of {len(self._sorted)} scores has no {place}-th lowest one.")
        return self._sorted[place - 1]

    def quantile(self, q: float) -> float:
        """Return the linear quantile of the window (Eq. 15, NumPy's default), for 0 <= q <= 1.

        Raises:
            ValueError: the window is empty.
        """
        count = len(self._sorted)
        if not count:
            raise ValueError("A history without scores has no quantiles.")
        position = q * (count - 1)
        below = math.floor(position)
        above = min(below + 1, count - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low + (high - low) * (position - below)
