"""The model's own answers, with the states that an adapter learns from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TOP", "Answer", "answer_tokens", "load_answers", "save_answers"]

TOP = 16
"""How many of the most probable tokens are kept of each of the model's distributions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the answer that the model wrote, as the first layers and the whole model see them.

    Attributes:
        ids: of prompt and answer, shape (tokens,), int32.
        prompt_tokens: how many of them are the prompt.
        temperature: the answer was written with; 0: always the most probable token.
        shallow: states behind the device's layers at all positions but the last, shape (tokens - 1, hidden), float16.
        final: states behind the output norm at the positions that the answer's tokens come from, the prompt's last
            one being the first: shape (answer tokens, hidden), float16.
        top_ids, top_shares: the most probable tokens at these positions, the most probable first, and their
            probabilities at temperature 1, of which the others' are left out: shape (answer tokens, TOP), int32 and
            float16.
    """

    ids: npt.NDArray[np.int32] = field(repr=False)
    prompt_tokens: int
    temperature: float
    shallow: npt.NDArray[np.float16] = field(repr=False)
    final: npt.NDArray[np.float16] = field(repr=False)
    top_ids: npt.NDArray[np.int32] = field(repr=False)
    top_shares: npt.NDArray[np.float16] = field(repr=False)

    @property
    def tokens(self) -> int:
        """How many tokens the answer has."""
        return len(self.top_ids)


def answer_tokens(answers: Iterable[Answer]) -> int:
    """Return how many tokens the answers have, without their prompts."""
    return sum(answer.tokens for answer in answers)


_ARRAYS = ("ids", "shallow", "final", "top_ids", "top_shares")


def save_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write answers to one file, about 2.5 kB a token for a model of 576 numbers a state.

    Raises:
        OSError: the file cannot be written.
    """
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(answer, name) for answer in answers]) for name in _ARRAYS
    }
    arrays["lengths"] = np.array([[len(answer.ids), answer.prompt_tokens] for answer in answers], np.int64)
    arrays["temperatures"] = np.array([answer.temperature for answer in answers])
    with path.open("wb") as file:
        np.savez(file, **arrays)


def load_answers(path: Path) -> list[Answer]:
    """Read what `save_answers` wrote.

    Raises:
        OSError, ValueError, KeyError: the file cannot be read, or is another.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in _ARRAYS}
        lengths, temperatures = file["lengths"], file["temperatures"]
    answers, at, of_answer = [], 0, 0
    for number, ((tokens, prompt_tokens), temperature) in enumerate(zip(lengths, temperatures, strict=True)):
        written = tokens - prompt_tokens
        to, to_answer = at + tokens, of_answer + written
        first = at - number  # a row less for each answer before
        answers.append(
            Answer(
                ids=arrays["ids"][at:to],
                prompt_tokens=int(prompt_tokens),
                temperature=float(temperature),
                shallow=arrays["shallow"][first : first + tokens - 1],
                final=arrays["final"][of_answer:to_answer],
                top_ids=arrays["top_ids"][of_answer:to_answer],
                top_shares=arrays["top_shares"][of_answer:to_answer],
            )
        )
        at, of_answer = to, to_answer
    return answers
