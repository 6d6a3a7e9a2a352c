"""What the route records of a chat's answers say: the bill, the energy, the budgets, the last answer."""

from __future__ import annotations

from disco.cli.chat.status_line import BudgetLeft, budgets_left
from disco.session.records.route_record import RouteRecord

__all__ = ["RouteBook"]


class RouteBook:
    """Gets the route record of each answer. Mutable: all.

    Attributes:
        bill_usd: what all answers have cost in money, USD.
        device_energy_j: the energy that they took of the user's own machines, as far as it is known, J.
        budgets: what is left of the absolute budgets.
        last: the record of the last answer; None before the first one.
    """

    def __init__(self) -> None:
        self.bill_usd = 0.0
        self.device_energy_j = 0.0
        self.budgets: tuple[BudgetLeft, ...] = ()
        self.last: RouteRecord | None = None

    def __call__(self, record: RouteRecord) -> None:
        """Note the record of an answer."""
        self.bill_usd += record.bill_usd
        self.device_energy_j += record.device_energy_j or 0.0
        self.budgets = budgets_left(record.budget)
        self.last = record
