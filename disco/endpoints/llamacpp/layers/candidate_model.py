"""The device's layers, run for many candidates of the next token at once: what an attacker with the open model does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.model.sequences import Rows
from disco.errors import LocalModelError

__all__ = ["CANDIDATES", "CandidateModel"]

CANDIDATES: Final = 64
"""Most candidates of a pass."""


class CandidateModel(DeviceModel):
    """Sequences with a common prefix, which one cache holds once, each with another token behind it.

    Mutable: `_length`, the tokens of the prefix.
    """

    def __init__(self, path: Path, *, context_tokens: int, threads: int) -> None:
        """Load the file.

        Args:
            path: the device's part of a model.
            context_tokens: most tokens of a prefix and its next token.
            threads: of the computation.

        Raises:
            ModelFileError: the file is not usable, or another part.
            LocalModelError: llama.cpp refused it.
        """
        super().__init__(
            path,
            context_tokens=context_tokens,
            threads=threads,
            batch_tokens=CANDIDATES,
            gpu_layers=-1,
            keep_loading=lambda: True,
            slots=CANDIDATES,
        )
        self.restart()

    def _settle(self, params: Any) -> None:
        super()._settle(params)
        params.kv_unified = True
        params.n_ctx = self.context_tokens + CANDIDATES

    def restart(self) -> None:
        """Forget the prefix."""
        self._lib.llama_memory_clear(self._memory, True)
        self._length = 0

    def states(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]:
        """Return the state behind the device's layers for each token as the next one, shape (tokens, hidden).

        Args:
            ids: 1 to `CANDIDATES` tokens.

        Returns:
            A view that the next pass overwrites.

        Raises:
            LocalModelError: llama.cpp failed.
        """
        self._forget_candidates()
        self._reader.begin()
        self.compute([Rows(slot, self._length, [int(token)], 1) for slot, token in enumerate(ids)])
        rows = self._reader.rows
        if len(rows) != len(ids):
            raise LocalModelError(f"llama.cpp gave {len(rows)} states for {len(ids)} tokens.")
        return rows

    def append(self, token: int) -> None:
        """Make a token part of the prefix."""
        self.states([token])
        for slot in range(1, CANDIDATES):
            self._lib.llama_memory_seq_cp(self._memory, 0, slot, self._length, self._length + 1)
        self._length += 1

    def _forget_candidates(self) -> None:
        for slot in range(CANDIDATES):
            self._lib.llama_memory_seq_rm(self._memory, slot, self._length, -1)
