"""The contents of a report, and the order of its lines and scenarios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from disco.replay.metrics.over_seeds import Cell, Figure
from disco.replay.sweeps.sweep import keeps_no_budget
from disco.replay.vector.arm_delays import ORACLE
from disco.session.records.route_record import RouteRecord

__all__ = [
    "DEVICE_ONLY",
    "SERVER_ONLY",
    "Group",
    "Line",
    "Report",
    "bound",
    "cost_per_1000_usd",
    "groups",
    "is_baseline",
    "known",
    "line_names",
    "pareto_front",
]


SERVER_ONLY: Final = "server_only"
DEVICE_ONLY: Final = "device_only"


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of a report.

    Attributes:
        title: title of the page.
        notes: what a reader must know about how the result was made, one sentence each.
        cells: the result.
        example: an answer that migrated, for its timeline; None leaves the timeline out.
    """

    title: str
    notes: tuple[str, ...]
    cells: tuple[Cell, ...]
    example: RouteRecord | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One policy across budgets, in one scenario.

    Attributes:
        name: the line's name, the same in every scenario of a report.
        policy: the policy that it runs.
        cells: by rising budget; only one if the policy has no budget.
    """

    name: str
    policy: str
    cells: tuple[Cell, ...]

    @property
    def budgetless(self) -> bool:
        """Whether the policy is the same at every budget."""
        return keeps_no_budget(self.policy)

    def at(self, budget: float) -> Cell | None:
        """Return the cell at `budget`; None if it was not run."""
        if self.budgetless:
            return self.cells[0]
        return next((cell for cell in self.cells if cell.arm.budget == budget), None)


@dataclass(frozen=True, slots=True)
class Group:
    """Everything that ran on one scenario.

    Attributes:
        scenario, regime: name and regime of the scenario.
        lines: in the order of their first cells, the oracle last.
        budgets: rising; those of the policies that have a budget, or of all policies if none has.
    """

    scenario: str
    regime: str
    lines: tuple[Line, ...]
    budgets: tuple[float, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, line by line."""
        return tuple(cell for line in self.lines for cell in line.cells)

    def baseline(self, policy: str, evaluator: str) -> Cell | None:
        """Return the cell of a policy without a budget, migration and drafts; None if it was not run."""
        return next((c for c in self.cells if is_baseline(c, policy) and c.evaluator == evaluator), None)


def groups(cells: Sequence[Cell]) -> tuple[Group, ...]:
    """Group cells by scenario, in the order of first appearance."""
    names = line_names(cells)
    by_scenario: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell, name in zip(cells, names, strict=True):
        by_scenario.setdefault((cell.scenario, cell.regime), {}).setdefault(name, []).append(cell)
    return tuple(_group(scenario, regime, lines) for (scenario, regime), lines in by_scenario.items())


def _group(scenario: str, regime: str, by_name: dict[str, list[Cell]]) -> Group:
    lines = []
    for name, cells in by_name.items():
        policy = cells[0].arm.policy
        ordered = tuple(sorted(cells, key=lambda cell: cell.arm.budget))
        lines.append(Line(name, policy, ordered[:1] if keeps_no_budget(policy) else ordered))
    lines.sort(key=lambda line: line.policy == ORACLE)
    budgets = {cell.arm.budget for line in lines if not line.budgetless for cell in line.cells}
    budgets = budgets or {line.cells[0].arm.budget for line in lines}
    return Group(scenario, regime, tuple(lines), tuple(sorted(budgets)))


def line_names(cells: Sequence[Cell]) -> list[str]:
    """Return each cell's line name: its arm's label, and what distinguishes arms of the same label."""
    tails: dict[str, set[float]] = {}
    for cell in cells:
        tails.setdefault(cell.arm.label, set()).add(cell.arm.tail)
    evaluators = {cell.evaluator for cell in cells}
    names = []
    for cell in cells:
        name = cell.arm.label
        if len(tails[name]) > 1 and not keeps_no_budget(cell.arm.policy):
            name += f", α = {cell.arm.tail:g}"
        names.append(f"{name} ({cell.evaluator})" if len(evaluators) > 1 else name)
    return names


def bound(group: Group, measure: str) -> dict[float, float]:
    """Return the oracle's TTFT by budget, s; where no oracle was run, as far as the other cells' regrets tell.

    Args:
        group: the scenario.
        measure: "mean" or "p99".
    """
    found: dict[float, float] = {}
    shown = [cell for line in group.lines if line.policy == ORACLE for cell in line.cells]
    for cell in shown or group.cells:
        regret: Figure | None = getattr(cell, f"regret_{measure}_s")
        if not shown and (regret is None or keeps_no_budget(cell.arm.policy)):
            continue
        value = getattr(cell.summary, f"ttft_{measure}_s").mean - (0.0 if regret is None else regret.mean)
        if math.isfinite(value):
            found[cell.arm.budget] = min(value, found.get(cell.arm.budget, math.inf))
    return dict(sorted(found.items()))


def pareto_front(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells that no other beats in both cost and P99 of TTFT, by rising cost."""
    front: list[Cell] = []
    usable = [c for c in cells if known(c.summary.cost_usd.mean) and known(c.summary.ttft_p99_s.mean)]
    for cell in sorted(usable, key=lambda c: (c.summary.cost_usd.mean, c.summary.ttft_p99_s.mean)):
        if not front or cell.summary.ttft_p99_s.mean < front[-1].summary.ttft_p99_s.mean:
            front.append(cell)
    return front


def cost_per_1000_usd(cell: Cell) -> float:
    """Return the cost of a thousand requests, everything that was charged, USD."""
    return cell.summary.cost_usd.mean * 1000.0


def is_baseline(cell: Cell, *policies: str) -> bool:
    """Return whether a cell has one of these policies and its answers neither migrate nor are drafted."""
    return cell.arm.policy in policies and not (cell.arm.migrate or cell.arm.drafts)


def known(value: float | None) -> bool:
    """Return whether a number can be drawn or printed."""
    return value is not None and math.isfinite(value)
