"""A loaded model whose context holds several sequences, and computes rows of some of them at once.

Only the model's own thread may use an object of this module: two threads in one llama.cpp context abort the whole
process.

A cache takes its memory when its context is made, whether it is used or not. So the first context is small, and a
larger one takes its place when an answer needs it: what the sequences hold moves there, and the numbers of an answer
stay the same to the bit.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.context_size import context_size, first_tokens
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

__all__ = ["MOST_ROWS", "Rows", "SequenceModel"]

MOST_ROWS: Final = 32
"""Most rows of one sequence in a batch of windows. From 64 on llama.cpp takes another kernel, with other rounding."""
_ABORTED: Final = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive tokens of one sequence.

    Attributes:
        slot: the sequence.
        at: position of the first token; the cache of the sequence must hold as many.
        ids: the tokens.
        logits_from: keep the logits of the tokens from this place on.
    """

    slot: int
    at: int
    ids: Sequence[int] = field(repr=False)
    logits_from: int = 0


class SequenceModel(ModelTokens):
    """A model for several answers. What the caches hold, the caller knows.

    Mutable: `_context`, `room_tokens`, `_outgrown` (the one before, while its logits are the newest), `_flag`, `cuts`,
    `keeper`.

    Attributes:
        path, load_s, context_tokens, threads, batch_tokens: as loaded.
        batch_costs: how long batches took.
        slots: how many sequences there are.
        most_rows: most tokens of a pass.
        room_tokens: how many tokens each sequence has memory for; `make_room` gets more.
        parameters: number of weights of the model.
        keeper: saves prompts and takes them back; None: none is saved.
        loras: adapters that are added to the weights, with the paths of their files.
    """

    fills_up = True
    cuts = True
    keeper: PromptKeeper | None = None
    loras: tuple[Lora, ...] = ()
    _grows: ClassVar[bool] = True

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
            context_tokens: how long a sequence may become; None: what `context_size` gives it.
            threads: for prompt and decoding alike.
            batch_tokens: how many prompt tokens are computed at once.
            gpu_layers: how many layers go to a GPU, -1 for all, where llama.cpp was built for a GPU.
            keep_loading: called while loading; returning False stops the loading.
            slots: how many sequences there are; None: what `context_size` gives.
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
        self.slots, self.context_tokens = size.slots, size.context_tokens
        self.threads, self.batch_tokens = threads, min(batch_tokens, size.context_tokens)
        self.batch_costs = BatchCosts(self.batch_tokens)
        self.most_rows = max(self.batch_tokens, MOST_ROWS)
        self._model: Any = None
        self._context: Any = None
        self._outgrown: Any = None
        self._flag = StopFlag()
        try:
            room = first_tokens(header, size) if self._grows else size.context_tokens
            self.room_tokens = min(max(room, self.most_rows), size.context_tokens)
            self._open(gpu_layers, keep_loading)
        except BaseException:
            self.close()
            raise
        self.parameters = int(self._lib.llama_model_n_params(self._model))
        self.load_s = time.perf_counter() - began_at

    def _open(self, gpu_layers: int, keep_loading: Callable[[], bool]) -> None:
        lib = self._lib
        self._model = load_weights(self.path, gpu_layers=gpu_layers, keep_loading=keep_loading)
        if lib.llama_model_has_encoder(self._model) or not lib.llama_model_has_decoder(self._model):
            raise ConfigurationError(f"{self.path} is not a model that writes text; name a chat model.")
        self._adapters = [self._adapter(lora) for lora in self.loras]
        self._abort = ctypes.cast(string_length(), lib.ggml_abort_callback)
        self._context = self._context_of(self.room_tokens)
        self._memory = lib.llama_get_memory(self._context)
        self._read_vocabulary(self._model)
        most = self.most_rows
        self._ids, self._at = np.zeros(most, np.int32), np.zeros(most, np.int32)
        self._wanted, self._counts = np.zeros(most, np.int8), np.ones(most, np.int32)
        self._numbers = np.arange(self.slots, dtype=np.int32)
        self._where = np.zeros(most, np.uintp)  # pointers to each token's only sequence
        self._first = self._numbers.ctypes.data
        batch = lib.llama_batch()
        batch.token = self._ids.ctypes.data_as(ctypes.POINTER(lib.llama_token))
        batch.pos = self._at.ctypes.data_as(ctypes.POINTER(lib.llama_pos))
        batch.n_seq_id = self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = ctypes.cast(self._where.ctypes.data, ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id)))
        batch.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = batch

    def _adapter(self, lora: Lora) -> Any:
        """Load an adapter; the model frees it."""
        forget_errors()
        adapter = self._lib.llama_adapter_lora_init(self._model, os.fsencode(lora.file))
        if not adapter:
            raise LocalModelError(
                f"llama.cpp could not add the LoRA adapter {lora.file} to {self.path}: {reason()}. Name an adapter "
                "that was trained on this model, or leave lora out."
            )
        if self._lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            raise ConfigurationError(
                f"{lora.file} is an activated LoRA, which begins at certain tokens of an answer; disco's engine "
                'adds an adapter to the whole answer. runtime="llama-server" serves it.'
            )
        return ctypes.cast(adapter, ctypes.c_void_p)

    def _context_of(self, room: int) -> Any:
        lib = self._lib
        params = lib.llama_context_default_params()
        # llama.cpp takes no batch that is longer than all of its context, and aborts the process.
        params.n_ctx = max(room * self.slots, self.most_rows)
        # Each sequence has a cache of its own: in a common one the numbers of an answer depend on where its tokens lie,
        # and so on what else is there (measured: by up to 0.9 in a logit of SmolLM2-135M; else by nothing at all).
        params.n_seq_max, params.kv_unified = self.slots, False
        params.n_batch = params.n_ubatch = self.most_rows
        params.n_threads = params.n_threads_batch = self.threads
        params.no_perf = True
        self._settle(params)
        forget_errors()
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise LocalModelError(
                f"llama.cpp could not make a context of {room:,} tokens for each of {self.slots} "
                f"answers for {self.path}: {reason()}. A smaller context_tokens, or fewer slots, need less memory."
            )
        lib.llama_set_abort_callback(context, self._abort, self._flag.address)
        if self._adapters:
            count = len(self._adapters)
            whole = ctypes.cast(
                (ctypes.c_void_p * count)(*self._adapters), lib.llama_set_adapters_lora.argtypes[1]
            )
            scales = (ctypes.c_float * count)(*(lora.scale for lora in self.loras))
            if code := lib.llama_set_adapters_lora(context, whole, count, scales):
                lib.llama_free(context)
                raise LocalModelError(
                    f"llama.cpp could not use the LoRA adapters (llama_set_adapters_lora: {code})."
                )
        return context

    def _settle(self, params: Any) -> None:
        """Change what else a context is made with."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        for context in (self._outgrown, self._context):
            if context:
                self._lib.llama_free(context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._outgrown = self._context = self._model = None

    def begin(self, flag: StopFlag) -> None:
        """Make `flag` stop all computation from now on."""
        self._flag = flag
        self._lib.llama_set_abort_callback(self._context, self._abort, flag.address)

    def forget(self) -> None:
        """Empty all sequences."""
        self._lib.llama_memory_clear(self._memory, True)

    def compute(self, parts: Sequence[Rows]) -> list[int]:
        """Compute rows of different sequences in one pass.

        llama.cpp makes it one pass where the sequences are consecutive and have equally many rows.

        Returns:
            The place in the batch of the first row of each part, for `logits`.

        Raises:
            Aborted: the flag was set; what the caches of these sequences hold behind the rows is not known.
            LocalModelError: llama.cpp failed; the model must be loaded again.
        """
        self.make_room(max(part.at + len(part.ids) for part in parts))
        if self._outgrown:
            self._lib.llama_free(self._outgrown)
            self._outgrown = None
        first, end = [], 0
        for part in parts:
            begin, end = end, end + len(part.ids)
            first.append(begin)
            self._ids[begin:end] = part.ids
            self._at[begin:end] = np.arange(part.at, part.at + len(part.ids))
            self._where[begin:end] = self._first + 4 * part.slot
            self._wanted[begin : begin + part.logits_from] = 0
            self._wanted[begin + part.logits_from : end] = 1
        self._batch.n_tokens = end
        code = self._lib.llama_decode(self._context, self._batch)
        if code == _ABORTED:
            raise Aborted
        if code != 0:
            raise LocalModelError(f"llama.cpp failed while computing (llama_decode returned {code}).")
        return first

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]:
        """Return one token's logits, shape (vocabulary,), float32; a view that the next `compute` overwrites.

        Args:
            place: of the token in the newest pass.
        """
        pointer = self._lib.llama_get_logits_ith(self._outgrown or self._context, place)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_tokens,))

    def synchronise(self) -> None:
        """Return once the newest pass is computed. A GPU computes on behind `compute`."""
        self._lib.llama_synchronize(self._context)

    def make_room(self, tokens: int) -> None:
        """See to it that each sequence can hold so many tokens, up to `context_tokens`. The newest logits stay.

        Raises:
            LocalModelError: llama.cpp could not allocate the memory, or did not move what the sequences hold. All is as
                it was.
        """
        if min(tokens, self.context_tokens) <= self.room_tokens:
            return
        lib, room, old = self._lib, self.room_tokens, self._context
        while room < tokens:
            room *= 2
        room = min(room, self.context_tokens)
        context = self._context_of(room)
        try:
            self._move_to(context)
        except BaseException:
            lib.llama_free(context)
            raise
        if self._outgrown:  # the newest pass is older than the context that is given up now
            lib.llama_free(old)
        else:
            self._outgrown = old
        self._context, self._memory, self.room_tokens = context, lib.llama_get_memory(context), room

    def _move_to(self, context: Any) -> None:
        """Copy what the sequences hold."""
        lib, memory = self._lib, self._lib.llama_get_memory(context)
        for sequence in range(self.slots):
            held, why = self.sequence_tokens(sequence), ""
            try:
                state = self._state(sequence)
                given = (ctypes.c_uint8 * len(state)).from_buffer(state)
                lib.llama_state_seq_set_data(context, given, len(given), sequence)
            except MemoryError:
                why = "no memory for the copy"
            if why or lib.llama_memory_seq_pos_max(memory, sequence) + 1 != held:
                raise LocalModelError(
                    f"llama.cpp could not move a cache of {held:,} tokens to a larger one: {why or reason()}. "
                    "A smaller context_tokens, or fewer slots, need less memory."
                )

    def reading_batch(self, prompt_tokens: int) -> int:
        """Return how many tokens of a prompt with so many are best read at once."""
        del prompt_tokens  # a pass over more is no slower a token
        return self.batch_tokens

    def cut(self, slot: int, length: int) -> bool:
        """Keep the first tokens of a sequence; return False where the model can keep no part, and none is left."""
        if length > 0 and self._lib.llama_memory_seq_rm(self._memory, slot, length, -1):
            return True
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return length == 0

    def state_bytes(self, sequence: int) -> int:
        """Return the size of a sequence's state, bytes."""
        return int(self._lib.llama_state_seq_get_size(self._context, sequence))

    def sequence_tokens(self, sequence: int) -> int:
        """Return how many tokens the cache of a sequence holds."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def sequence_state(self, sequence: int, length: int) -> memoryview | None:
        """Return the state of the first tokens of a sequence, for `put_sequence_state`.

        Copies what is in memory: a millisecond for 20 MB. Of a part, llama.cpp gives the state only where the rest is
        put aside meanwhile. If that cannot be put back, the sequence is empty, also where an error is raised.

        Returns:
            None where the model can keep no part of its cache.
        """
        whole, held = self._state(sequence), self.sequence_tokens(sequence)
        if length == held:
            return whole
        if not self.cut(sequence, length):
            return None
        try:
            return self._state(sequence)
        finally:
            self.put_sequence_state(sequence, whole, held)

    def put_sequence_state(self, sequence: int, state: bytearray | memoryview, tokens: int) -> None:
        """Put a state of so many tokens in the place of a sequence, which is empty if llama.cpp refuses it."""
        self.make_room(tokens)
        self.cut(sequence, 0)
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        if self._lib.llama_state_seq_set_data(self._context, buffer, len(buffer), sequence) != len(buffer):
            self.cut(sequence, 0)

    def _state(self, sequence: int) -> memoryview:
        buffer = (ctypes.c_uint8 * self.state_bytes(sequence))()
        size = self._lib.llama_state_seq_get_data(self._context, buffer, len(buffer), sequence)
        return memoryview(buffer).cast("B")[:size]
