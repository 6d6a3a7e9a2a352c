"""Chooses the next token with llama.cpp's samplers, and reports the probabilities it was chosen from."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.constraints import Constraint
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.request_params import Sampling

__all__ = ["LogProbabilities", "Sampler", "log_sum_exp", "logprob_entry", "most_probable"]

_RANDOM_SEED = 0xFFFFFFFF  # with this value llama.cpp takes a seed from the system


class Sampler:
    """A chain of llama.cpp samplers; a context manager, because llama.cpp must free it.

    Mutable: `_constraint`, which may be added later, and the table of candidates that the sampler works on.

    With a grammar the chain only ever sees the tokens that the grammar allows.

    Args:
        model: the model whose logits are read.
        sampling: the request's parameters.
        written: ids of the answer so far; penalties count them.
    """

    def __init__(self, model: NativeModel, sampling: Sampling, written: Sequence[int]) -> None:
        self._lib, self._context = model.handles
        self._model = model
        self._constraint: Constraint | None = None
        self._chain: Any = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        try:
            for part in self._parts(model, sampling):
                self._lib.llama_sampler_chain_add(self._chain, part)
        except BaseException:
            self.close()
            raise
        for token in written:
            self.accept(token)

    def _parts(self, model: NativeModel, sampling: Sampling) -> Iterable[Any]:
        lib = self._lib
        known = range(model.vocabulary_tokens)
        bias = [(token, value) for token, value in sampling.logit_bias if token in known]
        if bias:
            entries = (lib.llama_logit_bias * len(bias))()
            for entry, (token, value) in zip(entries, bias, strict=True):
                # The API's -100 is a ban.
                entry.token, entry.bias = token, value if value > -100 else float("-inf")
            yield lib.llama_sampler_init_logit_bias(model.vocabulary_tokens, len(bias), entries)
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if penalties != (1.0, 0.0, 0.0):
            # As in the API, penalties count the tokens of the whole answer.
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
        seed = _RANDOM_SEED if sampling.seed is None else sampling.seed % _RANDOM_SEED
        yield lib.llama_sampler_init_dist(seed)

    def constrain(self, grammar: str) -> None:
        """Choose only tokens that this grammar allows from now on.

        Raises:
            EndpointFailure: UNSERVED for a grammar that cannot be kept to.
        """
        self._constraint = Constraint(self._model.grammar_vocabulary, grammar)
        data = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
        self._candidates = np.zeros(self._model.vocabulary_tokens, data)

    @property
    def constrained(self) -> bool:
        """Whether there is a grammar."""
        return self._constraint is not None

    @property
    def over(self) -> bool:
        """Whether there is a grammar that requires the answer to end here."""
        return self._constraint is not None and self._constraint.over

    def sample(self) -> int:
        """Choose the next token and remember it."""
        if self._constraint is None:
            return int(self._lib.llama_sampler_sample(self._chain, self._context, -1))
        token = self._choose(self._constraint.allowed())
        self._constraint.accept(token)
        self.accept(token)
        return token

    def _choose(self, allowed: npt.NDArray[np.intp]) -> int:
        candidates = self._candidates[: len(allowed)]
        candidates["id"] = allowed
        candidates["logit"] = self._model.logits()[allowed]
        candidates["p"] = 0.0
        pointer = candidates.ctypes.data_as(self._lib.llama_token_data_p)
        array = self._lib.llama_token_data_array(pointer, len(candidates), -1, False)
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[max(array.selected, 0)].id)

    def accept(self, token: int) -> None:
        """Remember a token that was chosen elsewhere."""
        self._lib.llama_sampler_accept(self._chain, token)

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

    def __init__(self, model: NativeModel) -> None:
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
    model: NativeModel, logits: npt.NDArray[np.float32], token: int, top: int
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
