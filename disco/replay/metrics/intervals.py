"""A figure with its 95 % interval: over seeds, over requests or texts, over groups of them.

Which one fits depends on what was repeated. Runs with other seeds are few and alike: Student's t (`figure`). A share of
independent texts that are right or wrong: Wilson's (`wilson`). A mean over texts, some of which belong together: normal
(`mean_interval`), or without an assumption on its shape a bootstrap (`bootstrap_mean`). Two arms on the same texts: the
interval of their difference (`paired_difference`, `paired_bootstrap`), in which the texts' own difficulty cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError

__all__ = [
    "Figure",
    "bootstrap_mean",
    "figure",
    "mean_interval",
    "normal_interval",
    "paired_bootstrap",
    "paired_difference",
    "percentile_interval",
    "resampled_means",
    "sum_by_group",
    "wilson",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONFIDENCE: Final = 0.95
Z_95: Final = 1.959963984540054
_ENDS: Final = (0.025, 0.975)
_AT_ONCE: Final = 1 << 22  # rows drawn at a time


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its 95 % interval, in the figure's own unit; all three are equal where nothing was repeated.

    Attributes:
        mean: the mean over what was repeated: seeds, requests, texts.
        low, high: the ends of the mean's interval.
    """

    mean: float
    low: float
    high: float


def figure(values: Sequence[float]) -> Figure:
    """Return the mean over seeds and its interval by Student's t, `x̄ ± t(0.975, n−1)·s/√n`.

    Args:
        values: one of each seed, at least one.

    Raises:
        ConfigurationError: more than one value without SciPy.
    """
    n = len(values)
    mean = fmean(values)
    if n == 1:
        return Figure(mean, mean, mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = _student_t(n - 1) * math.sqrt(variance / n)
    return Figure(mean, mean - half, mean + half)


def _student_t(degrees: int) -> float:
    """Return the quantile of Student's t for a two-sided interval of 95 %."""
    try:
        from scipy.special import stdtrit  # type: ignore[import-untyped] # noqa: PLC0415 - an extra, and heavy
    except ImportError as error:
        raise ConfigurationError(
            'intervals over several seeds need SciPy: pip install "disco-llm[replay]"'
        ) from error
    return float(stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0))


def wilson(share: float, n: int) -> Figure:
    """Return a share with Wilson's interval, which stays within [0, 1].

    Args:
        share: of the texts, in [0, 1].
        n: number of texts, each of which stands for itself; at least 1.
    """
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(max(share * (1 - share) / n + z2 / (4 * n * n), 0.0))
    return Figure(share, max(centre - half, 0.0), min(centre + half, 1.0))


def normal_interval(value: float, influence: Floats) -> Figure:
    """Return a value with the interval `value ± 1.96·√Σ influence²`.

    Args:
        value: the figure, a mean or a share.
        influence: shape (units,); by how much each independent text or group moves it away from its expectation. For
            the area under a ROC curve these are DeLong's.
    """
    half = Z_95 * math.sqrt(float(np.square(influence).sum()))
    return Figure(value, value - half, value + half)


def mean_interval(passes: Sequence[Floats], groups: Ints | None = None) -> Figure:
    """Return the mean over passes and texts, with the normal interval that one pass over so many texts has.

    Args:
        passes: each of shape (n,), one value for each text. Several passes draw again what is random in one.
        groups: shape (n,); texts with one number belong together. None: each text stands for itself.
    """
    mean = float(np.mean(passes))
    variance = np.mean(
        [np.square(sum_by_group((one - one.mean()) / len(one), groups)).sum() for one in passes]
    )
    half = Z_95 * math.sqrt(float(variance))
    return Figure(mean, mean - half, mean + half)


def paired_difference(one: Floats, other: Floats, groups: Ints | None = None) -> Figure:
    """Return the mean of one - other with its normal interval, as `mean_interval`.

    Args:
        one: shape (n,), one value for each text.
        other: of the same texts.
        groups: shape (n,); texts with one number belong together. None: each text stands for itself.
    """
    return mean_interval([one - other], groups)


