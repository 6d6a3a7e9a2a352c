"""The arms of the measurement: for one question, which units of the paragraph each arm keeps, and at which share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from disco.refine import Turn, choose, scores_of, turns_of
from papers.measure.squad_prompt import question_messages
from papers.measure.squad_questions import Question

__all__ = ["MAIN_KEEP", "MODEL_ARMS", "Arm", "Task", "arms_of", "kept_units", "optional_spans", "task_of"]

MAIN_KEEP: Final = 0.4
"""The share at which all arms are compared."""

_AT_EVERY_KEEP = ("lexical", "random", "first", "last")
MODEL_ARMS: Final = (
    *("feedback", "surprisal", "surprisal, tokens"),
    *("attention", "attention, contrastive"),
)
"""Arms that need what the model makes of the whole prompt first."""


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """One way to shorten a prompt.

    Attributes:
        name: "full", "none", or a selector.
        keep: the share to keep.
        begun: how many of the server's tokens the answer begins with.
    """

    name: str
    keep: float
    begun: int = 0


def arms_of(keeps: Sequence[float], server_tokens: int, *, every: bool) -> list[Arm]:
    """Return the arms.

    Args:
        keeps: the shares, between 0 and 1; `MAIN_KEEP` is added.
        server_tokens: the L of the arm whose answer the server begins.
        every: also the arms that need the model first.
    """
    arms = [Arm("full", 1.0), Arm("none", 0.0)]
    arms += [Arm(name, keep) for keep in sorted({*keeps, MAIN_KEEP}) for name in _AT_EVERY_KEEP]
    arms.append(Arm("first-and-recent", MAIN_KEEP))
    if every:
        arms += [Arm(name, MAIN_KEEP) for name in MODEL_ARMS]
        arms.append(Arm("lexical", MAIN_KEEP, begun=server_tokens))
    return arms


@dataclass(frozen=True, slots=True)
class Task:
    """A question as a conversation.

    Attributes:
        messages: with the whole paragraph.
        turns: of the conversation; only the last one has units that may be left out.
        gold: of each optional unit, whether it holds a part of the right answer.
        spans: where the optional units lie in the text of the last message, characters.
    """

    messages: list[Mapping[str, Any]]
    turns: list[Turn]
    gold: list[bool]
    spans: list[tuple[int, int]]

    @property
    def turn(self) -> Turn:
        """The turn with the paragraph."""
        return self.turns[-1]


_TEXT = "Text: "


def task_of(question: Question, paragraphs: Sequence[str] = ()) -> Task:
    """Return the conversation that asks a question.

    Args:
        question: with its own paragraph.
        paragraphs: all paragraphs of the text, in order; the question's own alone by default.
    """
    texts = paragraphs or (question.paragraph,)
    asked = "\n\n".join((_TEXT + texts[0], *texts[1:], f"Question: {question.question}"))
    messages: list[Mapping[str, Any]] = [*question_messages(asked)]
    turns = turns_of(messages)
    spans = optional_spans(turns[-1])
    before = texts[: texts.index(question.paragraph)]
    start = len(_TEXT) + sum(len(text) + 2 for text in before) + max(question.starts[0], 0)
    end = start + len(question.answers[0])
    return Task(messages, turns, [one < end and other > start for one, other in spans], spans)


def optional_spans(turn: Turn) -> list[tuple[int, int]]:
    """Return where the optional units of a turn with one passage lie in its text, in characters."""
    spans = []
    for passage in turn.passages:
        at = 0
        for unit, optional in zip(passage.units, passage.optional, strict=True):
            if optional:
                spans.append((at, at + len(unit.text)))
            at += len(unit.text)
    return spans


def kept_units(
    task: Task, arm: Arm, *, hints: str = "", found: Mapping[str, NDArray[np.float64]] | None = None
) -> list[bool]:
    """Return which optional units an arm keeps.

    Args:
        task: the question.
        arm: any but "none" and those on tokens.
        hints: the server's first words.
        found: scores of the optional units that the model made, by the arm's name.
    """
    tokens = [unit.tokens for unit in task.turn.optional()]
    if arm.name == "full":
        return [True] * len(tokens)
    if found is not None and arm.name in found:
        return choose(tokens, found[arm.name].tolist(), arm.keep)
    return choose(tokens, scores_of(task.turn, arm.name, hints), arm.keep)
