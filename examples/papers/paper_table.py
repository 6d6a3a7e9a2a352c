"""A table of a paper's evaluation: our figures beside the printed ones, as strings."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UNKNOWN", "PaperTable"]

UNKNOWN = "–"
"""A cell without a figure."""


class PaperTable(NamedTuple):
    """A table of strings.

    Attributes:
        title: what the table shows; the paper's table or figure that it compares with.
        header: one name per column.
        rows: cells in the order of the header.
        notes: sentences below the table.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
