"""Conversion of cells to arrays: fast if all cells are valid, else one by one, so that a bad cell has a place."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.replay.formats.columns.row_problems import Problem
from disco.replay.formats.sources.batches import Cells, Column, Ragged
from disco.replay.workload.trace import Gaps

__all__ = ["Sieve", "dates", "floats", "gaps", "whole_numbers"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOT_A_NUMBER = "not a number"
NAN = "not a number (NaN)"
MISSING = "missing value"
NEGATIVE = "negative"
NOT_FINITE = "not finite"
NOT_WHOLE = "not a whole number"
NOT_A_DATE = "not a date"

_NEEDED = "every request needs this value"
_LEAVE_EMPTY = "leave the cell empty (null in JSON and Parquet) where it is unknown"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Sieve:
    """The rows of one batch: which are not valid and why, and which failed at the source. Mutable: `bad`, `failed`."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.bad: dict[int, Problem] = {}
        self.failed: list[int] = []

    def reject(self, row: int, column: str, value: Any, reason: str, remedy: str) -> None:
        """Reject row number `row` of the batch; only the first reason is kept."""
        if row not in self.bad:
            self.bad[row] = Problem(self.places[row], reason, remedy, column, value)

    def reject_where(self, mask: Bools, column: str, values: Column, reason: str, remedy: str) -> None:
        """Reject every row under the mask."""
        if mask.any():
            for row in mask.nonzero()[0].tolist():
                self.reject(row, column, _cell(values, row), reason, remedy)


def floats(column: Column, name: str, sieve: Sieve, *, required: bool = False) -> Floats:
    """Return numbers, 0 or more, shape (n,); NaN where the cell is empty.

    Args:
        column: the cells.
        name: the source's name of the column.
        sieve: gets the rows whose cell is not such a number.
        required: whether empty cells are rejected, too.
    """
    values, empty = _numbers(column, name, sieve)
    sieve.reject_where(np.isnan(values) & ~empty, name, column, NAN, _NEEDED if required else _LEAVE_EMPTY)
    sieve.reject_where(np.isinf(values), name, column, NOT_FINITE, "write a finite number")
    sieve.reject_where(values < 0, name, column, NEGATIVE, "times and counts are 0 or more")
    if required:
        sieve.reject_where(empty, name, column, MISSING, _NEEDED)
    return values


def whole_numbers(column: Column, name: str, sieve: Sieve) -> Ints:
    """Return whole numbers, 0 or more, int64, shape (n,); 0 where the row was rejected."""
    exact = _exact(column)
    if exact is not None:
        sieve.reject_where(exact < 0, name, column, NEGATIVE, "a token count is 0 or more")
        return exact
    values = floats(column, name, sieve, required=True)
    known = np.isfinite(values) & (values >= 0) & (values < 2.0**53)
    values = np.where(known, values, 0.0)
    whole = values.astype(np.int64)
    sieve.reject_where(
        ~known | (whole != values), name, column, NOT_WHOLE, "tokens are counted in whole numbers"
    )
    return whole


def dates(column: Column, name: str, sieve: Sieve) -> Ints:
    """Return nanoseconds since 1970 of ISO 8601 dates, int64, shape (n,); 0 where the row was rejected."""
    if isinstance(column, Cells) and column.values.dtype.kind == "M":
        sieve.reject_where(column.null, name, column, MISSING, _NEEDED)
        ticks: Ints = column.values.astype("datetime64[ns]").view(np.int64)
        return np.where(column.null, 0, ticks)
    cells = _listed(column)
    quick = _quick_dates(cells)
    if quick is not None:
        return quick
    found = np.zeros(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells):
        try:
            at = dt.datetime.fromisoformat(cell.strip())
            since = (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)) - _EPOCH
            found[row] = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
        except (AttributeError, ValueError, OverflowError):
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                sieve.reject(row, name, None, MISSING, _NEEDED)
            else:
                sieve.reject(row, name, cell, NOT_A_DATE, "write it as 2023-11-16 18:15:46.680590")
    return found


