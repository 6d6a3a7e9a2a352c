"""Absolute budgets: how much may be spent within a window of time, and how much of it is spent or reserved.

An attempt reserves the most that it can cost before it starts. Once nothing of it runs any more, it settles its real
cost. So what a window can cost is known before it is spent, for any order of starts, ends and cancellations.

**The guarantee.** Take any window of `window_s` seconds. All attempts that ran at any moment of it together cost no
more than the limit, each with its whole cost, as long as no attempt costs more than it reserved. Proof: take the
latest start in the window. When it was admitted, every other attempt that touches the window was counted: one that
still ran with its reservation, and one that had ended less than `window_s` before with its cost. An attempt that does
cost more than it reserved is counted in full, too, and later starts wait longer for it.

Plain data and integer arithmetic: the caller passes all times, in seconds, on one clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

__all__ = ["BudgetLimiter", "Limit", "WindowCounter"]

Unit = Literal["usd", "tokens"]

# Units per amount: whole picodollars, since sums of floats drift. A token of the cheapest model costs some 10,000.
_PER: dict[str, int] = {"usd": 10**12, "tokens": 1}
# A window is kept in this many pieces; the cost of a piece is freed when its last moment has left the window.
_BUCKETS = 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that may be spent on some endpoints within any `window_s` seconds.

    Attributes:
        name: the setting that the limit comes from.
        scope: a place ("device", "server"), which stands for all endpoints there, or an endpoint's name.
        unit: unit of the amount: "usd", or "tokens" of prompt and answer together.
        amount: the most that may be spent, above 0.
        window_s: length of the window, seconds, above 0.
    """

    name: str
    scope: str
    unit: Unit
    amount: float
    window_s: float

    def __post_init__(self) -> None:
        # Written so that NaN fails, too.
        if not (0 < self.amount < math.inf and 0 < self.window_s < math.inf):
            raise ValueError(f"a limit needs an amount and a window above 0: {self!r}")

    def __str__(self) -> str:
        return f"{self.name} = {self.quantity(self.amount)} in {self.window_s:g} s"

    def quantity(self, amount: float) -> str:
        """Return an amount as text, with its unit."""
        return f"{amount:.4g} USD" if self.unit == "usd" else f"{amount:.0f} tokens"


class WindowCounter:
    """Counts what one limit allows, has spent and has reserved. Amounts are whole units: tokens, or picodollars.

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
        """Return an amount in whole units, rounded up."""
        return math.ceil(amount * _PER[self.limit.unit])

    def amount(self, units: int) -> float:
        """Return a number of whole units in the limit's own unit."""
        return units / _PER[self.limit.unit]

    def left(self, now: float) -> int:
        """Return how many units may be reserved now; at least 0."""
        self._advance(now)
        return max(0, self.total - self._taken)

    def reserve(self, units: int, now: float) -> int | None:
        """Reserve `units` if that many are left.

        Returns:
            A ticket to `settle` with; None where the limit would be exceeded.
        """
        if units > self.left(now):
            return None
        self._tickets += 1
        self._open[self._tickets] = units
        self._taken += units
        return self._tickets

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
        if units < 0:
            raise ValueError(f"units settled must not be negative, not {units}")
        self._advance(now)
        self._taken += units - self._open.pop(ticket)
        if not units:
            return
        # The end of the piece that `now` falls into: never earlier than the real time.
        end = max(self._now, math.ceil(self._now / self._grain_s) * self._grain_s)
        if self._spent and self._spent[-1][0] >= end:
            end, before = self._spent.pop()
            units += before
        self._spent.append((end, units))

    def frees_at(self, units: int, now: float) -> float | None:
        """Return when `units` are free, if no other request reserves anything until then.

        Returns:
            A time, s; None where it depends on answers that are still running; `inf` where the limit itself is lower.
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
        """Forget what has left the window. A clock that goes back is treated as one that stands still."""
        self._now = max(now, self._now)
        while self._spent and self._spent[0][0] + self.limit.window_s <= self._now:
            self._taken -= self._spent.popleft()[1]


class BudgetLimiter:
    """All limits of one client, with their counters. Mutable: `_counters`, made on first use."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[Limit, WindowCounter] = {}

    def counter(self, limit: Limit) -> WindowCounter:
        """Return the counter of this limit; equal limits share one counter."""
        counter = self._counters.get(limit)
        if counter is None:
            counter = self._counters[limit] = WindowCounter(limit)
        return counter

    def left(self, now: float) -> dict[str, float]:
        """Return what can be spent now, by name of the limit, in its own unit; the least of limits with one name."""
        left: dict[str, float] = {}
        for limit, counter in self._counters.items():
            amount = counter.amount(counter.left(now))
            left[limit.name] = min(amount, left.get(limit.name, math.inf))
        return left
