"""A distribution of times, updated with each observation: log-spaced bins, exponential forgetting, censored times."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.profiles.time_distribution import Empirical

__all__ = ["Rolling"]

# Bins grow by 2.7 % from 1 ms to 1,000 s: finer than a TTFT can be predicted, and few enough to sum in 1 µs.
_LOW_S: Final = 1e-3
_HIGH_S: Final = 1e3
_BINS: Final = 512
_LOG_LOW: Final = math.log(_LOW_S)
_BINS_PER_LOG: Final = _BINS / math.log(_HIGH_S / _LOW_S)
# The first bin holds everything below 1 ms, the last everything from 1,000 s on (counted as 1,000 s).
_EDGES_S: Final = np.concatenate(([0.0], np.geomspace(_LOW_S, _HIGH_S, _BINS + 1)))
_EDGES_S.flags.writeable = False
_RESCALE_AT: Final = 1e100


class Rolling:
    """The present distribution of one endpoint's TTFT (or of any duration); its cost does not grow with the sample.

    Each observation weighs more than the one before it, so that in the long run the newest `half_life` observations
    have half of the weight. Cancelled losers are right-censored ("took longer than x"): their weight is redistributed
    to longer times (Kaplan and Meier). Weight above the longest observed time is placed there (Efron). So without a
    prior, the tail is underestimated if attempts are always cancelled after the same time.

    Use two separate distributions for cold and warm starts, and do not add failures.

    Mutable: `_seen`, `_censored` (weights per bin), `_first`, `_last` (bins in use), `_gain`, `count`,
    `censored_count`, `_snapshot`.

    Attributes:
        half_life: in observations; None: the weight of earlier observations never decreases.
        count: number of times observed, censored ones excluded.
        censored_count: number of censored times observed.
    """

    __slots__ = (
        "_censored",
        "_first",
        "_gain",
        "_growth",
        "_last",
        "_seen",
        "_snapshot",
        "censored_count",
        "count",
        "half_life",
    )

    def __init__(
        self,
        *,
        half_life: float | None = 200.0,
        prior: Empirical | None = None,
        prior_weight: float = 20.0,
    ) -> None:
        """Start empty, or from a profile's distribution.

        Args:
            half_life: number of observations after which an observation counts half; positive, or None.
            prior: a distribution to start from; its weight decreases in the same way as that of earlier observations.
            prior_weight: weight of the prior, in observations; non-negative.

        Raises:
            ValueError: a half-life or weight out of range.
        """
        if half_life is not None and not (0 < half_life < math.inf):
            raise ValueError(f"half_life must be positive, not {half_life}")
        if not (0 <= prior_weight < math.inf):
            raise ValueError(f"prior_weight must be finite and not negative, not {prior_weight}")
        self.half_life = half_life
        self.count = 0
        self.censored_count = 0
        self._growth = 1.0 if half_life is None else 2.0 ** (1.0 / half_life)
        self._gain = 1.0  # weight of the latest observation; the weights in the bins are relative to it
        self._seen: NDArray[np.float64] = np.zeros(_BINS + 1)
        self._censored: NDArray[np.float64] = np.zeros(_BINS + 1)
        self._first, self._last = _BINS + 1, -1  # the first and last bin in use: none yet
        self._snapshot: Empirical | None = None
        if prior is not None:
            below = prior.cdf(_EDGES_S)
            below[0], below[-1] = 0.0, 1.0
            self._seen += prior_weight * np.diff(below)
            self._span()

    def observe(self, x_s: float) -> None:
        """Add one observed time, in seconds.

        Args:
            x_s: the time, s, at least 0.

        Raises:
            ValueError: the time is negative or NaN.
        """
        self._add(self._seen, x_s)
        self.count += 1

    def observe_censored(self, x_s: float) -> None:
        """Add a time that is only known to be longer than `x_s` seconds, as of a loser cancelled after that time.

        Raises:
            ValueError: the time is negative or NaN.
        """
        self._add(self._censored, x_s)
        self.censored_count += 1

    @property
    def weight(self) -> float:
        """The weight of all observations, where the newest counts 1; prior included."""
        return float(self._seen.sum() + self._censored.sum()) / self._gain

    @property
    def is_unsettled(self) -> bool:
        """Whether plans should follow every observation; see `AdaptiveRolling`. Here they never need to."""
        return False

    def snapshot(self) -> Empirical:
        """Return the present distribution; the same object until the next observation.

        Raises:
            ValueError: nothing has been observed and there was no prior.
        """
        if self._snapshot is None:
            self._snapshot = self._estimate()
        return self._snapshot

    @staticmethod
    def _bin_of(x_s: float) -> int:
        if x_s >= _LOW_S:
            return min(int((math.log(x_s) - _LOG_LOW) * _BINS_PER_LOG) + 1, _BINS) if x_s < _HIGH_S else _BINS
        if x_s >= 0:
            return 0
        raise ValueError(f"a time must be at least 0 s, not {x_s} s")

    def _add(self, bins: NDArray[np.float64], x_s: float) -> None:
        i = self._bin_of(x_s)
        # A growing weight of the newest observation is exponential forgetting without a change of the other bins.
        self._gain *= self._growth
        if self._gain > _RESCALE_AT:
            self._seen /= self._gain
            self._censored /= self._gain
            self._gain = 1.0
            self._span()
        bins[i] += self._gain
        self._first = min(self._first, i)
        self._last = max(self._last, i)
        self._snapshot = None

    def _span(self) -> None:
        filled = (self._seen + self._censored).nonzero()[0]
        if filled.size:
            self._first, self._last = int(filled[0]), int(filled[-1])

    def _estimate(self) -> Empirical:
        first, last = self._first, self._last + 1
        if last == 0:
            raise ValueError("nothing observed yet; give a prior or wait for the first observation")
        levels = np.empty(last - first + 1)
        levels[0] = 0.0
        seen = self._seen[first:last]
        if self.censored_count:
            # Kaplan–Meier: S after a bin = S before it · (1 - seen / at risk); a time censored inside a bin counts
            # as at risk in this bin.
            at_risk = (seen + self._censored[first:last])[::-1].cumsum()[::-1]
            np.subtract(1.0, (1.0 - np.minimum(seen / at_risk, 1.0)).cumprod(), out=levels[1:])
            levels[-1] = 1.0
        else:
            seen.cumsum(out=levels[1:])
            levels /= levels[-1]
        return Empirical(levels, _EDGES_S[first : last + 1])
