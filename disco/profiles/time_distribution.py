"""An immutable distribution of times, as a table of its inverse distribution function."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Empirical"]

Floats = NDArray[np.float64]


class Empirical:
    """A distribution of non-negative seconds: a polyline through (level, value) knots.

    A level that occurs twice is a gap without any time; a value that occurs twice is an atom. So the same table can
    represent the exact step function of a sample and the straight lines of a quantile table. Everywhere, up to
    rounding, `cdf(quantile(q)) >= q` and `quantile(cdf(t)) <= t`. Budgets depend on this: never more than `1 - q` of
    the mass lies above `quantile(q)`.

    Immutable. Build one with `from_samples` or `from_quantiles`; the constructor does not check its arguments, and
    keeps and freezes the arrays. (Not a dataclass: a frozen one takes twice as long to make, and one is made whenever
    a plan follows an observation.)

    Args:
        levels: probabilities in [0, 1], not falling, float64, shape (n,).
        values: the times at these levels, s, not falling, float64, shape (n,).
    """

    __slots__ = ("_level_at", "_levels", "_value_at", "_values")

    def __init__(self, levels: Floats, values: Floats) -> None:
        levels.flags.writeable = False
        values.flags.writeable = False
        self._levels = levels
        self._values = values
        # Views of the same memory: indexing a view returns a Python float and is much faster than indexing an array.
        self._level_at = levels.data
        self._value_at = values.data

    @property
    def levels(self) -> Floats:
        """Cumulative probabilities, float64, shape (knots,), non-decreasing from 0 to 1; read-only."""
        return self._levels

    @property
    def values(self) -> Floats:
        """Seconds at those levels, float64, shape (knots,), non-decreasing; read-only."""
        return self._values

    def __reduce__(self) -> tuple[Callable[[Floats, Floats], Empirical], tuple[Floats, Floats]]:
        # The views cannot be pickled or copied; `__init__` makes new ones.
        return _unpickled, (self._levels, self._values)

    @classmethod
    def from_samples(cls, values: ArrayLike, *, weights: ArrayLike | None = None) -> Empirical:
        """Build the exact empirical distribution of a sample: `quantile` returns values that occurred.

        Args:
            values: seconds, any order, shape (n,), n >= 1, finite and non-negative.
            weights: one non-negative weight per value, not all zero; equal weights when None.

        Raises:
            ValueError: `values` is empty or has invalid entries, or `weights` does not fit it.
        """
        times = _seconds(values, "values")
        if weights is None:
            ordered = np.sort(times)
            cumulative = np.arange(1, ordered.size + 1) / ordered.size
        else:
            mass = np.asarray(weights, dtype=np.float64)
            if mass.shape != times.shape or not (
                np.isfinite(mass).all() and (mass >= 0).all() and mass.any()
            ):
                raise ValueError("weights must be one non-negative finite number per value, not all zero")
            order = np.argsort(times, kind="stable")
            order = order[mass[order] > 0]
            ordered = times[order]
            cumulative = np.cumsum(mass[order])
            cumulative /= cumulative[-1]
        # Each value is an atom: two knots, one at the level of the value before it and one at its own level.
        levels = np.empty(2 * ordered.size)
        levels[0] = 0.0
        levels[1::2] = cumulative
        levels[2::2] = cumulative[:-1]
        return cls(levels, np.repeat(ordered, 2))

    @classmethod
    def from_quantiles(cls, levels: ArrayLike, values: ArrayLike) -> Empirical:
        """Build from a quantile table: straight lines between its levels, constant below the first and above the last.

        Args:
            levels: strictly increasing probabilities in [0, 1], shape (n,), n >= 1.
            values: the quantiles in seconds, non-decreasing, shape (n,).

        Raises:
            ValueError: levels and values do not make a quantile table.
        """
        times = _seconds(values, "values")
        probabilities = np.asarray(levels, dtype=np.float64)
        if probabilities.shape != times.shape:
            raise ValueError(f"{probabilities.size} levels do not fit {times.size} values")
        if not (probabilities[0] >= 0 and probabilities[-1] <= 1 and (np.diff(probabilities) > 0).all()):
            raise ValueError("levels must be strictly increasing and lie between 0 and 1")
        if (np.diff(times) < 0).any():
            raise ValueError("values of a quantile table must not decrease")
        low, high = probabilities[0] > 0, probabilities[-1] < 1
        return cls(
            np.pad(probabilities, (int(low), int(high)), constant_values=(0.0, 1.0)),
            np.pad(times, (int(low), int(high)), mode="edge"),
        )

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: ArrayLike) -> Floats: ...
    def quantile(self, q: float | ArrayLike) -> float | Floats:
        """Return the smallest time that a share `q` of the mass does not exceed: F⁻¹(q), in seconds.

        Args:
            q: level(s) in [0, 1]; a scalar costs about a microsecond.

        Raises:
            ValueError: a level outside [0, 1].
        """
        if isinstance(q, float | int):
            if not 0.0 <= q <= 1.0:
                raise ValueError(f"a quantile's level must lie between 0 and 1, not at {q}")
            levels, values = self._level_at, self._value_at
            i = bisect_left(levels, q)
            above: float = values[i]
            if i == 0 or levels[i] == q:
                return above
            below: float = values[i - 1]
            return below + (above - below) * ((q - levels[i - 1]) / (levels[i] - levels[i - 1]))
        wanted = np.asarray(q, dtype=np.float64)
        if not ((wanted >= 0) & (wanted <= 1)).all():
            raise ValueError("every level of a quantile must lie between 0 and 1")
        upper = np.searchsorted(self._levels, wanted, side="left")
        return _between(wanted, self._levels, self._values, upper)

    def spaced(self, count: int) -> tuple[float, ...]:
        """Return the quantiles at `1/count, 2/count, … 1`, in seconds; some 40 µs for 32 of them."""
        return tuple(self.quantile(np.arange(1, count + 1) / count).tolist())

    @overload
    def cdf(self, t: float) -> float: ...
    @overload
    def cdf(self, t: ArrayLike) -> Floats: ...
    def cdf(self, t: float | ArrayLike) -> float | Floats:
        """Return F(t) = P(T <= t), for time(s) in seconds; right-continuous."""
        if isinstance(t, float | int):
            levels, values = self._level_at, self._value_at
            i = bisect_right(values, t)
            if i == 0:
                return 0.0
            if i == len(values):
                return 1.0
            below: float = levels[i - 1]
            rise: float = levels[i] - below
            return below + rise * ((t - values[i - 1]) / (values[i] - values[i - 1]))
        times = np.asarray(t, dtype=np.float64)
        upper = np.searchsorted(self._values, times, side="right")
        inside = _between(times, self._values, self._levels, np.minimum(upper, self._values.size - 1))
        return np.where(upper == 0, 0.0, np.where(upper == self._values.size, 1.0, inside))

    @overload
    def survival(self, t: float) -> float: ...
    @overload
    def survival(self, t: ArrayLike) -> Floats: ...
    def survival(self, t: float | ArrayLike) -> float | Floats:
        """Return 1 - F(t) = P(T > t): the share of times longer than `t` seconds."""
        return 1.0 - self.cdf(t)

    def mean(self) -> float:
        """Return the expected time in seconds (the area under the inverse distribution function)."""
        levels, values = self._levels, self._values
        return float((levels[1:] - levels[:-1]) @ (values[1:] + values[:-1])) / 2.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Draw `n` independent times: seconds, float64, shape (n,).

        Args:
            rng: where the draws come from.
            n: number of draws.
        """
        return self.quantile(rng.random(n))


def _seconds(values: ArrayLike, what: str) -> Floats:
    times = np.array(values, dtype=np.float64)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"{what} must be a non-empty sequence of seconds")
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise ValueError(f"{what} must be finite and not negative")
    return times


def _between(x: Floats, xs: Floats, ys: Floats, upper: NDArray[np.intp]) -> Floats:
    """Interpolate `ys` over `xs` at `x`, given the index of the knot at or above each `x`."""
    lower = np.maximum(upper - 1, 0)
    width = xs[upper] - xs[lower]
    # No interpolation where `x` is exactly at a knot, or at the very start.
    at_knot = (width <= 0) | (xs[upper] == x)
    part = np.where(at_knot, 1.0, (x - xs[lower]) / np.where(width > 0, width, 1.0))
    return np.where(at_knot, ys[upper], ys[lower] + (ys[upper] - ys[lower]) * part)


def _unpickled(levels: Floats, values: Floats) -> Empirical:
    """Arrays that lie anywhere in a message (Dask's, say) may not be aligned; a view cannot read those."""
    return Empirical(np.require(levels, requirements="A"), np.require(values, requirements="A"))
