"""Where a share of all prompt tokens ends: the length that splits tokens, not requests, at a given share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disco.profiles.length_distribution import Lengths

__all__ = ["TokenShares"]

# Counting into one bin per length is fastest as long as the bins fit the cache.
_DENSE_LIMIT_TOKENS = 1 << 15
_RAMP = np.arange(_DENSE_LIMIT_TOKENS)


class TokenShares:
    """`Σ l·p(l)` up to each length, not normalised. Build one with `of` or `of_samples`."""

    # lengths: ascending, tokens, shape (m,); None when they are 0, 1, ..., m - 1.
    # cumulative: tokens in prompts up to that length, in any unit, shape (m,); the last is the total.
    __slots__ = ("_cumulative", "_lengths", "total")

    def __init__(
        self, lengths: NDArray[np.int64] | None, cumulative: NDArray[np.float64] | NDArray[np.int64]
    ) -> None:
        self._lengths = lengths
        self._cumulative = cumulative
        self.total = total = float(cumulative[-1])
        if not total > 0.0:
            raise ValueError("a plan needs a prompt of at least one token")

    @classmethod
    def of(cls, lengths: Lengths) -> TokenShares:
        """From a distribution that is kept anyway; costs no more than its distinct lengths."""
        return cls(lengths.lengths, (lengths.lengths * lengths.p).cumsum())

    @classmethod
    def of_samples(cls, samples: NDArray[np.int64]) -> TokenShares:
        """From raw lengths in tokens, non-negative integers, shape (n,).

        Raises:
            ValueError: no sample, a negative one, or only empty prompts.
        """
        if not samples.size:
            raise ValueError("a plan needs at least one prompt length")
        if samples[samples.argmax()] < _DENSE_LIMIT_TOKENS:  # argmax is twice as fast as max
            tokens = np.bincount(samples)
            tokens *= _RAMP[: tokens.size]
            return cls(None, np.add.accumulate(tokens))  # a quarter faster than cumsum on short arrays
        lengths, counts = np.unique(samples, return_counts=True)
        if lengths[0] < 0:
            raise ValueError("a prompt length cannot be negative")
        return cls(lengths, (lengths * counts).cumsum())

    def split(self, share: float) -> tuple[float, float]:
        """The length that holds the token at `share` in [0, 1] of all, and how much of it lies below.

        Returns:
            `(length, part)`: all tokens of shorter prompts and `part` of those in prompts of this length
            make up `share`, exactly. `(inf, 0)` at 1.
        """
        wanted = share * self.total
        cumulative, lengths = self._cumulative, self._lengths
        # Whole numbers are searched for a whole number: a fraction would convert all of them first.
        i = int(cumulative.searchsorted(int(wanted) if lengths is None else wanted, side="right"))
        if i >= len(cumulative):
            return float("inf"), 0.0
        below = float(cumulative[i - 1]) if i else 0.0
        part = (wanted - below) / (float(cumulative[i]) - below)
        # Rounding may put the share a hair outside of the length it ends in.
        return float(i if lengths is None else lengths[i]), 0.0 if part < 0.0 else min(part, 1.0)

    def at(self, length: float) -> tuple[float, float]:
        """The shares of all tokens in shorter prompts and in prompts of this length, which must occur."""
        i = int(length if self._lengths is None else self._lengths.searchsorted(length))
        below = float(self._cumulative[i - 1]) if i else 0.0
        return below / self.total, (float(self._cumulative[i]) - below) / self.total

    def from_length(self, length: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The lengths from `length` on that occur, tokens, and each one's share of all tokens; shape (k,)."""
        tokens = np.diff(self._cumulative, prepend=0)
        lengths = np.arange(len(tokens)) if self._lengths is None else self._lengths
        kept = (lengths >= length) & (tokens > 0)
        return lengths[kept], tokens[kept] / self.total
