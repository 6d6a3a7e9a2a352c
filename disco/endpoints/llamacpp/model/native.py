"""The part of llama.cpp's C interface that one answer at a time needs.

Only the worker thread may use an object of this module: two threads in one llama.cpp context abort the
whole process.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.endpoints.llamacpp.prompting.token_healing import PieceIndex
from disco.errors import ConfigurationError, LocalModelError

__all__ = ["Aborted", "NativeModel", "StopFlag", "Work", "load_library"]

# A library must not print: llama.cpp's own log goes here, all of it at DEBUG.
_log = logging.getLogger("disco.llamacpp")
_log.addHandler(logging.NullHandler())

_GGML_LOG_ERROR = 4
_DECODE_ABORTED = 2
_ERRORS_KEPT = 8
_log_callback: Any = None  # kept alive here: llama.cpp stores only a pointer to it
_errors: list[str] = []  # llama.cpp's error messages since a model began to load


class Work(Protocol):
    """Work that a model can be given; `flag` stops it."""

    flag: StopFlag

    def run(self, model: NativeModel) -> bool: ...

    def close(self) -> None: ...


def _strlen() -> Any:
    runtime = ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)
    return runtime.strlen


def load_library() -> Any:
    """Import llama_cpp, start its backend and send its log to this module's logger. Repeating it is harmless."""
    global _log_callback  # noqa: PLW0603 - must outlive every model
    library = importlib.import_module("llama_cpp")

    def on_log(level: int, text: bytes, _data: object) -> None:
        if level == _GGML_LOG_ERROR and len(_errors) < _ERRORS_KEPT:
            _errors.append(text.decode("utf-8", "replace").strip())
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", text.decode("utf-8", "replace").rstrip())

    if _log_callback is None:
        _log_callback = library.llama_log_callback(on_log)
        library.llama_backend_init()
    # Importing llama_cpp.Llama elsewhere may have set another callback in its place.
    library.llama_log_set(_log_callback, None)
    return library


def _reason() -> str:
    return _errors[0] if _errors else "no reason given"  # later messages repeat the first, less clearly


