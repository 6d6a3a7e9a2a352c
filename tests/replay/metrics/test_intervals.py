"""Intervals: known values, and the arithmetic that evaluations with fixed seeds rely on, bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disco.replay import (
    Figure,
    bootstrap_mean,
    mean_interval,
    normal_interval,
    paired_bootstrap,
    paired_difference,
    percentile_interval,
    resampled_means,
    wilson,
)
from disco.replay.metrics import intervals

VALUES = np.random.default_rng(5).lognormal(0.0, 1.0, 37)
OTHERS = np.random.default_rng(6).lognormal(0.1, 1.0, 37)
GROUPS = np.arange(37) // 3


def test_wilsons_interval_is_the_one_of_the_tables_and_stays_within_a_share():
    """Brown, Cai and DasGupta's example of 5 in 50, to three digits."""
    found = wilson(0.1, 50)
    assert (found.mean, found.low, found.high) == (
        0.1,
        pytest.approx(0.0435, abs=5e-5),
        pytest.approx(0.2136, abs=5e-5),
    )
    assert wilson(1.0, 3).high == 1.0
    assert wilson(0.0, 3).low == 0.0


def test_a_normal_interval_takes_groups_as_one():
    """Of values that stand for themselves it is x̄ ± 1.96·s/√n, with s over n; copies of a text say nothing more."""
    found = mean_interval([VALUES])
    half = 1.959963984540054 * VALUES.std() / math.sqrt(37)
    assert found.high - found.mean == pytest.approx(half, rel=1e-12)
    thrice = mean_interval([np.repeat(VALUES, 3)], np.repeat(np.arange(37), 3))
    assert (thrice.mean, thrice.low) == (pytest.approx(found.mean), pytest.approx(found.low))
    assert paired_difference(VALUES, VALUES + 1.0) == Figure(*[pytest.approx(-1.0)] * 3)
    assert normal_interval(0.7, np.array([0.03, 0.04])).low == 0.7 - 1.959963984540054 * 0.05


def test_a_bootstrap_draws_rows_as_numpy_does(monkeypatch):
    """And the same ones piece by piece, so that many rows need no more memory."""
    rows = np.random.default_rng(0).integers(0, 37, (2000, 37))
    low, high = np.quantile(VALUES[rows].mean(1), (0.025, 0.975))
    assert bootstrap_mean(VALUES) == Figure(VALUES.mean(), low, high)
    monkeypatch.setattr(intervals, "_AT_ONCE", 37 * 7)
    assert bootstrap_mean(VALUES) == Figure(VALUES.mean(), low, high)
    assert paired_bootstrap(VALUES, OTHERS, seed=3) == bootstrap_mean(VALUES - OTHERS, seed=3)
    assert math.isnan(bootstrap_mean(np.array([1.0, np.nan])).low)


def test_a_bootstrap_draws_groups_together():
    draws = np.random.default_rng(40).integers(0, 13, (500, 13))
    sizes = np.bincount(GROUPS)
    sums = np.add.reduceat(VALUES, np.cumsum(sizes) - sizes)
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    assert resampled_means(VALUES[:, None], GROUPS, resamples=500, seed=40)[:, 0].tolist() == means.tolist()
    # In any order of the rows, and with any numbers for the groups.
    mixed = np.random.default_rng(1).permutation(37)
    again = resampled_means(VALUES[mixed, None], GROUPS[mixed] * 10, resamples=500, seed=40)[:, 0]
    assert again == pytest.approx(means, rel=1e-12)


def test_a_bootstrap_by_counts_is_paired_over_columns():
    columns = np.stack([VALUES, OTHERS], axis=1)
    place = GROUPS
    sums = np.zeros((13, 2))
    np.add.at(sums, place, columns)
    draws = np.random.default_rng(0).multinomial(13, np.full(13, 1 / 13), 2000)
    wanted = (draws @ sums) / (draws @ np.bincount(place).astype(np.float64))[:, None]
    found = resampled_means(columns, GROUPS, draw="counts")
    assert found.tolist() == wanted.tolist()
    difference = percentile_interval((VALUES - OTHERS).mean(), found[:, 0] - found[:, 1])
    by_rows = paired_bootstrap(VALUES, OTHERS, GROUPS)
    assert (difference.low, difference.high) == pytest.approx((by_rows.low, by_rows.high), abs=0.1)
