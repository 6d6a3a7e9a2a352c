"""Adapter: what to write so that disco reads a new kind of file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LASTS_S", "Adapter", "BadCellError", "Row", "number", "whole"]

Row = Mapping[str, Any]

LASTS_S = "lasts_s"
"""Column for a source without arrival times: duration of a request, s; requests follow back to back."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one kind of file becomes the columns of a `Trace`.

    Files are read in batches (CSV lines, JSON objects, Parquet rows). Three steps, each optional, convert them to the
    columns of a trace; then every format goes through the same checks:

    1. `document`, for a benchmark that writes one JSON object per run: returns its requests as rows.
    2. `row`, for JSON: one object, nested or not, becomes one flat row. Its keys are the columns of a trace (see
       `renames` for others); unknown values are None or left out. `row` returns None for a request that failed at the
       source: such rows are dropped and counted, they are not errors. It raises `BadCellError` for a value that is
       not valid (`number` and `whole` do that).
    3. `renames` and `divide`: column by column, without a Python loop per row.

    A column that remains and is not a column of a trace becomes a feature. Units are converted only here.

    Attributes:
        name: the format's name in `format=` and `--format`.
        about: one line for error messages.
        needs: columns (CSV, Parquet) or keys of a JSON object that must all exist; "auto" detects the format by them.
        renames: the source's name → the trace's name.
        divide: the trace's name → number of the source's units in one unit of the trace.
        drops: the source's columns that are not kept.
        row: see above.
        document: see above.
        failed: which requests failed at the source, from the numeric columns by the trace's names; bool, shape (n,).
        dates: arrival times are dates (ISO 8601, UTC if they name no zone), not numbers.
        from_zero: arrival times are shifted so that the first request comes at 0.
        sorts: the source writes in another order than that of arrival. The whole file is then held in memory and
            sorted, even when it is read in chunks.
        is_log: programs append to such a file, and one that is killed leaves half a line. So `row` is given each line
            as text, and lines that cannot be used are left out and counted even where the reader was not asked to.
        note: goes into `Trace.source`.
    """

    name: str
    about: str
    needs: frozenset[str]
    renames: Mapping[str, str] = field(default_factory=dict)
    divide: Mapping[str, float] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()
    row: Callable[[Any], Row | None] | None = None
    document: Callable[[Row], Iterable[Row | None]] | None = None
    failed: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.bool_]] | None = None
    dates: bool = False
    from_zero: bool = True
    sorts: bool = False
    is_log: bool = False
    note: str = ""

    def theirs(self, ours: str) -> str:
        """Return the source's name of one of the trace's columns, for error messages.

        Args:
            ours: the trace's name of the column.
        """
        return next((theirs for theirs, name in self.renames.items() if name == ours), ours)


class BadCellError(Exception):
    """One value of one row is not valid.

    Attributes:
        column: the source's name of the column; None if the problem concerns the whole row.
        value: the value as it was found.
        reason: a few words by which bad rows are counted.
        remedy: how to fix the value.
    """

    def __init__(self, column: str | None, value: Any, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.column = column
        self.value = value
        self.reason = reason
        self.remedy = remedy


def number(row: Row, column: str) -> float:
    """Return the finite number under a key of a JSON object.

    Raises:
        BadCellError: the value is missing, or not a finite number.
    """
    value = row.get(column)
    if value is None:
        raise BadCellError(column, None, "missing value", "every request needs this value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadCellError(column, value, "not a number", "write a finite number")
    return float(value)


def whole(row: Row, column: str) -> int:
    """Return the token count under a key of a JSON object.

    Raises:
        BadCellError: the value is missing, or not a token count.
    """
    value = number(row, column)
    if value < 0 or value != int(value):
        raise BadCellError(column, row[column], "not a token count", "write a whole number, 0 or more")
    return int(value)