def gaps(column: Column, name: str, sieve: Sieve) -> Gaps:
    """Return times between tokens, from lists or from text with ';' between the numbers; empty cells have no gaps."""
    if isinstance(column, Ragged):
        counts, values = column.counts, column.values
    else:
        cells = _listed(column)
        lists = [_gap_list(row, cell, name, sieve) for row, cell in enumerate(cells)]
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        values = np.array([gap for gaps in lists for gap in gaps], dtype=np.float64)
    offsets = np.zeros(counts.size + 1, dtype=np.int64)
    counts.cumsum(out=offsets[1:])
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        for at in wrong.nonzero()[0].tolist():
            row = int(offsets.searchsorted(at, side="right")) - 1
            reason = NEGATIVE if values[at] < 0 else NOT_A_NUMBER
            sieve.reject(row, name, float(values[at]), reason, "each gap is a time in seconds, 0 or more")
    return Gaps(offsets, values)


def _numbers(column: Column, name: str, sieve: Sieve) -> tuple[Floats, Bools]:
    """Return numbers, and where the cells are empty; NaN where a cell is empty or not a number."""
    if isinstance(column, Cells) and column.values.dtype.kind in "iuf":
        values = column.values.astype(np.float64)
        values[column.null] = np.nan
        return values, column.null
    cells = _listed(column)
    kinds = set(map(type, cells))
    try:
        if kinds <= {int, float}:
            return np.array(cells, dtype=np.float64), np.zeros(len(cells), dtype=np.bool_)
        if kinds == {str}:
            values = np.array([float(cell) if cell else math.nan for cell in cells])
            unknown = np.isnan(values)
            return values, (
                np.array([not cell for cell in cells], dtype=np.bool_) if unknown.any() else unknown
            )
    except (ValueError, OverflowError):
        pass  # the loop below finds the bad cells
    values = np.full(len(cells), np.nan)
    empty = np.zeros(len(cells), dtype=np.bool_)
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            empty[row] = True
            continue
        try:
            if isinstance(cell, bool) or not isinstance(cell, str | int | float):
                raise ValueError
            values[row] = float(cell)
        except (ValueError, OverflowError):
            empty[row] = True  # the row is rejected already: do not reject it as NaN, too
            sieve.reject(row, name, cell, NOT_A_NUMBER, "write a number with a decimal point, without units")
    return values, empty


def _exact(column: Column) -> Ints | None:
    """Return whole numbers without conversion to floats, if all cells are whole numbers; else None."""
    try:
        if isinstance(column, Cells):
            return (
                None
                if column.values.dtype.kind not in "iu" or column.null.any()
                else column.values.astype(np.int64)
            )
        if isinstance(column, Ragged):
            return None
        kinds = set(map(type, column))
        if kinds == {int}:
            return np.array(column, dtype=np.int64)
        if kinds == {str}:
            return np.array(list(map(int, column)), dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    return None


def _quick_dates(cells: Sequence[Any]) -> Ints | None:
    """Parse all cells at once, with the full resolution of the text, if all are plain UTC dates; else None."""
    if set(map(type, cells)) != {str}:
        return None
    plain = [
        cell[:-6] if cell[-6:] == "+00:00" else cell[:-1] if cell[-1:] == "Z" else cell for cell in cells
    ]
    # NumPy reads a bare number as a year, and wraps around outside the years that nanoseconds can represent.
    if min(map(len, plain)) < len("2023-11-16") or min(plain) < "1678" or max(plain) > "2262":
        return None
    if any("+" in cell or cell.count("-") != 2 for cell in plain):
        return None
    try:
        ticks: Ints = np.array(plain, dtype="datetime64[ns]").view(np.int64)
    except ValueError:
        return None
    return ticks


def _gap_list(row: int, cell: Any, name: str, sieve: Sieve) -> list[float]:
    if cell is None or cell == "":
        return []
    try:
        if isinstance(cell, str):
            return [float(gap) for gap in cell.split(";")]
        if isinstance(cell, list) and not any(isinstance(gap, bool | str) for gap in cell):
            return [float(gap) for gap in cell]
    except (TypeError, ValueError, OverflowError):
        pass
    remedy = "write a list of seconds, in CSV with ';' between them"
    sieve.reject(row, name, cell, "not a list of numbers", remedy)
    return []


def _listed(column: Column) -> Sequence[Any]:
    return column.listed() if isinstance(column, Cells | Ragged) else column


def _cell(column: Column, row: int) -> Any:
    if isinstance(column, Cells):
        found = None if column.null[row] else column.values[row]
        return found.item() if isinstance(found, np.generic) else found
    if isinstance(column, Ragged):
        return None
    cell = column[row]
    return None if isinstance(cell, str) and not cell.strip() else cell
