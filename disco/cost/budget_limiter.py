"""Absolute budgets: how much may be spent within a window of time, and how much of it is spent or reserved.

An attempt reserves the most that it can cost before it starts. Once nothing of it runs any more, it settles its real
cost. So what a window can cost is known before it is spent, for any order of starts, ends and cancellations.

**The guarantee.** Take any window: every span of so many seconds, or a calendar period. All attempts that ran at any
moment of it together cost no more than the limit, each with its whole cost, as long as no attempt costs more than it
reserved. Proof: take the latest start in the window. When it was admitted, every other attempt that touches the window
was counted: one that still ran with its reservation, and one that had ended within the window with its cost. (If none
starts in it, all that touch it ran at its first moment, and the latest of their starts counted them all.) An attempt
that does cost more than it reserved is counted in full, too, and later starts wait longer for it.

Limits that differ only in their amount are marks on one tally, so the spending of each counts for the others, and the
latest start decides which mark holds: no window has more than the limit of its latest start. Attempts of other
processes count in the same way where the tally is shared; `state.shared_tally` extends the proof to kills.

Plain data and integer arithmetic: the caller passes all times, in seconds, on one clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from disco import amounts
from disco.amounts import money
from disco.cost.tally import UNITS, Tally, TallyKey, Unit, WindowTally
from disco.cost.windows import PERIODS, Window, in_words

__all__ = ["BudgetLimiter", "Limit", "WindowCounter", "binding"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that may be spent on some endpoints within a window.

    Attributes:
        name: the setting that the limit comes from.
        scope: a place ("device", "server"), which stands for all endpoints there, or an endpoint's name.
        unit: unit of the amount: "usd", or "tokens" of prompt and answer together.
        amount: the most that may be spent, above 0.
        window: a sliding window, seconds, above 0, or a calendar period.
        account: whose spending counts, besides that under this limit: all of the same account.
    """

    name: str
    scope: str
    unit: Unit
    amount: float
    window: Window
    account: str = ""

    def __post_init__(self) -> None:
        # Written so that NaN fails, too.
        is_window = self.window in PERIODS if isinstance(self.window, str) else 0 < self.window < math.inf
        if not (0 < self.amount < math.inf and is_window):
            raise ValueError(f"a limit needs an amount and a window above 0: {self!r}")

    def __str__(self) -> str:
        return f"{self.quantity(self.amount)} {in_words(self.window)}"

    @property
    def key(self) -> TallyKey:
        """The tally on which the limit is a mark."""
        return TallyKey(self.account, self.scope, self.unit, self.window)

    def quantity(self, amount: float) -> str:
        """Return an amount as text, with its unit."""
        return money(amount) if self.unit == "usd" else amounts.tokens(amount)

    @property
    def period(self) -> dict[str, float | str]:
        """The window as `[limits]` and records have it: `window_s`, or `per`."""
        return {"per" if isinstance(self.window, str) else "window_s": self.window}


def binding(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return, of the limits on each tally, the one with the least amount: who keeps it keeps them all."""
    least: dict[TallyKey, Limit] = {}
    for limit in limits:
        known = least.get(limit.key)
        if known is None or limit.amount < known.amount:
            least[limit.key] = limit
    return tuple(least.values())


class WindowCounter:
    """What one limit allows, beside the tally of what is spent and reserved.

    Amounts are whole units: tokens, or picodollars.

    Attributes:
        limit: the limit.
        total: its amount.
    """

    __slots__ = ("_tally", "limit", "total")

    def __init__(self, limit: Limit, tally: Tally | None = None) -> None:
        self.limit = limit
        self.total = math.floor(limit.amount * UNITS[limit.unit])
        self._tally = WindowTally(limit.key) if tally is None else tally

    def units(self, amount: float) -> int:
        """Return an amount in whole units, rounded up."""
        return math.ceil(amount * UNITS[self.limit.unit])

    def amount(self, units: int) -> float:
        """Return a number of whole units in the limit's own unit."""
        return units / UNITS[self.limit.unit]

    def left(self, now: float) -> int:
        """Return how many units may be reserved now; at least 0."""
        return max(0, self.total - self._tally.taken(now))

    def reserve(self, units: int, now: float) -> int | None:
        """Reserve `units` if that many are left.

        Returns:
            A ticket to `settle` with; None where the limit would be exceeded.
        """
        return self._tally.reserve(units, self.total, now)

    def settle(self, ticket: int, units: int, now: float) -> None:
        """Replace a reservation by its real cost; see `Tally.settle`."""
        self._tally.settle(ticket, units, now)

    def sharers(self) -> Sequence[str] | None:
        """See `Tally.sharers`."""
        return self._tally.sharers()

    def frees_at(self, units: int, now: float) -> float | None:
        """Return when `units` are free, if no other request reserves anything until then.

        Returns:
            A time, s; None where it depends on answers that are still running; `inf` where the limit itself is lower.
        """
        return math.inf if units > self.total else self._tally.falls_to(self.total - units, now)


class BudgetLimiter:
    """All limits of one client, with their counters. Mutable: `_counters` and `_tallies`, made on first use.

    Args:
        tally: makes the tally of a key.
        end: what to do once the client needs no tally any more. It may wait for a file.
    """

    __slots__ = ("_counters", "_end", "_make", "_tallies")

    def __init__(
        self,
        tally: Callable[[TallyKey], Tally] = WindowTally,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._make = tally
        self._end = end
        self._tallies: dict[TallyKey, Tally] = {}
        self._counters: dict[Limit, WindowCounter] = {}

    def counter(self, limit: Limit) -> WindowCounter:
        """Return the counter of this limit; the counters of limits with the same key share one tally."""
        counter = self._counters.get(limit)
        if counter is None:
            key = limit.key
            if key not in self._tallies:
                self._tallies[key] = self._make(key)
            counter = self._counters[limit] = WindowCounter(limit, self._tallies[key])
        return counter

    @property
    def is_shared(self) -> bool:
        """Whether there is anything to close."""
        return self._end is not None and bool(self._tallies)

    def close(self) -> None:
        """End the use of all tallies. Idempotent; a later use begins anew."""
        if self._end is not None:
            self._end()

    def left(self, now: float) -> dict[str, float]:
        """Return what can be spent now, by name of the limit, in its own unit; the least of limits with one name."""
        left: dict[str, float] = {}
        for limit, counter in list(self._counters.items()):
            amount = counter.amount(counter.left(now))
            left[limit.name] = min(amount, left.get(limit.name, math.inf))
        return left