def sum_by_group(parts: Floats, groups: Ints | None) -> Floats:
    """Return the parts of shape (n,) summed over each group, shape (groups,), so that groups count as independent."""
    if groups is None:
        return parts
    _, place = np.unique(groups, return_inverse=True)
    return np.bincount(place, weights=parts).astype(np.float64)


def percentile_interval(value: float, drawn: Sequence[float] | Floats) -> Figure:
    """Return a figure with the interval between the 2.5 % and 97.5 % quantiles of its values in resamples.

    Args:
        value: the figure, a mean, a ratio or a quantile.
        drawn: the same figure in each resample, at least one.
    """
    low, high = np.quantile(drawn, _ENDS)
    return Figure(float(value), float(low), float(high))


def bootstrap_mean(
    values: Floats, groups: Ints | None = None, *, resamples: int = 2000, seed: int = 0
) -> Figure:
    """Return the mean with a bootstrap's interval; NaN where a value is NaN.

    Args:
        values: shape (n,).
        groups: shape (n,); values with one number are drawn together. None: each stands for itself.
        resamples: how many.
        seed: of the draws. With the same seed and groups, all figures have the same draws.
    """
    if np.isnan(values).any():
        return Figure(math.nan, math.nan, math.nan)
    drawn = resampled_means(values[:, None], groups, resamples=resamples, seed=seed)[:, 0]
    return percentile_interval(float(values.mean()), drawn)


def paired_bootstrap(
    one: Floats, other: Floats, groups: Ints | None = None, *, resamples: int = 2000, seed: int = 0
) -> Figure:
    """Return the mean of one - other with a bootstrap's interval, as `bootstrap_mean`.

    For a ratio, pass logarithms: the exponentials of the three numbers are the geometric mean and its interval.

    Args:
        one: shape (n,), one value for each text.
        other: of the same texts.
        groups: shape (n,); texts with one number are drawn together. None: each stands for itself.
        resamples: how many.
        seed: of the draws.
    """
    return bootstrap_mean(one - other, groups, resamples=resamples, seed=seed)


def resampled_means(
    values: Floats,
    groups: Ints | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
    draw: Literal["rows", "counts"] = "rows",
) -> Floats:
    """Return the means of columns in resamples, shape (resamples, columns).

    Whole groups are drawn with replacement, as many as there are, since values of one group are not independent. All
    columns have the same draws, so that any difference of two columns is paired; see `percentile_interval`.

    Args:
        values: shape (n, columns), at least one row.
        groups: shape (n,); rows with one number belong together. None: each row stands for itself.
        resamples: how many.
        seed: of the draws.
        draw: the numbers of the groups ("rows"), or how often each comes ("counts", from the multinomial
            distribution: less memory for many columns). Both are the same bootstrap, with other draws for one seed.
    """
    place: Ints = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(place)
    count = len(sizes)
    rng = np.random.default_rng(seed)
    if draw == "counts":
        sums = np.zeros((count, values.shape[1]))
        np.add.at(sums, place, values)
        counts = rng.multinomial(count, np.full(count, 1.0 / count), resamples)
        by_counts: Floats = (counts @ sums) / (counts @ sizes.astype(np.float64))[:, None]
        return by_counts
    ordered = values[np.argsort(place, kind="stable")]
    sums = np.add.reduceat(ordered, np.cumsum(sizes) - sizes)
    out = np.empty((resamples, values.shape[1]))
    step = max(_AT_ONCE // count, 1)
    for start in range(0, resamples, step):
        rows = rng.integers(0, count, (min(step, resamples - start), count))
        total = sizes[rows].sum(axis=1)
        for column in range(values.shape[1]):
            out[start : start + step, column] = sums[:, column][rows].sum(axis=1) / total
    return out
