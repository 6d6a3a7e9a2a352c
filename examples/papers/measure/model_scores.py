"""Scores of a paragraph's units by the model itself: surprisal and attention. They need the whole prompt first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from papers.local_model import LocalModel
from papers.measure.attention import AttentionReader
from papers.measure.prompt_scorer import PromptScorer
from papers.measure.refine_arms import Task

__all__ = ["ModelScores", "ParagraphScores", "token_places"]


@dataclass(frozen=True, slots=True)
class ParagraphScores:
    """What the model says of one prompt.

    Attributes:
        units: scores of the optional units, by the arm's name.
        tokens: surprisal of each token but the first, nats, shape (tokens - 1,).
        places: of each token, the optional unit in which it begins; -1 for none.
    """

    units: dict[str, NDArray[np.float64]]
    tokens: NDArray[np.float64]
    places: NDArray[np.int64]


class ModelScores:
    """Scores the questions of one paragraph after the other.

    Args:
        scorer: the model.
        reader: the same model's attention.
    """

    def __init__(self, scorer: PromptScorer, reader: AttentionReader) -> None:
        self._scorer = scorer
        self._reader = reader

    def __call__(
        self, tasks: Sequence[Task], prompts: Sequence[list[int]], contentless: list[int]
    ) -> list[ParagraphScores]:
        """Return the scores for each question.

        Args:
            tasks: the questions on one paragraph.
            prompts: the whole prompt of each.
            contentless: the whole prompt with a question that asks for nothing.
        """
        surprisal = self._scorer.surprisals(prompts[0])
        places = [
            token_places(self._scorer.model, task, ids) for task, ids in zip(tasks, prompts, strict=True)
        ]
        usual = self._attention(contentless, places[0])
        return [
            self._of(task, ids, own, surprisal, usual)
            for task, ids, own in zip(tasks, prompts, places, strict=True)
        ]

    def _of(
        self,
        task: Task,
        ids: list[int],
        places: NDArray[np.int64],
        surprisal: NDArray[np.float64],
        usual: NDArray[np.float64],
    ) -> ParagraphScores:
        tokens = np.resize(surprisal, len(ids) - 1)  # prompts differ in their questions, which are in no unit
        numbers = range(len(task.spans))
        inside = places[places >= 0]
        attention = self._attention(ids, places)
        contrast = attention / usual
        units = {
            "surprisal": np.array([tokens[places[1:] == number].mean() for number in numbers]),
            "attention": np.array([attention[inside == number].mean() for number in numbers]),
            # The most of a unit's tokens: the best of three forms that were tried on 160 questions.
            "attention, contrastive": np.array([contrast[inside == number].max() for number in numbers]),
        }
        return ParagraphScores(units, tokens, places)

    def _attention(self, ids: list[int], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how much the question looks at each token of the units, shape (tokens in units,)."""
        inside = np.flatnonzero(places >= 0)
        if not len(inside):
            return np.zeros(0)
        return self._reader.weights(ids, len(ids) - int(inside[-1]) - 1)[inside]


def token_places(model: LocalModel, task: Task, ids: Sequence[int]) -> NDArray[np.int64]:
    """Return, for each token of a whole prompt, the optional unit in which it begins; -1 for none."""
    content = str(task.messages[-1]["content"])
    text = b"".join(model.piece(token) for token in ids)
    start = text.rindex(content.encode())
    bounds = [(start + len(content[:a].encode()), start + len(content[:b].encode())) for a, b in task.spans]
    places: list[int] = []
    at = unit = 0
    for token in ids:
        while unit < len(bounds) and at >= bounds[unit][1]:
            unit += 1
        # A token begins with the space before its word, which belongs to the unit before.
        inside = unit < len(bounds) and at >= bounds[unit][0] - 1
        places.append(unit if inside else -1)
        at += len(model.piece(token))
    return np.array(places)
