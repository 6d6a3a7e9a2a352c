"""Where a draft model agrees with a target: the target's own answer, read by the draft model in a few passes.

Both choose with noise keyed by seed and position (`gumbel_noise`), as the verify server and its drafters do; at
temperature 0 both take the best token. The temperature is the only sampling parameter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disco.speculate import gumbel_noise
from papers.local_model import LocalModel

__all__ = ["Agreement", "Choice", "agreement", "write_answer"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How tokens are chosen: the best ones at temperature 0, else with noise of this seed."""

    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of a draft model with an answer, token by token.

    Attributes:
        accepts: 1 where it would choose the token, behind the true tokens before it; else 0.
        confidence: its top probability there.
    """

    accepts: bytes
    confidence: tuple[float, ...]


def write_answer(model: LocalModel, prompt: Sequence[int], most: int, choice: Choice) -> list[int]:
    """Return the model's answer: at most `most` tokens, the one that ends it included."""
    _read(model, prompt)
    answer: list[int] = []
    room = model.context_tokens - len(prompt)
    while len(answer) < min(most, room):
        token = _chosen(model.logits(), len(prompt) + len(answer), choice)
        answer.append(token)
        if model.ends_answer(token):
            break
        if len(answer) < min(most, room):
            model.decode((token,))
    return answer


def agreement(model: LocalModel, prompt: Sequence[int], answer: Sequence[int], choice: Choice) -> Agreement:
    """Let a draft model read another model's answer, and compare each token with its own choice."""
    _read(model, prompt)
    accepts, confidence = bytearray(), []
    place, first = -1, 0  # where the row behind the newest token is, and which token it is about
    while first < len(answer):
        batch = answer[first : first + model.batch_tokens]
        # The row behind the batch before is about this batch's first token.
        rows = [model.logits(place).copy()]
        if len(batch) > 1:
            model.decode(batch[:-1], logits_from=0)
            rows += [model.logits(row).copy() for row in range(len(batch) - 1)]
        for number, (row, token) in enumerate(zip(rows, batch, strict=True), first):
            accepts.append(_chosen(row, len(prompt) + number, choice) == token)
            confidence.append(_top_probability(row))
        first += len(batch)
        if first < len(answer):
            model.decode(batch[-1:])
            place = -1
    return Agreement(bytes(accepts), tuple(confidence))


def _read(model: LocalModel, prompt: Sequence[int]) -> None:
    model.forget()
    for start in range(0, len(prompt), model.batch_tokens):
        model.decode(prompt[start : start + model.batch_tokens])


def _chosen(logits: npt.NDArray[np.float32], position: int, choice: Choice) -> int:
    if choice.temperature <= 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64) / choice.temperature
    return int(np.argmax(scores + gumbel_noise(choice.seed, position, np.arange(len(scores)))))


def _top_probability(logits: npt.NDArray[np.float32]) -> float:
    values = logits.astype(np.float64)
    return float(1 / np.exp(values - values.max()).sum())
