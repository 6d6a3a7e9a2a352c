"""Run of the evaluation on free-text answers: the judges, the arms in the form of Table III, early exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.judging import (
    DEFAULT_SEQUENCE_CONFIDENCE,
    MOST_SCORES,
    ExitHistory,
    ScoreHistory,
    SequenceConfidence,
    judge,
)
from disco.replay import Figure, paired_difference
from papers.ladder.answer_trace import AnswerRow, AnswerTrace, load_answer_trace
from papers.ladder.arms import by_confidence, climb
from papers.ladder.judges import JUDGES, JudgeFigures, compare_judges, lowest_at_checkpoints
from papers.ladder.ladder_columns import LadderColumns, Rows
from papers.ladder.ladder_evaluation import ArmFigures, evaluate_arms, orders_of
from papers.ladder.ladder_statistics import spearman
from papers.recserve.ladder_material import DATA, TUNING_SHARE

__all__ = [
    "SHARES",
    "TOP_RIGHT",
    "ExitFigures",
    "LengthQuarter",
    "SequenceResult",
    "run_sequences",
    "simulated_ladder",
]

TOP_RIGHT: Final = 0.9
"""Probability with which the simulated top tier gives the right answer; else it gives the device's."""

SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
JUDGE_SHARE: Final = 0.3
"""Beta at which the judges are compared by what the cascade then answers."""

EXIT_RIVAL: Final = "weakest"
"""The judge beside the default one where answers leave early."""


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """Early exit with one judge at one beta: means over the orders.

    Attributes:
        kind: the judge.
        beta: the share aimed at.
        share: of answers that went up.
        early: share of these that left before their end.
        written: tokens that the lowest tier wrote, relative to all tokens of its answers.
        wasted: tokens written of answers that went up, relative to what these answers have without early exit.
        changed: verdicts that differ from those without early exit, per 1,000 answers.
    """

    kind: SequenceConfidence
    beta: float
    share: float
    early: float
    written: float
    wasted: float
    changed: float


@dataclass(frozen=True, slots=True)
class LengthQuarter:
    """A quarter of the questions, by the length of their texts: means.

    Attributes:
        text_bytes, confidence, f1, answer_bytes, gold_bytes: of the text; of the device's answer; of the right one.
    """

    text_bytes: float
    confidence: float
    f1: float
    answer_bytes: float
    gold_bytes: float


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """The figures of one trace of free-text answers.

    Attributes:
        name: of the questions.
        model: that answered.
        rows: questions that are evaluated; fixed thresholds are tuned on others.
        tuning_rows: the number of these others.
        runs: passes through the questions, each in an order of its own.
        f1, exact: means of the model's answers to all questions.
        cut: share of answers that ended at the limit of their length.
        judges: on all questions, the best first.
        judge_leads: F1 of a cascade with each judge at `JUDGE_SHARE`, minus that of blind offloading with as many
            bytes; with the 95 % interval over paragraphs.
        arms: with the default judge; quality is F1.
        exits: early exit with the default judge and with "weakest".
        lengths: from the shortest texts to the longest.
        length_correlation: of confidence with the length of the text (Spearman).
    """

    name: str
    model: str
    rows: int
    tuning_rows: int
    runs: int
    f1: float
    exact: float
    cut: float
    judges: tuple[JudgeFigures, ...]
    judge_leads: dict[str, Figure]
    arms: tuple[ArmFigures, ...]
    exits: tuple[ExitFigures, ...]
    lengths: tuple[LengthQuarter, ...]
    length_correlation: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return asdict(self)


def run_sequences(*, runs: int = 10, trace: AnswerTrace | None = None) -> SequenceResult:
    """Evaluate free-text answers.

    Args:
        runs: passes through the questions.
        trace: the answers; the shipped ones by default.
    """
    if runs < 1:
        raise ConfigurationError(f"runs must be at least 1, not {runs}")
    if trace is None:
        trace = load_answer_trace(DATA / "xquad-en.csv.gz")
    tuning_rows, rows = _cut(trace)
    ladders = {name: simulated_ladder(trace, name) for name in JUDGES}
    chosen = ladders[DEFAULT_SEQUENCE_CONFIDENCE]
    ladder, tuning = chosen.take(rows), chosen.take(tuning_rows)
    orders = orders_of(len(rows), runs)
    groups = trace.paragraph[rows]
    return SequenceResult(
        name=trace.name,
        model=trace.model,
        rows=len(rows),
        tuning_rows=len(tuning_rows),
        runs=runs,
        f1=float(trace.f1.mean()),
        exact=float(trace.exact.mean()),
        cut=sum(row.finish == "length" for row in trace.rows) / len(trace),
        judges=tuple(compare_judges(trace)),
        judge_leads={name: _lead(one.take(rows), orders, groups) for name, one in ladders.items()},
        arms=tuple(evaluate_arms(ladder, tuning, orders, SHARES, groups=groups)),
        exits=tuple(
            _early_exit([trace.rows[row] for row in rows], orders, kind, beta)
            for kind in dict.fromkeys((DEFAULT_SEQUENCE_CONFIDENCE, EXIT_RIVAL))
            for beta in SHARES
        ),
        lengths=_by_length(trace, chosen.confidence[:, 0]),
        length_correlation=spearman(*_judged(trace.text_bytes, chosen.confidence[:, 0])),
    )


