"""Thresholds: the paper's rule is NumPy's quantile, ours hands up the asked share at every length and with ties."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disco.judging import SEQUENCE_CONFIDENCES, RunningConfidence, ScoreHistory, class_confidence, judge

scores = st.floats(-1e6, 1e6, allow_nan=False)
shares = st.floats(0.0, 1.0)


@given(st.lists(scores, min_size=1, max_size=60), shares, st.integers(1, 40))
def test_quantile_is_numpys(given_scores, q, capacity):
    history = ScoreHistory(capacity, given_scores)
    kept = given_scores[-capacity:]
    assert list(history) == kept
    assert history.seen == len(given_scores)
    assert history.quantile(q) == pytest.approx(np.quantile(kept, q), rel=1e-9, abs=1e-6)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 5), st.integers(1, 20))
def test_ranks_count_the_window(given_scores, score, capacity):
    history = ScoreHistory(capacity, given_scores)
    kept = given_scores[-capacity:]
    assert history.rank(score) == (sum(s < score for s in kept), kept.count(score))


@given(st.permutations(range(12)), st.floats(0.01, 0.99))
@example(list(range(12)), 0.5)
def test_the_papers_share(order, beta):
    """With k distinct scores, its own included, exactly ceil(beta*(k-1)) of the k ranks go up."""
    k = len(order)
    rises = 0
    for last in range(k):
        history = ScoreHistory(k, (s for s in order if s != last))
        rises += judge(last, history, beta, rule="paper").rises
    exact = beta * (k - 1)
    if abs(exact - round(exact)) > 1e-9:  # between two ranks there is no doubt about rounding
        assert rises == math.ceil(exact)


def test_the_papers_rule_hands_up_nothing_where_all_scores_are_equal():
    history = ScoreHistory(10)
    assert not any(judge(0.5, history, 0.9, rule="paper").rises for _ in range(20))


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("ties", [0.0, 0.6])
def test_the_exact_rule_hands_up_beta_at_every_length(beta, ties):
    """For every k = 1 to 50 the share over 1,000 histories is within 3 standard deviations, few excepted."""
    trials, longest = 1_000, 50
    draw = random.Random(7)
    rises = np.zeros(longest)
    for trial in range(trials):
        history = ScoreHistory(longest)
        for k in range(longest):
            score = 1.0 if draw.random() < ties else draw.random()
            rises[k] += judge(score, history, beta, seed=trial).rises
    sigma = math.sqrt(beta * (1 - beta) / trials)
    away = np.abs(rises / trials - beta) / sigma
    assert away.max() < 4.5  # of 200 comparisons in all, one beyond 3 sigma is expected to happen
    assert (away > 3).sum() <= 2


@given(st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_the_same_scores_get_the_same_verdicts(given_scores, beta):
    first, again = ScoreHistory(20), ScoreHistory(20)
    assert [judge(s, first, beta) for s in given_scores] == [judge(s, again, beta) for s in given_scores]


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=30), st.integers(0, 30))
def test_running_confidence_is_that_of_the_whole(logp, cut):
    running = RunningConfidence(logp[:cut])
    running.add(logp[cut:])
    perplexity = math.exp(-sum(logp) / len(logp))
    assert running.score("mean") == pytest.approx(1 / (1 + perplexity))
    assert running.score("sum") == pytest.approx(1 / (1 - sum(logp)))
    assert running.score("weakest") == pytest.approx(math.exp(min(logp)))


@pytest.mark.parametrize("kind", SEQUENCE_CONFIDENCES)
def test_log_probabilities_above_0_count_as_certain(kind):
    assert RunningConfidence([1e6]).score(kind) == RunningConfidence([0.0]).score(kind)


@given(st.lists(st.floats(-500, 500), min_size=2, max_size=8), st.floats(-500, 500))
def test_confidence_of_a_class_ignores_a_shift(logits, shift):
    assert class_confidence(logits) == pytest.approx(class_confidence([x + shift for x in logits]))
    assert 1 / len(logits) - 1e-9 <= class_confidence(logits) <= 1
