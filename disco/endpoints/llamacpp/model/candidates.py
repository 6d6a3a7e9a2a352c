"""The table of candidates that llama.cpp's samplers work on, and which tokens need not be in it."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Candidates", "preselected"]

_DATA: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_GROUPS: Final = 512
"""Of how many groups the highest logits are compared; more find fewer superfluous candidates, and cost more."""


def preselected(
    logits: npt.NDArray[np.float32],
    ids: npt.NDArray[np.intp] | None,
    count: int,
    changed: Collection[int] = (),
) -> npt.NDArray[np.intp] | None:
    """Return places of `logits` among which the `count` highest are, whatever becomes of the `changed` tokens.

    The lowest of the n highest maxima of groups is exceeded or reached by at least n logits, so that all tokens below
    it are out. With ties none is left out that a sort could have taken.

    Args:
        logits: of the tokens that may come next, shape (n,).
        ids: their ids, shape (n,), rising; None: all tokens of the vocabulary.
        count: how many of the highest are wanted; at least 1.
        changed: ids of tokens whose logits are yet to be changed, up or down; no other is changed.

    Returns:
        Rising places; None where all of them must be taken.
    """
    needed = count + len(changed)
    per_group = len(logits) // _GROUPS
    if needed > _GROUPS or per_group < 2:
        return None
    highest = logits[: per_group * _GROUPS].reshape(per_group, _GROUPS).max(axis=0)
    bound = np.partition(highest, _GROUPS - needed)[_GROUPS - needed]
    taken = logits >= bound
    if changed:
        wanted = np.fromiter(changed, np.intp, len(changed))
        if ids is None:
            taken[wanted] = True
        else:
            places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            taken[places[ids[places] == wanted]] = True
    return np.flatnonzero(taken)


class Candidates:
    """A table of candidates, made once for an answer and filled for each token. Mutable: the table.

    Args:
        library: of `load_library`.
        tokens: size of the vocabulary.
    """

    def __init__(self, library: Any, tokens: int) -> None:
        self._lib = library
        self._table = np.zeros(tokens, _DATA)
        self._pointer = self._table.ctypes.data_as(library.llama_token_data_p)

    def apply(
        self, chain: Any, ids: npt.NDArray[np.integer], logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], int]:
        """Let a chain of samplers work on candidates.

        Args:
            chain: the chain.
            ids: of the candidates, shape (n,), n at least 1.
            logits: theirs, shape (n,).

        Returns:
            Ids and logits of the candidates that are left, shape (m,), valid until the next call; and the place of the
            one that the chain chose among them, 0 where it chose none.
        """
        rows = self._table[: len(ids)]
        rows["id"] = ids
        rows["logit"] = logits
        rows["p"] = 0.0
        array = self._lib.llama_token_data_array(self._pointer, len(ids), -1, False)
        self._lib.llama_sampler_apply(chain, ctypes.byref(array))
        left = rows[: array.size]
        if (
            ctypes.addressof(array.data.contents) != self._table.ctypes.data
        ):  # a sampler has put its own in its place
            view = ctypes.cast(array.data, ctypes.POINTER(ctypes.c_byte * (array.size * _DATA.itemsize)))
            left = np.frombuffer(view.contents, _DATA)
        return left["id"], left["logit"], max(array.selected, 0)
