"""A part of a model that takes states instead of tokens: the layers in the cloud, and the head."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.graph_reader import GraphReader
from disco.endpoints.llamacpp.layers.layer_files import Part, read_layer_file
from disco.endpoints.llamacpp.model.library import forget_errors, load_library, reason, string_length
from disco.endpoints.llamacpp.model.loading import load_weights
from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.errors import LocalModelError

__all__ = ["StateModel", "StateRows"]

_ABORTED = 2


@dataclass(frozen=True, slots=True)
class StateRows:
    """States of consecutive positions of one sequence.

    Attributes:
        slot: the sequence.
        at: position of the first; the cache of the sequence must hold as many.
        states: shape (rows, hidden), float32 or float16.
        wanted_from: keep what comes out for the rows from this place on.
    """

    slot: int
    at: int
    states: npt.NDArray[np.floating[Any]] = field(repr=False)
    wanted_from: int = 0


class StateModel:
    """A part of a model behind an embedding: states in, states or logits out. For one thread.

    What the caches hold, the caller knows: a part of a batch whose rows begin at a position needs exactly as many
    tokens in its sequence; `cut` first where there are more.

    Attributes:
        file: what the file says of itself.
        hidden: length of a state.
        slots, context_tokens, most_rows: as made; `most_rows` not more than all contexts hold.

    Args:
        path: a file of the part.
        part: "cloud" gives states, "head" gives logits.
        context_tokens: of each sequence.
        slots: how many sequences.
        threads: of the computation.
        most_rows: of one batch, of all sequences together.
        gpu_layers: how many layers go to a GPU, -1 for all.
        keep_loading: called while loading; returning False stops it.

    Raises:
        ModelFileError: the file is not usable, or another part.
        LocalModelError: llama.cpp refused it.
    """

    def __init__(
        self,
        path: Path,
        part: Part,
        *,
        context_tokens: int,
        slots: int = 1,
        threads: int = 1,
        most_rows: int = 64,
        gpu_layers: int = -1,
        keep_loading: Callable[[], bool] = lambda: True,
    ) -> None:
        self.file = read_layer_file(path, part)
        self.hidden = self.file.hidden
        self.slots, self.context_tokens = slots, context_tokens
        # llama.cpp's batches are no larger than its contexts, and a larger one aborts the process.
        self.most_rows = min(most_rows, context_tokens * slots)
        self._reader: GraphReader | None = None
        self._lib = load_library()
        forget_errors()
        self._model: Any = None
        self._context: Any = None
        try:
            self._model = load_weights(path, gpu_layers=gpu_layers, keep_loading=keep_loading)
            self._open(threads)
        except BaseException:
            self.close()
            raise

    def _open(self, threads: int) -> None:
        lib, most = self._lib, self.most_rows
        params = lib.llama_context_default_params()
        params.n_ctx = self.context_tokens * self.slots
        params.n_seq_max, params.kv_unified = self.slots, False  # as in `SequenceModel`
        params.n_batch = params.n_ubatch = most
        params.n_threads = params.n_threads_batch = threads
        if self.file.part == "cloud":
            last = self.file.total_layers - self.file.layers - 1
            self._reader = GraphReader(lib, last, most, self.hidden)
            params.cb_eval = self._reader.callback
        params.no_perf = True
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise LocalModelError(
                f"llama.cpp could not make {self.slots} contexts of {self.context_tokens:,} tokens for "
                f"{self.file.path}: {reason()}. Fewer slots or a smaller context need less memory."
            )
        self._memory = lib.llama_get_memory(self._context)
        self._abort = ctypes.cast(string_length(), lib.ggml_abort_callback)
        self._vocabulary_tokens = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self._states = np.zeros((most, self.hidden), np.float32)
        self._at, self._where = np.zeros(most, np.int32), np.zeros(most, np.uintp)
        self._wanted, self._counts = np.zeros(most, np.int8), np.ones(most, np.int32)
        self._numbers = np.arange(self.slots, dtype=np.int32)
        batch = lib.llama_batch()
        batch.embd = self._states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.pos = self._at.ctypes.data_as(ctypes.POINTER(lib.llama_pos))
        batch.n_seq_id = self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = ctypes.cast(self._where.ctypes.data, ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id)))
        batch.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = batch
        self.begin(StopFlag())

    def begin(self, flag: StopFlag) -> None:
        """Make `flag` stop all computation from now on."""
        self._flag = flag
        self._lib.llama_set_abort_callback(self._context, self._abort, flag.address)

    def compute(self, parts: Sequence[StateRows]) -> list[npt.NDArray[np.float32]]:
        """Compute rows of different sequences in one pass.

        Args:
            parts: at most `most_rows` rows; several parts must be of consecutive sequences, in their order, and have
                equally many rows. llama.cpp would make several passes of others.

        Returns:
            For each part what came out for the rows that were wanted: states as they are behind the last layer, shape
            (wanted rows, hidden), or logits, shape (wanted rows, vocabulary). Views that the next pass overwrites.

        Raises:
            ValueError: the parts are not as above: rows of one sequence would come out as another's.
            Aborted: the flag was set; what the caches of these sequences hold behind the rows is not known.
            LocalModelError: llama.cpp failed.
        """
        self._check(parts)
        ends, end = [], 0
        for part in parts:
            begin, end = end, end + len(part.states)
            ends.append(len(part.states) - part.wanted_from)
            self._states[begin:end] = part.states
            self._at[begin:end] = np.arange(part.at, part.at + len(part.states))
            self._where[begin:end] = self._numbers.ctypes.data + 4 * part.slot
            self._wanted[begin : begin + part.wanted_from] = 0
            self._wanted[begin + part.wanted_from : end] = 1
        self._batch.n_tokens = end
        if self._reader is not None:
            self._reader.begin()
        code = self._lib.llama_decode(self._context, self._batch)
        if code == _ABORTED:
            raise Aborted
        if code != 0:
            raise LocalModelError(f"llama.cpp failed while computing (llama_decode returned {code}).")
        return np.split(self._outputs(sum(ends)), np.cumsum(ends)[:-1])

    def _check(self, parts: Sequence[StateRows]) -> None:
        first, rows = parts[0].slot, len(parts[0].states)
        if any(part.slot != first + place or len(part.states) != rows for place, part in enumerate(parts)):
            raise ValueError("parts of one pass must be of consecutive sequences and have equally many rows")
        if not (first >= 0 and first + len(parts) <= self.slots and 0 < rows * len(parts) <= self.most_rows):
            raise ValueError(
                f"a pass takes 1 to {self.most_rows} rows of the sequences 0 to {self.slots - 1}"
            )

    def _outputs(self, count: int) -> npt.NDArray[np.float32]:
        if self._reader is not None:
            if len(self._reader.rows) != count:
                raise LocalModelError(
                    f"llama.cpp gave {len(self._reader.rows)} states where {count} were asked for: this version names "
                    "or orders its results differently. Use another version of llama-cpp-python."
                )
            return self._reader.rows
        if count == 0:
            return np.zeros((0, self._vocabulary_tokens), np.float32)
        pointer = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(count, self._vocabulary_tokens))

    def cut(self, slot: int, length: int) -> None:
        """Keep the first tokens of a sequence."""
        if length > 0 and self._lib.llama_memory_seq_rm(self._memory, slot, length, -1):
            return
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        if length > 0:
            raise LocalModelError(f"{self.file.path} cannot drop the last tokens of its cache.")

    def forget(self) -> None:
        """Empty all sequences, and overwrite their caches."""
        self._lib.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = None
