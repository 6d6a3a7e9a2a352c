"""A slot of a model that many answers share, as a `PromptKeeper` sees it."""

from __future__ import annotations

from collections.abc import Sequence

from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.slots import Slot, shared_length

__all__ = ["SlotCache"]


class SlotCache:
    """What a slot holds can be saved, and what was saved put in its place. Changes the slot's tokens.

    Args:
        model: whose slot it is.
        slot: the slot.
    """

    def __init__(self, model: BatchModel, slot: Slot) -> None:
        self._model = model
        self._slot = slot

    @property
    def cached(self) -> list[int]:
        """The tokens that it holds, in order."""
        return self._slot.ids

    def reusable(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` need not be computed again."""
        return min(shared_length(self._slot.ids, ids), len(ids) - 1)

    def state_bytes(self) -> int:
        """Return the size of what it holds, bytes."""
        return self._model.state_bytes(self._slot.number)

    def state(self, length: int) -> memoryview | None:
        """Return the state of its first tokens, for `put_state`; it is as before.

        Returns:
            None where the model can keep no part of it.
        """
        try:
            return self._model.sequence_state(self._slot.number, length)
        finally:
            self._is_whole()

    def put_state(self, ids: Sequence[int], state: bytearray) -> bool:
        """Put a state in place of what it holds: then `ids`; if llama.cpp refuses it, nothing, and False."""
        self._model.put_sequence_state(self._slot.number, state, len(ids))
        self._slot.ids[:] = ids
        return self._is_whole()

    def _is_whole(self) -> bool:
        """Return whether the sequence holds what the slot says; else both are empty from now on."""
        if self._model.sequence_tokens(self._slot.number) == len(self._slot.ids):
            return True
        self._model.cut(self._slot.number, 0)
        self._slot.ids.clear()
        return False
