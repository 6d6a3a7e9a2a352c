"""How long to wait before a process that died is started again."""

from __future__ import annotations

__all__ = ["Backoff"]

FIRST_S = 0.5
LONGEST_S = 30.0


class Backoff:
    """Waits half a second after the first loss, and twice as long after each further one, until an answer is served.

    Mutable: all fields. Times are seconds on one monotonic clock.

    Attributes:
        why: the reason of the last loss, as a sentence.
    """

    def __init__(self) -> None:
        self.why = ""
        self._losses = 0
        self._until = float("-inf")

    def lost(self, why: str, now: float) -> None:
        """Record that the process died at `now`."""
        self.why = why
        # The exponent is limited too: after a thousand losses the power would exceed a float.
        self._until = now + min(FIRST_S * 2 ** min(self._losses, 10), LONGEST_S)
        self._losses += 1

    def served(self) -> None:
        """Record that the process has served a job."""
        self._losses = 0

    def left_s(self, now: float) -> float:
        """Return how many seconds of the wait are left; 0 when the process may be started."""
        return max(0.0, self._until - now)
