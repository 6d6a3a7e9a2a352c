"""Questions on paragraphs in the format of SQuAD, and how good an answer is by SQuAD's own measures."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError

__all__ = ["Question", "exact_match", "read_questions", "token_f1", "token_recall"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """A question on a paragraph.

    Attributes:
        paragraph: the text that holds the answer.
        question: what is asked.
        answers: the right answers, at least one; any of them counts.
        paragraph_number: of the paragraph in its file, from 0.
        starts: where each right answer begins in the paragraph, in characters; -1 where the file does not say.
    """

    paragraph: str
    question: str
    answers: tuple[str, ...]
    paragraph_number: int
    starts: tuple[int, ...] = ()


def read_questions(path: str | Path) -> list[Question]:
    """Read a file in SQuAD's JSON format (XQuAD's too), in the order of the file: a paragraph's questions in a row.

    Raises:
        ConfigurationError: there is no such file, or it has another format.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_bytes())
    except OSError as broken:
        raise ConfigurationError(f"{file} cannot be read: {broken.strerror or broken}") from broken
    except ValueError as broken:  # a mistake in the JSON, or in the encoding
        raise ConfigurationError(f"{file} is not JSON: {broken}") from None
    try:
        questions = list(_questions(content))
    except (KeyError, TypeError, AttributeError) as broken:
        raise ConfigurationError(
            f"{file} is not in the format of SQuAD (data, paragraphs, context, qas, question, answers, text)"
        ) from broken
    if not questions:
        raise ConfigurationError(f"{file} has no question with an answer")
    return questions


def _questions(content: Any) -> Iterator[Question]:
    paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        for asked in paragraph["qas"]:
            answers = tuple(_text(answer["text"]) for answer in asked["answers"])
            if answers:
                starts = tuple(int(answer.get("answer_start", -1)) for answer in asked["answers"])
                yield Question(_text(paragraph["context"]), _text(asked["question"]), answers, number, starts)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("this is no text")
    return value


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """Return the highest F1 of the answer's words against those of a right answer (SQuAD's measure), in [0, 1]."""
    return max(_f1(_words(answer), _words(one)) for one in gold)


def token_recall(answer: str, gold: Sequence[str]) -> float:
    """Return the highest share of a right answer's words that the answer has, in [0, 1]."""
    return max(_recall(_words(answer), _words(one)) for one in gold)


def exact_match(answer: str, gold: Sequence[str]) -> bool:
    """Return whether the answer equals a right one, in lower case, without articles and punctuation."""
    return any(_words(answer) == _words(one) for one in gold)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    return 2.0 * _common(answer, gold) / (len(answer) + len(gold))


def _recall(answer: list[str], gold: list[str]) -> float:
    return _common(answer, gold) / len(gold) if gold else float(not answer)


def _common(answer: list[str], gold: list[str]) -> int:
    return (Counter(answer) & Counter(gold)).total()
