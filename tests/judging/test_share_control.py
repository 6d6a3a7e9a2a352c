"""Beta from theory, and the feedback that corrects it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.judging import LEAST_BETA, MOST_BETA, ShareControl, beta_for, expected_cost

betas = st.floats(0.01, 0.99)


@given(betas, st.integers(2, 6))
def test_expected_bytes_are_the_papers_long_formula(beta, n):
    """Eq. 36 as printed, in units of 2(|x|+|y|)."""
    printed = beta * (1 - (n - 1) * beta ** (n - 2) + (n - 2) * beta ** (n - 1)) / (1 - beta)
    printed += (n - 1) * beta ** (n - 1)
    assert expected_cost(beta, (0.0, *[1.0] * (n - 1))) == pytest.approx(printed, rel=1e-9)


@given(betas, st.lists(st.floats(0.01, 100.0), min_size=2, max_size=5))
def test_beta_for_inverts_the_expected_cost(beta, costs):
    assert beta_for(expected_cost(beta, costs), costs) == pytest.approx(beta, abs=1e-6)


@given(betas)
def test_beta_for_three_tiers_is_the_derived_root(beta):
    b = beta * (1 + beta)
    assert beta_for(b, (0.0, 1.0, 1.0)) == pytest.approx((math.sqrt(1 + 4 * b) - 1) / 2, abs=1e-9)


def test_targets_out_of_reach_give_the_nearest_beta():
    assert beta_for(0.5, (1.0, 2.0)) == pytest.approx(LEAST_BETA)
    assert beta_for(9.0, (1.0, 2.0)) == pytest.approx(MOST_BETA)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: beta_for(1.0, (1.0,)), "at least two"),
        (lambda: beta_for(1.0, (1.0, -2.0)), "not negative"),
        (lambda: beta_for(0.0, (1.0, 2.0)), "above 0"),
        (lambda: ShareControl(math.nan, beta=0.3), "above 0"),
        (lambda: ShareControl(1.0, beta=1.0), "between 0 and 1"),
        (lambda: ShareControl(1.0, beta=0.3, window=0), "at least 1 request"),
        (lambda: ShareControl(1.0, beta=0.3, speed=3.0), "speed"),
        (lambda: ShareControl(1.0, beta=0.3).spent(-1.0), "not negative"),
        (lambda: ShareControl(1.0, beta=0.3).spent(math.inf), "finite"),
    ],
)
def test_numbers_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def spend(control: ShareControl, requests: int, seed: int) -> float:
    """Run three tiers whose requests differ widely in size; return the mean cost relative to the target."""
    draw = random.Random(seed)
    total = 0.0
    for _ in range(requests):
        tier = 0
        while tier < 2 and draw.random() < control.beta:
            tier += 1
        cost = 2.0 * tier * draw.lognormvariate(0.0, 0.8)
        total += cost
        control.spent(cost)
    return total / requests / control.target


@pytest.mark.parametrize("start", [0.02, 0.15, 0.6])
def test_the_exact_rule_meets_the_target_whatever_beta_it_starts_at(start):
    """And its mean is the sum that the docstring promises."""
    n = 10_000
    control = ShareControl(0.4, beta=start)
    ratio = spend(control, n, seed=3)
    assert ratio == pytest.approx(1 + math.log(start / control.beta) * control.window / n, abs=1e-9)
    assert abs(ratio - 1) < 0.05


def test_the_papers_rule_spends_more_than_the_target():
    """It balances the logarithm of the windows' means, whose own mean is then above 1."""
    ratios = [spend(ShareControl(0.4, beta=0.15, window=20, rule="paper"), 10_000, seed) for seed in range(3)]
    assert min(ratios) > 1.05


@pytest.mark.parametrize("rule", ["exact", "paper"])
def test_beta_stays_within_bounds_where_nothing_or_too_much_is_spent(rule):
    control = ShareControl(1.0, beta=0.3, rule=rule)
    for _ in range(3_000):
        control.spent(0.0)
    assert control.beta == MOST_BETA
    for _ in range(3_000):
        control.spent(1e9)
    assert control.beta == LEAST_BETA