def simulated_ladder(trace: AnswerTrace, judge: str, *, right: float = TOP_RIGHT) -> LadderColumns:
    """Return two tiers: the device with its real answers, and a top tier that is simulated from the right answers.

    There is no middle tier: its answers could be simulated too, but not how sure it is of them.

    Args:
        trace: the device's answers.
        judge: a name in `JUDGES`; answers without tokens are not judged.
        right: probability with which the top tier gives the right answer; else it gives the device's.
    """
    is_right = np.random.default_rng(30).random(len(trace)) < right
    confidence = [JUDGES[judge](row) if row.logp else np.nan for row in trace.rows]
    return LadderColumns(
        confidence=np.array(confidence)[:, None],
        quality=np.stack([trace.f1, np.where(is_right, 1.0, trace.f1)], axis=1),
        sent_bytes=trace.text_bytes,
        answer_bytes=np.stack(
            [trace.answer_bytes, np.where(is_right, trace.gold_bytes, trace.answer_bytes)], axis=1
        ),
    )


def _cut(trace: AnswerTrace) -> tuple[Rows, Rows]:
    """Return the rows for tuning and the others. Paragraphs stay whole: answers on one are not independent."""
    numbers = np.unique(trace.paragraph)
    for_tuning = np.random.default_rng(20).permutation(numbers)[: round(TUNING_SHARE * len(numbers))]
    is_tuning = np.isin(trace.paragraph, for_tuning)
    return np.flatnonzero(is_tuning), np.flatnonzero(~is_tuning)


def _lead(ladder: LadderColumns, orders: Sequence[Rows], groups: NDArray[np.int64]) -> Figure:
    """Return the F1 that the judge adds to blind offloading of the same share of bytes."""
    runs = [
        climb(ladder, by_confidence(JUDGE_SHARE, capacity=MOST_SCORES, seed=number), order)
        for number, order in enumerate(orders)
    ]
    sizes = ladder.sent_bytes + ladder.answer_bytes[:, 1]
    share = float(np.mean([sizes[run.ends == 1].sum() for run in runs]) / sizes.sum())
    low, top = ladder.quality.T
    return paired_difference(
        np.mean([run.quality for run in runs], axis=0), low + share * (top - low), groups
    )


def _early_exit(
    rows: Sequence[AnswerRow], orders: Sequence[Rows], kind: SequenceConfidence, beta: float
) -> ExitFigures:
    score_of = lowest_at_checkpoints(kind)
    complete = [score_of(row) if row.logp else np.nan for row in rows]
    answers = up = early = tokens = written = up_tokens = up_written = changed = 0
    for number, order in enumerate(orders):
        leaving = ExitHistory(kind, capacity=MOST_SCORES)
        staying = ScoreHistory(MOST_SCORES)
        for row in order.tolist():
            logp = rows[row].logp
            watch = leaving.watch(beta, seed=number)
            left = watch.add(logp)
            verdict = left or watch.end()
            if verdict is None:  # no tokens
                continue
            expected = judge(complete[row], staying, beta, seed=number)
            answers += 1
            tokens += len(logp)
            written += watch.confidence.tokens
            changed += verdict.rises != expected.rises
            if verdict.rises:
                up += 1
                early += left is not None
                up_tokens += len(logp)
                up_written += watch.confidence.tokens
    return ExitFigures(
        kind=kind,
        beta=beta,
        share=up / answers,
        early=early / max(up, 1),
        written=written / tokens,
        wasted=up_written / max(up_tokens, 1),
        changed=1000 * changed / answers,
    )


def _by_length(trace: AnswerTrace, confidence: NDArray[np.float64]) -> tuple[LengthQuarter, ...]:
    quarters = np.array_split(np.argsort(trace.text_bytes, kind="stable"), 4)
    return tuple(
        LengthQuarter(
            text_bytes=float(trace.text_bytes[rows].mean()),
            confidence=float(np.nanmean(confidence[rows])),
            f1=float(trace.f1[rows].mean()),
            answer_bytes=float(trace.answer_bytes[rows].mean()),
            gold_bytes=float(trace.gold_bytes[rows].mean()),
        )
        for rows in quarters
    )


def _judged(
    values: NDArray[np.float64], confidence: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    known = ~np.isnan(confidence)
    return values[known], confidence[known]
