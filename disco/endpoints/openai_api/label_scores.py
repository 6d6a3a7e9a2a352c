"""Scores of a request's classes from what a server lists beside the first token of its answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["ALTERNATIVES", "label_scores"]

ALTERNATIVES = 20
"""How many alternatives to a token are asked for; servers of the API list no more."""

_NEGLIGIBLE = 0.01
"""Tokens that begin several classes are left out below this share of those that begin one."""


def label_scores(listed: Iterable[tuple[str, float]], classes: Sequence[str]) -> tuple[float, ...] | None:
    """Return the log probability of each class, as far as the first token tells the classes apart.

    A listed token speaks for the class that begins with it, whatever its spaces and capitals. A class that no listed
    token speaks for is at most as probable as the least probable of the listed ones, and is given that much. Tokens
    that begin several classes, such as a single letter, do not matter where they are improbable.

    Args:
        listed: the token and its alternatives, each with its log probability (natural).
        classes: at least two.

    Returns:
        One score for each class; None where the tokens do not tell the classes apart: the probability of those that
        begin several classes is more than 1 % of that of the others, or none begins any.
    """
    names = [name.strip().casefold() for name in classes]
    found: list[list[float]] = [[] for _ in names]
    unclear: list[float] = []
    least = math.inf
    for token, logp in listed:
        if not math.isfinite(logp):
            continue
        least = min(least, logp)
        begun = token.strip().casefold()
        matching = [number for number, name in enumerate(names) if begun and name.startswith(begun)]
        if len(matching) > 1:
            unclear.append(logp)
        elif matching:
            found[matching[0]].append(logp)
    clear = [logp for values in found for logp in values]
    if not clear or (unclear and _sum(unclear) > _sum(clear) + math.log(_NEGLIGIBLE)):
        return None
    return tuple([_sum(values) if values else least for values in found])


def _sum(values: Sequence[float]) -> float:
    """Return the log of the sum of probabilities."""
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))
