"""What the route records of a chat's answers say: the cost, the budgets, the last answer."""

from __future__ import annotations

from disco.cli.chat.status_line import BudgetLeft, budgets_left
from disco.session.records.route_record import RouteRecord

__all__ = ["RouteBook"]


class RouteBook:
    """Gets the route record of each answer. Mutable: all.

    Attributes:
        cost: what all answers have cost, unified money (USD).
        budgets: what is left of the absolute budgets.
        last: the record of the last answer; None before the first one.
    """

    def __init__(self) -> None:
        self.cost = 0.0
        self.budgets: tuple[BudgetLeft, ...] = ()
        self.last: RouteRecord | None = None

    def __call__(self, record: RouteRecord) -> None:
        """Note the record of an answer."""
        self.cost += record.cost
        self.budgets = budgets_left(record.budget)
        self.last = record
