"""Says from time to time how far a long measurement has come, and how long the rest will take."""

from __future__ import annotations

import sys
import time

__all__ = ["TimeLeft"]

_EVERY_S = 10.0


class TimeLeft:
    """Reports to stderr, at most every ten seconds. Mutable: when it last did.

    Args:
        what: the measurement's name, which begins each line.
        total: how many pieces of work there are.
        already: how many of them an earlier run has done; they say nothing about the time that one takes.
    """

    def __init__(self, what: str, total: int, *, already: int = 0) -> None:
        self._what, self._total, self._already = what, total, already
        self._began_at = self._shown_at = time.monotonic()

    def after(self, done: int) -> None:
        """Report that `done` pieces of all are done, at least one of them in this run."""
        now = time.monotonic()
        if now - self._shown_at < _EVERY_S:
            return
        self._shown_at = now
        each_s = (now - self._began_at) / (done - self._already)
        left_min = each_s * (self._total - done) / 60
        print(
            f"{self._what}: {done} of {self._total}, {each_s:.2f} s each, {left_min:.0f} min left",
            file=sys.stderr,
            flush=True,
        )
