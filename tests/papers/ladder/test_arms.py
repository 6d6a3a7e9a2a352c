"""Arms on a ladder: where requests end, their bytes, the oracle, tuned thresholds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_ladders import columns, label_trace
from papers.ladder.arms import (
    aimed,
    by_confidence,
    by_length,
    climb,
    fixed_thresholds,
    one_tier,
    random_share,
)
from papers.ladder.label_ladder import LabelLadder
from papers.ladder.ladder_columns import LadderColumns
from papers.ladder.ladder_oracle import LadderOracle
from papers.ladder.ladder_statistics import spearman
from papers.ladder.node_bytes import chain_bytes, request_bytes, star_bytes
from papers.ladder.theory import break_even, bytes_ratio, end_shares
from papers.ladder.threshold_tuning import tuned_thresholds

from disco.errors import ConfigurationError
from disco.judging import ShareControl

ORDER = np.random.default_rng(5).permutation(300)


def test_columns_that_do_not_fit_are_refused():
    good = columns()
    with pytest.raises(ConfigurationError, match="confidence has the shape"):
        LadderColumns(good.quality, good.quality, good.sent_bytes, good.answer_bytes)
    with pytest.raises(ConfigurationError, match="two tiers"):
        LadderColumns(good.confidence[:, :0], good.quality[:, :1], good.sent_bytes, good.answer_bytes[:, :1])
    with pytest.raises(ConfigurationError, match="two different tiers"):
        LabelLadder.of(label_trace(), (0, 0))


@pytest.mark.parametrize("window", [None, 30, 1_000])
def test_a_label_ladder_answers_in_turn_as_all_at_once(window):
    ladder = LabelLadder.of(label_trace(), (2, 0), prior_window=window)
    rows = np.random.default_rng(1).permutation(400)[:250]
    for tier in (0, 1):
        at_once = ladder.answers(tier, rows)
        answer = ladder.in_turn(tier)
        for row, confidence, quality in zip(rows.tolist(), *at_once, strict=True):
            assert answer(row) == pytest.approx((confidence, quality), abs=1e-9)


def test_removing_the_prior_helps_a_tier_that_likes_one_label():
    trace = label_trace(1_000)
    raw, removed = (LabelLadder.of(trace, prior_window=window) for window in (None, 1_000))
    order = np.arange(1_000)
    assert one_tier(removed, 2, order).quality.mean() > one_tier(raw, 2, order).quality.mean() + 0.05


@pytest.mark.parametrize("rule", ["exact", "paper"])
def test_the_tiers_one_by_one_give_the_same_as_the_requests_one_by_one(rule):
    """A control that never moves beta runs request by request."""
    for ladder in (columns(), LabelLadder.of(label_trace(300))):
        control = ShareControl(1.0, beta=0.3)
        in_turn, betas = aimed(
            ladder, control, lambda _row, _tier: 1.0, ORDER, rule=rule, capacity=50, seed=3
        )
        assert set(betas) == {0.3}
        run = climb(ladder, by_confidence(0.3, rule=rule, capacity=50, seed=3), ORDER)
        assert run.ends.tolist() == in_turn.ends.tolist()
        assert run.quality.tolist() == in_turn.quality.tolist()


def test_shares_are_those_of_theory_and_confidence_beats_chance():
    ladder = columns(4_000, tiers=4)
    order = np.arange(4_000)
    for rises in (by_confidence(0.3), by_length(ladder, 0.3), random_share(0.3, 1)):
        shares = np.bincount(climb(ladder, rises, order).ends, minlength=4) / 4_000
        assert shares == pytest.approx(end_shares(0.3, 4), abs=0.03)
    recserve = climb(ladder, by_confidence(0.3), order).quality.mean()
    assert recserve > climb(ladder, random_share(0.3, 1), order).quality.mean() + 0.02
    longest = climb(ladder, by_length(ladder, 0.3), order).ends > 0
    assert ladder.sent_bytes[longest].min() > np.median(ladder.sent_bytes)


def test_what_is_not_judged_stays():
    ladder = columns()
    ladder.confidence[:, 1] = np.nan
    for rises in (by_confidence(0.5), fixed_thresholds((0.6, 0.6))):
        assert climb(ladder, rises, ORDER).ends.max() == 1


def test_bytes_are_the_sums_over_hops():
    ladder = columns()
    run = climb(ladder, by_confidence(0.4), ORDER)
    chain, star = np.zeros(3), np.zeros(3)
    for row, end in enumerate(run.ends):
        for hop in range(1, end + 1):
            chain[[hop - 1, hop]] += ladder.sent_bytes[row] + ladder.answer_bytes[row, end]
            star[[0, hop]] += ladder.sent_bytes[row] + ladder.answer_bytes[row, hop]
    assert chain_bytes(ladder, run) == pytest.approx(chain)
    assert star_bytes(ladder, run) == pytest.approx(star)
    assert chain[0] + chain[2] == pytest.approx(chain[1])  # as in every row of the paper's tables
    each = request_bytes(ladder)[np.arange(300), run.ends]
    assert each.sum() == pytest.approx(chain.sum())
    direct = one_tier(ladder, 2, ORDER)
    size = (ladder.sent_bytes + ladder.answer_bytes[:, 2]).sum()
    for count in (chain_bytes, star_bytes):
        assert count(ladder, direct) == pytest.approx([size, 0.0, size])
    assert direct.reached(3).tolist() == [0.0, 0.0, 1.0]
    assert run.reached(3)[0] == 1.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.2))
def test_the_oracle_is_the_best_of_all_choices(seed, share):
    """Against all choices for five requests; the bound may be above the best by less than one request."""
    draw = np.random.default_rng(seed)
    quality = draw.random((5, 3)).round(1)
    spent = np.cumsum(np.concatenate((np.zeros((5, 1)), draw.integers(1, 9, (5, 2))), axis=1), axis=1)
    budget = share * spent[:, -1].sum()
    every = product(range(3), repeat=5)
    rows = np.arange(5)
    best = max(quality[rows, list(c)].mean() for c in every if spent[rows, list(c)].sum() <= budget)
    found = LadderOracle(quality, spent).quality(budget)
    assert best - 1e-9 <= found <= best + 1.0 / 5


def test_no_arm_is_better_than_the_oracle():
    ladder = columns()
    oracle = LadderOracle(ladder.quality, request_bytes(ladder))
    for rises in (by_confidence(0.3), random_share(0.5, 0), by_length(ladder, 0.2)):
        run = climb(ladder, rises, ORDER)
        assert run.quality.mean() <= oracle.quality(chain_bytes(ladder, run).sum())
    assert oracle.quality(math.inf) == pytest.approx(ladder.quality.max(axis=1).mean())
    assert oracle.quality(0.0) == pytest.approx(ladder.quality[:, 0].mean())


def test_thresholds_keep_their_budget_on_what_they_were_tuned_on_and_beat_chance_there():
    ladder = columns(600)
    order = np.arange(600)
    tuned = tuned_thresholds(ladder, bytes_ratio(0.3, 3))
    run = climb(ladder, fixed_thresholds(tuned), order)
    all_up = chain_bytes(ladder, one_tier(ladder, 2, order)).sum()
    assert chain_bytes(ladder, run).sum() <= bytes_ratio(0.3, 3) * all_up
    assert run.quality.mean() > climb(ladder, random_share(0.3, 0), order).quality.mean()
    nothing = tuned_thresholds(ladder, 0.0)
    assert climb(ladder, fixed_thresholds(nothing), order).ends.max() == 0


def test_a_control_meets_its_bytes_on_a_ladder():
    ladder = columns(3_000)
    sizes = request_bytes(ladder)
    target = 0.39 * float(sizes[:, 1].mean())
    control = ShareControl(target, beta=0.1)
    run, betas = aimed(
        ladder, control, lambda row, tier: float(sizes[row, tier]), np.arange(3_000), capacity=1_000
    )
    assert chain_bytes(ladder, run).sum() / 3_000 == pytest.approx(target, rel=0.05)
    assert betas[0] == pytest.approx(0.1)


def test_break_even_points():
    bytes_alone = [break_even((0.0, *[1.0] * (n - 1))) for n in range(2, 6)]
    assert bytes_alone == pytest.approx([1.0, 0.618034, 0.543689, 0.518790], abs=1e-6)
    k1, k2, k3 = 1.0, 4.0, 9.0
    root = (-k2 + math.sqrt(k2 * k2 + 4 * k3 * (k3 - k1))) / (2 * k3)
    assert break_even((k1, k2, k3)) == pytest.approx(root)
    assert break_even((5.0, 1.0)) is None
    assert break_even((0.0, 0.1, 9.0)) == pytest.approx(root_of(0.1, 9.0))
    assert break_even((50.0, 90.0, 7e9)) == pytest.approx(1.0, abs=1e-6)  # above the largest beta of a client
    assert math.fsum(end_shares(0.3, 5)) == pytest.approx(1.0)


def root_of(k2, k3):
    return (-k2 + math.sqrt(k2 * k2 + 4 * k3 * k3)) / (2 * k3)


def test_rank_correlation():
    a = np.array([1.0, 2.0, 2.0, 9.0])
    assert spearman(a, a**3) == pytest.approx(1.0)
    assert spearman(a, -a) == pytest.approx(-1.0)
    assert math.isnan(spearman(a, np.ones(4)))
