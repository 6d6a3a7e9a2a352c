"""Contents of a file before interpretation: batches of columns, with the place of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.replay.formats.columns.row_problems import Problem
from disco.replay.formats.format_adapter import Adapter

__all__ = ["ROWS", "Batch", "Cells", "Column", "Ragged", "Source"]

ROWS = 16_384
"""Rows per batch: many enough that NumPy's overhead per call vanishes, few enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A Parquet column.

    Attributes:
        values: shape (n,); undefined where `null`.
        null: where the file has no value; bool, shape (n,).
    """

    values: NDArray[Any]
    null: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.values.size)

    def listed(self) -> list[Any]:
        """Return the cells as from JSON: None where the file has no value."""
        cells = self.values.astype(object)
        cells[self.null] = None
        return list(cells.tolist())


@dataclass(frozen=True, slots=True)
class Ragged:
    """A Parquet column of lists of numbers.

    Attributes:
        counts: number of values in each row; int64, shape (n,).
        values: the values of all rows; float64, shape (counts.sum(),), NaN where null.
    """

    counts: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.counts.size)

    def listed(self) -> list[Any]:
        """Return a list of numbers per row."""
        return [part.tolist() for part in np.split(self.values, self.counts.cumsum()[:-1])]


# CSV: text. JSON: any JSON value. Parquet: `Cells` and `Ragged`.
Column = Sequence[Any] | Cells | Ragged


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows, in file order.

    Attributes:
        columns: by the source's names.
        places: line, row or entry of each row, from 1.
        problems: rows that could not be parsed; not in `columns`.
        failed: places of rows that failed at the source; not in `columns`.
    """

    columns: Mapping[str, Column]
    places: Sequence[int]
    problems: Sequence[Problem] = ()
    failed: Sequence[int] = ()


class Source(Protocol):
    """An open file."""

    path: Path
    unit: str  # of places: "line", "row" or "entry"

    @property
    def columns(self) -> Sequence[str]:
        """The column names of the header, or the keys of the first object."""

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        """By which a format is detected: `columns`; of JSON objects, the keys of each of the first ones."""

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        """Yield the rows in batches; may be called once."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""
