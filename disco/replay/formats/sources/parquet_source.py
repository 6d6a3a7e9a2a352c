"""Parquet files, batch by batch; needs pyarrow (`disco-llm[replay]`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disco.errors import ConfigurationError
from disco.replay.formats.format_adapter import Adapter
from disco.replay.formats.sources.batches import ROWS, Batch, Cells, Column, Ragged

__all__ = ["ParquetSource", "pyarrow"]

# Column chunks are read through a buffer of this size, not whole: memory stays flat for any row group.
_BUFFER_BYTES = 1 << 18


def pyarrow() -> Any:
    """Return the pyarrow module, with its Parquet part imported.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 (an extra; heavy)
        import pyarrow.compute  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigurationError(
            'Parquet files need pyarrow; install it with: pip install "disco-llm[replay]"'
        ) from missing
    return pa


class ParquetSource:
    """A Parquet file. Mutable: the position.

    Raises:
        ConfigurationError: pyarrow is missing, or the file is not a Parquet file.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pa = pyarrow()
        try:
            self._file = self._pa.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (self._pa.ArrowException, OSError) as broken:
            raise ConfigurationError(
                f"{path} is not a complete Parquet file; fetch or write it again"
            ) from broken

    @property
    def columns(self) -> Sequence[str]:
        return [str(name) for name in self._file.schema_arrow.names]

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        return [self.columns]

    def close(self) -> None:
        self._file.close()

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        wanted = [name for name in self.columns if name not in adapter.drops]
        place = 1
        try:
            for found in self._file.iter_batches(batch_size=ROWS, columns=wanted):
                columns = {name: self._column(found.column(name)) for name in wanted}
                yield Batch(columns, range(place, place + found.num_rows))
                place += found.num_rows
        except (self._pa.ArrowException, OSError) as broken:
            raise ConfigurationError(
                f"{self.path} is damaged after row {place - 1}; fetch or write it again"
            ) from broken

    def _column(self, array: Any) -> Column:
        types = self._pa.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_list(array.type) or types.is_large_list(array.type):
            inner = array.type.value_type
            if types.is_floating(inner) or types.is_integer(inner):
                counts = self._pa.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
                values = array.flatten().to_numpy(zero_copy_only=False)
                return Ragged(counts.astype(np.int64), values.astype(np.float64))
        null = array.is_null().to_numpy(zero_copy_only=False)
        return Cells(array.to_numpy(zero_copy_only=False), null)
