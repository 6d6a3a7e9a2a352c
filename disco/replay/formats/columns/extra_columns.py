"""Columns that are not columns of a trace: features, kept as numbers, true and false, or text."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco.replay.formats.columns.cells import Sieve
from disco.replay.formats.sources.batches import Cells, Column, Ragged

__all__ = ["Kind", "feature"]

Kind = Literal["number", "truth", "text", "other"] | None
"""The kind of a feature; None while every cell was empty; "other" is a Parquet type that is kept unchanged."""

# For longer texts a fixed-width array would take the length of the longest one for every row.
_WIDEST = 64
_LARGEST = 10**300
_TRUTHS = {"True": True, "true": True, "False": False, "false": False}
_MISFIT = "of another kind than the column was so far"


def feature(column: Column, name: str, kind: Kind, sieve: Sieve) -> tuple[NDArray[Any], Kind]:
    """Return a feature's array, shape (n,), and its kind.

    The first batch with a value decides the kind, so that every chunk of a file has the same kind. Unknown numbers
    are NaN, unknown texts are empty.

    Args:
        column: the cells.
        name: the source's name of the column.
        kind: the kind so far.
        sieve: gets the rows that do not fit the kind.
    """
    if isinstance(column, Cells):
        if column.values.dtype.kind in "biuf" and not column.null.any():
            return column.values, "truth" if column.values.dtype.kind == "b" else "number"
        if column.values.dtype.kind in "iuf":
            values = column.values.astype(np.float64)
            values[column.null] = np.nan
            return values, "number"
        if column.values.dtype.kind != "O" and not column.null.any():
            return column.values, "other"
    cells: Sequence[Any] = column.listed() if isinstance(column, Cells | Ragged) else column
    found = _kind(cells)
    if kind is None:
        kind = found
    if kind is None:
        return np.full(len(cells), np.nan), None
    if kind in {"text", "other"}:
        return _texts(cells), "text"
    if found not in (kind, None):
        cells = list(cells)
        for row, cell in enumerate(cells):
            if _kind([cell]) not in (kind, None):
                sieve.reject(
                    row,
                    name,
                    cell,
                    _MISFIT,
                    f"the first rows hold a {kind} each; write the same kind in all rows",
                )
                cells[row] = None
    if kind == "truth":
        for row, cell in enumerate(cells):
            if cell is None or cell == "":
                sieve.reject(row, name, None, "missing value", "write true or false in every row")
        return np.array([_TRUTHS.get(str(cell), False) for cell in cells], dtype=np.bool_), kind
    return _numbers(cells), kind


def _kind(cells: Sequence[Any]) -> Kind:
    kinds = set(map(type, cells)) - {type(None)}
    if not kinds:
        return None
    if kinds == {bool}:
        return "truth" if None not in cells else "text"
    if kinds <= {int, float}:
        return "number" if all(map(_fits, cells)) else "text"
    if kinds != {str}:
        return "text"
    said = set(cells) - {"", None}
    if not said:
        return None
    if said <= _TRUTHS.keys():
        return "truth" if len(cells) == sum(map(bool, cells)) else "text"
    return "number" if all(map(_is_number, said)) else "text"


def _fits(cell: float | None) -> bool:
    """Return whether an array can hold the number: JSON's whole numbers may have any length."""
    return cell is None or not isinstance(cell, int) or abs(cell) < _LARGEST


def _is_number(text: str) -> bool:
    if text[0] == "0" and text[1:].isdigit():
        return False  # a name such as 007
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(cells: Sequence[Any]) -> NDArray[Any]:
    try:
        if {type(cell) for cell in cells} <= {int, str}:
            return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    return np.array([math.nan if cell is None or cell == "" else float(cell) for cell in cells])


def _texts(cells: Sequence[Any]) -> NDArray[Any]:
    texts = [
        cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell, default=str)
        for cell in cells
    ]
    return np.array(texts, dtype=np.str_ if max(map(len, texts), default=0) <= _WIDEST else object)
