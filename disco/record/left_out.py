"""Rows and lines of a file that were left out, each with its place and the reason, in the same words everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SkipLog", "Skipped"]

_PLACES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that were left out.

    Attributes:
        rows: number of rows.
        reasons: number of rows by reason.
        places: the first few places by reason, such as "line 7".
        remedies: how to fix a row, by reason; none for what failed at the source.
        path: of the file.
    """

    rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    def __bool__(self) -> bool:
        return self.rows > 0

    def __str__(self) -> str:
        if not self.rows:
            return "no rows were left out"
        rows = "1 row was" if self.rows == 1 else f"{self.rows:,} rows were"
        return f"{rows} left out: {'; '.join(self.named())}"

    def named(self) -> list[str]:
        """Return for each reason the file, the first places and what is wrong there; the most frequent reason first."""
        told = []
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            places = self.places[reason]
            more = f" and {count - len(places):,} more" if count > len(places) else ""
            told.append(f"{self.path}, {', '.join(places)}{more}: {reason}")
        return told


class SkipLog:
    """Counts the rows that are left out. Mutable: `_reasons`, `_places`, `_remedies`.

    Args:
        path: of the file.
        unit: "line", "row" or "entry".
    """

    def __init__(self, path: str | Path, unit: str = "line") -> None:
        self._path = str(path)
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
            path=self._path,
        )
