"""The distribution of prompt or answer lengths, exact per token count, updated with each observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Lengths"]

# Above this length, a dense count per length would cost more than sorting.
_DENSE_LIMIT = 1 << 22
_RESCALE_AT = 1e100


class Lengths:
    """How often each number of tokens occurs: `p(l)` of the paper.

    Mutable: `_lengths`, `_weights`, `_total`, `_gain`, `observed` (all through `observe`).

    Args:
        lengths: tokens, int64, rising, shape (m,).
        weights: how often each occurs, float64, shape (m,).
        half_life: number of observations after which earlier weight counts half; see `from_counts`.

    Attributes:
        observed: of how many requests these are the lengths; 0: nobody's, they are assumed.
    """

    __slots__ = ("_gain", "_growth", "_lengths", "_total", "_weights", "observed")

    def __init__(
        self, lengths: NDArray[np.int64], weights: NDArray[np.float64], *, half_life: float | None = None
    ) -> None:
        """Store lengths and weights without checking them; use `from_samples` or `from_counts` instead."""
        self._lengths = lengths
        self._weights = weights
        self._total = float(weights.sum())
        self._growth = 1.0 if half_life is None else 2.0 ** (1.0 / half_life)
        self._gain = 1.0
        self.observed = 0

    @classmethod
    def from_samples(cls, lengths: ArrayLike, *, half_life: float | None = None) -> Lengths:
        """Build from a sample of lengths.

        Args:
            lengths: tokens, non-negative integers, shape (n,), n >= 1.
            half_life: number of observations after which one counts half; None: all count the same.

        Raises:
            ValueError: no lengths, or a value that is not a token count.
        """
        tokens = _tokens(lengths)
        if tokens.max() < _DENSE_LIMIT:
            dense = np.bincount(tokens).astype(np.float64)
            present = dense.nonzero()[0]
            made = cls(present, dense[present], half_life=_positive(half_life))
        else:
            unique, counts = np.unique(tokens, return_counts=True)
            made = cls(unique, counts.astype(np.float64), half_life=_positive(half_life))
        made.observed = tokens.size
        return made

    @classmethod
    def from_counts(cls, lengths: ArrayLike, counts: ArrayLike, *, half_life: float | None = None) -> Lengths:
        """Build from lengths and the count (or weight) of each.

        Args:
            lengths: tokens, non-negative integers in any order, shape (n,), n >= 1.
            counts: non-negative weights, shape (n,), not all zero.
            half_life: number of observations after which earlier weight counts half; None: earlier weight never
                decreases.

        Raises:
            ValueError: lengths and counts have different shapes, or contain other values.
        """
        tokens = _tokens(lengths)
        weights = np.asarray(counts, dtype=np.float64)
        if weights.shape != tokens.shape or not (
            np.isfinite(weights).all() and (weights >= 0).all() and weights.any()
        ):
            raise ValueError("counts must be one non-negative finite number per length, not all zero")
        present, where = np.unique(tokens, return_inverse=True)
        summed = np.asarray(np.bincount(where.ravel(), weights=weights), dtype=np.float64)
        kept = summed > 0
        return cls(present[kept], summed[kept], half_life=_positive(half_life))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The lengths that occur, ascending, in tokens, int64, shape (m,). The caller must not change them."""
        return self._lengths

    @property
    def p(self) -> NDArray[np.float64]:
        """The probability of each of `lengths`, float64, shape (m,), summing to 1."""
        return self._weights / self._total

    @property
    def weight(self) -> float:
        """The weight of all observations, where the newest counts 1."""
        return self._total / self._gain

    def mean(self) -> float:
        """Return the mean length E[l], in tokens."""
        return float(self._lengths @ self._weights) / self._total

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw `n` independent lengths: tokens, int64, shape (n,).

        Args:
            rng: where the draws come from.
            n: number of draws.
        """
        cumulative = self._weights.cumsum()
        at = cumulative.searchsorted(rng.random(n) * cumulative[-1], side="right")
        drawn: NDArray[np.int64] = self._lengths[np.minimum(at, self._lengths.size - 1)]
        return drawn

    def observe(self, length: int) -> None:
        """Add one observed length, in tokens.

        Raises:
            ValueError: the length is negative.
        """
        if length < 0:
            raise ValueError(f"a length must not be negative, not {length} tokens")
        self.observed += 1
        self._gain *= self._growth
        if self._gain > _RESCALE_AT:
            self._weights = self._weights / self._gain
            self._gain = 1.0
            self._total = float(self._weights.sum())
        at = int(self._lengths.searchsorted(length))
        if at < self._lengths.size and self._lengths[at] == length:
            self._weights[at] += self._gain
        else:
            self._lengths = np.insert(self._lengths, at, length)
            self._weights = np.insert(self._weights, at, self._gain)
        self._total += self._gain


def _tokens(lengths: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(lengths)
    if given.ndim != 1 or given.size == 0:
        raise ValueError("lengths must be a non-empty sequence of token counts")
    if given.dtype.kind not in "iu" or given.min() < 0:
        raise ValueError("lengths must be non-negative integers")
    return given.astype(np.int64)


def _positive(half_life: float | None) -> float | None:
    if half_life is not None and not half_life > 0:
        raise ValueError(f"half_life must be positive, not {half_life}")
    return half_life
