"""Scores units by the words they share with what is asked; rare words count more. Takes microseconds a sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["lexical_scores", "terms_of"]

# Scripts that are written without spaces between words: pairs of neighbouring characters stand for words.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_TERM = re.compile(rf"(?P<dense>[{_DENSE}]+)|[^\W_{_DENSE}]+")

_STEM = 4  # the beginning of a word stands for all its forms, in any language
_FULL_WEIGHT = 6  # letters; shorter words are mostly function words


def terms_of(text: str) -> dict[str, float]:
    """Return the terms of a text with their weights in (0, 1].

    A term is the beginning of a word, in lower case; in scripts without spaces it is a pair of characters. Short words
    weigh less: a few sentences do not show that "in" is frequent. Numbers weigh as much as long words.
    """
    terms: dict[str, float] = {}
    for found in _TERM.finditer(text.lower()):
        word = found[0]
        if found["dense"] is not None:
            terms.update(dict.fromkeys(map("".join, pairwise(word)) if len(word) > 1 else (word,), 1.0))
            continue
        weight = 1.0 if len(word) >= _FULL_WEIGHT or word.isdigit() else len(word) / _FULL_WEIGHT
        stem = word[:_STEM]
        if weight > terms.get(stem, 0.0):
            terms[stem] = weight
    return terms


def lexical_scores(units: Sequence[str], query: Sequence[tuple[str, float]]) -> list[float]:
    """Return the score of each unit; 0 where it shares no term with the query.

    The score is the sum, over the shared terms, of the term's weight and its inverse frequency among the units:
    `ln(1 + (N - n + 0.5) / (n + 0.5))` for a term that n of N units have (as in BM25).

    Args:
        units: the texts.
        query: texts with their weights, each above 0. A term in several of them has the greatest of their weights.
    """
    weights: dict[str, float] = {}
    for text, weight in query:
        for term, own_weight in terms_of(text).items():
            weights[term] = max(weight * own_weight, weights.get(term, 0.0))
    own = [weights.keys() & terms_of(unit).keys() for unit in units]
    counts = Counter(term for terms in own for term in terms)
    value = {
        term: weights[term] * math.log(1.0 + (len(units) - count + 0.5) / (count + 0.5))
        for term, count in counts.items()
    }
    return [math.fsum(value[term] for term in terms) for terms in own]
