"""Deadlines of one answer: one for each attempt and clock, one for the whole answer (design rule 6)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol, TypeVar

from disco.request import Timeouts

__all__ = ["Deadlines", "Silent"]


class Silent(Protocol):
    """What a deadline needs of an attempt; `attempt_state.AttemptState` is one."""

    number: int
    first_content_at: float | None
    last_at: float
    quiet_from: float
    heard_at: float
    paused_at: float | None

    @property
    def waits_for_its_turn(self) -> bool:
        """Whether the attempt waits in a queue; that time does not count as silence."""
        ...


S = TypeVar("S", bound=Silent)


class Deadlines:
    """Keeps the earliest deadline of one answer without a check of every attempt at every token.

    The deadline of a gap moves with each piece of text. This class stores a time that is never later than the real
    deadline, and computes the deadline again only when that time has come.

    Mutable: `next_at`, `total_at`, `_at`.

    Attributes:
        total_at: when the whole answer must be complete, in seconds; `inf` without such a clock.
        next_at: check the deadlines no later than this; one may have passed then. `inf`: no deadline is set.
    """

    __slots__ = ("_at", "_clocks", "next_at", "total_at")

    def __init__(self, clocks: Timeouts) -> None:
        self._clocks = clocks
        self._at: dict[int, float] = {}
        self.total_at = inf
        self.next_at = inf

    def started(self, now: float) -> None:
        """Start the clock of the whole answer."""
        if self._clocks.total_s is not None:
            self.total_at = now + self._clocks.total_s
        self._find_next()

    def note(self, attempt: Silent) -> None:
        """Set the attempt's deadline again.

        Call it when the attempt was opened, left its queue, wrote its first content, was paused or resumed, and when
        its silence is counted from a new moment.
        """
        self._at[attempt.number] = self.of(attempt)
        self._find_next()

    def over(self, attempt: Silent) -> None:
        """Forget the attempt: it has ended."""
        if self._at.pop(attempt.number, None) is not None:
            self._find_next()

    def of(self, attempt: Silent) -> float:
        """Return the attempt's deadline, in seconds; `inf` where no clock runs."""
        if attempt.paused_at is not None or (attempt.first_content_at is None and attempt.waits_for_its_turn):
            return inf
        limit_s = self._limit_s(has_spoken=attempt.first_content_at is not None)
        return max(attempt.last_at, attempt.quiet_from, attempt.heard_at) + limit_s

    def leave_s(self, since: float, *, has_spoken: bool) -> float:
        """Return after how long a silence without a sign of life ends its attempt or the answer, s; `inf`: never."""
        return min(self._limit_s(has_spoken=has_spoken), self.total_at - since)

    def _limit_s(self, *, has_spoken: bool) -> float:
        limit_s = self._clocks.gap_s if has_spoken else self._clocks.first_content_s
        return inf if limit_s is None else limit_s

    def due(self, attempts: Iterable[S], now: float) -> list[S]:
        """Return those of `attempts` whose deadline has passed, and set the deadlines of the others again.

        Args:
            attempts: all that are active.
            now: the time, s.
        """
        late = []
        for attempt in attempts:
            at = self._at[attempt.number] = self.of(attempt)
            if now >= at:
                late.append(attempt)
        self._find_next()
        return late

    def _find_next(self) -> None:
        self.next_at = min((self.total_at, *self._at.values()))
