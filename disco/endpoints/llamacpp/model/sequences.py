"""A loaded model whose context holds several sequences, and computes rows of some of them at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.errors import LocalModelError

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


class SequenceModel(NativeModel):
    """A model for several answers. What the caches hold, the caller knows.

    The methods of `NativeModel` that compute or change the cache use the first sequence, and are not for callers of
    `compute`.
    """

    fills_up = True
    cuts = True

    def _most_rows(self) -> int:
        return max(self.batch_tokens, MOST_ROWS)

    def reserve(self) -> None:
        """Make the arrays that `compute` fills."""
        most = self.most_rows = self._most_rows()
        self._ids, self._at = np.zeros(most, np.int32), np.zeros(most, np.int32)
        self._wanted, self._counts = np.zeros(most, np.int8), np.ones(most, np.int32)
        self._numbers = np.arange(self.slots, dtype=np.int32)
        self._where = np.zeros(most, np.uintp)  # pointers to each token's only sequence
        self._first = self._numbers.ctypes.data
        lib = self._lib
        batch = lib.llama_batch()
        batch.token = self._ids.ctypes.data_as(ctypes.POINTER(lib.llama_token))
        batch.pos = self._at.ctypes.data_as(ctypes.POINTER(lib.llama_pos))
        batch.n_seq_id = self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = ctypes.cast(self._where.ctypes.data, ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id)))
        batch.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = batch

    def compute(self, parts: Sequence[Rows]) -> list[int]:
        """Compute rows of different sequences in one pass.

        llama.cpp makes it one pass where the sequences are consecutive and have equally many rows.

        Returns:
            The place in the batch of the first row of each part, for `logits`.

        Raises:
            Aborted: the flag was set; what the caches of these sequences hold behind the rows is not known.
            LocalModelError: llama.cpp failed; the model must be loaded again.
        """
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

    def synchronise(self) -> None:
        """Return once the newest pass is computed. A GPU computes on behind `compute`."""
        self._lib.llama_synchronize(self._context)

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
        whole = self._state(sequence)
        if length == self.sequence_tokens(sequence):
            return whole
        if not self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1):
            return None
        try:
            return self._state(sequence)
        finally:
            self.put_sequence_state(sequence, whole)

    def put_sequence_state(self, sequence: int, state: bytearray | memoryview) -> None:
        """Put a state in the place of a sequence, which is empty if llama.cpp refuses it."""
        remove = self._lib.llama_memory_seq_rm
        remove(self._memory, sequence, -1, -1)
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        taken = self._lib.llama_state_seq_set_data(self._context, buffer, len(buffer), sequence)
        if taken != len(buffer):
            remove(self._memory, sequence, -1, -1)

    def _state(self, sequence: int) -> memoryview:
        buffer = (ctypes.c_uint8 * self.state_bytes(sequence))()
        size = self._lib.llama_state_seq_get_data(self._context, buffer, len(buffer), sequence)
        return memoryview(buffer).cast("B")[:size]
