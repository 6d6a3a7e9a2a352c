"""Which judge of a free-text answer tells good answers from bad ones: the area under its ROC curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from disco.judging import SEQUENCE_CONFIDENCES, ExitHistory, RunningConfidence, SequenceConfidence
from disco.replay import Figure, normal_interval, sum_by_group
from papers.ladder.answer_trace import AnswerRow, AnswerTrace

__all__ = [
    "CONFIDENCES",
    "GOOD_F1",
    "JUDGES",
    "Discrimination",
    "JudgeFigures",
    "area_where_possible",
    "compare_judges",
    "discriminate",
    "lowest_at_checkpoints",
]

GOOD_F1: Final = 0.3
"""An answer with a higher token F1 counts as good."""

Judge = Callable[[AnswerRow], float]
"""From an answer with at least one token to a score: the higher, the better the answer should be."""


def _confidence(kind: SequenceConfidence, tokens: int | None = None) -> Judge:
    return lambda row: RunningConfidence(row.logp[:tokens]).score(kind)


def lowest_at_checkpoints(kind: SequenceConfidence) -> Judge:
    """Return the score by which early exit judges a complete answer."""

    def judge(row: AnswerRow) -> float:
        watch = ExitHistory(kind).watch(0.5)  # nothing leaves early from an empty history
        watch.add(row.logp)
        watch.end()
        return watch.score

    return judge


CONFIDENCES: Final[dict[str, Judge]] = {
    **{kind: _confidence(kind) for kind in SEQUENCE_CONFIDENCES},
    "mean, lowest at a checkpoint": lowest_at_checkpoints("mean"),
    "mean of the first 4 tokens": _confidence("mean", 4),
    "mean of the first 8 tokens": _confidence("mean", 8),
    "weakest of the first 4 tokens": _confidence("weakest", 4),
    "weakest of the first 8 tokens": _confidence("weakest", 8),
}
JUDGES: Final[dict[str, Judge]] = {
    **CONFIDENCES,
    # Their signs were fixed before the measurement; below 0.5 the opposite sign is the better judge.
    "short prompt": lambda row: -float(row.text_bytes),
    "short answer": lambda row: -float(len(row.logp)),
}


class Discrimination(NamedTuple):
    """How well a score tells good from bad.

    Attributes:
        area: probability that a good answer has a higher score than a bad one, equal scores counted half.
        influence: shape (groups,); how much each group of answers moves the area.
    """

    area: float
    influence: NDArray[np.float64]

    def interval(self) -> Figure:
        """Return the area with its 95 % interval."""
        return normal_interval(self.area, self.influence)

    def over(self, other: Discrimination) -> Figure:
        """Return how much larger the area is than another one of the same answers, with the 95 % interval (paired)."""
        return normal_interval(self.area - other.area, self.influence - other.influence)


def discriminate(
    scores: NDArray[np.float64], good: NDArray[np.bool_], groups: NDArray[np.int64] | None = None
) -> Discrimination:
    """Return the area under the ROC curve, with DeLong's estimate of its spread, for answers in groups.

    Each answer's part in the area is a sum over the answers of the other kind (DeLong, 1988). The parts are summed
    over each group, since answers of one group are not independent (Obuchowski, 1997).

    Args:
        scores: shape (n,).
        good: shape (n,).
        groups: shape (n,); answers with one number belong together. None: each answer stands for itself.

    Raises:
        ValueError: all answers are good, or none is.
    """
    above, below = scores[good], scores[~good]
    if not len(above) or not len(below):
        raise ValueError("A judge can only be measured where some answers are good and some are not.")
    area_of_good = _share_below(above, below)
    area_of_bad = 1.0 - _share_below(below, above)
    area = float(area_of_good.mean())
    part = np.empty(len(scores))
    part[good] = (area_of_good - area) / len(above)
    part[~good] = (area_of_bad - area) / len(below)
    return Discrimination(area, sum_by_group(part, groups))


def _share_below(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which share of the others lies below each value, equal ones counted half."""
    ordered = np.sort(others)
    lower, upper = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((lower + upper) / 2.0 / len(others))


@dataclass(frozen=True, slots=True)
class JudgeFigures:
    """One judge on one trace.

    Attributes:
        judge: its name in `JUDGES`.
        good: area for good answers, whose F1 is above a limit.
        contains: area for answers that have all words of the right answer; None where all or none do. Unlike F1, this
            does not favour short answers.
        exact: area for exact matches; None where all or none match.
        finished: area for good answers among those that the model ended itself; None where it ended none.
        behind: by how much `good` is smaller than that of the best judge, with its interval (paired).
    """

    judge: str
    good: Figure
    contains: Figure | None
    exact: Figure | None
    finished: Figure | None
    behind: Figure


def compare_judges(
    trace: AnswerTrace, names: Sequence[str] = tuple(JUDGES), *, good_f1: float = GOOD_F1
) -> list[JudgeFigures]:
    """Measure judges on the answers of a trace that have at least one token, the best one first.

    Args:
        trace: the answers.
        names: of the judges, in `JUDGES`.
        good_f1: an answer with a higher F1 counts as good.

    Raises:
        ValueError: all of these answers are good, or none is.
    """
    rows = [row for row in trace.rows if row.logp]
    groups = np.array([row.paragraph for row in rows])
    good = np.array([row.f1 > good_f1 for row in rows])
    contains = np.array([row.recall == 1.0 for row in rows])
    exact = np.array([row.exact for row in rows])
    ended = np.array([row.finish == "stop" for row in rows])
    found = {}
    for name in names:
        scores = np.array([JUDGES[name](row) for row in rows])
        found[name] = (
            discriminate(scores, good, groups),
            area_where_possible(scores, contains, groups),
            area_where_possible(scores, exact, groups),
            area_where_possible(scores[ended], good[ended], groups[ended]),
        )
    best = max(found.values(), key=lambda figures: figures[0].area)[0]
    listed = [
        JudgeFigures(name, area.interval(), contained, exactly, finished, best.over(area))
        for name, (area, contained, exactly, finished) in found.items()
    ]
    return sorted(listed, key=lambda figures: -figures.good.mean)


def area_where_possible(
    scores: NDArray[np.float64], good: NDArray[np.bool_], groups: NDArray[np.int64] | None = None
) -> Figure | None:
    """Return the area of `discriminate` with its interval; None where all answers are good, or none is."""
    return discriminate(scores, good, groups).interval() if 0 < good.sum() < len(good) else None
