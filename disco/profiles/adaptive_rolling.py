"""A rolling distribution that forgets at once what came before a change, and knows the former one when it returns."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.profiles.change_detector import Change, ChangeDetector, ReturnDetector
from disco.profiles.rolling_distribution import Rolling
from disco.profiles.time_distribution import Empirical

__all__ = ["AdaptiveRolling"]

# A reference that knows less than this many observations says too little about levels.
_LEAST_WEIGHT: Final = 16.0
_REFRESH_EVERY: Final = 16  # observations between two references
_KEPT: Final = 64  # the newest observations, from which a new distribution starts
_UNSETTLED: Final = 16  # observations after a change
_SHAPE_WEIGHT: Final = 64.0  # what the times before a change still count, in observations
# The former distribution is remembered until this many observations have followed it.
_REMEMBERED: Final = 1000
_USUAL: Final = 0.3  # a median farther from the middle speaks against the former distribution

Floats = NDArray[np.float64]


class _Reference:
    """A distribution over bins at one moment, for the levels of later observations."""

    __slots__ = ("_first", "_levels", "weight")

    def __init__(self, known: Empirical, first: int, weight: float) -> None:
        self._levels = known.levels.tolist()
        self._first = first
        self.weight = weight

    def level(self, bin_: int) -> tuple[float, float]:
        """Return the levels below and at the end of a bin, as if this bin had been observed once more.

        That one observation keeps both away from a certainty that the reference does not have.
        """
        i, last = bin_ - self._first, len(self._levels) - 1
        low = self._levels[min(max(i, 0), last)]
        high = self._levels[min(max(i + 1, 0), last)]
        scale = self.weight / (self.weight + 1.0)
        return low * scale, high * scale + (1.0 - scale)


class AdaptiveRolling(Rolling):
    """A `Rolling` whose forgetting adapts: a change detector, and the half-life between changes.

    When the detector reports a change (see `change_detector`), the distribution starts again from the observations
    since it began. A few observations show no tail, so the earlier times give the shape: they are all multiplied by the
    factor by which the median has changed, and together count as `_SHAPE_WEIGHT` observations at most. What was known
    before the change is kept aside. Where the stream follows it again, as after an outage, it is used again at once. A
    prior that does not fit is corrected in the same way.

    Observations must come in the order in which they were made; no clock is needed.

    Mutable: see `Rolling`; and `changes`, `since_change`, `_detector`, `_reference`, `_aged`, `_recent`, `_former`.

    Attributes:
        changes: number of changes found, returns included.
        since_change: observations since the newest change was found; since the start where there was none.

    Args:
        half_life: number of observations after which one counts half; None: all count the same.
        prior: what is assumed before the first observation; None: nothing.
        prior_weight: how many observations the prior counts as.
    """

    __slots__ = (
        "_aged",
        "_detector",
        "_former",
        "_recent",
        "_reference",
        "changes",
        "since_change",
    )

    def __init__(
        self,
        *,
        half_life: float | None = 200.0,
        prior: Empirical | None = None,
        prior_weight: float = 20.0,
    ) -> None:
        """As `Rolling`."""
        super().__init__(half_life=half_life, prior=prior, prior_weight=prior_weight)
        self.changes = 0
        self.since_change = 0
        self._detector = ChangeDetector()
        self._reference: _Reference | None = None
        self._aged = _REFRESH_EVERY  # observations since the reference was made
        self._recent: deque[tuple[int, bool]] = deque(maxlen=_KEPT)  # bin, and whether censored
        self._former: _Former | None = None

    @property
    def is_unsettled(self) -> bool:
        """Whether a change was found within the last few observations: each further one says much about what is new."""
        return self.changes > 0 and self.since_change < _UNSETTLED

    def observe(self, x_s: float) -> None:
        self._examine(self._bin_of(x_s), censored=False)
        super().observe(x_s)

    def observe_censored(self, x_s: float) -> None:
        self._examine(self._bin_of(x_s), censored=True)
        super().observe_censored(x_s)

    def _examine(self, bin_: int, *, censored: bool) -> None:
        """Look for a change before the observation of this bin is added."""
        self.since_change += 1
        self._recent.append((bin_, censored))
        former = self._former
        if former is not None:
            low, high = former.reference.level(bin_)
            back = former.returning.add(low, 1.0 if censored else high)
            if back and former.is_usual(_median(self._newest(back))):
                self._come_back(back)
                return
            if self.since_change > _REMEMBERED:
                self._former = None
        if self._aged >= _REFRESH_EVERY or self._reference is None:
            self._refresh()
        self._aged += 1
        if self._reference is None:
            return
        low, high = self._reference.level(bin_)
        change = self._detector.add(low, 1.0 if censored else high)
        if change is not None:
            self._change(change)

    def _refresh(self) -> None:
        weight = self.weight
        if weight < _LEAST_WEIGHT or self._last < 0:
            return
        self._reference = _Reference(self.snapshot(), self._first, weight)
        self._aged = 0

    def _change(self, change: Change) -> None:
        assert self._reference is not None
        newest = self._newest(change.observations)
        median = _median(newest)
        if self._former is not None and self._former.is_usual(median):
            self._come_back(change.observations)
            return
        seen, censored = self._seen / self._gain, self._censored / self._gain
        # Of two changes in short succession, such as an outage that gets worse, what was known before the first one is
        # what may return. The few times that showed the change stay in it: to remove them would remove the tail,
        # wherever slow answers come in a row by chance.
        if self._former is None or self.since_change > _KEPT:
            self._former = _Former(seen.copy(), censored.copy(), self._reference, ReturnDetector(change.kind))
        # The shape is that of what came before the change: all of it but this observation.
        weight = 1.0
        for bin_, is_censored in reversed(newest[:-1]):
            (censored if is_censored else seen)[bin_] -= weight
            weight /= self._growth
        np.maximum(seen, 0.0, out=seen)
        np.maximum(censored, 0.0, out=censored)
        shape = seen + censored
        if shape.any():
            by = median - _median_bin(shape)
            seen, censored = _shifted(seen, by), _shifted(censored, by)
        self._restart(seen, censored, _SHAPE_WEIGHT, change.observations)

    def _newest(self, observations: int) -> list[tuple[int, bool]]:
        return list(self._recent)[-min(observations, _KEPT) :]

    def _come_back(self, observations: int) -> None:
        assert self._former is not None
        self._restart(self._former.seen, self._former.censored, None, observations)
        self._former = None

    def _restart(self, seen: Floats, censored: Floats, weight: float | None, observations: int) -> None:
        """Go on from these weights, scaled to `weight` (None: as they are), and the newest observations but the last.

        The last one is added by the caller, as any other.
        """
        total = float(seen.sum() + censored.sum())
        scale = 1.0 if weight is None or total <= weight else weight / total
        self._seen, self._censored = seen * scale, censored * scale
        for bin_, is_censored in self._newest(observations)[:-1]:
            (self._censored if is_censored else self._seen)[bin_] += 1.0
        self._gain = 1.0
        self._first, self._last = self._seen.size, -1
        self._span()
        self._snapshot = None
        self._detector.reset()
        self._reference = None
        self._aged = _REFRESH_EVERY
        self.changes += 1
        self.since_change = 0


def _median(newest: list[tuple[int, bool]]) -> int:
    return sorted(bin_ for bin_, _ in newest)[len(newest) // 2]


def _median_bin(weights: Floats) -> int:
    cumulative = weights.cumsum()
    return int(cumulative.searchsorted(0.5 * cumulative[-1]))


def _shifted(weights: Floats, by: int) -> Floats:
    """Return weights moved by some bins, which is a factor on the times; the end bins take what is beyond them."""
    last = weights.size - 1
    moved = np.zeros(weights.size)
    np.add.at(moved, np.clip(np.arange(weights.size) + by, 0, last), weights)
    return moved


class _Former:
    """What was known before a change. Mutable: `returning`."""

    __slots__ = ("censored", "reference", "returning", "seen")

    def __init__(
        self, seen: Floats, censored: Floats, reference: _Reference, returning: ReturnDetector
    ) -> None:
        self.seen = seen
        self.censored = censored
        self.reference = reference
        self.returning = returning

    def is_usual(self, bin_: int) -> bool:
        """Whether the median of a few observations is so often in this bin, or nearer to the middle."""
        low, high = self.reference.level(bin_)
        return high >= _USUAL and low <= 1.0 - _USUAL
