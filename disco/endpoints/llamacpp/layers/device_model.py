"""The device's part of a model: tokens in; out come the states behind its layers, and the adapter's logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.graph_reader import GraphReader
from disco.endpoints.llamacpp.layers.layer_files import LayerFile, read_layer_file
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.errors import LocalModelError

__all__ = ["DeviceModel"]


class DeviceModel(SequenceModel):
    """See `SequenceModel`. Its logits are those of the draft: first layers, adapter, head.

    Attributes:
        file: what the file says of itself.
        hidden: length of a state.
    """

    _grows = False  # few layers take little memory

    def __init__(self, path: Path, **options: Any) -> None:
        """Load the file; options as for `SequenceModel`.

        Raises:
            ModelFileError: the file is not usable, or another part.
            LocalModelError: llama.cpp refused it.
        """
        self.file: LayerFile = read_layer_file(path, "device")
        self.hidden = self.file.hidden
        super().__init__(path, **options)

    def _settle(self, params: Any) -> None:
        self._reader = GraphReader(self._lib, self.file.layers - 1, self.most_rows, self.hidden)
        params.cb_eval = self._reader.callback

    def compute_states(
        self, slot: int, at: int, ids: Sequence[int], *, logits_from: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Compute tokens of one sequence, whose cache must hold as many as come before them.

        Args:
            slot: the sequence.
            at: position of the first token.
            ids: at most as many as a batch takes.
            logits_from: keep the draft's logits of the tokens from this place on; None: of the last one only. The
                number of tokens: of none, which saves the head's time.

        Returns:
            The states, shape (tokens, hidden); a view that the next pass overwrites.

        Raises:
            Aborted, LocalModelError: as from `compute`.
        """
        self._reader.begin()
        first = len(ids) - 1 if logits_from is None else logits_from
        self.compute([Rows(slot, at, ids, first)])
        rows = self._reader.rows
        if len(rows) != len(ids):
            raise LocalModelError(
                f"llama.cpp gave {len(rows)} states for {len(ids)} tokens: this version names its results differently. "
                "Use another version of llama-cpp-python."
            )
        return rows

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first tokens of a sequence's cache those of another."""
        lib = self._lib
        lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        # Each sequence has a cache of its own. llama.cpp copies whole caches; asked for a part, it aborts the process.
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.cut(target, length)
