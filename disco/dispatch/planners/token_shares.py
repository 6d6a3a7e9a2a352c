"""Finds the prompt length at which a given share of all prompt tokens (not of all requests) is reached."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disco.profiles.length_distribution import Lengths

__all__ = ["TokenShares"]

# Counting into one bin per length is fastest as long as the bins fit the processor's cache.
_DENSE_LIMIT_TOKENS = 1 << 15
_RAMP = np.arange(_DENSE_LIMIT_TOKENS)


class TokenShares:
    """`Σ l·p(l)` up to each length, not normalised. Build one with `of` or `of_samples`."""

    # _lengths: ascending, tokens, shape (m,); None when they are 0, 1, ..., m - 1.
    # _cumulative: tokens in prompts up to each length, in any unit, shape (m,); the last is the total.
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
        """Build from a distribution of lengths; the cost is that of its distinct lengths."""
        return cls(lengths.lengths, (lengths.lengths * lengths.p).cumsum())

    @classmethod
    def of_samples(cls, samples: NDArray[np.int64]) -> TokenShares:
        """Build from raw lengths in tokens: int64, non-negative, shape (n,).

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
        """Return the length at which `share` in [0, 1] of all tokens is reached, and the part of it that is needed.

        Returns:
            `(length, part)`: all tokens of shorter prompts and `part` of the tokens in prompts of this length are
            exactly `share` of all tokens. `(inf, 0)` for a share of 1.
        """
        wanted = share * self.total
        cumulative, lengths = self._cumulative, self._lengths
        # Whole numbers are searched for a whole number: searching for a fraction would convert all of them first.
        i = int(cumulative.searchsorted(int(wanted) if lengths is None else wanted, side="right"))
        if i >= len(cumulative):
            return float("inf"), 0.0
        below = float(cumulative[i - 1]) if i else 0.0
        part = (wanted - below) / (float(cumulative[i]) - below)
        # Rounding may put the share slightly outside the length at which it is reached.
        return float(i if lengths is None else lengths[i]), 0.0 if part < 0.0 else min(part, 1.0)

    def at(self, length: float) -> tuple[float, float]:
        """Return the shares of all tokens in shorter prompts and in prompts of this length, which must occur."""
        i = int(length if self._lengths is None else self._lengths.searchsorted(length))
        below = float(self._cumulative[i - 1]) if i else 0.0
        return below / self.total, (float(self._cumulative[i]) - below) / self.total

    def from_length(self, length: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the lengths from `length` on that occur, tokens, and their shares of all tokens; both shape (k,)."""
        tokens = np.diff(self._cumulative, prepend=0)
        lengths = np.arange(len(tokens)) if self._lengths is None else self._lengths
        kept = (lengths >= length) & (tokens > 0)
        return lengths[kept], tokens[kept] / self.total
