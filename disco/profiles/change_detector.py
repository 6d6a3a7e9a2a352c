"""Finds the moment from which a stream of times no longer follows the distribution that described it so far.

Tests on times or their logarithms take a heavy tail for a change. This one looks at levels: the part of the
reference distribution `[F(x⁻), F(x)]` that a time falls in. While the reference describes the stream, levels are
uniform whatever F is. So the rate of false alarms does not depend on the tail, and one time of a minute counts no more
than one that is just above the 90th percentile.

Four cumulative sums (Page's CUSUM) of log likelihood ratios run side by side, each against one alternative to the
uniform distribution of levels:

| alternative | density of a level u | what it is for |
|---|---|---|
| slower, faster | 3·u², 3·(1−u)² | a shift of about a quarter |
| late, early | 6.4 in the last (first) tenth, 0.4 elsewhere | an outage, its end, a shift by a factor |

A time that is only known to be longer than x contributes the ratio of the probabilities of `u > F(x⁻)`. A sum never
falls below 0; where it last was 0, the change began. A change is reported when a sum reaches `THRESHOLD` h. By Lorden's
inequality, the mean number of observations until one sum's false alarm is at least `e^h`; for all four together, at
least `e^h/4` (`FALSE_ALARM_AFTER`). The inequality holds for a reference that is known; docs/concepts/drift.md has what
was measured with references learnt from the stream itself.
"""

from __future__ import annotations

from math import exp, log
from typing import Final, NamedTuple

__all__ = ["FALSE_ALARM_AFTER", "THRESHOLD", "Change", "ChangeDetector"]

THRESHOLD: Final = 9.0
RETURN_THRESHOLD: Final = 4.5
"""Of the sum that says that a stream follows its former distribution again."""
FALSE_ALARM_AFTER: Final = exp(THRESHOLD) / 4
"""The mean number of observations until a false alarm is at least this, where nothing changes."""

_POWER: Final = 3  # of the alternatives "slower" and "faster"
_END: Final = 0.1  # the last (first) part of the levels ...
_IN_END: Final = 0.64  # ... and its probability under "late" ("early")
_SMALLEST: Final = 1e-12


class Change(NamedTuple):
    """A change that was found.

    Attributes:
        observations: how many observations ago the change began, the newest included.
        kind: which alternative described the newer observations: an index into the sums.
    """

    observations: int
    kind: int


def _slower(low: float, high: float) -> float:
    return high**_POWER - low**_POWER


def _late(low: float, high: float) -> float:
    at = 1.0 - _END
    return _late_up_to(high, at) - _late_up_to(low, at)


def _late_up_to(u: float, at: float) -> float:
    below = (1.0 - _IN_END) / at
    return below * u if u <= at else (1.0 - _IN_END) + _IN_END * (u - at) / _END


def scores(low: float, high: float) -> tuple[float, float, float, float]:
    """Return the log likelihood ratios of a level in `[low, high]`: slower, faster, late, early.

    Args:
        low: `F(x⁻)`, at least 0.
        high: `F(x)`, at least `low` and at most 1; of a time only known to be longer than x, 1.
    """
    width = high - low
    if width < _SMALLEST:
        middle = min(max(0.5 * (low + high), _SMALLEST), 1.0 - _SMALLEST)
        low, high = middle - 0.5 * _SMALLEST, middle + 0.5 * _SMALLEST
        width = high - low
    return (
        log(max(_slower(low, high) / width, _SMALLEST)),
        log(max(_slower(1.0 - high, 1.0 - low) / width, _SMALLEST)),
        log(_late(low, high) / width),
        log(_late(1.0 - high, 1.0 - low) / width),
    )


class ChangeDetector:
    """The four sums. It costs a few microseconds per observation and keeps no observation.

    Mutable: `_sums`, `_lasting` (the number of observations since each sum was 0).
    """

    __slots__ = ("_lasting", "_sums", "_threshold")

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self._lasting = [0, 0, 0, 0]

    def add(self, low: float, high: float) -> Change | None:
        """Add the level of an observation; return the change, if this observation is the one that shows it.

        After a change the sums begin again at 0.

        Args:
            low: see `scores`.
            high: see `scores`.
        """
        sums, lasting = self._sums, self._lasting
        found: Change | None = None
        for kind, score in enumerate(scores(low, high)):
            total = sums[kind] + score
            if total <= 0.0:
                sums[kind], lasting[kind] = 0.0, 0
                continue
            sums[kind] = total
            lasting[kind] += 1
            if total >= self._threshold and (found is None or lasting[kind] > found.observations):
                found = Change(lasting[kind], kind)
        if found is not None:
            self.reset()
        return found

    def reset(self) -> None:
        """Begin again."""
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self._lasting = [0, 0, 0, 0]


class ReturnDetector:
    """Says when a stream that had changed follows its former distribution again.

    The same kind of sum, of the other sign: the evidence for uniform levels of the former distribution, against the
    alternative that had described the change.

    Mutable: `_sum`, `_lasting`.
    """

    __slots__ = ("_kind", "_lasting", "_sum")

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._sum = 0.0
        self._lasting = 0

    def add(self, low: float, high: float) -> int:
        """Add a level in the former distribution; return how many observations ago it came back, 0: it has not."""
        self._sum -= scores(low, high)[self._kind]
        if self._sum <= 0.0:
            self._sum, self._lasting = 0.0, 0
            return 0
        self._lasting += 1
        return self._lasting if self._sum >= RETURN_THRESHOLD else 0
