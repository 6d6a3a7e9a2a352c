"""What a model prefers before it reads: the mean score of each label over the last answers, which is taken off."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LabelPrior"]


class LabelPrior:
    """The mean of the last centred label scores of one model on one task. Mutable.

    A small model that is asked for a label likes some labels more than others, whatever the text is. The scores of an
    answer are centred, so that they sum to 0; then the mean of the window is subtracted. Iterates over the centred
    scores, from the oldest to the newest.

    Attributes:
        labels: how many labels there are.
        seen: how many answers were pushed since this object was made.
    """

    __slots__ = ("_sums", "_window", "labels", "seen")

    def __init__(self, labels: int, capacity: int = 1_000, scores: Iterable[Sequence[float]] = ()) -> None:
        """Make a prior for `labels` labels from the last `capacity` answers; `scores`: earlier ones, oldest first."""
        self.labels = labels
        self._window: deque[tuple[float, ...]] = deque(maxlen=capacity)
        self._sums = [0.0] * labels
        self.seen = 0
        for one in scores:
            self.push(one)
        self.seen = 0

    def __len__(self) -> int:
        return len(self._window)

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        return iter(self._window)

    def push(self, scores: Sequence[float]) -> None:
        """Add the label scores of one answer; raises ValueError unless there is one for each label."""
        if len(scores) != self.labels:
            raise ValueError(f"This task has {self.labels} labels; {len(scores)} scores came.")
        mean = sum(scores) / self.labels
        centred = tuple([score - mean for score in scores])
        oldest = self._window[0] if len(self._window) == self._window.maxlen else (0.0,) * self.labels
        self._sums = [total + new - old for total, new, old in zip(self._sums, centred, oldest, strict=True)]
        self._window.append(centred)
        self.seen += 1

    def removed_from(self, scores: Sequence[float]) -> tuple[float, ...]:
        """Return the scores without the mean of the window: unchanged where the window is empty."""
        count = len(self._window)
        if not count:
            return tuple(scores)
        return tuple([score - total / count for score, total in zip(scores, self._sums, strict=True)])
