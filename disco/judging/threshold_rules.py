"""Whether an answer is kept or handed up, by its score and the scores before it: the paper's rule and an exact one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from disco.judging.score_history import ScoreHistory

__all__ = ["RULES", "Rule", "Verdict", "check_beta", "judge", "tie_breaker"]

Rule = Literal["exact", "paper"]
"""`exact`: a share `beta` of answers goes up at every length of history and whatever the ties. `paper`: Eqs. 13-16 of
RecServe, whose share is ceil(beta*(k-1))/k for k distinct scores, and less where many are equal."""

RULES: tuple[Rule, ...] = ("exact", "paper")

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge decided about one score.

    Attributes:
        rises: the answer goes up to the next tier.
        score: the score that was judged.
        threshold: the beta-quantile of the scores that it was compared with; None where there were none.
        history: how many scores it was compared with, its own not counted.
        number: how many scores its history had seen before, in all.
        window: how many scores its history keeps.
        beta, rule: by which share and rule it was judged.
    """

    rises: bool
    score: float
    threshold: float | None
    history: int
    number: int = 0
    window: int = 0
    beta: float = math.nan
    rule: Rule = "exact"


def check_beta(beta: float, what: str = "beta") -> float:
    """Return the share `beta`. Raises ValueError, which names `what`, unless it lies strictly between 0 and 1."""
    if not 0.0 < beta < 1.0:  # NaN too
        raise ValueError(
            f"{what} must lie between 0 and 1: it is the share of answers that a tier hands up. {beta!r} does not. "
            "For no answer, use the lowest tier alone; for every answer, the highest."
        )
    return beta


def judge(
    score: float, history: ScoreHistory, beta: float, *, rule: Rule = "exact", seed: int = 0
) -> Verdict:
    """Judge a score against its history, and add it to the history.

    Args:
        score: the answer's confidence; any finite number.
        history: the scores before it. Changed: the score is pushed.
        beta: the share of answers to hand up, in (0, 1).
        rule: see `Rule`.
        seed: of the exact rule's tie breaker, which also depends on how many scores were seen before: the same
            scores in the same order get the same verdicts.

    The exact rule is a randomised rank test: with n scores, its own included, `lower` of them below it and `equal` of
    them equal to it (its own included), the answer goes up where (lower + U*equal)/n < beta, U uniform in [0, 1). For
    exchangeable scores the left side is uniform, so the share is beta at every n.
    """
    before, number = len(history), history.seen
    threshold = history.quantile(beta) if before else None
    if rule == "paper":
        history.push(score)
        threshold = history.quantile(beta)
        return Verdict(score < threshold, score, threshold, before, number, history.capacity, beta, rule)
    lower, equal = history.rank(score)
    rank = (lower + tie_breaker(seed, number) * (equal + 1)) / (before + 1)
    history.push(score)
    return Verdict(rank < beta, score, threshold, before, number, history.capacity, beta, rule)


def tie_breaker(seed: int, number: int) -> float:
    """Return a number in [0, 1) that depends on its arguments only: SplitMix64, of Steele, Lea and Flood (2014).

    Args:
        seed: of the history.
        number: of the score in it.
    """
    z = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)
