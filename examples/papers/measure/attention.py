"""Reads a model's attention: how much the last tokens of a prompt look at each token before them.

llama.cpp hands out intermediate results by a callback (`llama_context_params.cb_eval`). The weights are among them only
without flash attention, so that this takes a context of its own. On the texts of docs/concepts/refine.md the words of
the question find the right sentences better; `python -m papers.measure refine --arms all` shows it for another model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.endpoints.llamacpp import ggml_functions
from disco.errors import LocalModelError
from papers.local_model import LocalModel

__all__ = ["AttentionReader"]

_WEIGHTS = b"kq_soft_max"  # llama.cpp's name of the weights, with the layer behind it


class _Tensor(ctypes.Structure):
    """The beginning of ggml's `struct ggml_tensor`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
    )


class AttentionReader:
    """A second context of a loaded model, without flash attention. Mutable: `_cached`, `_captured`, `_wanted`.

    Args:
        model: the loaded model; it must outlive the reader.

    Raises:
        LocalModelError: llama.cpp could not make the context.
    """

    def __init__(self, model: LocalModel) -> None:
        self._lib = model.lib
        ggml = ggml_functions(self._lib)
        self._name = ggml.ggml_get_name
        self._name.argtypes, self._name.restype = [ctypes.c_void_p], ctypes.c_char_p
        self._get = ggml.ggml_backend_tensor_get
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._get.restype = None
        self._batch_tokens = model.batch_tokens
        self._cached: list[int] = []
        self._wanted = False
        self._captured: list[NDArray[np.float64]] = []
        params = self._lib.llama_context_default_params()
        params.n_ctx = model.context_tokens
        params.n_batch = params.n_ubatch = model.batch_tokens
        params.n_threads = params.n_threads_batch = model.threads
        params.flash_attn_type = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
        # llama.cpp keeps only a pointer to the callback.
        self._callback = self._lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._context: Any = self._lib.llama_init_from_model(model.model, params)
        if not self._context:
            raise LocalModelError("llama.cpp could not make a context without flash attention.")

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self._context:
            self._lib.llama_free(self._context)
        self._context = None

    def weights(self, ids: Sequence[int], window: int) -> NDArray[np.float64]:
        """Return how much the last tokens look at each token, shape (tokens,); mean over queries, heads and layers.

        Args:
            ids: the prompt. What it shares with the last one is not computed again.
            window: how many of the last tokens are observed; at least 1, and fewer than the prompt has.

        Raises:
            LocalModelError: llama.cpp failed, or handed out no weights.
        """
        start = len(ids) - window
        shared = 0
        while shared < min(start, len(self._cached)) and self._cached[shared] == ids[shared]:
            shared += 1
        memory = self._lib.llama_get_memory(self._context)
        if not self._lib.llama_memory_seq_rm(memory, 0, shared, -1):
            self._lib.llama_memory_clear(memory, True)
            shared = 0
        for first in range(shared, start, self._batch_tokens):
            self._decode(ids[first : min(first + self._batch_tokens, start)])
        self._captured, self._wanted = [], True
        try:
            for first in range(start, len(ids), self._batch_tokens):
                self._decode(ids[first : first + self._batch_tokens])
        finally:
            self._wanted = False
            self._cached = [*ids]
        if not self._captured:
            raise LocalModelError("llama.cpp handed out no attention weights; this model may have none.")
        total = np.zeros(len(ids))
        for weights in self._captured:  # the cache may be longer than the prompt
            total[: min(len(ids), len(weights))] += weights[: len(ids)]
        return total / len(self._captured)

    def _decode(self, ids: Sequence[int]) -> None:
        tokens = (self._lib.llama_token * len(ids))(*ids)
        if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(ids))):
            self._cached = []
            raise LocalModelError("llama.cpp failed while computing attention.")

    def _on_node(self, tensor: int, ask: bool, _data: object) -> bool:  # noqa: FBT001 - llama.cpp calls it
        if ask:  # whether this node's result is wanted
            return self._wanted and bool(self._name(tensor).startswith(_WEIGHTS))
        keys, queries, heads, _ = _Tensor.from_address(tensor).ne
        values = np.empty((heads, queries, keys), np.float32)
        self._get(tensor, values.ctypes.data, 0, values.nbytes)
        self._captured.append(values.mean(axis=(0, 1), dtype=np.float64))
        return True
