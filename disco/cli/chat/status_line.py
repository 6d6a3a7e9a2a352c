"""The status line of a chat: who writes, the bank, bill and energy so far, what is left of the budget, the preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from disco import amounts
from disco.amounts import money, spent
from disco.cli.word_wrap import cells
from disco.cost.windows import named

if TYPE_CHECKING:
    from disco.session.records.answer_progress import AnswerProgress

__all__ = ["BudgetLeft", "Status", "budgets_left", "status_line"]


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """What is left of an absolute budget: `left` of `amount`, in `unit` ("usd" or "tokens"), in a period or None."""

    left: float
    amount: float
    unit: str
    per: str | None = None

    def __str__(self) -> str:
        if self.unit == "usd":
            left = f"budget {money(self.left)} of {money(self.amount)} left"
        else:
            left = f"budget {self.left:,.0f} of {amounts.tokens(self.amount)} left"
        return left if self.per is None else f"{left} {named(self.per)}"


@dataclass(frozen=True, slots=True)
class Status:
    """What the status line shows.

    Attributes:
        preset: its name.
        local_only: whether questions stay on this machine.
        bill_usd: what the answers of this chat have cost in money, USD; with that of the running answer.
        device_energy_j: the energy that they took of the user's own machines, as far as it is known, J.
        budgets: what is left of the absolute budgets.
        loading: the model that is being loaded; None: none is.
        waited_s: how long the present answer, or without one the model, has been waited for, s; None: nothing is.
        answering: whether an answer is awaited or written.
        progress: the running answer; None before its first word.
    """

    preset: str
    local_only: bool = False
    bill_usd: float = 0.0
    device_energy_j: float = 0.0
    budgets: tuple[BudgetLeft, ...] = ()
    loading: str | None = None
    waited_s: float | None = None
    answering: bool = False
    progress: AnswerProgress | None = None

    def parts(self) -> list[str]:
        """Return what is shown, the most important first."""
        preset = f"{self.preset}, only this machine" if self.local_only else self.preset
        known = [spent(self.bill_usd, self.device_energy_j), *map(str, self.budgets), preset]
        if not self.answering:
            loading = [] if self.loading is None else [_seconds(f"loading {self.loading}", self.waited_s)]
            return [*loading, preset, *known[:-1], "/help"]
        if self.progress is None:
            what = "waiting" if self.loading is None else f"loading {self.loading}"
            return [_seconds(what, self.waited_s), *known, "Ctrl-C stops"]
        return [_who(self.progress), _bank(self.progress), *known, "Ctrl-C stops"]


def status_line(status: Status, columns: int) -> str:
    """Return the status in one line; what has no room in so many columns is left out, the least important first."""
    parts = status.parts()
    while len(parts) > 1 and cells(" · ".join(parts)) > columns:
        parts.pop()
    line = " · ".join(parts)
    while cells(line) > max(columns, 0):
        line = line[:-1]
    return line


def budgets_left(budget: Mapping[str, Mapping[str, Any]]) -> tuple[BudgetLeft, ...]:
    """Return what is left of each budget in a route record's `budget`."""
    return tuple(
        BudgetLeft(
            facts["left"], facts["amount"], "usd" if name.endswith("usd") else "tokens", facts.get("per")
        )
        for name, facts in budget.items()
    )


def _who(progress: AnswerProgress) -> str:
    others = [name for name in progress.running if name != progress.writer]
    if progress.writer is None:
        return f"{' and '.join(others)} at work" if others else "waiting"
    if progress.writer not in progress.running:
        return f"{progress.writer} has written"
    return f"{progress.writer} writes" + (f", {' and '.join(others)} at work" if others else "")


def _bank(progress: AnswerProgress) -> str:
    bank = f"bank {progress.buffered_tokens} tokens"
    return bank if progress.buffered_s is None else f"{bank}, {progress.buffered_s:.1f} s"


def _seconds(what: str, seconds: float | None) -> str:
    return what if seconds is None else f"{what} {seconds:.0f} s"
