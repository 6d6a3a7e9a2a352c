"""What the device's layers have computed: each sequence's tokens and their states, shared by drafter and target.

A token that was drafted need not be computed again when it is verified: its state is here already. Both sides say which
tokens they mean, whole sequences each time, so neither can take a state of other tokens for its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.slots import shared_length
from disco.endpoints.llamacpp.layers.device_model import DeviceModel

__all__ = ["DeviceStates"]

_GROWTH: Final = 256  # positions


class DeviceStates:
    """The sequences of a device's part of a model. Threads take turns: the target's, and those of drafters.

    Mutable: `_ids`, the tokens in the cache of each sequence; `_states`, theirs; `_newest`, the sequence and length
    behind which the model's logits stand.

    Args:
        model: the device's part.
        dtype: in which states are kept: that of the wire.

    A method is called, and the model's logits are used, within `for_target` or `behind_target`.
    """

    def __init__(self, model: DeviceModel, dtype: np.dtype[Any]) -> None:
        self._lock = threading.Lock()
        self._next = (
            threading.Lock()
        )  # held by the target while it waits, so that no drafter gets in before it
        self._model = model
        self._dtype = dtype
        self._ids: list[list[int]] = [[] for _ in range(model.slots)]
        self._states = [np.zeros((0, model.hidden), dtype) for _ in range(model.slots)]
        self._newest = (-1, -1)

    @contextmanager
    def for_target(self) -> Iterator[None]:
        """Have the model as soon as the pass that is being computed is over."""
        with self._next, self._lock:
            yield

    @contextmanager
    def behind_target(self) -> Iterator[None]:
        """Have the model when the target does not want it. Otherwise a drafter that goes on and on would hold it."""
        with self._next:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def rows(self, slot: int, ids: Sequence[int], at: int) -> npt.NDArray[Any]:
        """Return the states of a sequence's tokens from a position on, shape (len(ids) - at, hidden); a copy.

        Args:
            slot: the sequence.
            ids: all of its tokens.
            at: the first position that is wanted.
        """
        known = shared_length(self._ids[slot], ids)
        if known < len(ids):
            self._compute(slot, ids, known)
        return self._states[slot][at : len(ids)].copy()

    def stand_behind(self, slot: int, ids: Sequence[int]) -> None:
        """See to it that the model's logits are those behind the last of a sequence's tokens."""
        known = shared_length(self._ids[slot], ids)
        if known == len(ids) and self._newest != (slot, known):
            known -= 1  # its logits are lost
        if known < len(ids):
            self._compute(slot, ids, known)

    def slot_of(self, ids: Sequence[int], at_least: int) -> int | None:
        """Return the sequence that begins most like `ids`; None where none shares the first `at_least` tokens."""
        shared = [shared_length(known, ids) for known in self._ids]
        best = max(range(len(shared)), key=shared.__getitem__)
        return best if shared[best] >= at_least else None

    def forget(self) -> None:
        """Empty all sequences."""
        self._model.forget()
        for known in self._ids:
            known.clear()
        self._newest = (-1, -1)

    def _compute(self, slot: int, ids: Sequence[int], known: int) -> None:
        mine = self._ids[slot]
        if len(mine) > known:
            del mine[known:]
            if not self._model.cut(slot, known):
                mine.clear()
                known = 0
        self._newest = (-1, -1)
        while known < len(ids):
            piece = ids[known : known + self._model.most_rows]
            computed = self._model.compute_states(slot, known, piece)
            self._keep(slot, known, computed)
            mine.extend(piece)
            known += len(piece)
        self._newest = (slot, known)

    def _keep(self, slot: int, at: int, computed: npt.NDArray[np.float32]) -> None:
        kept, end = self._states[slot], at + len(computed)
        if end > len(kept):
            larger = np.zeros((end + max(_GROWTH, end // 2), self._model.hidden), self._dtype)
            larger[:at] = kept[:at]
            self._states[slot] = kept = larger
        # What does not fit float16 becomes infinite here, and is refused with its remedy where it is sent.
        with np.errstate(over="ignore"):
            kept[at:end] = computed
