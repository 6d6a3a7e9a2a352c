"""What may be spent within a window of time, and how much of it is taken: never more, whatever comes when.

A start reserves the most it can cost, and settles what it did cost once nothing of it runs any more. What is taken in
a window is therefore known before it is spent, for any order of starts, ends and cancellations.

**The promise.** Of every window of `window_s` seconds, wherever it lies, everything that ran in it at any moment has
cost no more than the limit, its whole cost counted each time, as long as no start costs more than it reserved. Proof:
take the latest start in a window. When it was admitted, everything else that touches the window was either still open,
and counted with its reservation, or had ended less than `window_s` before, and was counted with its cost. What does
cost more than it reserved is counted in full all the same, and everything after it waits for that much longer.

Plain data and integer arithmetic: times are passed in, in seconds, on one clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

__all__ = ["BudgetLimiter", "Limit", "WindowCounter"]

Unit = Literal["usd", "tokens"]

# Sums of floats drift. A token of the cheapest model costs some 10,000 picodollars.
_PER: dict[str, int] = {"usd": 10**12, "tokens": 1}
# A window is kept in that many pieces; each frees up when its last moment has left the window.
_BUCKETS = 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """So much may be spent on some endpoints within any `window_s` seconds.

    Attributes:
        name: the setting it comes from.
        scope: a place ("device", "server"), which stands for all endpoints there, or an endpoint's name.
        unit: of the amount: "usd", or "tokens", prompt and answer together.
        amount: above 0.
        window_s: above 0.
    """

    name: str
    scope: str
    unit: Unit
    amount: float
    window_s: float

    def __post_init__(self) -> None:
        # Written so that NaN fails too.
        if not (0 < self.amount < math.inf and 0 < self.window_s < math.inf):
            raise ValueError(f"a limit needs an amount and a window above 0: {self!r}")

    def __str__(self) -> str:
        return f"{self.name} = {self.quantity(self.amount)} in {self.window_s:g} s"

    def quantity(self, amount: float) -> str:
        """An amount as people read it."""
        return f"{amount:.4g} USD" if self.unit == "usd" else f"{amount:.0f} tokens"


class WindowCounter:
    """Keeps one limit. Amounts are whole units: tokens, or picodollars.

    Mutable: `_now` (the latest time seen), `_open` (reservations by ticket), `_spent` ((end, units), oldest first),
    `_taken` (the sum of both), `_tickets`.
    """

    __slots__ = ("_grain_s", "_now", "_open", "_spent", "_taken", "_tickets", "limit", "total")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.total = math.floor(limit.amount * _PER[limit.unit])
        self._grain_s = limit.window_s / _BUCKETS
        self._now = -math.inf
        self._open: dict[int, int] = {}
        self._spent: deque[tuple[float, int]] = deque()
        self._taken = 0
        self._tickets = 0

    def units(self, amount: float) -> int:
        """An amount in whole units, rounded up."""
        return math.ceil(amount * _PER[self.limit.unit])

    def amount(self, units: int) -> float:
        """Units in the limit's own unit."""
        return units / _PER[self.limit.unit]

    def left(self, now: float) -> int:
        """Units that may be reserved now; 0 at least."""
        self._advance(now)
        return max(0, self.total - self._taken)

    def reserve(self, units: int, now: float) -> int | None:
        """Take that much, if it is there.

        Returns:
            A ticket to `settle` with; None where the limit would be passed.
        """
        if units > self.left(now):
            return None
        self._tickets += 1
        self._open[self._tickets] = units
        self._taken += units
        return self._tickets

    def settle(self, ticket: int, units: int, now: float) -> None:
        """It is over and has cost `units`, more or less than reserved; 0 where nothing was sent. Once for a ticket.

        Raises:
            KeyError: it has been settled.
            ValueError: a negative cost.
        """
        if units < 0:
            raise ValueError("nothing costs less than nothing")
        self._advance(now)
        self._taken += units - self._open.pop(ticket)
        if not units:
            return
        # The end of the piece it falls into: later than it was, never earlier.
        end = max(self._now, math.ceil(self._now / self._grain_s) * self._grain_s)
        if self._spent and self._spent[-1][0] >= end:
            end, before = self._spent.pop()
            units += before
        self._spent.append((end, units))

    def frees_at(self, units: int, now: float) -> float | None:
        """When that much is free, if no request takes anything until then.

        Returns:
            A time; None where it depends on answers that are still running; infinity where it never can.
        """
        self._advance(now)
        missing = self._taken + units - self.total
        if missing <= 0:
            return now
        if units > self.total:
            return math.inf
        for end, spent in self._spent:
            missing -= spent
            if missing <= 0:
                return end + self.limit.window_s
        return None

    def _advance(self, now: float) -> None:
        """Forget what has left the window. A clock that goes back stands still here."""
        self._now = max(now, self._now)
        while self._spent and self._spent[0][0] + self.limit.window_s <= self._now:
            self._taken -= self._spent.popleft()[1]


class BudgetLimiter:
    """All limits of one client, with what is taken of them. Mutable: `_counters`, made on first use."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[Limit, WindowCounter] = {}

    def counter(self, limit: Limit) -> WindowCounter:
        """The one that keeps this limit; equal limits are one."""
        counter = self._counters.get(limit)
        if counter is None:
            counter = self._counters[limit] = WindowCounter(limit)
        return counter

    def left(self, now: float) -> dict[str, float]:
        """What can be spent now, by the limit's name, in its own unit; the least where two have one name."""
        left: dict[str, float] = {}
        for limit, counter in self._counters.items():
            amount = counter.amount(counter.left(now))
            left[limit.name] = min(amount, left.get(limit.name, math.inf))
        return left
