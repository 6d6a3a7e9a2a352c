"""How sure a model was of its answer: scores in (0, 1] from label scores or log probabilities (RecServe, Eqs. 7-12)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

__all__ = [
    "DEFAULT_SEQUENCE_CONFIDENCE",
    "SEQUENCE_CONFIDENCES",
    "RunningConfidence",
    "SequenceConfidence",
    "best_label",
    "class_confidence",
    "label_shares",
]

# Plain Python: a task has few labels, and importing disco does not import NumPy.

SequenceConfidence = Literal["mean", "sum", "weakest"]
"""How the log probabilities of an answer's tokens become one score: "mean": 1/(1 + perplexity) (Eq. 12); "sum":
1/(1 - ln P), which rises with the probability P of the whole answer; "weakest": the probability of the least probable
token."""

SEQUENCE_CONFIDENCES: Final[tuple[SequenceConfidence, ...]] = ("mean", "sum", "weakest")

DEFAULT_SEQUENCE_CONFIDENCE: Final[SequenceConfidence] = "sum"
"""The judge that found wrong answers best; docs/results/judges.md has the measurement."""


def label_shares(scores: Sequence[float]) -> tuple[float, ...]:
    """Return the probability of each label: the softmax of the labels' scores (Eq. 7).

    Args:
        scores: one for each label; log probability of the label's text, or any other logits; in nats.

    Raises:
        ValueError: fewer than two labels, or a score that is not finite.
    """
    if len(scores) < 2:
        raise ValueError("Confidence of a class needs the scores of at least two labels.")
    if not all(map(math.isfinite, scores)):
        raise ValueError(
            "A label's score is not a finite number: the model gave no probability for that label."
        )
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = math.fsum(weights)
    return tuple([weight / total for weight in weights])


def class_confidence(scores: Sequence[float]) -> float:
    """Return the probability of the most probable label (Eq. 8); the arguments are those of `label_shares`.

    Args:
        scores: log probabilities of the labels.
    """
    return max(label_shares(scores))


def best_label(scores: Sequence[float]) -> int:
    """Return the number of the label with the highest score; of equal ones the first.

    Args:
        scores: log probabilities of the labels.
    """
    return max(range(len(scores)), key=scores.__getitem__)


class RunningConfidence:
    """The confidence of an answer that is being written, in constant time for each token.

    Mutable: `tokens`, `total`, `lowest`.

    Attributes:
        tokens: tokens seen so far.
        total: sum of their log probabilities, nats.
        lowest: the smallest of their log probabilities, nats; 0 before the first.

    Args:
        logp: natural log probabilities of the first tokens.
    """

    __slots__ = ("lowest", "tokens", "total")

    def __init__(self, logp: Iterable[float] = ()) -> None:
        self.tokens = 0
        self.total = 0.0
        self.lowest = 0.0
        self.add(logp)

    def add(self, logp: Iterable[float]) -> None:
        """Add the log probabilities (natural) of the next tokens.

        Args:
            logp: one for each token.
        """
        for value in logp:
            self.tokens += 1
            self.total += value
            self.lowest = min(self.lowest, value)

    def score(self, kind: SequenceConfidence) -> float:
        """Return the confidence in (0, 1]; "mean" is in (0, 1/2] (Eq. 12). Raises ValueError before the first token.

        Args:
            kind: how log probabilities become a score.
        """
        if not self.tokens:
            raise ValueError("An answer without tokens has no confidence: it is not judged.")
        if kind == "mean":
            # 1 / (1 + perplexity), written so that a huge perplexity does not overflow.
            mean = math.exp(min(0.0, self.total / self.tokens))  # some servers give values above 0
            return mean / (1.0 + mean)
        if kind == "sum":
            # Not P itself, which is 0 for any answer of more than about a thousand tokens.
            return 1.0 / (1.0 + max(0.0, -self.total))
        return math.exp(self.lowest)
