"""Chooses the next token with llama.cpp's samplers, and reports the probabilities it was chosen from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.constraints import Constraint, Vocabulary
from disco.endpoints.llamacpp.model.candidates import Candidates, preselected
from disco.endpoints.llamacpp.model.library import load_library
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling
from disco.speculate import coupled

__all__ = [
    "Keyed",
    "LogProbabilities",
    "SampledModel",
    "Sampler",
    "log_sum_exp",
    "logprob_entry",
    "most_probable",
]


@dataclass(slots=True)
class Keyed:
    """Choices with keyed noise (`disco.speculate.coupled`), and what was chosen. Mutable: `forced`, `chosen`.

    Attributes:
        seed: of the noise.
        forced: tokens to follow, in order, before any is chosen; they are taken out as they are followed.
        chosen: the tokens that were followed and chosen since the sampler was made.
    """

    seed: int
    forced: deque[int] = field(default_factory=deque)
    chosen: list[int] = field(default_factory=list)


class SampledModel(Protocol):
    """What a sampler needs of a model: an `AnswerModel`, or a `SequenceModel`."""

    vocabulary_tokens: int
    context_tokens: int

    @property
    def grammar_vocabulary(self) -> Vocabulary: ...

    def piece(self, token: int, /) -> bytes: ...

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]: ...


class Sampler:
    """A chain of llama.cpp samplers; a context manager, because llama.cpp must free it.

    Mutable: `_constraint`, which may be added later, `_changed`, and the table of candidates that the chain works on.

    With a grammar the chain only ever sees the tokens that the grammar allows.

    The chain has no random choice of its own: `coupled.choose` takes one of the candidates that the chain has left. It
    is given only candidates that can be among the highest `top_k`.

    Args:
        model: the model whose logits are read.
        sampling: the request's parameters; their seed does not count.
        written: ids of the answer so far; penalties count them.
        keyed: the noise to choose with.
    """

    def __init__(
        self, model: SampledModel, sampling: Sampling, written: Sequence[int], *, keyed: Keyed
    ) -> None:
        self._lib = load_library()
        self._model = model
        self._keyed = keyed
        self._constraint: Constraint | None = None
        self._table: Candidates | None = None  # made when the first token needs one
        self._greedy = sampling.temperature <= 0
        self._highest = 1 if self._greedy else max(sampling.top_k, 0)  # candidates that count; 0 for all
        self._penalises = False
        self._changed: set[int] = set()  # tokens whose logits the chain may change before it compares them
        self._chain: Any = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        try:
            for part in self._parts(model, sampling):
                self._lib.llama_sampler_chain_add(self._chain, part)
        except BaseException:
            self.close()
            raise
        for token in written:
            self.accept(token)

    def _parts(self, model: SampledModel, sampling: Sampling) -> Iterable[Any]:
        lib = self._lib
        known = range(model.vocabulary_tokens)
        bias = [(token, value) for token, value in sampling.logit_bias if token in known]
        if bias:
            entries = (lib.llama_logit_bias * len(bias))()
            for entry, (token, value) in zip(entries, bias, strict=True):
                # The API's -100 is a ban.
                entry.token, entry.bias = token, value if value > -100 else float("-inf")
            self._changed.update(token for token, _ in bias)
            yield lib.llama_sampler_init_logit_bias(model.vocabulary_tokens, len(bias), entries)
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if penalties != (1.0, 0.0, 0.0):
            # As in the API, penalties count the tokens of the whole answer.
            self._penalises = True
            yield lib.llama_sampler_init_penalties(model.vocabulary_tokens, model.context_tokens, *penalties)
        if sampling.temperature <= 0:
            yield lib.llama_sampler_init_greedy()
            return
        if sampling.top_k > 0:
            yield lib.llama_sampler_init_top_k(sampling.top_k)
        if sampling.top_p < 1:
            yield lib.llama_sampler_init_top_p(sampling.top_p, 1)
        if sampling.min_p > 0:
            yield lib.llama_sampler_init_min_p(sampling.min_p, 1)
        yield lib.llama_sampler_init_temp(sampling.temperature)

    def constrain(self, grammar: str) -> None:
        """Choose only tokens that this grammar allows from now on.

        Raises:
            EndpointFailure: UNSERVED for a grammar that cannot be kept to.
        """
        self._constraint = Constraint(self._model.grammar_vocabulary, grammar)

    @property
    def constrained(self) -> bool:
        """Whether there is a grammar."""
        return self._constraint is not None

    @property
    def over(self) -> bool:
        """Whether there is a grammar that requires the answer to end here."""
        return self._constraint is not None and self._constraint.over

    def sample(self, position: int) -> int:
        """Choose the next token and remember it.

        Args:
            position: of the token in the model's context, for the keyed noise: how many tokens come before it.

        Raises:
            EndpointFailure: BAD_REQUEST for a forced token that the grammar does not allow.
        """
        if self._keyed.forced:
            return self._forced()
        allowed = None if self._constraint is None else self._constraint.allowed()
        return self._follow(self._choose(allowed, position))

    def most_probable(self, tokens: Sequence[int]) -> int:
        """Choose the most probable of some tokens, whatever the request's parameters say, and remember it."""
        if self._keyed.forced:
            return self._forced()
        return self._follow(most_probable(self._model.logits(), tokens))

    def _forced(self) -> int:
        token = self._keyed.forced.popleft()
        if self._constraint is not None and token not in self._constraint.allowed():
            raise malformed("The tokens of the answer so far contradict the request's tools or schema.")
        return self._follow(token)

    def _follow(self, token: int) -> int:
        if self._constraint is not None:
            self._constraint.accept(token)
        self.accept(token)
        self._keyed.chosen.append(token)
        return token

    def _choose(self, allowed: npt.NDArray[np.intp] | None, position: int) -> int:
        logits = self._model.logits()
        if allowed is not None:
            logits = logits[allowed]
        if self._greedy and not self._changed:
            best = int(np.argmax(logits))
            return best if allowed is None else int(allowed[best])
        places = preselected(logits, allowed, self._highest, self._changed) if self._highest else None
        if places is None:
            ids = np.arange(len(logits)) if allowed is None else allowed
        else:
            ids, logits = places if allowed is None else allowed[places], logits[places]
        left, scores, best = self._candidates.apply(self._chain, ids, logits)
        if self._greedy:
            return int(left[best])
        return coupled.choose(self._keyed.seed, position, left, scores)

    @property
    def _candidates(self) -> Candidates:
        if self._table is None:
            self._table = Candidates(self._lib, self._model.vocabulary_tokens)
        return self._table

    def accept(self, token: int) -> None:
        """Remember a token that was chosen elsewhere."""
        self._lib.llama_sampler_accept(self._chain, token)
        if self._penalises:
            self._changed.add(token)

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
        self._chain = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class LogProbabilities:
    """The model's log probabilities of its tokens: natural logarithms, before any sampling option or grammar.

    Computed in float32 and in one buffer: some 50 µs a token with a vocabulary of 49,152.

    Args:
        model: the model whose logits are read.
    """

    def __init__(self, model: SampledModel) -> None:
        self._model = model
        self._room = np.empty(model.vocabulary_tokens, np.float32)

    def of(self, token: int, place: int = -1) -> float:
        """Return the log probability of `token` behind a place of the newest batch: the last, or see `logits`."""
        logits = self._model.logits(place)
        return float(logits[token]) - log_sum_exp(logits, self._room)


