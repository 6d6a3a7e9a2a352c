"""Counts what was spent and is reserved within a window. A tally may be kept here, or shared by processes.

A tally knows no limit: each limit is a mark that the sum may not pass (`budget_limiter`). All limits with the same
`TallyKey` are marks on the same tally.

Plain data and integer arithmetic: the caller passes all times, in seconds, on one clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from disco.cost.windows import Window, freed_at, gone_until, piece_of

__all__ = ["UNITS", "Tally", "TallyKey", "Unit", "WindowTally"]

Unit = Literal["usd", "tokens"]

UNITS: Final[dict[str, int]] = {"usd": 10**12, "tokens": 1}
"""Whole units per amount: picodollars, since sums of floats drift. A token of the cheapest model costs some 10,000."""


@dataclass(frozen=True, slots=True)
class TallyKey:
    """What is counted together.

    Attributes:
        account: name of the account; programs with the same account share what is counted.
        scope: a place ("device", "server"), which stands for all endpoints there, or an endpoint's name.
        unit: "usd", or "tokens" of prompt and answer together.
        window: a sliding window or a calendar period.
    """

    account: str
    scope: str
    unit: Unit
    window: Window


class Tally(ABC):
    """The sum of what was spent within the last window and of what is reserved. Amounts are whole units."""

    @abstractmethod
    def taken(self, now: float) -> int:
        """Return how many units are spent or reserved."""

    @abstractmethod
    def reserve(self, units: int, most: int, now: float) -> int | None:
        """Reserve `units` if no more than `most` are taken then.

        Returns:
            A ticket to `settle` with; None where nothing was reserved.
        """

    @abstractmethod
    def settle(self, ticket: int, units: int, now: float) -> None:
        """Replace a reservation by its real cost, once for each ticket.

        Args:
            ticket: what `reserve` returned.
            units: the cost, more or less than reserved; 0 where nothing was sent.
            now: when the attempt ended, s.

        Raises:
            KeyError: the ticket has been settled already.
            ValueError: a negative cost.
        """

    @abstractmethod
    def falls_to(self, most: int, now: float) -> float | None:
        """Return when no more than `most` units are taken, if nobody reserves anything until then.

        Returns:
            A time, s; None where it depends on answers that are still running.
        """

    def sharers(self) -> Sequence[str] | None:
        """Return the other programs that have spent within the window; None where no other program can."""
        return None


class WindowTally(Tally):
    """A tally of this process.

    Mutable: `_now` (the latest time seen), `_open` (reservations by ticket), `_spent` ((piece, units), oldest first),
    `_taken` (the sum of both), `_tickets`.
    """

    __slots__ = ("_now", "_open", "_spent", "_taken", "_tickets", "_window")

    def __init__(self, key: TallyKey) -> None:
        self._window = key.window
        self._now = -math.inf
        self._open: dict[int, int] = {}
        self._spent: deque[tuple[int, int]] = deque()
        self._taken = 0
        self._tickets = 0

    def taken(self, now: float) -> int:
        """Return how many units are spent or reserved."""
        self._advance(now)
        return self._taken

    def reserve(self, units: int, most: int, now: float) -> int | None:
        """See `Tally.reserve`."""
        return None if self.taken(now) + units > most else self.enter(units)

    def enter(self, units: int) -> int:
        """Reserve `units` in any case, and return the ticket."""
        self._tickets += 1
        self._open[self._tickets] = units
        self._taken += units
        return self._tickets

    def settle(self, ticket: int, units: int, now: float) -> None:
        """See `Tally.settle`."""
        if units < 0:
            raise ValueError(f"units settled must not be negative, not {units}")
        self._advance(now)
        self._taken += units - self._open.pop(ticket)
        if not units:
            return
        piece = piece_of(self._window, self._now)
        if self._spent and self._spent[-1][0] >= piece:
            piece, before = self._spent.pop()
            units += before
        self._spent.append((piece, units))

    def falls_to(self, most: int, now: float) -> float | None:
        """See `Tally.falls_to`."""
        missing = self.taken(now) - most
        if missing <= 0:
            return now
        for piece, spent in self._spent:
            missing -= spent
            if missing <= 0:
                return freed_at(self._window, piece)
        return None

    def _advance(self, now: float) -> None:
        """Forget what has left the window. A clock that goes back is treated as one that stands still."""
        self._now = max(now, self._now)
        if self._spent:
            gone = gone_until(self._window, self._now)
            while self._spent and self._spent[0][0] <= gone:
                self._taken -= self._spent.popleft()[1]
