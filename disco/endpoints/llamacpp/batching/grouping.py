"""Which windows are computed in one pass over the weights.

llama.cpp makes one pass of sequences that are consecutive and have equally many rows. A group here is such a
rectangle: shorter windows are filled up with rows that nobody reads, and so are sequences between two of the group.
That pays where rows are cheap beside a pass; where they are not, each window has a pass of its own. The measured curve
says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Group", "grouped"]


@dataclass(frozen=True, slots=True)
class Group:
    """One pass: sequences from `first` to `last`, each with as many rows."""

    first: int
    last: int
    rows: int


def grouped(
    windows: Mapping[int, int], seconds: Callable[[int], float], *, most: int, room: Callable[[int], int]
) -> list[Group]:
    """Return the passes that take the least time together.

    Args:
        windows: rows of each window by the number of its sequence; at least one row each, at most `most`.
        seconds: of a pass by its rows, all sequences together.
        most: rows that one pass may have.
        room: how many rows more a sequence can hold, by its number.
    """
    slots = sorted(windows)
    best: list[tuple[float, int, Group | None]] = [
        (0.0, 0, None)
    ]  # for the first n windows: time, start, last group
    for end in range(1, len(slots) + 1):
        found: tuple[float, int, Group | None] | None = None
        rows, fits = 0, most
        for start in range(end - 1, -1, -1):
            rows = max(rows, windows[slots[start]])
            above = slots[start + 1] if start + 1 < end else slots[start] + 1
            fits = min(fits, *(room(slot) for slot in range(slots[start], above)))
            count = slots[end - 1] - slots[start] + 1
            if start < end - 1 and (rows > fits or count * rows > most):
                break  # longer ones have no room either
            took = best[start][0] + seconds(count * rows)
            if found is None or took < found[0]:
                found = took, start, Group(slots[start], slots[end - 1], rows)
        assert found is not None
        best.append(found)
    groups, at = [], len(slots)
    while at:
        _, start, group = best[at]
        assert group is not None
        groups.append(group)
        at = start
    return groups[::-1]