def log_sum_exp(logits: npt.NDArray[np.float32], room: npt.NDArray[np.float32]) -> float:
    """Return the logarithm of the sum of the logits' exponentials.

    Args:
        logits: shape (vocabulary,), float32.
        room: of the same shape; overwritten.
    """
    highest = logits.max()
    np.subtract(logits, highest, out=room)
    np.exp(room, out=room)
    return float(highest) + math.log(float(room.sum()))


def most_probable(logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> int:
    """Return the most probable of `tokens`."""
    return int(tokens[int(np.argmax(logits[np.asarray(tokens)]))])


def logprob_entry(
    model: SampledModel, logits: npt.NDArray[np.float32], token: int, top: int
) -> dict[str, Any]:
    """Return an entry of `ChoiceLogprobs.content`: the model's probabilities before any sampling option.

    Args:
        model: spells the tokens.
        logits: shape (vocabulary,).
        token: the chosen token.
        top: how many alternatives to list.
    """
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())

    def entry(one: int) -> dict[str, Any]:
        piece = model.piece(one)
        return {
            "token": piece.decode("utf-8", "replace"),
            "logprob": float(values[one]),
            "bytes": list(piece),
        }

    best: list[int] = []
    if top > 0:
        candidates = np.argpartition(values, -top)[-top:]
        best = [int(one) for one in candidates[np.argsort(-values[candidates], kind="stable")]]
    return entry(token) | {"top_logprobs": [entry(one) for one in best]}
