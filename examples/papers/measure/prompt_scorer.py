"""Reads a prompt with a local model: how probable the right answer is behind it, and what the model answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from papers.local_model import LocalModel

__all__ = ["PromptScorer", "Scored"]

_LAST_TOKENS = 48  # about a question


@dataclass(frozen=True, slots=True)
class Scored:
    """What the model made of one prompt.

    Attributes:
        nats: minus the log probability of the right answer's tokens, summed.
        answer: the model's own answer, greedy.
        answer_ids: its tokens.
    """

    nats: float
    answer: str = field(repr=False)
    answer_ids: tuple[int, ...] = field(repr=False)


class PromptScorer:
    """A model that scores prompts, one after the other. Prompts in the order of their ids share most of the cache.

    Args:
        model: used by nothing else meanwhile.
        tokens: most tokens of an answer.
    """

    def __init__(self, model: LocalModel, tokens: int) -> None:
        self.model = model
        self._tokens = tokens
        self._room = np.empty(model.vocabulary_tokens, np.float32)

    def prefill(self, ids: Sequence[int]) -> None:
        """Compute the part of a prompt that is not in the cache."""
        done = self.model.reuse(ids)
        while done < len(ids):
            batch = ids[done : done + self.model.batch_tokens]
            self.model.decode(batch)
            done += len(batch)

    def score(self, ids: Sequence[int], gold: Sequence[int], begun: Sequence[int] = ()) -> Scored:
        """Score the right answer behind a prompt, and answer it.

        Args:
            ids: the prompt.
            gold: the right answer's tokens, at least one.
            begun: tokens that the answer begins with; they count as part of it.
        """
        # One batch for the end of the prompt and the answer: a small batch costs nearly as much as a larger one.
        end = max(0, len(ids) - _LAST_TOKENS)
        if self.model.reuse([*ids, *gold[:-1]]) > len(ids) - 1:
            self.model.keep(len(ids) - 1)
        if self.model.reuse(ids[: len(ids) - 1]) < end:
            self.prefill(ids[:end])
        start = self.model.reuse(ids[: len(ids) - 1])
        batch = [*ids[start:], *gold[:-1]]
        self.model.decode(batch, logits_from=0)
        first = len(ids) - 1 - start
        nats = sum(self._nats(self.model.logits(first + place), token) for place, token in enumerate(gold))
        answer = [*begun] or [int(np.argmax(self.model.logits(first)))]
        self.model.keep(len(ids))
        return Scored(nats, *self._answer(answer, begun=bool(begun)))

    def surprisals(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return minus the log probability of each token but the first given those before it, shape (tokens - 1,)."""
        self.model.forget()
        found: list[float] = []
        for start in range(0, len(ids), self.model.batch_tokens):
            batch = ids[start : start + self.model.batch_tokens]
            self.model.decode(batch, logits_from=0)
            following = ids[start + 1 : start + 1 + len(batch)]
            found += [self._nats(self.model.logits(place), token) for place, token in enumerate(following)]
        return np.array(found)

    def _answer(self, answer: list[int], *, begun: bool) -> tuple[str, tuple[int, ...]]:
        """Go on greedily, up to the end of the answer, of its line, or of its length."""
        pending = [*answer] if begun else answer[-1:]
        while True:
            ended = self.model.ends_answer(answer[-1]) or b"\n" in self.model.piece(answer[-1])
            if ended:
                answer.pop()
            if ended or len(answer) >= self._tokens:
                break
            self.model.decode(pending)
            pending = [int(np.argmax(self.model.logits()))]
            answer += pending
        text = b"".join(self.model.piece(token) for token in answer).decode("utf-8", "replace")
        return text.strip(), tuple(answer)

    def _nats(self, logits: NDArray[np.float32], token: int) -> float:
        highest = logits.max()
        np.exp(np.subtract(logits, highest, out=self._room), out=self._room)
        return float(highest) + math.log(float(self._room.sum())) - float(logits[token])
