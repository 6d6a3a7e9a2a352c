"""What a result says, in two or three plain sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from disco.replay.metrics.over_seeds import Cell
from disco.replay.report.report_data import (
    DEVICE_ONLY,
    NO_BUDGET,
    SERVER_ONLY,
    Group,
    Report,
    groups,
    is_baseline,
    known,
)
from disco.replay.vector.arm_delays import ORACLE

__all__ = ["SAME_S", "decimals", "findings", "number"]

FAILURES_OVERLOOKED = 0.001
"""Share of requests a policy may leave unanswered above the best one's; TTFT counts answered requests only."""

OVERSPENT = 0.05
"""Share of prompt tokens above its budget from which a cell does not count: what it gained, it did not pay for."""

SAME_S = 0.0005
"""Seconds of TTFT that nobody notices."""

SPELT_OUT = 2
"""Scenarios up to which each gets its own sentences."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The best P99 of a scenario within the cost of the dearer single endpoint (None: neither was run)."""

    group: Group
    name: str
    cell: Cell
    limit: Cell | None
    baselines: tuple[Cell, ...]


def findings(report: Report) -> list[str]:
    """The best P99 of TTFT within cost, what it saves, and how far it is from the best possible.

    "Within cost" means: no dearer than sending every request to the dearer of the two endpoints, where the
    result has `server_only` or `device_only`; otherwise everything counts.
    """
    found = [best for group in groups(report.cells) if (best := _best(group)) is not None]
    if len(found) <= SPELT_OUT:
        return [sentence for best in found for sentence in _sentences(best, named=len(found) > 1)]
    return _overall(found)


def number(value: float) -> str:
    """About three significant digits, never an exponent, at most seven decimals; a dash for NaN."""
    return f"{value:,.{decimals(value)}f}" if known(value) else "–"


def decimals(value: float) -> int:
    """How many decimals make about three significant digits."""
    size = abs(value)
    if size >= 100 or not known(value):
        return 0
    if size == 0 or size >= 0.1:
        return 1 if size >= 10 else 2 if size >= 1 else 3
    return min(7, 2 - math.floor(math.log10(size)))


def _best(group: Group) -> _Best | None:
    # Costs and times of two evaluators are not compared with each other.
    evaluator = group.cells[0].evaluator
    usable = [
        (line.name, cell)
        for line in group.lines
        if line.policy != ORACLE
        for cell in line.cells
        if cell.evaluator == evaluator and known(_p99(cell)) and known(_cost(cell))
    ]
    if not usable:
        return None
    answered = min(cell.summary.failed.mean for _, cell in usable) + FAILURES_OVERLOOKED
    baselines = tuple(cell for _, cell in usable if is_baseline(cell, SERVER_ONLY, DEVICE_ONLY))
    limit = max(baselines, key=_cost, default=None)
    within = [
        (name, cell)
        for name, cell in usable
        if cell.summary.failed.mean <= answered
        and _keeps_budget(cell)
        # A hair's breadth: the same tokens, summed in another order.
        and (limit is None or _cost(cell) <= _cost(limit) * (1 + 1e-9))
    ]
    if not within:
        return None
    # What decides for each request is of interest; a single endpoint is what it is compared with.
    deciding = [(name, cell) for name, cell in within if cell.arm.policy not in NO_BUDGET]
    name, cell = min(deciding or within, key=lambda pair: (_p99(pair[1]), _cost(pair[1])))
    return _Best(group, name, cell, limit, baselines)


def _sentences(best: _Best, *, named: bool) -> list[str]:
    cell = best.cell
    where = f"{best.group.scenario} ({best.group.regime}): " if named else ""
    who = best.name if _takes_no_budget(best) else f"{best.name} at a budget of {cell.arm.budget:g}"
    within = "" if best.limit is None else f" at no more than {best.limit.arm.policy}'s cost"
    out = [f"{where}{who} has the lowest P99 TTFT of the policies compared{within}: {number(_p99(cell))} s."]
    compared = [
        f"against {other.arm.policy} ({number(_p99(other))} s) {_change(_p99(cell), _p99(other))} P99 TTFT and "
        f"{_change(_cost(cell), _cost(other))} cost"
        for other in best.baselines
        if other.arm.policy != cell.arm.policy
    ]
    if compared:
        out.append(f"That is {'; '.join(compared)}.")
    out += [
        f"{other.arm.policy} alone is no slower and no dearer than that."
        for other in best.baselines
        if other is not cell and _p99(other) <= _p99(cell) and _cost(other) <= _cost(cell)
    ]
    # Below the oracle is only who had more budget than it.
    if cell.regret_p99_s is not None and cell.regret_p99_s.mean > -SAME_S:
        out.append(_distance(cell, cell.regret_p99_s.mean))
    return out


def _distance(cell: Cell, regret_s: float) -> str:
    oracle_s = _p99(cell) - regret_s
    known_bound = f"An oracle that knows every TTFT in advance has {number(oracle_s)} s at the same budget"
    if regret_s < SAME_S:
        return f"{known_bound}: no better."
    share = f" ({regret_s / oracle_s * 100:.0f} %)" if oracle_s > 0 else ""
    return f"{known_bound}: {number(regret_s)} s{share} is the most that could still be gained."


def _overall(found: Sequence[_Best]) -> list[str]:
    winners = Counter(best.name for best in found).most_common()
    out = [
        f"Lowest P99 TTFT at no more than the cost of the dearer endpoint alone, in {len(found)} scenarios: "
        + ", ".join(f"{name} in {count}" for name, count in winners)
        + "."
    ]
    for policy in (SERVER_ONLY, DEVICE_ONLY):
        pairs = [
            (best.cell, other) for best in found for other in best.baselines if other.arm.policy == policy
        ]
        pairs = [(cell, other) for cell, other in pairs if _p99(other) > 0 and _cost(other) > 0]
        if pairs:
            slower = [_p99(cell) / _p99(other) - 1 for cell, other in pairs]
            dearer = [_cost(cell) / _cost(other) - 1 for cell, other in pairs]
            out.append(f"Against {policy}: P99 TTFT {_spread(slower)}, cost {_spread(dearer)}.")
    shares = [
        regret.mean / (_p99(best.cell) - regret.mean)
        for best in found
        if (regret := best.cell.regret_p99_s) is not None and _p99(best.cell) > regret.mean
    ]
    if shares:
        out.append(f"P99 TTFT above the oracle's at the same budget: {_spread(shares)}.")
    return out


def _takes_no_budget(best: _Best) -> bool:
    return any(line.name == best.name and line.budgetless for line in best.group.lines)


def _keeps_budget(cell: Cell) -> bool:
    return cell.arm.policy in NO_BUDGET or cell.summary.budget_used.low <= cell.arm.budget + OVERSPENT


def _change(value: float, reference: float) -> str:
    if reference <= 0:
        return "not comparable in"
    times = value / reference
    if abs(times - 1) < 0.005:
        return "the same"
    if times >= 2:
        return f"{number(float(f'{times:.3g}'))} times the"
    return f"{abs(times - 1) * 100:.0f} % {'more' if times > 1 else 'less'}"


def _spread(changes: Sequence[float]) -> str:
    return f"{_percent(min(changes))} to {_percent(max(changes))} (median {_percent(median(changes))})"


def _percent(share: float) -> str:
    return "0 %" if abs(share) < 0.005 else f"{share * 100:+,.0f} %".replace("-", "−")


def _p99(cell: Cell) -> float:
    return cell.summary.ttft_p99_s.mean


def _cost(cell: Cell) -> float:
    return cell.summary.cost_usd.mean
