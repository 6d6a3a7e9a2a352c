"""Rows that are not valid: reported with file, place, column and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError

__all__ = ["FAILED", "Problem"]

FAILED = "failed at the source"

# A longer value may be a prompt in the wrong column; prompts are never shown.
_LONGEST_SHOWN = 32


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one row is not valid.

    Attributes:
        place: line, row or entry, from 1.
        reason: a few words by which rows are counted.
        column: the source's name; None if the problem concerns the whole row.
        value: the value found; None if there was none.
        remedy: how to fix the row; empty where the reason says so.
        is_newer: the row is a newer disco's: of a log, too, it is left out only where the reader was asked to.
    """

    place: int
    reason: str
    remedy: str
    column: str | None = None
    value: Any = None
    is_newer: bool = False

    def error(self, path: Path, unit: str) -> ConfigurationError:
        """Return the exception that reports the problem; `unit` is "line", "row" or "entry"."""
        where = f"{path}, {unit} {self.place}"
        if self.column is not None:
            where += f", column {self.column}"
        found = "" if self.value is None else f"{_shown(self.value)} is "
        remedy = f"; {self.remedy}" if self.remedy else ""
        return ConfigurationError(
            f"{where}: {found}{self.reason}{remedy} (or leave such rows out with --skip-invalid, skip_invalid=True)"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    if len(text) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"
    return text