class NativeModel:
    """A loaded model with one context, and the token ids its KV cache holds.

    Mutable: `_cached` (ids at positions 0, 1, ... of the cache), `_fresh` (the logits belong to the last
    of them), `_flag`.

    Attributes:
        path, load_s, context_tokens, threads, batch_tokens: as loaded.
        batch_costs: how long batches took.
        template, bos_text, eos_text: what the model's chat template needs.
        index: the model's tokens by their bytes.
        vocabulary: fingerprint of the tokenizer.
        parameters: number of weights of the model.
    """

    def __init__(
        self,
        path: Path,
        *,
        context_tokens: int | None,
        threads: int,
        batch_tokens: int,
        gpu_layers: int,
        keep_loading: Callable[[], bool],
    ) -> None:
        """Load the model.

        Args:
            path: a GGUF file.
            context_tokens: size of the context; None takes what the model was trained with, at most 4,096.
            threads: for prompt and decoding alike.
            batch_tokens: how many prompt tokens are computed at once.
            gpu_layers: how many layers go to a GPU, -1 for all, where llama.cpp was built for a GPU.
            keep_loading: called while loading; returning False stops the loading.

        Raises:
            LocalModelError: llama.cpp refused the file or could not allocate the memory.
            ConfigurationError: the model is not a chat model.
        """
        began_at = time.perf_counter()
        header = check_model_file(path)
        self.path = path
        self.vocabulary = header.vocabulary
        self._lib = load_library()
        _errors.clear()
        self._model: Any = None
        self._context: Any = None
        try:
            self._open(context_tokens, threads, batch_tokens, gpu_layers, keep_loading)
        except BaseException:
            self.close()
            raise
        self.parameters = int(self._lib.llama_model_n_params(self._model))
        self.load_s = time.perf_counter() - began_at

    def _open(
        self,
        context_tokens: int | None,
        threads: int,
        batch_tokens: int,
        gpu_layers: int,
        keep_loading: Callable[[], bool],
    ) -> None:
        lib = self._lib
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        progress = lib.llama_progress_callback(lambda _progress, _data: keep_loading())
        params.progress_callback = progress
        self._model = lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            if not keep_loading():
                raise Aborted
            raise LocalModelError(f"llama.cpp could not load {self.path}: {_reason()}")
        if lib.llama_model_has_encoder(self._model) or not lib.llama_model_has_decoder(self._model):
            raise ConfigurationError(f"{self.path} is not a model that writes text; name a chat model.")
        trained = int(lib.llama_model_n_ctx_train(self._model))
        self.context_tokens = context_tokens or min(trained, 4096)
        self.threads, self.batch_tokens = threads, min(batch_tokens, self.context_tokens)
        self.batch_costs = BatchCosts(self.batch_tokens)

        params = lib.llama_context_default_params()
        params.n_ctx = self.context_tokens
        params.n_batch = params.n_ubatch = self.batch_tokens
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise LocalModelError(
                f"llama.cpp could not make a context of {self.context_tokens:,} tokens for {self.path}: "
                f"{_reason()}. A smaller context_tokens needs less memory."
            )
        self._memory = lib.llama_get_memory(self._context)
        self._abort = ctypes.cast(_strlen(), lib.ggml_abort_callback)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.vocabulary_tokens = int(lib.llama_vocab_n_tokens(self._vocab))
        self._cached: list[int] = []
        self._fresh = False
        self._room = (lib.llama_token * self.batch_tokens)()
        self._pieces = self._read_pieces()
        self.index = PieceIndex(self._pieces)
        self.bos_token = int(lib.llama_vocab_bos(self._vocab))
        self.bos_text = self._special_text(self.bos_token)
        self.eos_text = self._special_text(int(lib.llama_vocab_eos(self._vocab)))
        template = lib.llama_model_chat_template(self._model, None)
        self.template = None if template is None else template.decode("utf-8", "replace")
        self.begin(StopFlag())
        # Loads the pages of the weights and allocates the buffers; the first answer would wait for that.
        self.decode([max(self.bos_token, 0)])
        self.forget()

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = None

    # The interface of `job.Engine`

    lost: str | None = None  # never set: the model shares this process

    def serve(self, work: Work) -> bool:
        """Do the work; return False if it was paused. Its exceptions pass through."""
        self.begin(work.flag)
        return work.run(self)

    def drop(self, work: Work) -> None:
        """Free what paused work holds."""
        work.close()

    def signal(self, work: Work) -> None:
        """Do nothing: the model reads the flags itself."""

    # Vocabulary

    def _read_pieces(self) -> list[bytes]:
        # Some pieces are longer than any fixed buffer (a newline with 32 spaces); the call then returns
        # minus the length.
        lib, vocab = self._lib, self._vocab
        size = 64
        buffer = ctypes.create_string_buffer(size)
        pieces = []
        for token in range(self.vocabulary_tokens):
            length = lib.llama_token_to_piece(vocab, token, buffer, size, 0, False)
            if length < 0:
                size = -length
                buffer = ctypes.create_string_buffer(size)
                length = lib.llama_token_to_piece(vocab, token, buffer, size, 0, False)
            pieces.append(buffer.raw[: max(length, 0)])
        return pieces

    def _special_text(self, token: int) -> str:
        if token < 0:
            return ""
        text: bytes = self._lib.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token spells; none for control tokens."""
        return self._pieces[token]

    def spell(self, ids: Sequence[int]) -> bytes | None:
        """Return the bytes that `ids` spell together; None where one of them is no token of this model."""
        if any(not 0 <= token < self.vocabulary_tokens for token in ids):
            return None
        return b"".join(self._pieces[token] for token in ids)

    def ends_answer(self, token: int) -> bool:
        """Return True for end-of-turn and end-of-text tokens."""
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def grammar_vocabulary(self) -> Vocabulary:
        """The vocabulary for grammars, made when the first answer needs one."""
        ends = [token for token in range(self.vocabulary_tokens) if self.ends_answer(token)]
        tokenize = WeakMethod(self.tokenize)

        def ids(text: str) -> list[int]:
            method = tokenize()
            return [] if method is None else method(text, special=False)

        return Vocabulary(self._pieces, ends, ids)

    @property
    def wants_bos(self) -> bool:
        """Whether the model was trained with a begin-of-text token before every text."""
        return bool(self._lib.llama_vocab_get_add_bos(self._vocab)) and self.bos_token >= 0

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of a text, without any begin-of-text token.

        Args:
            text: the text to tokenize.
            special: read `<|im_end|>` and similar markers as control tokens rather than as text.
        """
        lib, data = self._lib, text.encode()
        room = len(data) + 8
        ids = (lib.llama_token * room)()
        count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if count < 0:
            room = -count
            ids = (lib.llama_token * room)()
            count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if count < 0:
            raise LocalModelError("llama.cpp could not tokenize the prompt.")
        return list(ids[:count])

    # Computation

    def begin(self, flag: StopFlag) -> None:
        """Make `flag` stop all computation from now on."""
        self._flag = flag
        self._lib.llama_set_abort_callback(self._context, self._abort, flag.address)

    def forget(self) -> None:
        """Empty the KV cache."""
        self._lib.llama_memory_clear(self._memory, True)
        self._cached, self._fresh = [], False

    def reuse(self, ids: Sequence[int]) -> int:
        """Keep the part of the KV cache that agrees with the beginning of `ids`, and drop the rest.

        Returns:
            How many of `ids` need not be computed again. The others must be given to `decode` before a token is
            sampled; if there are none, the logits are available.
        """
        self._truncate(self.reusable(ids))
        return len(self._cached)

    def reusable(self, ids: Sequence[int]) -> int:
        """Return what `reuse` would, and change nothing; `reuse` returns 0 where a model can keep no part."""
        shared = 0
        for cached, wanted in zip(self._cached, ids, strict=False):
            if cached != wanted:
                break
            shared += 1
        if shared == len(ids) and not (self._fresh and len(self._cached) == shared):
            shared -= 1  # the logits of that token are lost: compute the last token again
        return shared

    def _truncate(self, length: int) -> None:
        if length == len(self._cached):
            return
        if length <= 0 or not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            self.forget()  # recurrent models cannot drop only the last part
            return
        del self._cached[length:]
        self._fresh = False

    @property
    def cached(self) -> list[int]:
        """The ids in the KV cache, in order; a copy."""
        return list(self._cached)

    @property
    def length(self) -> int:
        """How many tokens the KV cache holds."""
        return len(self._cached)

    def keep(self, length: int) -> int:
        """Keep the first tokens of the cache and drop the rest.

        Returns:
            How many tokens are left: `length`, or none where the model cannot drop only the last part.
        """
        self._truncate(length)
        return len(self._cached)

    def decode(self, ids: Sequence[int], *, logits_from: int | None = None) -> None:
        """Compute at most `batch_tokens` tokens after what is in the cache.

        Args:
            ids: the tokens.
            logits_from: keep the logits of the tokens from this place on; None: of the last one only.

        Raises:
            Aborted: the flag was set; the cache is as before.
            LocalModelError: llama.cpp failed; the model must be loaded again.
        """
        count = len(ids)
        self._room[:count] = ids
        self._fresh = False
        batch = self._lib.llama_batch_get_one(self._room, count)
        if logits_from is not None:
            batch.logits = (ctypes.c_int8 * count)(*[0] * logits_from, *[1] * (count - logits_from))
        code = self._lib.llama_decode(self._context, batch)
        if code == 0:
            self._cached.extend(ids)
            self._fresh = True
            return
        if code == _DECODE_ABORTED:
            # Part of the batch may be in the cache: remove it again.
            kept = len(self._cached)
            if not self._lib.llama_memory_seq_rm(self._memory, 0, kept, -1):
                self.forget()
            raise Aborted
        raise LocalModelError(f"llama.cpp failed while computing (llama_decode returned {code}).")

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]:
        """Return one token's logits, shape (vocabulary,), float32; a view that the next `decode` overwrites.

        Args:
            place: of the token among those that `decode` was given; without `logits_from` only the last has
                logits.
        """
        pointer = self._lib.llama_get_logits_ith(self._context, place)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_tokens,))

    @property
    def handles(self) -> tuple[Any, Any]:
        """Return the library and the context, for the sampler."""
        return self._lib, self._context
