"""What must stop soon: measured in work done, which a busy machine does not change, and bounded in time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["CPU_S", "WITHIN_S", "Since", "cpu_s"]

# Stopping takes milliseconds of work. What was not stopped shows in its work, a wait for one of disco's own bounds
# (10 s) in the time.
CPU_S: Final = 2.0
WITHIN_S: Final = 8.0


def cpu_s(*others: int) -> float:
    """Return the seconds of processor time that this process and `others` (process ids) have used."""
    used_s = time.process_time()
    for pid in others:
        with contextlib.suppress(OSError):  # it has ended, or this is no Linux
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used_s


class Since:
    """A stopwatch of time and of work, both in seconds."""

    def __init__(
        self, work: Callable[[], float] = cpu_s, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._work, self._clock = work, clock
        self._work_s, self._at = work(), clock()

    @property
    def elapsed_s(self) -> float:
        """The time since the stopwatch was made, s."""
        return self._clock() - self._at

    def check(
        self, limit_s: float = CPU_S, within_s: float = WITHIN_S, what: object = "it still runs"
    ) -> None:
        """Check that little was done since, and that it did not take long.

        Raises:
            AssertionError: more than `limit_s` of work was done, or more than `within_s` have passed.
        """
        work_s, elapsed_s = self._work() - self._work_s, self.elapsed_s
        assert work_s < limit_s, f"{what} after {work_s:.1f} s of work"
        assert elapsed_s < within_s, f"{what} after {elapsed_s:.1f} s"
