"""The distribution of answer lengths, as a survival function that is evaluated in O(log n).

`S(j) = P(L > j)` for an answer of L tokens. It is stored as knots at whole token counts, with straight lines between
them and a constant hazard beyond the last knot.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import neg
from typing import Self

__all__ = ["AnswerLengths"]

_MAX_KNOTS = 256


def _straight_sum(from_s: float, to_s: float, steps: float) -> float:
    """Return the sum of `steps` values that fall evenly from `from_s` towards `to_s`, which is not included."""
    return steps * (from_s + to_s) / 2 + (from_s - to_s) / 2 if steps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """Distribution of answer lengths in tokens; build it with one of the class methods.

    Attributes:
        knots: ascending token counts, the first 0.
        survival_at: S at each knot, not increasing, the first 1.
        tail_hazard: probability in (0, 1] that an answer beyond the last knot ends with the next token.
        cap_tokens: the longest possible answer (the request's `max_tokens`); None for no cap.
        sums: `Σ_{j >= knot} S(j)` at each knot, without the cap.
        longest_remaining: the largest `E[L − m | L > m]` for any m from the knot on, without the cap.
        beyond_cap: `Σ_{j >= cap} S(j)`, tokens; 0 without a cap.
        found: results that were computed before, for the functions that are called at every token; mutable.
    """

    knots: tuple[int, ...]
    survival_at: tuple[float, ...]
    tail_hazard: float
    cap_tokens: int | None
    sums: tuple[float, ...]
    longest_remaining: tuple[float, ...]
    beyond_cap: float = 0.0
    found: dict[int | tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def _build(cls, knots: Sequence[int], survival_at: Sequence[float], tail_hazard: float) -> Self:
        last = len(knots) - 1
        sums = [0.0] * (last + 1)
        sums[last] = survival_at[last] / tail_hazard
        for k in range(last - 1, -1, -1):
            between = _straight_sum(survival_at[k], survival_at[k + 1], knots[k + 1] - knots[k])
            sums[k] = sums[k + 1] + between
        # On a straight piece of S the mean remainder is largest at one of its ends.
        longest = [1.0] * (last + 1)
        for k in range(last, -1, -1):
            here = sums[k] / survival_at[k] if survival_at[k] > 0 else 0.0
            # Just before a drop to the next knot, at least one token remains.
            longest[k] = max(here, longest[min(k + 1, last)], 1.0)
        return cls(
            knots=tuple(knots),
            survival_at=tuple(survival_at),
            tail_hazard=tail_hazard,
            cap_tokens=None,
            sums=tuple(sums),
            longest_remaining=tuple(longest),
        )

    @classmethod
    def geometric(cls, mean_tokens: float) -> Self:
        """The memoryless prior: every token ends the answer with probability `1/mean_tokens`.

        Raises:
            ValueError: when `mean_tokens` is below 1.
        """
        if not mean_tokens >= 1 or math.isinf(mean_tokens):
            raise ValueError(f"mean_tokens must be finite and at least 1, not {mean_tokens}")
        return cls._build((0,), (1.0,), 1.0 / mean_tokens)

    @classmethod
    def from_samples(cls, lengths: Iterable[int], censored: Iterable[int] = ()) -> Self:
        """Kaplan–Meier: `S(j) = Π_{x <= j} (1 − d_x/n_x)`, d_x answers of x tokens, n_x at least as long.

        Exact for up to 127 different lengths; beyond, S is thinned to 128 quantiles with straight
        lines between them. After the longest length the hazard is the pooled one: ended answers per token.

        Args:
            lengths: tokens of answers that ended by themselves, each at least 1.
            censored: tokens of answers that were cut off (cancelled, `max_tokens`), which would have been longer.

        Raises:
            ValueError: when no answer ended by itself, or a length is below 1.
        """
        ended, cut = Counter(lengths), Counter(censored)
        if not ended or min(ended) < 1 or min(cut, default=0) < 0:
            raise ValueError("lengths must hold at least one answer, of 1 token or more")
        at_risk = ended.total() + cut.total()
        exposure = sum(x * k for x, k in ended.items()) + sum(x * k for x, k in cut.items())
        steps: list[tuple[int, float]] = []
        survival = 1.0
        for x in sorted(ended.keys() | cut.keys()):
            if x in ended:
                survival *= 1 - ended[x] / at_risk
                steps.append((x, survival))
            # An answer censored at x is known to be longer than x, so it was still at risk there.
            at_risk -= ended[x] + cut[x]
        if steps[-1][1] < 1e-12:
            steps[-1] = (steps[-1][0], 0.0)
        knots, survival_at = [0], [1.0]
        if len(steps) < _MAX_KNOTS // 2:
            for x, s in steps:
                if x - 1 > knots[-1]:
                    knots.append(x - 1)
                    survival_at.append(survival_at[-1])
                knots.append(x)
                survival_at.append(s)
        else:
            stride = 2 / _MAX_KNOTS
            for x, s in steps:
                if survival_at[-1] - s >= stride or x == steps[-1][0]:
                    knots.append(x)
                    survival_at.append(s)
        return cls._build(knots, survival_at, min(1.0, ended.total() / exposure))

    @classmethod
    def from_quantiles(cls, table: Iterable[tuple[float, float]]) -> Self:
        """Build from `(q, tokens)` pairs with `P(L <= tokens) = q`: straight lines between, then a constant hazard.

        Raises:
            ValueError: when the table is empty or not ascending in both columns.
        """
        knots, survival_at = [0], [1.0]
        for q, tokens in sorted(table):
            x, s = max(round(tokens), 0), 1.0 - q
            if not 0 <= q <= 1 or x < knots[-1]:
                raise ValueError("quantile table must ascend: (q, tokens) with q in [0, 1]")
            if x == 0:  # an answer has at least one token
                continue
            if x == knots[-1]:
                survival_at[-1] = s
            else:
                knots.append(x)
                survival_at.append(s)
        if len(knots) < 2:
            raise ValueError("quantile table must hold at least one positive length")
        mean = sum(
            _straight_sum(survival_at[k], survival_at[k + 1], knots[k + 1] - knots[k])
            for k in range(len(knots) - 1)
        )
        return cls._build(knots, survival_at, min(1.0, 1.0 / max(mean, 1.0)))

    def capped(self, max_tokens: int | None) -> Self:
        """Return the same lengths cut off at `max_tokens`: `min(L, max_tokens)`. O(1)."""
        if max_tokens is None:
            return self
        if self.cap_tokens is not None and self.cap_tokens <= max_tokens:
            return self
        cap_tokens = max(max_tokens, 0)
        return type(self)(
            self.knots,
            self.survival_at,
            self.tail_hazard,
            cap_tokens,
            self.sums,
            self.longest_remaining,
            self._at(cap_tokens)[1],
        )

    def _at(self, n: int) -> tuple[float, float]:
        """Return (S(n), Σ_{j>=n} S(j)) without the cap."""
        k = bisect_right(self.knots, n) - 1
        x, s = self.knots[k], self.survival_at[k]
        if k == len(self.knots) - 1:
            here = s * math.pow(1 - self.tail_hazard, n - x)
            return here, here / self.tail_hazard
        to_x, to_s = self.knots[k + 1], self.survival_at[k + 1]
        here = s + (to_s - s) * (n - x) / (to_x - x)
        return here, self.sums[k + 1] + _straight_sum(here, to_s, to_x - n)

    def survival(self, n: int) -> float:
        """`S(n) = P(L > n)`, n in tokens."""
        if self.cap_tokens is not None and n >= self.cap_tokens:
            return 0.0
        return self._at(max(n, 0))[0]

    def expected_remaining(self, n: int) -> float:
        """`E[L − n | L > n] = Σ_{j>=n} S(j)/S(n)`, in tokens; 0 at the cap.

        For an answer longer than any observed one, the pooled hazard applies.
        """
        remaining = self.found.get(n)
        if remaining is None:
            remaining = self.found[n] = self._expected_remaining(n)
        return remaining

    def _expected_remaining(self, n: int) -> float:
        left = math.inf if self.cap_tokens is None else self.cap_tokens - n
        if left <= 0:
            return 0.0
        here, total = self._at(max(n, 0))
        if here <= 0:
            return self._memoryless(left)
        return min((total - self.beyond_cap) / here, left)

    def _memoryless(self, left: float) -> float:
        mean = 1 / self.tail_hazard
        return mean * (1 - math.pow(1 - self.tail_hazard, left))

    def _tail_tokens(self, share: float) -> float:
        """Return the number of tokens after which, at the constant hazard, `share` of the answers are left."""
        return math.log(share) / math.log1p(-self.tail_hazard) if self.tail_hazard < 1 else 1.0

    def most_remaining(self, n: int) -> float:
        """Return an upper bound of `expected_remaining(m)` for every m >= n, in tokens."""
        left = math.inf if self.cap_tokens is None else self.cap_tokens - n
        k = bisect_right(self.knots, max(n, 0)) - 1
        return max(0.0, min(max(self.longest_remaining[k], self.expected_remaining(n)), left))

    def hazard(self, n: int, *, window: int = 1) -> float:
        """`h(n) = P(L = n+1 | L > n) = 1 − S(n+1)/S(n)`; 1 from one token before the cap on.

        With a `window` of w tokens, the probability per token over the next w: `1 − (S(n+w)/S(n))^(1/w)`. This
        smooths the spikes that samples leave.
        """
        hazard = self.found.get((n, window))
        if hazard is None:
            hazard = self.found[n, window] = self._hazard(n, window)
        return hazard

    def _hazard(self, n: int, window: int) -> float:
        if self.cap_tokens is not None:
            if n >= self.cap_tokens - 1:
                return 1.0
            window = min(window, self.cap_tokens - 1 - n)
        here = self._at(max(n, 0))[0]
        if here <= 0:
            return self.tail_hazard
        return 1 - math.pow(self._at(max(n, 0) + window)[0] / here, 1 / window)

    def remaining_quantile(self, n: int, q: float) -> int:
        """Return the smallest r with `P(L − n <= r | L > n) >= q`, in tokens, for q in (0, 1)."""
        left = None if self.cap_tokens is None else self.cap_tokens - n
        if left is not None and left <= 0:
            return 0
        here = self._at(max(n, 0))[0]
        if here <= 0:
            remaining = max(1, math.ceil(self._tail_tokens(1 - q) - 1e-9))
            return remaining if left is None else min(remaining, left)
        aim = here * (1 - q) * (1 + 1e-12)
        k = max(1, bisect_left(self.survival_at, -aim, key=neg))  # the first knot with S <= aim
        if k < len(self.knots):
            x, s, to_x, to_s = self.knots[k - 1], self.survival_at[k - 1], self.knots[k], self.survival_at[k]
            length = x + (s - aim) / (s - to_s) * (to_x - x)
        else:
            length = self.knots[-1] + self._tail_tokens(aim / self.survival_at[-1])
        remaining = max(1, math.ceil(length - n - 1e-9))
        return remaining if left is None else min(remaining, left)
