"""A ladder of classifiers from a trace of label scores, with or without each tier's label prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.judging import LabelPrior, best_label, class_confidence
from papers.ladder.label_trace import LabelTrace, TraceTier
from papers.ladder.ladder_columns import Rows, TierAnswers

__all__ = ["PRIOR_WINDOW", "LabelLadder"]

PRIOR_WINDOW: Final = 1_000
"""Answers that a label prior is the mean of, as in a live run."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelLadder:
    """A trace's tiers, or some of them, as a ladder. Its quality is 1 where a label is right.

    With a prior window, a tier takes off its label prior, as a live run does: the mean of the centred scores of the
    requests that reached this tier before. What a tier answers then depends on what reached it, and in which order.
    The first request has no prior; a request's own scores never count.

    Attributes:
        trace: the scores.
        chosen: the ladder's tiers, as places in the trace, from the lowest to the highest.
        prior_window: requests that a prior is the mean of; None: the scores as they are.
    """

    trace: LabelTrace
    chosen: tuple[int, ...]
    prior_window: int | None

    @classmethod
    def of(
        cls,
        trace: LabelTrace,
        chosen: Sequence[int] | None = None,
        *,
        prior_window: int | None = PRIOR_WINDOW,
    ) -> LabelLadder:
        """Make a ladder of all tiers of a trace, or of those chosen.

        Raises:
            ConfigurationError: fewer than two tiers, a tier twice or unknown, or a trace without rows.
        """
        tiers = tuple(range(len(trace.tiers)) if chosen is None else chosen)
        if len(tiers) < 2 or len(set(tiers)) < len(tiers) or not set(tiers) <= set(range(len(trace.tiers))):
            raise ConfigurationError(
                f"a ladder has two different tiers or more of the {len(trace.tiers)} of {trace.name}, not {tiers}"
            )
        if not len(trace):
            raise ConfigurationError(f"{trace.name} has no rows to replay")
        return cls(trace, tiers, prior_window)

    def __len__(self) -> int:
        return len(self.trace)

    @property
    def tiers(self) -> int:
        return len(self.chosen)

    @property
    def about(self) -> tuple[TraceTier, ...]:
        """What is known of each tier."""
        return tuple(self.trace.tiers[place] for place in self.chosen)

    @property
    def sent_bytes(self) -> NDArray[np.float64]:
        return self.trace.text_bytes.astype(np.float64)

    @property
    def answer_bytes(self) -> NDArray[np.float64]:
        sizes = np.array([tier.answer_bytes for tier in self.about], dtype=np.float64)
        return np.broadcast_to(sizes, (len(self), self.tiers))

    def answers(self, tier: int, rows: Rows) -> TierAnswers:
        scores = self.trace.scores[rows, self.chosen[tier]]
        if self.prior_window is not None:
            scores = scores - _means_before(scores - scores.mean(axis=1, keepdims=True), self.prior_window)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        confidence = shares.max(axis=1) / shares.sum(axis=1)
        right = scores.argmax(axis=1) == self.trace.gold[rows]
        return TierAnswers(confidence, right.astype(np.float64))

    def in_turn(self, tier: int) -> Callable[[int], tuple[float, float]]:
        given = self.trace.scores[:, self.chosen[tier]].tolist()
        gold = self.trace.gold.tolist()
        window = self.prior_window
        prior = None if window is None else LabelPrior(len(self.trace.labels), window)

        def answer(row: int) -> tuple[float, float]:
            scores = given[row]
            if prior is not None:
                scores = prior.removed_from(scores)
                prior.push(given[row])
            return class_confidence(scores), float(best_label(scores) == gold[row])

        return answer


def _means_before(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return, for each row, the mean of the `window` rows before it, or of as many as there are; 0 for the first."""
    total = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))
    ends = np.arange(len(values))
    starts = np.maximum(ends - window, 0)
    return np.asarray((total[ends] - total[starts]) / np.maximum(ends - starts, 1)[:, None])
