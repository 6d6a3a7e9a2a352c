"""Where a draft model agrees with a target: the target's own answer, read by the draft model in a few passes.

Both choose with noise keyed by seed and position (`speculate.coupled`), as the verify server and its drafters do; at
temperature 0 both take the best token. The temperature is the only sampling parameter here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, resolve_model
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer, build_prompt
from disco.request import Prefix
from disco.speculate import coupled

__all__ = ["Agreement", "Choice", "agreement", "load_model", "prompt_ids", "write_answer"]

# As a verify server's. More rows at once are quicker, and round otherwise: of 160 tokens of a Q8_0 model's own, it
# called 7 wrong in one batch, and none in batches of 64 and fewer.
_BATCH_TOKENS: Final = 64


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


def load_model(name: str, *, threads: int, context_tokens: int | None = None) -> NativeModel:
    """Load a model for use in this thread; the caller closes it.

    Args:
        name: a short name, a GGUF file or hf:owner/repo/file.
        threads: of llama.cpp.
        context_tokens: size of the context; None: what the model was trained with, at most 4,096.

    Raises:
        DiscoError: the file or the model cannot be loaded; its type says why.
    """
    require_llama_cpp()
    return NativeModel(
        resolve_model(name),
        context_tokens=context_tokens,
        threads=threads,
        batch_tokens=_BATCH_TOKENS,
        gpu_layers=0,
        keep_loading=lambda: True,
    )


def prompt_ids(model: NativeModel, messages: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """Return a conversation's tokens, as the model's own chat template writes it.

    Raises:
        EndpointFailure: it is longer than the model's context.
    """
    text = Renderer(model, None)(messages, check=lambda: None).text
    return build_prompt(model, text, Prefix(), opening="", name=name).ids


def write_answer(model: NativeModel, prompt: Sequence[int], most: int, choice: Choice) -> list[int]:
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


def agreement(model: NativeModel, prompt: Sequence[int], answer: Sequence[int], choice: Choice) -> Agreement:
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


def _read(model: NativeModel, prompt: Sequence[int]) -> None:
    model.forget()
    for start in range(0, len(prompt), model.batch_tokens):
        model.decode(prompt[start : start + model.batch_tokens])


def _chosen(logits: npt.NDArray[np.float32], position: int, choice: Choice) -> int:
    if choice.temperature <= 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64) / choice.temperature
    return coupled.choose(choice.seed, position, np.arange(len(scores)), scores)


def _top_probability(logits: npt.NDArray[np.float32]) -> float:
    values = logits.astype(np.float64)
    return float(1 / np.exp(values - values.max()).sum())
