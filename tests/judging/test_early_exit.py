"""Early exit: the verdicts are those on complete answers, so that the share handed up is beta."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.judging import CHECKPOINTS, ExitHistory, RunningConfidence, ScoreHistory, judge

LENGTHS = (1, 3, 5, 12, 40)  # "mean" has five checkpoints; some answers end before the third


def made_answer(draw, ties=False):
    """Return log probabilities of one answer: tokens of an unsure answer are all less probable, so scores correlate."""
    unsure = math.exp(draw.gauss(0, 0.7))
    logp = [-abs(draw.gauss(0, 1)) * unsure for _ in range(draw.choice(LENGTHS))]
    return [float(round(value)) for value in logp] if ties else logp


def complete_score(logp, kind):
    whole = RunningConfidence(logp).score(kind)
    if kind != "mean":
        return whole
    at = (count for count in CHECKPOINTS if count <= len(logp))
    return min([whole, *(RunningConfidence(logp[:count]).score(kind) for count in at)])


def verdict_of(history, logp, beta, seed):
    watch = history.watch(beta, seed=seed)
    for value in logp:
        if (early := watch.add((value,))) is not None:
            assert early.rises
            return early, True
    return watch.end(), False


@pytest.mark.parametrize(
    ("kind", "ties", "beta"),
    [("weakest", True, 0.5), ("mean", False, 0.1), ("sum", False, 0.3)],
)
def test_the_share_handed_up_is_beta(kind, ties, beta):
    """200 trials: within 3 standard deviations in all and while the history is short; at each length within 4.5."""
    trials, answers = 200, 30
    rises, early = [0] * answers, 0
    for trial in range(trials):
        draw, history = random.Random(trial), ExitHistory(kind, capacity=40)
        for number in range(answers):
            verdict, left = verdict_of(history, made_answer(draw, ties), beta, trial)
            rises[number] += verdict.rises
            early += left
    sigma = math.sqrt(beta * (1 - beta) / trials)
    assert abs(sum(rises) / trials / answers - beta) < 3 * sigma / math.sqrt(answers)
    assert abs(sum(rises[:10]) / trials / 10 - beta) < 3 * sigma / math.sqrt(10)
    assert max(abs(count / trials - beta) for count in rises) < 4.5 * sigma
    if beta > 0.1:  # else hardly any answer of so short a history may leave early
        assert early > 0.05 * sum(rises)


@settings(max_examples=40)
@given(
    st.integers(0, 10_000), st.sampled_from(["mean", "sum", "weakest"]), st.booleans(), st.floats(0.05, 0.9)
)
def test_verdicts_are_those_on_complete_answers(seed, kind, ties, beta):
    draw = random.Random(seed)
    history, complete = ExitHistory(kind, capacity=60), ScoreHistory(60)
    for _ in range(120):
        logp = made_answer(draw, ties)
        before = history.unsettled
        verdict, _ = verdict_of(history, logp, beta, seed)
        expected = judge(complete_score(logp, kind), complete, beta, seed=seed)
        if history.unsettled == before:
            assert verdict.rises == expected.rises


def test_most_unsure_answers_leave_early_once_the_history_is_long():
    draw, history = random.Random(3), ExitHistory("weakest")
    left = [verdict_of(history, [draw.uniform(-5, 0) for _ in range(20)], 0.3, 0)[1] for _ in range(1_000)]
    assert 0.2 < sum(left[500:]) / 500 < 0.3
    assert history.unsettled < 20


def test_tokens_one_by_one_or_together_get_the_same_verdict():
    draw = random.Random(5)
    one, other = ExitHistory("mean"), ExitHistory("mean")
    for _ in range(200):
        logp = made_answer(draw)
        verdict, _ = verdict_of(one, logp, 0.4, 1)
        watch = other.watch(0.4, seed=1)
        assert (watch.add(logp) or watch.end()) == verdict
        assert watch.add((-9.0,)) is None
        assert watch.end() is None


def test_a_history_goes_on_from_its_numbers():
    draw = random.Random(6)
    before = ExitHistory("weakest", capacity=100)
    for _ in range(250):
        verdict_of(before, made_answer(draw), 0.3, 0)
    scores = ScoreHistory(100, before.scores, seen=before.scores.seen)
    after = ExitHistory("weakest", scores=scores, exits=before.exits)
    assert after.level(0.3) == before.level(0.3) is not None
    for _ in range(150):
        logp = made_answer(draw)
        assert verdict_of(after, logp, 0.3, 0) == verdict_of(before, logp, 0.3, 0)


def test_an_answer_without_tokens_is_not_judged():
    history = ExitHistory("weakest")
    assert history.watch(0.3).end() is None
    assert history.watch(0.3).add(()) is None
    assert len(history.scores) == 0
    assert history.level(0.3) is None


@pytest.mark.parametrize("kind", ["weakest", "mean"])
def test_without_checkpoints_no_answer_leaves_early(kind):
    draw, history = random.Random(7), ExitHistory(kind, checkpoints=())
    for _ in range(200):
        logp = made_answer(draw)
        verdict, left = verdict_of(history, logp, 0.5, 0)
        assert not left
        assert verdict.score == RunningConfidence(logp).score(kind)


def test_answers_that_may_not_leave_early_share_the_history():
    draw, history, complete = random.Random(8), ExitHistory("mean"), ScoreHistory()
    left = 0
    for number in range(400):
        logp, may = made_answer(draw), number % 2 == 0
        watch = history.watch(0.4, leaves_early=may)
        early = watch.add(logp)
        assert may or early is None
        left += early is not None
        assert (early or watch.end()).rises == judge(complete_score(logp, "mean"), complete, 0.4).rises
    assert left > 20
    assert history.unsettled == 0


@pytest.mark.parametrize("checkpoints", [(0, 2), (4, 4), (8, 2)])
def test_checkpoints_must_rise(checkpoints):
    with pytest.raises(ValueError, match="rising"):
        ExitHistory("mean", checkpoints=checkpoints)
