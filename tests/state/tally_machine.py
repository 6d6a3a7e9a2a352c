"""A computer whose clocks and processes a test moves, for tallies in the state file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from disco.cost.budget_limiter import BudgetLimiter, Limit, WindowCounter
from disco.state import SharedBudgets

WINDOW_S = 64.0
GRAIN_S = WINDOW_S / 1024
START = 1_800_000_000.0


@dataclass
class Machine:
    """A computer: its clocks, and which processes live."""

    path: Path
    elapsed_s: float = 0.0  # since it started
    offset_s: float = START  # of the clock on the wall
    living: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)  # processes of another container

    def start(self, name: str) -> SharedBudgets:
        self.living.add(name)
        return SharedBudgets(
            self.path,
            process=lambda: name,
            program=lambda: name,
            is_alive=lambda other: None if other in self.unseen else other in self.living,
            clock=lambda: self.offset_s + self.elapsed_s,
            monotonic=lambda: self.elapsed_s,
        )

    def kill(self, name: str, budgets: SharedBudgets) -> None:
        """Drop the process's handle: nothing of it is settled."""
        self.living.discard(name)
        budgets.database.close()


def tokens(amount: int = 1000, account: str = "") -> Limit:
    return Limit("server_tokens", "server", "tokens", amount, WINDOW_S, account)


def counter_of(budgets: SharedBudgets, limit: Limit | None = None) -> WindowCounter:
    return BudgetLimiter(budgets.tally).counter(limit or tokens())
