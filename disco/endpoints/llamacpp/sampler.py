"""Choosing the next token with llama.cpp's samplers, and the probabilities it was chosen from."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.native import NativeModel
from disco.endpoints.llamacpp.params import Sampling, refuse

__all__ = ["Sampler", "logprob_entry", "most_probable"]

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp then takes one from the system


class Sampler:
    """A chain of llama.cpp samplers; a context manager, because llama.cpp must free it.

    Args:
        model: the model whose logits it reads.
        sampling: the request's parameters.
        written: ids of the answer so far; penalties count them.

    Raises:
        EndpointFailure: BAD_REQUEST for a JSON schema that llama.cpp cannot turn into a grammar.
    """

    def __init__(self, model: NativeModel, sampling: Sampling, written: Sequence[int]) -> None:
        self._lib, self._context, self._vocab = model.handles
        self._chain: Any = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        try:
            for part in self._parts(model, sampling):
                self._lib.llama_sampler_chain_add(self._chain, part)
        except BaseException:
            self.close()
            raise
        if sampling.json_schema is None:
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
        if sampling.json_schema is not None:
            yield self._grammar(sampling.json_schema)
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

    def _grammar(self, json_schema: str) -> Any:
        grammars = importlib.import_module("llama_cpp.llama_grammar")
        try:
            grammar = grammars.json_schema_to_gbnf(json_schema)
        except Exception as exc:
            raise refuse("This JSON schema cannot be turned into a grammar.", "response_format") from exc
        part = self._lib.llama_sampler_init_grammar(self._vocab, grammar.encode(), b"root")
        if not part:
            raise refuse("llama.cpp does not accept this JSON schema's grammar.", "response_format")
        return part

    def sample(self) -> int:
        """Choose the next token and remember it."""
        return int(self._lib.llama_sampler_sample(self._chain, self._context, -1))

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
