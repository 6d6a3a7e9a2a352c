"""Which units are kept: their scores, and how many of the best fit."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from disco.errors import ConfigurationError, nearest
from disco.refine.content import Turn
from disco.refine.lexical import lexical_scores

__all__ = ["SELECTORS", "choose", "scores_of"]

_EARLIER_WEIGHT = 0.3  # a word of the conversation counts less than one of the question
_HINT_WEIGHT = 1.0


def _lexical(turn: Turn, hints: str) -> list[float]:  # noqa: ARG001 - all selectors are called alike
    return lexical_scores(_texts(turn), [(turn.question, 1.0), (turn.earlier, _EARLIER_WEIGHT)])


def _feedback(turn: Turn, hints: str) -> list[float]:
    query = [(turn.question, 1.0), (turn.earlier, _EARLIER_WEIGHT), (hints, _HINT_WEIGHT)]
    return lexical_scores(_texts(turn), query)


def _random(turn: Turn, hints: str) -> list[float]:  # noqa: ARG001
    texts = _texts(turn)
    draw = random.Random(hashlib.sha256("\0".join(texts).encode()).digest())
    return [draw.random() for _ in texts]


def _first(turn: Turn, hints: str) -> list[float]:  # noqa: ARG001
    return [-float(number) for number in range(len(turn.optional()))]


def _last(turn: Turn, hints: str) -> list[float]:  # noqa: ARG001
    return [float(number) for number in range(len(turn.optional()))]


def _first_and_recent(turn: Turn, hints: str) -> list[float]:  # noqa: ARG001
    count = len(turn.optional())
    return [-float(min(number, count - 1 - number)) for number in range(count)]


SELECTORS: Final[Mapping[str, Callable[[Turn, str], list[float]]]] = MappingProxyType(
    {
        "lexical": _lexical,
        "feedback": _feedback,
        "random": _random,
        "first": _first,
        "last": _last,
        "first-and-recent": _first_and_recent,
    }
)
"""Scores of a turn's optional units, by the selector's name; the second argument is the server's first words.

*lexical*: words shared with the question and the conversation. *feedback*: and with the server's first words. The
others look at no word; they are what the two must beat.
"""


def scores_of(turn: Turn, selector: str, hints: str = "") -> list[float]:
    """Return the score of each optional unit of a turn; higher is kept first.

    Args:
        turn: the messages, cut into units.
        selector: the selector's name.
        hints: the server's first words, where they are known.

    Raises:
        ConfigurationError: there is no selector of that name.
    """
    found = SELECTORS.get(selector)
    if found is None:
        raise ConfigurationError(f"There is no selector {selector!r}. {nearest(selector, SELECTORS)}")
    return found(turn, hints)


def choose(tokens: Sequence[float], scores: Sequence[float], keep: float) -> list[bool]:
    """Return which units are kept: the best, as long as the kept tokens come nearer to the share.

    The best unit is always kept. Of units with equal scores the earlier one is better.

    Args:
        tokens: length of each unit.
        scores: of each unit; higher is better.
        keep: the share of the tokens to keep, in (0, 1].
    """
    budget = keep * sum(tokens)
    kept = [False] * len(tokens)
    total = 0.0
    for place in sorted(range(len(tokens)), key=lambda place: (-scores[place], place)):
        if not total or total + tokens[place] / 2 <= budget:
            kept[place] = True
            total += tokens[place]
    return kept


def _texts(turn: Turn) -> list[str]:
    return [unit.text for unit in turn.optional()]
