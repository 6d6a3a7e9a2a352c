"""Fits a straight line to (prompt length, TTFT) points: the paper's `T_d(l) = k·l + c`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LinearFit", "RollingLine", "fit_line"]


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Device TTFT as a line in the prompt length.

    Attributes:
        k_s_per_token: slope, seconds per prompt token.
        c_s: intercept, seconds.
        r2: share of the variance explained; 1 is a perfect line, below 0 is worse than the mean
            (possible only for a constrained fit).
        n: number of points used.
    """

    k_s_per_token: float
    c_s: float
    r2: float
    n: int

    def ttft_s(self, prompt_tokens: float) -> float:
        """Return the line's TTFT at `prompt_tokens`, in seconds."""
        return self.k_s_per_token * prompt_tokens + self.c_s


_KEPT = 0.97  # factor on the weight of earlier observations with each new one: half is left after 23
_PRIOR_WEIGHT = 4.0  # weight of the initial line, in observations
_PRIOR_TOKENS = (64, 1024)
_SPREAD = 0.1  # as a share of the mean length: with a smaller spread of lengths, the slope is not updated
_SHORTEST_S = 1e-3
_STEEPEST_TPS = 1e6
_RATIOS = 100  # that `RollingLine.ratio_quantile` knows
_LONG_TOKENS = 256  # the ratios of shorter prompts say more about the overhead than about reading


class RollingLine:
    """A device's `T_d(l) = k·l + c`, updated with each observation: weighted least squares, exponential forgetting.

    Observations are weighted by the inverse square of their time, so that relative errors count and short prompts are
    predicted as well as long ones. While all prompts have about the same length, the slope is not updated.

    How far single observations of long prompts lie above the line, as a ratio, is known for the newest 100.

    Mutable: every field.

    Attributes:
        k_s_per_token: slope, seconds per prompt token; above 0.
        c_s: intercept, seconds; not negative.
    """

    __slots__ = ("_ratios", "_w", "_x", "_xx", "_xy", "_y", "c_s", "k_s_per_token")

    def __init__(self, k_s_per_token: float, c_s: float) -> None:
        """Start from a profile's line, whose weight decreases in the same way as that of earlier observations."""
        self.k_s_per_token = max(k_s_per_token, 1.0 / _STEEPEST_TPS)
        self.c_s = max(c_s, 0.0)
        self._w = self._x = self._y = self._xx = self._xy = 0.0
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        for tokens in _PRIOR_TOKENS:
            self._add(tokens, self.k_s_per_token * tokens + self.c_s, _PRIOR_WEIGHT / len(_PRIOR_TOKENS))

    def observe(self, prompt_tokens: int, ttft_s: float) -> None:
        """Add one warm start: the prompt tokens that were computed, and the seconds until the first token.

        A start with no computed token, or with a time that is not positive, is ignored.

        Args:
            prompt_tokens: tokens of the prompt that were computed.
            ttft_s: until the first token, s.
        """
        if prompt_tokens < 1 or not ttft_s > 0:
            return
        if prompt_tokens >= _LONG_TOKENS:
            self._ratios.append(ttft_s / (self.k_s_per_token * prompt_tokens + self.c_s))
        for name in ("_w", "_x", "_y", "_xx", "_xy"):
            setattr(self, name, _KEPT * getattr(self, name))
        self._add(prompt_tokens, ttft_s, 1.0)
        mean_x, mean_y = self._x / self._w, self._y / self._w
        spread = self._xx / self._w - mean_x**2
        k = self.k_s_per_token
        if spread > (_SPREAD * mean_x) ** 2:
            k = (self._xy / self._w - mean_x * mean_y) / spread
        # Neither k nor c may be negative: then the best line is one through the origin, or a flat one.
        if k <= 0:
            k = 1.0 / _STEEPEST_TPS
        elif mean_y - k * mean_x < 0:
            k = self._xy / self._xx
        self.k_s_per_token, self.c_s = k, max(mean_y - k * mean_x, 0.0)

    def ratio_quantile(self, q: float, at_least: float) -> float:
        """Return how many times the line's time a long prompt takes at most, with probability `q`.

        Each observation was compared with the line as it was before. The next one is the (n+1)-th of its kind, so it
        exceeds the i-th smallest of n with probability 1 - i/(n+1). Where the known ones are too few to give `q`, it is
        the largest of them, and not below `at_least`.
        """
        rank = ceil((len(self._ratios) + 1) * q)
        if rank > len(self._ratios):
            return max((at_least, *self._ratios))
        return max(1.0, sorted(self._ratios)[rank - 1])

    def _add(self, tokens: float, ttft_s: float, weight: float) -> None:
        w = weight / max(ttft_s, _SHORTEST_S) ** 2
        self._w += w
        self._x += w * tokens
        self._y += w * ttft_s
        self._xx += w * tokens * tokens
        self._xy += w * tokens * ttft_s


def fit_line(prompt_tokens: ArrayLike, ttft_s: ArrayLike, *, non_negative: bool = False) -> LinearFit:
    """Return the least squares fit of `T = k·l + c`.

    Fit only over lengths where the device is linear (for llama.cpp up to a few hundred tokens). For longer prompts,
    attention bends the curve upwards, which makes the slope too large and the intercept negative.

    Args:
        prompt_tokens: lengths in tokens, shape (n,), at least two different ones.
        ttft_s: times in seconds, shape (n,).
        non_negative: return the best line among those whose `k` and `c` are not negative.

    Raises:
        ValueError: fewer than two points or lengths, different numbers of lengths and times, or a value that is not
            finite.
    """
    x = np.asarray(prompt_tokens, dtype=np.float64)
    y = np.asarray(ttft_s, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"a fit needs as many lengths as times, not {x.size} lengths and {y.size} times")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a fit needs finite lengths and times; remove NaN and infinite values")
    if x.size < 2 or x.min() == x.max():
        raise ValueError(
            f"a line needs at least two different prompt lengths, and {x.size} measurement(s) of "
            f"{np.unique(x).size} length(s) were given; measure another length"
        )
    k, c = _least_squares(x, y)
    if non_negative and (k < 0 or c < 0):
        # The constrained optimum lies on an edge: through the origin, or flat.
        steep = max(float(x @ y) / float(x @ x), 0.0)
        flat = max(float(y.mean()), 0.0)
        k, c = min(((steep, 0.0), (0.0, flat)), key=lambda line: _squares(x, y, *line))
    spread = float(((y - y.mean()) ** 2).sum())
    left = _squares(x, y, k, c)
    # Where all times are equal, there is no variance to explain.
    r2 = 1.0 - left / spread if spread > 0 else float(left == 0)
    return LinearFit(k_s_per_token=k, c_s=c, r2=r2, n=int(x.size))


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    # Centred, since the plain normal equations lose digits when lengths are long and close together.
    dx = x - x.mean()
    k = float(dx @ (y - y.mean())) / float(dx @ dx)
    return k, float(y.mean() - k * x.mean())


def _squares(x: NDArray[np.float64], y: NDArray[np.float64], k: float, c: float) -> float:
    return float(((y - (k * x + c)) ** 2).sum())
