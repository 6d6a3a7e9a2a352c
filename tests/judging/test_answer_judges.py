"""Judges of one attempt: of its text by log probabilities, of its class by the scores of all labels."""

from __future__ import annotations

import math
import random

import pytest

from disco.events import Delta, DeltaKind
from disco.judging import (
    ClassJudge,
    ExitHistory,
    HistoryKey,
    LabelPrior,
    ScoreHistory,
    SequenceJudge,
    Standard,
)

KEY = HistoryKey("triage", "device/small", "weakest")
HALF = Standard(KEY, 0.5, "paper")


def text(*logp: float) -> Delta:
    return Delta("word", len(logp), logp=logp)


@pytest.mark.parametrize(
    ("kind", "score"),
    [("weakest", 0.25), ("sum", pytest.approx(1 / (1 + math.log(8)))), ("mean", pytest.approx(1 / 3))],
)
def test_a_text_is_scored_by_all_its_tokens(kind, score):
    history = ScoreHistory(10, [0.9])
    judge = SequenceJudge(HALF, ExitHistory(kind, scores=history))
    quarter, half = -1.3862943611198906, -0.6931471805599453
    judge.read([Delta("", kind=DeltaKind.ROLE), text(half), text(quarter)])
    judge.read([text(0.0)])
    assert judge.check() is None
    verdict = judge.end()
    assert (verdict.score, verdict.rises, verdict.history) == (score, True, 1)
    assert list(history) == [0.9, verdict.score]


@pytest.mark.parametrize(
    "deltas",
    [[], [Delta("", kind=DeltaKind.ROLE)], [text(-1.0), Delta("one without")]],
    ids=["none", "role", "gap"],
)
def test_what_has_no_log_probabilities_is_not_judged(deltas):
    history = ScoreHistory(10, [0.9])
    judge = SequenceJudge(HALF, ExitHistory("mean", scores=history))
    judge.read(deltas)
    assert judge.end() is None
    assert len(history) == 1


def test_the_label_that_a_model_prefers_anyway_does_not_win():
    prior, history = LabelPrior(2), ScoreHistory(10)
    labels = ("ham", "spam")
    for scores in [(-1.0, -9.0)] * 9:
        ClassJudge(HALF, labels, history, prior).read([Delta("ham", label_scores=scores)])
    judge = ClassJudge(HALF, labels, history, prior)
    (chosen,) = judge.read([Delta("ham", 2, ids=(1, 2), label_scores=(-2.0, -4.0))])
    assert (chosen.text, chosen.ids, chosen.tokens) == ("spam", None, 2)
    assert 0.5 < judge.end().score < 1.0
    assert not judge.trusts


def test_a_class_without_scores_is_not_judged():
    judge = ClassJudge(HALF, ("ham", "spam"), ScoreHistory(10), LabelPrior(2))
    assert judge.read([Delta("ham")]) == [Delta("ham")]
    assert judge.end() is None


@pytest.mark.parametrize("leaves_early", [True, False])
def test_an_answer_in_doubt_is_handed_up_where_the_doubt_comes(leaves_early):
    history = ExitHistory("weakest", scores=ScoreHistory(100, [n / 100 for n in range(100)]))
    judge = SequenceJudge(Standard(KEY, 0.5), history, trusts_from=3, leaves_early=leaves_early)
    judge.read([text(-0.1), text(-0.1)])
    assert (judge.trusts, judge.check()) == (False, None)
    judge.read([text(-9.0), text(-0.1)])
    early, late = judge.check(), judge.end()
    assert (early is None, late is None) == (not leaves_early, leaves_early)
    verdict = early or late
    assert verdict.rises
    assert verdict.score == pytest.approx(math.exp(-9.0))
    assert len(history.scores) == 100


def test_the_first_answers_of_many_histories_go_up_in_the_share_asked_for():
    """Ties are broken by the history's own numbers. By the same ones, second answers would rise in every other task."""
    tasks, answers, beta = 600, 4, 0.3
    draw, rises = random.Random(11), [0] * answers
    for number in range(tasks):
        history = ScoreHistory(10)
        standard = Standard(HistoryKey(f"task{number}", "device/small", "weakest"), beta)
        for place in range(answers):
            rises[place] += standard.verdict(draw.random(), history).rises
    sigma = math.sqrt(beta * (1 - beta) / tasks)
    assert max(abs(count / tasks - beta) for count in rises) < 4 * sigma, rises
