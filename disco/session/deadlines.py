"""When silence is over: one deadline for each attempt and clock, one for the answer (design rule 6)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol, TypeVar

from disco.request import Timeouts

__all__ = ["Deadlines", "Silent"]


class Silent(Protocol):
    """What a deadline needs of an attempt; `attempts.AttemptState` is one."""

    number: int
    first_content_at: float | None
    last_at: float
    quiet_from: float

    @property
    def waits_for_its_turn(self) -> bool:
        """It waits in a queue, which is no silence."""
        ...


S = TypeVar("S", bound=Silent)


class Deadlines:
    """Keeps the earliest deadline without a look at every attempt for every token.

    A gap's deadline moves on with each piece of text. So what is noted is when to look again: the deadline as it was
    then, or earlier. Only when that moment comes, it is computed anew.

    Mutable: `next_at`, `total_at`, `_at`.

    Attributes:
        total_at: the whole answer must be complete by then; `inf` without such a clock.
        next_at: look no later than this; a deadline may have passed then. `inf`: nothing to wait for.
    """

    __slots__ = ("_at", "_clocks", "next_at", "total_at")

    def __init__(self, clocks: Timeouts) -> None:
        self._clocks = clocks
        self._at: dict[int, float] = {}
        self.total_at = inf
        self.next_at = inf

    def started(self, now: float) -> None:
        """The answer begins."""
        if self._clocks.total_s is not None:
            self.total_at = now + self._clocks.total_s
        self._find_next()

    def note(self, attempt: Silent) -> None:
        """An attempt was opened, its turn has come, it has written its first content, or its silence counts anew."""
        self._at[attempt.number] = self.of(attempt)
        self._find_next()

    def over(self, attempt: Silent) -> None:
        """It is over."""
        if self._at.pop(attempt.number, None) is not None:
            self._find_next()

    def of(self, attempt: Silent) -> float:
        """When the attempt has been silent for too long, as of now."""
        clocks = self._clocks
        if attempt.first_content_at is None:
            waits = clocks.first_content_s is None or attempt.waits_for_its_turn
            return inf if waits else attempt.quiet_from + (clocks.first_content_s or 0.0)
        if clocks.gap_s is None:
            return inf
        return max(attempt.last_at, attempt.quiet_from) + clocks.gap_s

    def due(self, attempts: Iterable[S], now: float) -> list[S]:
        """Those of `attempts` (all that are active) whose silence is over now; the others' deadlines are set anew."""
        late = []
        for attempt in attempts:
            at = self._at[attempt.number] = self.of(attempt)
            if now >= at:
                late.append(attempt)
        self._find_next()
        return late

    def _find_next(self) -> None:
        self.next_at = min((self.total_at, *self._at.values()))
