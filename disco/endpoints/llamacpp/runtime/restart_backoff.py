"""How long a process that died is left alone before it is started again."""

from __future__ import annotations

__all__ = ["Backoff"]

FIRST_S = 0.5
LONGEST_S = 30.0


class Backoff:
    """Half a second after the first loss, twice as long after each that follows, until an answer was served.

    Mutable: all fields. Times are seconds on one monotonic clock.

    Attributes:
        why: what happened last, a sentence.
    """

    def __init__(self) -> None:
        self.why = ""
        self._losses = 0
        self._until = float("-inf")

    def lost(self, why: str, now: float) -> None:
        """It died at `now`."""
        self.why = why
        # The exponent is bounded too: after a thousand losses the power would be no float any more.
        self._until = now + min(FIRST_S * 2 ** min(self._losses, 10), LONGEST_S)
        self._losses += 1

    def served(self) -> None:
        """It did what it was asked to."""
        self._losses = 0

    def left_s(self, now: float) -> float:
        """How long it is still left alone; 0 when it may be started."""
        return max(0.0, self._until - now)
