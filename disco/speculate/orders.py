"""The drafter as the machine of rounds knows it: its state, the draft under way, its sequence, and its shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from disco.speculate.effects import Draft, Effect, StopDraft
from disco.speculate.lines import DraftLine, Line, Shadow

__all__ = ["DrafterState", "Order", "Orders"]

DrafterState = Literal["absent", "reading", "ready", "busy", "late", "dead"]
"""absent: there is none. reading: the prompt. ready: idle. busy: drafting. late: it drafts or is being stopped for so
long that the target goes on alone. dead: it failed."""


@dataclass(slots=True)
class Order:
    """A draft under way.

    Attributes:
        draft: what was asked for.
        at: position of its first drafted token.
        patience_s: so long it may take, s.
        late_s: the time at which it counts as late.
        is_shadow: the draft will not be sent.
        is_useless: nothing is done with what comes; the drafter was told to stop.
        is_late: nobody waits for it.
    """

    draft: Draft
    at: int
    patience_s: float
    late_s: float
    is_shadow: bool
    is_useless: bool = False
    is_late: bool = False


class Orders:
    """At most one draft under way.

    Attributes:
        order: the draft under way.
        shadow: a draft that is compared and not sent.
    """

    __slots__ = ("_count", "_line", "_state", "order", "shadow")

    def __init__(self, *, has_drafter: bool) -> None:
        self._state: Literal["absent", "reading", "there", "dead"] = "reading" if has_drafter else "absent"
        self._line = DraftLine()
        self._count = 0
        self.order: Order | None = None
        self.shadow: Shadow | None = None

    @property
    def state(self) -> DrafterState:
        """What the drafter does."""
        if self._state != "there":
            return self._state
        if self.order is None:
            return "ready"
        return "late" if self.order.is_late else "busy"

    def has_read(self) -> bool:
        """Note that the drafter has read the prompt; return whether that is news."""
        news = self._state == "reading"
        if news:
            self._state = "there"
        return news

    def died(self) -> None:
        """Note that the drafter failed, for good."""
        self._state, self.order, self.shadow = "dead", None, None

    def place(
        self,
        now: float,
        line: Line,
        count: int,
        *,
        stop_below: float,
        patience_s: Callable[[int, int], float],
        is_shadow: bool,
    ) -> Draft:
        """Order a draft that continues the line; the drafter must be ready.

        `patience_s` returns how long a draft of so many tokens may take behind so many that the drafter must read.
        """
        keep, append = self._line.order(line)
        draft = Draft(self._count, keep, append, count, stop_below)
        self._count += 1
        patience = patience_s(count, len(append))
        self.order = Order(draft, line.end, patience, now + patience, is_shadow)
        return draft

    def took(self, number: int, ids: Iterable[int]) -> tuple[Order, tuple[int, ...]] | None:
        """Take what came of the order with this number; None where it is not the one under way."""
        order = self.order
        if order is None or order.draft.number != number:
            return None
        drafted = tuple(ids)[: order.draft.count]
        self._line.followed(order.draft.keep, order.draft.append, drafted)
        self.order = None
        return order, drafted

    def drop(self, now: float, effects: list[Effect]) -> None:
        """Stop the draft under way. That may take as long as the draft was allowed to take."""
        order = self.order
        if order is not None and not order.is_useless:
            order.is_useless = True
            order.late_s = now + order.patience_s
            effects.append(StopDraft(order.draft.number))
