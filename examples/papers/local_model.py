"""A model on this machine, token by token: for measurements that need logits, which no endpoint gives.

Each token's logits are those that disco's own engine gets: the same context, the same batches.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from disco.endpoints.llamacpp import ChatTemplate, load_library, resolve_model
from disco.errors import ConfigurationError, LocalModelError

__all__ = ["LocalModel"]

_MOST_CONTEXT_TOKENS: Final = 4096
# As a verify server's. More rows at once are quicker, and round otherwise: of 160 tokens of a Q8_0 model's own, it
# called 7 wrong in one batch, and none in batches of 64 and fewer.
_BATCH_TOKENS: Final = 64


class LocalModel:
    """A loaded model and the tokens in its cache, for one thread; a context manager.

    Attributes:
        threads, context_tokens, batch_tokens: as loaded.
        vocabulary: what its tokens are called; models with the same one can draft for each other.
        template: its chat template; None: it has none.

    Args:
        name: a short name, a GGUF file or hf:owner/repo/file.
        threads: of llama.cpp.
        context_tokens: size of the context; None: what the model was trained with, at most 4,096.
        batch_tokens: how many tokens are computed at once, at most.

    Raises:
        DiscoError: the file or the model cannot be loaded; its type says why.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        threads: int,
        context_tokens: int | None = None,
        batch_tokens: int = _BATCH_TOKENS,
    ) -> None:
        self.lib = lib = load_library()
        path = resolve_model(name)
        self.context: Any = None
        settings = lib.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model: Any = lib.llama_model_load_from_file(os.fsencode(path), settings)
        if not self.model:
            raise LocalModelError(f"llama.cpp could not load {path}.")
        self.threads = threads
        self.context_tokens = context_tokens or min(
            int(lib.llama_model_n_ctx_train(self.model)), _MOST_CONTEXT_TOKENS
        )
        self.batch_tokens = min(batch_tokens, self.context_tokens)
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = self.context_tokens, 1
        settings.n_batch = settings.n_ubatch = self.batch_tokens
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = True
        self.context = lib.llama_init_from_model(self.model, settings)
        if not self.context:
            self.close()
            raise LocalModelError(
                f"llama.cpp could not make a context of {self.context_tokens:,} tokens for {path}."
            )
        self._memory = lib.llama_get_memory(self.context)
        self._cached: list[int] = []
        self._fresh = False  # whether the newest logits are those behind the last token of the cache
        self._vocab = lib.llama_model_get_vocab(self.model)
        tokens = range(int(lib.llama_vocab_n_tokens(self._vocab)))
        self._pieces = [self._piece(token) for token in tokens]
        self.vocabulary = tuple(lib.llama_vocab_get_text(self._vocab, token) for token in tokens)
        template = lib.llama_model_chat_template(self.model, None)
        self.template: str | None = None if template is None else template.decode()
        self.decode(
            [max(self._bos, 0)]
        )  # loads the weights' pages: the first measurement would wait for them
        self.forget()

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self.context:
            self.lib.llama_free(self.context)
        if self.model:
            self.lib.llama_model_free(self.model)
        self.context = self.model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Tokens

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(self.lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False))
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    @property
    def _bos(self) -> int:
        return int(self.lib.llama_vocab_bos(self._vocab))

    @property
    def vocabulary_tokens(self) -> int:
        """How many tokens there are."""
        return len(self._pieces)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token spells; none for a control token."""
        return self._pieces[token]

    def ends_answer(self, token: int) -> bool:
        """Whether a token ends a turn or a text."""
        return bool(self.lib.llama_vocab_is_eog(self._vocab, token))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return a text's tokens, without one for its beginning.

        Args:
            text: the text.
            special: whether `<|im_end|>` and its like are control tokens, or text.
        """
        data = text.encode()
        room = len(data) + 8
        ids = (self.lib.llama_token * room)()
        count = self.lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if count < 0:
            raise LocalModelError("llama.cpp could not tokenize a text.")
        return list(ids[:count])

    def render(self, messages: Sequence[Mapping[str, str]], template: str | None = None) -> str:
        """Return a conversation up to the beginning of the answer, by the model's chat template or this one.

        Raises:
            ConfigurationError: the model has no chat template.
        """
        source = template or self.template
        if source is None:
            raise ConfigurationError("the model has no chat template; name an instruct model")
        bos, eos = (self._text(token) for token in (self._bos, int(self.lib.llama_vocab_eos(self._vocab))))
        return ChatTemplate(source, eos_text=eos, bos_text=bos).render(messages)

    def _text(self, token: int) -> str:
        return "" if token < 0 else self.vocabulary[token].decode("utf-8", "replace")

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return a conversation's tokens, as the model's own chat template writes it.

        Raises:
            ConfigurationError: it is longer than the model's context, or the model has no template.
        """
        ids = self.tokenize(self.render(messages), special=True)
        if self.lib.llama_vocab_get_add_bos(self._vocab) and self._bos >= 0 and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        if len(ids) >= self.context_tokens:
            raise ConfigurationError(
                f"a prompt has {len(ids):,} tokens; the model's context has {self.context_tokens:,}. Shorten it."
            )
        return ids

    # Computing

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return len(self._cached)

    def forget(self) -> None:
        """Empty the cache."""
        self.lib.llama_memory_clear(self._memory, True)
        self._cached, self._fresh = [], False

    def keep(self, length: int) -> int:
        """Keep the first tokens of the cache, and drop the rest; return how many are left.

        They are `length`, or none where the model cannot drop the last part alone.
        """
        if length != len(self._cached):
            if length <= 0 or not self.lib.llama_memory_seq_rm(self._memory, 0, length, -1):
                self.forget()
            else:
                del self._cached[length:]
                self._fresh = False
        return len(self._cached)

    def reuse(self, ids: Sequence[int]) -> int:
        """Keep what the cache shares with the beginning of these tokens; return how many need not be computed.

        If there are none to compute, the logits behind the last one are there.
        """
        shared = 0
        for cached, wanted in zip(self._cached, ids, strict=False):
            if cached != wanted:
                break
            shared += 1
        if shared == len(ids) and not (self._fresh and len(self._cached) == shared):
            shared -= 1  # its logits are lost: it is computed again
        return self.keep(shared)

    def decode(self, ids: Sequence[int], *, logits_from: int | None = None) -> None:
        """Compute at most `batch_tokens` tokens behind the cache.

        Args:
            ids: the tokens.
            logits_from: from which place on their logits are kept; None: of the last one only.

        Raises:
            LocalModelError: llama.cpp failed.
        """
        count = len(ids)
        tokens = (self.lib.llama_token * count)(*ids)  # the batch has only a pointer to it
        batch = self.lib.llama_batch_get_one(tokens, count)
        if logits_from is not None:
            batch.logits = (ctypes.c_int8 * count)(*[0] * logits_from, *[1] * (count - logits_from))
        code = self.lib.llama_decode(self.context, batch)
        if code:
            raise LocalModelError(f"llama.cpp failed while computing (llama_decode returned {code}).")
        self._cached.extend(ids)
        self._fresh = True

    def logits(self, place: int = -1) -> NDArray[np.float32]:
        """Return the logits behind a token of the newest `decode`, shape (vocabulary,); the next overwrites them."""
        pointer = self.lib.llama_get_logits_ith(self.context, place)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_tokens,))
