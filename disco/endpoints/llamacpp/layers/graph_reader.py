"""Reads states where llama.cpp's graph has computed them, exactly as they are."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.model.library import ggml_functions

__all__ = ["GraphReader"]


class GraphReader:
    """The states behind one layer of the newest pass.

    llama.cpp hands out states only behind the output norm. Before it, they are read by its evaluation callback, which
    is called for each node of the graph: about 35 nodes a layer, 2 µs each here.

    Mutable: `_rows`, and `_count`, how many of them are filled. A pass that gives more rows than there is room for,
    such as a second one without `begin`, leaves them out.

    Args:
        library: of `load_library`.
        layer: number of the layer in the file.
        most_rows: of a pass.
        hidden: length of a state.

    Attributes:
        callback: for the context's parameters `cb_eval`; must outlive the context.
    """

    def __init__(self, library: Any, layer: int, most_rows: int, hidden: int) -> None:
        self._rows = np.zeros((most_rows, hidden), np.float32)
        self._count = 0
        self.callback = self._made(library, b"l_out-%d" % layer)

    def begin(self) -> None:
        """Forget the rows of the pass before."""
        self._count = 0

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """The states of the pass, shape (rows, hidden): a view that the next pass overwrites.

        In the file's last layer there are only the rows that were asked for.
        """
        return self._rows[: self._count]

    def _made(self, library: Any, name: bytes) -> Any:
        functions = ggml_functions(library)
        name_of, size_of, read = (
            functions.ggml_get_name,
            functions.ggml_nbytes,
            functions.ggml_backend_tensor_get,
        )
        name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p
        size_of.argtypes, size_of.restype = [ctypes.c_void_p], ctypes.c_size_t
        read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        read.restype = None
        rows, row_bytes = self._rows, self._rows.strides[0]

        def on_tensor(tensor: int, ask: bool, _data: object) -> bool:  # noqa: FBT001 - llama.cpp calls it
            if name_of(tensor) != name:
                return not ask
            if not ask:  # the data are there
                size = size_of(tensor)
                end = self._count + size // row_bytes
                if self._count < end <= len(rows):
                    read(tensor, rows[self._count :].ctypes.data, 0, size)
                    self._count = end
            return True

        return library.ggml_backend_sched_eval_callback(on_tensor)
