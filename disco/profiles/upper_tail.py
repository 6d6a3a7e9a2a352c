"""The time that only one in a thousand exceeds, from a sample of a few dozen: an extrapolated upper tail.

A single gap's quantile says little about an answer, which has hundreds of gaps that come in bursts. So what is kept
is one number per answer, its longest gap (a block maximum), and the question is which silence a healthy answer
exceeds with probability p at most.

Let X_(k) be the time that the k = 10 largest of the sample exceed, a share t of it. Above it, the tail is taken to
fall no more slowly than a power, `P(X > x) = t·(x/X_(k))^(-1/ξ)`, and ξ is the mean of `ln(x/X_(k))` over that share
(the Hill estimator; a time that is only known to be longer than x counts as in `Rolling`, by Kaplan and Meier). Then

    x_p = X_(k)·(t/p)^ξ          (Weissman's estimator)

A power is the heaviest of the usual tails: where the real tail is lighter, x_p is too long, which costs waiting and
not a false alarm. ξ has the standard error ξ/√k, one of which is added. Before that it is kept within `XI`: a sample
without any spread is not trusted, and a tail without a variance (ξ > 1/2) is not believed.

A server's gaps are of several kinds (alone, or beside a prompt that is being read), and the rarest kind decides, of
which the 10 largest may hold only one or two. So x_p is also no shorter than the same formula gives from the largest
alone (k = 1) with the least ξ. After the largest of n recent times, the next one is longer with probability 1/(n+1)
only, but that is more than p. So a single long time counts at once and in full, for as long as it is remembered.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from disco.profiles.rolling_distribution import Rolling

__all__ = ["UpperTail"]

FEWEST: Final = 20  # observations before anything is said
XI: Final = 0.2, 0.5
_IN_TAIL: Final = 10  # observations that the tail is fitted to; of a small sample, the larger half
_STEPS: Final = 16  # quantiles that the mean over the tail is computed from


class UpperTail:
    """Times of one kind, with forgetting, and how long the rare ones are.

    Mutable: `times`, `_beyond` (the results so far, until the next observation).

    Attributes:
        times: the sample; the newest 200 observations have half of the weight.
    """

    __slots__ = ("_beyond", "times")

    def __init__(self) -> None:
        self.times = Rolling()
        self._beyond: dict[float, float] = {}

    def observe(self, x_s: float) -> None:
        """Add one time, s.

        Args:
            x_s: the time, s, at least 0.

        Raises:
            ValueError: the time is negative or NaN.
        """
        self.times.observe(x_s)
        self._beyond.clear()

    def observe_censored(self, x_s: float) -> None:
        """Add a time that is only known to be longer than `x_s` seconds.

        Raises:
            ValueError: the time is negative or NaN.
        """
        self.times.observe_censored(x_s)
        self._beyond.clear()

    @property
    def count(self) -> int:
        """How many times were observed, censored ones included."""
        return self.times.count + self.times.censored_count

    def exceeded_by(self, p: float) -> float | None:
        """Return the time that the next one exceeds with probability `p` at most, s; None before `FEWEST` times.

        Args:
            p: a probability in (0, 1).

        Raises:
            ValueError: `p` is out of range.
        """
        if not 0.0 < p < 1.0:
            raise ValueError(f"a probability of 0 < p < 1 is needed, not {p}")
        if self.count < FEWEST:
            return None
        known = self._beyond.get(p)
        if known is None:
            known = self._beyond[p] = self._extrapolated(p)
        return known

    def _extrapolated(self, p: float) -> float:
        sample, weight = self.times.snapshot(), self.times.weight
        share = min(_IN_TAIL / weight, 0.5)
        own = float(sample.quantile(1.0 - p))
        if p >= share:
            return own
        levels = 1.0 - share + share * (np.arange(_STEPS) + 0.5) / _STEPS
        from_s = max(float(sample.quantile(1.0 - share)), 1e-4)
        hill = float(np.log(np.maximum(sample.quantile(levels) / from_s, 1.0)).mean())
        xi = min(max(hill, XI[0]), XI[1]) * (1.0 + 1.0 / math.sqrt(share * weight))
        from_largest_s = own * max(1.0, 1.0 / (weight * p)) ** XI[0]
        return float(max(from_largest_s, from_s * (share / p) ** xi))
