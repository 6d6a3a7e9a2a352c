"""Waits after which the device starts in exactly a given share of cases, for any distribution of the server's TTFT.

Waiting `w` uses the device with probability `u(w) = P(T > w)`, and `u(0) = 1`: without a wait, the device always
starts. An empirical `F` has steps, and atoms where a time occurs often (rounded logs, a server that answers from a
cache). So a single wait in general uses the device a little too much or too little for a share `s`. A wait is
therefore a pair: the latest wait with `u ≥ s`, the earliest with `u ≤ s`, and the share of requests that get the
earlier one, such that the mean use is exactly `s`. With 1,000 different samples the two waits are neighbours that no
measurement could tell apart.

Where a pair is used for prompts of all lengths, the shorter prompts get the earlier wait and the longer ones the later
(`WaitByLength`). Then only prompts of one length are divided by turns, and decisions on a million requests do not
depend on the request before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.planners.rank_selection import Ranks
from disco.profiles.time_distribution import Empirical

__all__ = ["EmpiricalWaits", "SampleWaits", "SplitWait", "WaitByLength", "WaitSource"]

# Differences of probabilities below this are rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class SplitWait:
    """A pair of waits in seconds: `early_s` for the share `p_early` of requests (by tokens), `late_s` for the rest."""

    early_s: float
    late_s: float
    p_early: float

    @property
    def mean_s(self) -> float:
        """The mean wait, s."""
        if self.p_early <= 0.0:  # late_s may be infinite
            return self.late_s
        return self.early_s if self.p_early >= 1.0 else self._mix()

    def _mix(self) -> float:
        return self.p_early * self.early_s + (1.0 - self.p_early) * self.late_s


@dataclass(frozen=True, slots=True)
class WaitByLength:
    """A pair of waits for prompts of many lengths (or, in s/token, a pair of slopes).

    Attributes:
        early, late: the pair, s.
        tokens: shorter prompts get the early wait, longer ones the late one; `-1`: all get the late one.
        part: share of the prompts of exactly this length that get the early wait.
    """

    early: float
    late: float
    tokens: float = -1.0
    part: float = 0.0

    def mix(self, tokens: NDArray[np.int64]) -> tuple[NDArray[np.float64], float, float]:
        """Return the share of the prompts of each length that get the early wait, same shape; and the two waits.

        Args:
            tokens: prompt lengths.
        """
        at = np.where(tokens == self.tokens, self.part, 0.0)
        return np.where(tokens < self.tokens, 1.0, at), self.early, self.late


NO_WAIT = SplitWait(0.0, 0.0, 1.0)
NEVER = SplitWait(float("inf"), float("inf"), 0.0)

JUST_AFTER_0_S = 1e-300
"""The shortest wait, s: long enough for answers that take no time (a time of 0, from a cache or a coarse log)."""


def _within_atom_at_0(use: float, use_after: float) -> SplitWait:
    """Return the pair of no wait, which always uses the device, and the shortest wait, for all times above 0."""
    if use_after >= use - _ROUNDING:
        return SplitWait(JUST_AFTER_0_S, JUST_AFTER_0_S, 0.0)
    return SplitWait(0.0, JUST_AFTER_0_S, (use - use_after) / (1.0 - use_after))


class WaitSource(Protocol):
    """A distribution of the server's TTFT in the form that planners need."""

    def split(self, use: float) -> SplitWait:
        """Return the pair of waits after which the device starts in exactly the share `use` in [0, 1] of cases."""
        ...

    def use(self, waits_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of cases in which the device starts, for each wait in seconds; same shape."""
        ...

    def use_at(self, wait_s: float) -> float:
        """Return the share of cases in which the device starts after one wait, in seconds."""
        ...


class EmpiricalWaits:
    """Waits from an `Empirical` distribution; the cost does not depend on the number of samples behind it."""

    __slots__ = ("_ttft",)

    def __init__(self, ttft: Empirical) -> None:
        self._ttft = ttft

    def split(self, use: float) -> SplitWait:
        if use >= 1.0:
            return NO_WAIT
        if use <= 0.0:
            return NEVER
        late_s = self._ttft.quantile(1.0 - use)
        if late_s <= 0.0:
            return _within_atom_at_0(use, self.use_at(JUST_AFTER_0_S))
        use_late = self.use_at(late_s)
        if abs(use_late - use) <= _ROUNDING:
            return SplitWait(late_s, late_s, 0.0)
        # F jumps across the level: the late wait is an atom. Take the wait just before it.
        early_s = self._before(late_s)
        use_early = self.use_at(early_s)
        p_early = (use - use_late) / (use_early - use_late)
        return SplitWait(early_s, late_s, min(p_early, 1.0))

    def _before(self, wait_s: float) -> float:
        """Return the earliest wait, s, with the same use as a wait that ends just before `wait_s`."""
        levels, values = self._ttft.levels, self._ttft.values
        below = int(values.searchsorted(wait_s)) - 1
        if below < 0:
            return 0.0
        in_gap = levels[below] == levels[below + 1]  # no time falls between the two
        return float(values[below]) if in_gap else math.nextafter(wait_s, 0.0)

    def use(self, waits_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(waits_s <= 0.0, 1.0, self._ttft.survival(waits_s))

    def use_at(self, wait_s: float) -> float:
        return 1.0 if wait_s <= 0.0 else self._ttft.survival(wait_s)


class SampleWaits:
    """Waits from raw samples; sorts only as many of them as necessary."""

    __slots__ = ("_order", "_size")

    def __init__(self, times_s: NDArray[np.float64]) -> None:
        """Keep a reference to `times_s`: seconds, non-negative, float64, shape (n,).

        Raises:
            ValueError: there is no sample.
        """
        if times_s.size == 0:
            raise ValueError("a plan needs at least one time to first token")
        self._order = Ranks(times_s)
        self._size = times_s.size

    def split(self, use: float) -> SplitWait:
        if use >= 1.0:
            return NO_WAIT
        if use <= 0.0:
            return NEVER
        n = self._size
        wanted = use * n
        # At most `allowed` samples may lie above the late wait; rounding must not make it a sample later.
        allowed = int(wanted + n * _ROUNDING)
        if allowed >= n:
            return NO_WAIT
        times_s, skipped = self._order.near(n - 1 - allowed)
        at = n - 1 - allowed - skipped
        late_s = float(times_s[at])
        if late_s <= 0.0:
            return _within_atom_at_0(use, self.use_at(JUST_AFTER_0_S))
        # Samples equal to the wait do not lie above it: step over an atom on both sides.
        tied_above = at + 1 < len(times_s) and times_s[at + 1] == late_s
        beyond = n - skipped - int(times_s.searchsorted(late_s, side="right")) if tied_above else allowed
        if beyond >= wanted - n * _ROUNDING:
            return SplitWait(late_s, late_s, 0.0)
        tied_below = at > 0 and times_s[at - 1] == late_s
        first = int(times_s.searchsorted(late_s)) if tied_below else at
        early_s = float(times_s[first - 1]) if first else (skipped and self._order.before(late_s)) or 0.0
        reached = n - skipped - first if early_s > 0.0 else n  # without a wait the device always starts
        return SplitWait(early_s, late_s, (wanted - beyond) / (reached - beyond))

    def use(self, waits_s: NDArray[np.float64]) -> NDArray[np.float64]:
        ordered, n = self._order.all(), self._size
        return np.where(waits_s <= 0.0, 1.0, (n - ordered.searchsorted(waits_s, side="right")) / n)

    def use_at(self, wait_s: float) -> float:
        return 1.0 if wait_s <= 0.0 else self._order.beyond(wait_s) / self._size
