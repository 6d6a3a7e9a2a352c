"""A loaded model with one context: the part of llama.cpp's C interface that one answer at a time needs.

Only the worker thread may use an object of this module: two threads in one llama.cpp context abort the
whole process.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.context_size import context_size
from disco.endpoints.free_memory import free_bytes
from disco.endpoints.llamacpp.model.added_files import Lora, find_lora
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.library import forget_errors, load_library, reason, string_length
from disco.endpoints.llamacpp.model.loading import load_weights
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.endpoints.llamacpp.model.tokens import ModelTokens
from disco.errors import ConfigurationError, LocalModelError

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper

__all__ = ["Aborted", "NativeModel", "StopFlag", "load_library"]

_DECODE_ABORTED = 2


class NativeModel(ModelTokens):
    """A loaded model with one context, and the token ids its KV cache holds.

    Mutable: `_cached` (ids at positions 0, 1, ... of the cache), `_fresh` (the logits belong to the last
    of them), `_flag`.

    Attributes:
        path, load_s, context_tokens, threads, batch_tokens: as loaded.
        batch_costs: how long batches took.
        slots: how many sequences the context has room for; this class uses the first only.
        parameters: number of weights of the model.
        keeper: saves prompts and takes them back; None: none is saved.
        loras: adapters that are added to the weights, with the paths of their files.
    """

    keeper: PromptKeeper | None = None
    loras: tuple[Lora, ...] = ()

    def __init__(
        self,
        path: Path,
        *,
        context_tokens: int | None,
        threads: int,
        batch_tokens: int,
        gpu_layers: int,
        keep_loading: Callable[[], bool],
        slots: int | None = 1,
        loras: Sequence[Lora] = (),
    ) -> None:
        """Load the model.

        Args:
            path: a GGUF file.
            context_tokens: size of the context; None: what `context_size` gives it.
            threads: for prompt and decoding alike.
            batch_tokens: how many prompt tokens are computed at once.
            gpu_layers: how many layers go to a GPU, -1 for all, where llama.cpp was built for a GPU.
            keep_loading: called while loading; returning False stops the loading.
            slots: how many sequences, each with room for `context_tokens`; None: what `context_size` gives.
            loras: adapters to add to the weights.

        Raises:
            LocalModelError: llama.cpp refused a file or could not allocate the memory.
            ModelFileError: a file is missing or not what it should be.
            ConfigurationError: the model is not a chat model, or was trained with less context.
        """
        began_at = time.perf_counter()
        header = check_model_file(path)
        self.path = path
        self.loras = tuple(Lora(str(find_lora(lora, header)), lora.scale) for lora in loras)
        self.vocabulary = header.vocabulary
        self._lib = load_library()
        forget_errors()
        size = context_size(
            header,
            file_bytes=sum(file.stat().st_size for file in (path, *(Path(lora.file) for lora in self.loras))),
            free_bytes=free_bytes(),
            context_tokens=context_tokens,
            slots=slots,
        )
        self.slots = size.slots
        self._model: Any = None
        self._context: Any = None
        try:
            self._open(size.context_tokens, threads, batch_tokens, gpu_layers, keep_loading)
        except BaseException:
            self.close()
            raise
        self.parameters = int(self._lib.llama_model_n_params(self._model))
        self.load_s = time.perf_counter() - began_at

    def _open(
        self,
        context_tokens: int,
        threads: int,
        batch_tokens: int,
        gpu_layers: int,
        keep_loading: Callable[[], bool],
    ) -> None:
        lib = self._lib
        self._model = load_weights(self.path, gpu_layers=gpu_layers, keep_loading=keep_loading)
        if lib.llama_model_has_encoder(self._model) or not lib.llama_model_has_decoder(self._model):
            raise ConfigurationError(f"{self.path} is not a model that writes text; name a chat model.")
        self.context_tokens = context_tokens
        self.threads, self.batch_tokens = threads, min(batch_tokens, self.context_tokens)
        self.batch_costs = BatchCosts(self.batch_tokens)

        params = lib.llama_context_default_params()
        params.n_ctx = self.context_tokens * self.slots
        # Each sequence has a cache of its own: in a common one the numbers of an answer depend on where its tokens lie,
        # and so on what else is there (measured: by up to 0.9 in a logit of SmolLM2-135M; else by nothing at all).
        params.n_seq_max, params.kv_unified = self.slots, False
        params.n_batch = params.n_ubatch = self._most_rows()
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._settle(params)
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise LocalModelError(
                f"llama.cpp could not make a context of {self.context_tokens:,} tokens for {self.path}: "
                f"{reason()}. A smaller context_tokens needs less memory."
            )
        self._add_loras()
        self._memory = lib.llama_get_memory(self._context)
        self._abort = ctypes.cast(string_length(), lib.ggml_abort_callback)
        self._cached: list[int] = []
        self._fresh = False
        self._room = (lib.llama_token * self.batch_tokens)()
        self._read_vocabulary(self._model)
        self.begin(StopFlag())
        # Loads the pages of the weights and allocates the buffers; the first answer would wait for that.
        self.decode([max(self.bos_token, 0)])
        self.forget()

    def _add_loras(self) -> None:
        """Add the adapters to the weights, for all sequences; the model frees them."""
        if not self.loras:
            return
        lib, adapters = self._lib, []
        for lora in self.loras:
            forget_errors()
            adapter = lib.llama_adapter_lora_init(self._model, os.fsencode(lora.file))
            if not adapter:
                raise LocalModelError(
                    f"llama.cpp could not add the LoRA adapter {lora.file} to {self.path}: {reason()}. Name an adapter "
                    "that was trained on this model, or leave lora out."
                )
            if lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
                raise ConfigurationError(
                    f"{lora.file} is an activated LoRA, which begins at certain tokens of an answer; disco's engine "
                    'adds an adapter to the whole answer. runtime="llama-server" serves it.'
                )
            adapters.append(ctypes.cast(adapter, ctypes.c_void_p))
        count = len(adapters)
        whole = ctypes.cast((ctypes.c_void_p * count)(*adapters), lib.llama_set_adapters_lora.argtypes[1])
        scales = (ctypes.c_float * count)(*(lora.scale for lora in self.loras))
        if code := lib.llama_set_adapters_lora(self._context, whole, count, scales):
            raise LocalModelError(
                f"llama.cpp could not use the LoRA adapters (llama_set_adapters_lora: {code})."
            )

    def _settle(self, params: Any) -> None:
        """Change what else the context is made with."""

    def _most_rows(self) -> int:
        """Return how many tokens a batch may have."""
        return self.batch_tokens

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = None

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
        shared = 0
        for cached, wanted in zip(self._cached, ids, strict=False):
            if cached != wanted:
                break
            shared += 1
        if shared == len(ids) and not (self._fresh and len(self._cached) == shared):
            shared -= 1  # the logits of that token are lost: compute the last token again
        self._truncate(shared)
        return len(self._cached)

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
