"""How long a batch takes by its rows: measured, because no rule says when a batch costs less than its rows one by one.

A processor takes other kernels for one row than for several: two rows of a Q8_0 model may take longer than twice one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

__all__ = ["MEASURED_ROWS", "VerifyCurve", "measured_curve", "measured_times"]

MEASURED_ROWS: Final = (1, 2, 3, 5, 9, 17)
_LONG_S: Final = 0.5
_MOST_REPEATS: Final = 16
_ALIKE: Final = 1.1  # times that far apart are the same, so that the shorter one is no accident


class VerifyCurve:
    """Seconds of a batch by its rows; straight lines between the points and beyond the last.

    Args:
        points: (rows, seconds), rising in rows, at least two; what takes less than a point with fewer rows counts as
            that one.
        most: rows of the largest batch.

    Attributes:
        points: the points.
    """

    def __init__(self, points: Sequence[tuple[int, float]], most: int) -> None:
        rows = [one for one, _ in points]
        seconds = np.maximum.accumulate([s for _, s in points]).tolist()
        self.points = tuple(zip(rows, seconds, strict=True))
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        beyond = [seconds[-1] + slope * (one - rows[-1]) for one in range(rows[-1] + 1, most + 1)]
        inside = np.interp(range(rows[-1] + 1), rows, seconds).tolist()
        self._s: list[float] = [*inside, *beyond]

    def s(self, rows: int) -> float:
        """Return the seconds of a batch with so many rows."""
        return self._s[rows] if rows < len(self._s) else self._s[-1] * rows / (len(self._s) - 1)


def measured_curve(
    compute: Callable[[int], object],
    most: int,
    *,
    repeats: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> VerifyCurve:
    """Measure a model; see `measured_times`."""
    return VerifyCurve(measured_times(compute, most, repeats=repeats, clock=clock), most)


def measured_times(
    compute: Callable[[int], object],
    most: int,
    *,
    sizes: Sequence[int] = MEASURED_ROWS,
    repeats: int = 2,
    long_s: float = _LONG_S,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[int, float]]:
    """Return how long batches take, as (rows, seconds).

    The shortest of the repeats counts, because nothing makes a batch shorter than it is. On a busy machine it may have
    been held up each time: while the two shortest of some size differ, all are measured again, up to 16 times.

    Args:
        compute: computes a batch of so many rows and returns once it is done.
        most: rows of the largest batch; larger ones are not measured.
        sizes: rows to measure, rising. Those behind one of more than a few rows that takes long are left out.
        repeats: how often each is measured at least; a slow model once.
        long_s: what counts as long, s.
        clock: s.
    """
    sizes = [rows for rows in sizes if rows <= max(most, 2)]
    compute(1)  # the first batch allocates
    times: dict[int, list[float]] = {}
    began_at = clock()
    for number in range(_MOST_REPEATS):
        if number >= repeats and all(len(one) < 2 or one[1] <= one[0] * _ALIKE for one in times.values()):
            break
        for rows in sizes:
            at = clock()
            compute(rows)
            times[rows] = sorted([*times.get(rows, ()), clock() - at])
            if rows > MEASURED_ROWS[-2] and times[rows][0] > long_s:
                break
        if clock() - began_at > long_s:
            break
    return [(rows, one[0]) for rows, one in times.items()]
