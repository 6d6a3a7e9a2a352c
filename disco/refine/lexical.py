"""Scores units by the words they share with what is asked; rare words count more. Takes microseconds a sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["lexical_scores", "terms_of"]

# Scripts that are written without spaces between words: pairs of neighbouring characters stand for words.
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TERM = re.compile(rf"(?P<dense>[{_DENSE}]+)|[^\W_{_DENSE}]+")

_STEM = 5  # the beginning of a word stands for all its forms, in any language


def terms_of(text: str) -> list[str]:
    """Return the terms of a text: words in lower case by their stems, pairs of characters in scripts without spaces."""
    terms: list[str] = []
    for found in _TERM.finditer(text.lower()):
        word = found[0]
        if found["dense"] is None:
            terms.append(word[:_STEM])
        else:
            terms += map("".join, pairwise(word)) if len(word) > 1 else (word,)
    return terms


def lexical_scores(units: Sequence[str], query: Sequence[tuple[str, float]]) -> list[float]:
    """Return the score of each unit; 0 where it shares no term with the query.

    Args:
        units: the texts.
        query: texts with their weights, each above 0. A term in several of them has the greatest of their weights.
    """
    weights: dict[str, float] = {}
    for text, weight in query:
        for term in terms_of(text):
            weights[term] = max(weight, weights.get(term, 0.0))
    own = [set(terms_of(unit)) for unit in units]
    counts = Counter(term for terms in own for term in terms if term in weights)
    value = {
        term: weights[term] * math.log(1.0 + (len(units) - count + 0.5) / (count + 0.5))
        for term, count in counts.items()
    }
    return [math.fsum(value[term] for term in terms if term in value) for terms in own]
