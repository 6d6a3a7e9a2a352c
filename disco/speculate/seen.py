"""What the choice of a window may look at: recent measurements of one drafter and one target."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite

__all__ = ["Seen", "VerifyCurve"]


class VerifyCurve:
    """How long one batch of the target takes, by its rows: linear between measured points.

    Below the first point the time is that of the first point, and beyond the last one the last slope goes on. A larger
    batch never counts as faster than a smaller one.

    Attributes:
        points: (rows, seconds), rising in both.
    """

    __slots__ = ("_known", "_rows", "_seconds", "points")

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """Make a curve from (rows, seconds) in any order; where rows are given twice, the larger time counts.

        Raises:
            ValueError: there is no point, or one has rows below 1 or a time that no batch can have.
        """
        given = sorted((int(rows), float(seconds)) for rows, seconds in points)
        if not given or any(rows < 1 or not (s >= 0 and isfinite(s)) for rows, s in given):
            raise ValueError("a verify curve needs points with at least one row and a finite time each")
        longest = accumulate((seconds for _, seconds in given), max)
        by_rows = dict(zip((rows for rows, _ in given), longest, strict=True))
        self.points = tuple(by_rows.items())
        self._rows = list(by_rows)
        self._seconds = list(by_rows.values())
        self._known = dict(by_rows)  # and what was asked for since

    def s(self, rows: int) -> float:
        """Return the seconds that a batch of so many rows takes."""
        seconds = self._known.get(rows)
        if seconds is None:
            seconds = self._known[rows] = self._at(rows)
        return seconds

    def _at(self, rows: int) -> float:
        known, seconds = self._rows, self._seconds
        if rows <= known[0] or len(known) == 1:
            return seconds[0]
        right = min(bisect_right(known, rows), len(known) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (known[right] - known[right - 1])
        return seconds[right - 1] + slope * (rows - known[right - 1])

    def __repr__(self) -> str:
        return f"VerifyCurve({list(self.points)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyCurve) and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)


@dataclass(slots=True)
class Seen:
    """Recent measurements; one object per answer, changed in place, so that a round allocates nothing.

    Attributes:
        acceptance: probability that a drafted token is right when all before it are; estimated with censoring
            (`estimates.Acceptance`).
        draft_s: time per drafted token, s.
        round_trip_s: of the network, there and back, s.
        queue_s: recent wait at the target, s.
        utilisation: of the target's queue, 0 to 1.
        token_s: recent time per output token, s.
        last_window: drafted tokens of the last round; 0 after a token of the target alone.
        verify: time of the target's batch by rows.
    """

    acceptance: float = 0.5
    draft_s: float = 0.0
    round_trip_s: float = 0.0
    queue_s: float = 0.0
    utilisation: float = 0.0
    token_s: float = 0.0
    last_window: int = 0
    verify: VerifyCurve = field(default_factory=lambda: VerifyCurve([(1, 0.0)]))
