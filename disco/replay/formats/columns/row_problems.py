"""Rows that are not valid: reported with file, place, column and remedy, or dropped and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError

__all__ = ["FAILED", "Problem", "SkipLog", "Skipped"]

FAILED = "failed at the source"

_PLACES_KEPT = 3
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
        remedy: how to fix the row.
    """

    place: int
    reason: str
    remedy: str
    column: str | None = None
    value: Any = None

    def error(self, path: Path, unit: str) -> ConfigurationError:
        """Return the exception that reports the problem; `unit` is "line", "row" or "entry"."""
        where = f"{path}, {unit} {self.place}"
        if self.column is not None:
            where += f", column {self.column}"
        found = "" if self.value is None else f"{_shown(self.value)} is "
        return ConfigurationError(
            f"{where}: {found}{self.reason}; {self.remedy} (or leave such rows out with --skip-invalid, "
            "skip_invalid=True)"
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that were left out.

    Attributes:
        rows: number of rows.
        reasons: number of rows by reason.
        places: the first few places by reason, such as "line 7".
        remedies: how to fix a row, by reason; none for what failed at the source.
    """

    rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.rows > 0

    def __str__(self) -> str:
        if not self.rows:
            return "no rows were left out"
        rows = "1 row was" if self.rows == 1 else f"{self.rows:,} rows were"
        return f"{rows} left out: {self.listed()}"

    def listed(self) -> str:
        """Return how many rows were left out for each reason, and the first of them; empty where none was."""
        parts = []
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            first = ", ".join(self.places[reason])
            parts.append(f"{count:,} {reason} ({first}{', …' if count > len(self.places[reason]) else ''})")
        return "; ".join(parts)


class SkipLog:
    """Counts the rows that are left out. Mutable: `_reasons`, `_places`, `_remedies`."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._reasons: dict[str, int] = {}
        self._places: dict[str, list[str]] = {}
        self._remedies: dict[str, str] = {}

    def add(self, reason: str, place: int, remedy: str = "") -> None:
        """Count one row."""
        if remedy:
            self._remedies.setdefault(reason, remedy)
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        places = self._places.setdefault(reason, [])
        if len(places) < _PLACES_KEPT:
            places.append(f"{self._unit} {place}")

    @property
    def skipped(self) -> Skipped:
        """The rows that were left out so far."""
        return Skipped(
            rows=sum(self._reasons.values()),
            reasons=dict(self._reasons),
            places={reason: tuple(places) for reason, places in self._places.items()},
            remedies=dict(self._remedies),
        )


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    if len(text) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"
    return text
