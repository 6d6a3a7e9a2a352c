"""Choosing the next token with llama.cpp's samplers, and the probabilities it was chosen from."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.refusals import unserved
from disco.endpoints.llamacpp.request_params import Sampling
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["LogProbabilities", "Sampler", "logprob_entry", "most_probable"]

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp then takes one from the system


class Sampler:
    """A chain of llama.cpp samplers; a context manager, because llama.cpp must free it.

    Mutable: `_grammar`, which may join later, and the tables of candidates it works on.

    A grammar is asked about the one token that the chain has chosen, and about all of them only where it says no:
    that takes longer than computing a token does with a small model, and models mostly keep to the grammar by
    themselves. Without top-k, top-p and min-p the outcome has the same distribution as asking about all at once;
    with them, what the chain would have cut off stays cut off.

    Args:
        model: the model whose logits it reads.
        sampling: the request's parameters.
        written: ids of the answer so far; penalties count them.
    """

    def __init__(self, model: NativeModel, sampling: Sampling, written: Sequence[int]) -> None:
        self._lib, self._context, self._vocab = model.handles
        self._model = model
        self._grammar: Any = None
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
            # Like the API's, they look at the whole answer.
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
        """From now on choose only what this grammar allows.

        Raises:
            EndpointFailure: UNSERVED for a grammar that llama.cpp does not accept.
        """
        made = self._lib.llama_sampler_init_grammar(self._vocab, grammar.encode(), b"root")
        if not made:
            raise unserved("llama.cpp does not accept the grammar of this JSON schema.")
        self._release_grammar()
        self._grammar = made
        data = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
        self._numbers = np.arange(self._model.vocabulary_tokens, dtype=np.int32)
        self._all = np.zeros(self._model.vocabulary_tokens, data)
        self._single = np.zeros(1, data)

    @property
    def constrained(self) -> bool:
        """There is a grammar."""
        return bool(self._grammar)

    def sample(self) -> int:
        """Choose the next token and remember it."""
        if not self._grammar:
            return int(self._lib.llama_sampler_sample(self._chain, self._context, -1))
        token = self._choose(within_grammar=False)
        if not self._allows(token):
            token = self._choose(within_grammar=True)
            # llama.cpp ends the whole process when a grammar gets a token that it does not allow.
            if not self._allows(token):
                message = (
                    "The model's vocabulary has no token that the JSON schema or the form of a call allows."
                )
                raise EndpointFailure(FailureKind.CRASHED, LocalModelError(message))
        self._lib.llama_sampler_accept(self._grammar, token)
        self.accept(token)
        return token

    def _choose(self, *, within_grammar: bool) -> int:
        candidates = self._all
        candidates["id"] = self._numbers  # the chain sorts them
        candidates["logit"] = self._model.logits()
        candidates["p"] = 0.0
        array = self._array(candidates)
        if within_grammar:
            self._lib.llama_sampler_apply(self._grammar, ctypes.byref(array))
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[max(array.selected, 0)].id)

    def _allows(self, token: int) -> bool:
        self._single[0] = (token, 1.0, 0.0)
        array = self._array(self._single)
        self._lib.llama_sampler_apply(self._grammar, ctypes.byref(array))
        return bool(self._single["logit"][0] > 0)

    def _array(self, candidates: npt.NDArray[Any]) -> Any:
        lib = self._lib
        pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
        return lib.llama_token_data_array(pointer, len(candidates), -1, False)

    def accept(self, token: int) -> None:
        """Remember a token that was chosen elsewhere."""
        self._lib.llama_sampler_accept(self._chain, token)

    def _release_grammar(self) -> None:
        if self._grammar:
            self._lib.llama_sampler_free(self._grammar)
        self._grammar = None

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
        self._chain = None
        self._release_grammar()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class LogProbabilities:
    """What the model itself thought of its tokens: natural logarithms, before any sampling option or grammar.

    In float32 and in one buffer: some 50 µs a token with a vocabulary of 49,152.

    Args:
        model: whose logits are read; the newest.
    """

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._room = np.empty(model.vocabulary_tokens, np.float32)

    def of(self, token: int) -> float:
        """The log probability of `token` at the newest position."""
        logits = self._model.logits()
        highest = logits.max()
        np.subtract(logits, highest, out=self._room)
        np.exp(self._room, out=self._room)
        return float(logits[token] - highest) - math.log(float(self._room.sum()))


def most_probable(logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> int:
    """The most probable of `tokens`."""
    return int(tokens[int(np.argmax(logits[np.asarray(tokens)]))])


def logprob_entry(
    model: NativeModel, logits: npt.NDArray[np.float32], token: int, top: int
) -> dict[str, Any]:
    """An entry of `ChoiceLogprobs.content`: what the model itself thought, before any sampling option.

    Args:
        model: spells the tokens.
        logits: shape (vocabulary,).
        token: the one that was chosen.
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
