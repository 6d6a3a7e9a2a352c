"""What an adapter is: the one thing to write when a new kind of file is to be read."""

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
"""Column for a source without arrival times: how long a request took, s; requests follow back to back."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one kind of file becomes the columns of a `Trace`.

    Files are read in batches (CSV lines, JSON objects, Parquet rows) and three steps, each optional, bring them to
    our columns; then every format goes through the same checks:

    1. `document`, for a benchmark that writes one JSON object per run: gives its requests as rows.
    2. `row`, for JSON: one object, nested as it likes, becomes one flat row; its keys are ours (see `renames` for
       those that are not) and what it does not know is None or left out. It returns None for a request that failed
       at the source: such rows are dropped and counted, they are not errors. It raises `BadCellError` where a value is
       not what it should be (`number` and `whole` do that).
    3. `renames` and `divide`: column by column, without a Python loop per row.

    Whatever is left and is no column of a trace becomes a feature. Units are converted here and nowhere else.

    Attributes:
        name: what `format=` and `--format` call it.
        about: one line for error messages.
        needs: columns (CSV, Parquet) or keys of a JSON object that must all be there; "auto" knows the format by them.
        renames: their name → our name.
        divide: our name → how many of their units are one of ours.
        drops: their columns that are not kept.
        row: see above.
        document: see above.
        failed: from numeric columns by our names, which requests failed at the source; bool, shape (n,).
        dates: arrival times are dates (ISO 8601, UTC where they name no zone), not numbers.
        from_zero: arrival times are moved so that the first request comes at 0.
        sorts: the source writes in another order than that of arrival. The file is then held in memory whole,
            even when it is read in chunks, and sorted.
        note: goes into `Trace.source`.
    """

    name: str
    about: str
    needs: frozenset[str]
    renames: Mapping[str, str] = field(default_factory=dict)
    divide: Mapping[str, float] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()
    row: Callable[[Row], Row | None] | None = None
    document: Callable[[Row], Iterable[Row | None]] | None = None
    failed: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.bool_]] | None = None
    dates: bool = False
    from_zero: bool = True
    sorts: bool = False
    note: str = ""

    def theirs(self, ours: str) -> str:
        """The source's own name of one of our columns, for error messages."""
        return next((theirs for theirs, name in self.renames.items() if name == ours), ours)


class BadCellError(Exception):
    """One value of one row is not what it should be.

    Attributes:
        column: the source's name of it.
        value: as it was found.
        reason: a few words that bad rows are counted by.
        remedy: what to do about it.
    """

    def __init__(self, column: str, value: Any, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.column = column
        self.value = value
        self.reason = reason
        self.remedy = remedy


def number(row: Row, column: str) -> float:
    """The finite number under that key of a JSON object.

    Raises:
        BadCellError: it is missing, or something else.
    """
    value = row.get(column)
    if value is None:
        raise BadCellError(column, None, "missing value", "every request needs it")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadCellError(column, value, "not a number", "write a finite number")
    return float(value)


def whole(row: Row, column: str) -> int:
    """The token count under that key of a JSON object.

    Raises:
        BadCellError: it is missing, or something else.
    """
    value = number(row, column)
    if value < 0 or value != int(value):
        raise BadCellError(column, row[column], "not a token count", "write a whole number, 0 or more")
    return int(value)
