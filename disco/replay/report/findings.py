"""A result in a few plain sentences. Each of them can be checked against the tables of the same report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from disco.replay.metrics.over_seeds import Cell
from disco.replay.report.report_data import (
    DEVICE_ONLY,
    SERVER_ONLY,
    Group,
    Report,
    groups,
    is_baseline,
    known,
)
from disco.replay.sweeps.sweep import keeps_no_budget
from disco.replay.vector.arm_delays import ORACLE

__all__ = ["SAME_S", "decimals", "findings", "number"]

FAILURES_OVERLOOKED = 0.001
"""Share of requests a policy may leave unanswered above the best one's; TTFT counts answered requests only."""

OVERSPENT = 0.05
"""Share of prompt tokens above its budget from which a cell does not count: it gained by work it did not pay for."""

SAME_S = 0.0005
"""A difference in TTFT, in seconds, that no reader notices."""

SPELT_OUT = 2
"""The most scenarios that each get their own sentences."""

_MANY = 9.0  # more than the reference: from there on it is told as times as much, and not in percent

Named = tuple[str, Cell]  # a line's name and one of its cells


@dataclass(frozen=True, slots=True)
class _Best:
    """The best P99 of a scenario within the cost of the more expensive single endpoint.

    Attributes:
        where: the scenario, as named by sentences about several.
        overall: the best of all.
        chosen: the best of those that keep to a budget; `overall` where there is none. It is the one that is
            compared, because policies that decide for each request are of interest.
        limit: the more expensive single endpoint; None: neither was run.
        baselines: the single endpoints that were run.
        conditions: what a policy had to do to be counted; only conditions that some policies did not meet.
    """

    where: str
    overall: Named
    chosen: Named
    limit: Cell | None
    baselines: tuple[Cell, ...]
    conditions: tuple[str, ...]


def findings(report: Report) -> list[str]:
    """Return sentences on the best P99 of TTFT within cost, what it saves, and its distance to the best possible.

    "Within cost" means: no more expensive than sending every request to the more expensive of the two endpoints, if
    the result has `server_only` or `device_only`; otherwise everything counts.

    Args:
        report: what to sum up.
    """
    # Costs and times of different evaluators are not compared with each other.
    parts = [(group, name) for group in groups(report.cells) for name in _evaluators(group)]
    found = [best for group, evaluator in parts if (best := _best(group, evaluator)) is not None]
    if len(found) <= SPELT_OUT:
        return [sentence for best in found for sentence in _sentences(best, named=len(parts) > 1)]
    return _overall(found, of=len(parts))


def number(value: float) -> str:
    """Format with about three significant digits, without exponent, at most seven decimals; a dash for NaN."""
    return f"{value:,.{decimals(value)}f}" if known(value) else "–"


def decimals(value: float) -> int:
    """Return how many decimals give about three significant digits."""
    size = abs(value)
    if size >= 100 or not known(value):
        return 0
    if size == 0 or size >= 0.1:
        return 1 if size >= 10 else 2 if size >= 1 else 3
    return min(7, 2 - math.floor(math.log10(size)))


def _evaluators(group: Group) -> list[str]:
    return list(dict.fromkeys(cell.evaluator for cell in group.cells))


def _best(group: Group, evaluator: str) -> _Best | None:
    usable = [
        (line.name, cell)
        for line in group.lines
        if line.policy != ORACLE
        for cell in line.cells
        if cell.evaluator == evaluator and known(_p99(cell)) and known(_cost(cell))
    ]
    if not usable:
        return None
    baselines = tuple(cell for _, cell in usable if is_baseline(cell, SERVER_ONLY, DEVICE_ONLY))
    limit = max(baselines, key=_cost, default=None)
    fewest = min(cell.summary.failed.mean for _, cell in usable)
    answering = [pair for pair in usable if pair[1].summary.failed.mean <= fewest + FAILURES_OVERLOOKED]
    in_budget = [pair for pair in answering if _keeps_budget(pair[1])]
    # The tolerance covers rounding: the same tokens, summed in another order.
    within = [pair for pair in in_budget if limit is None or _cost(pair[1]) <= _cost(limit) * (1 + 1e-9)]
    if not within:
        return None
    budgeted = [pair for pair in within if not keeps_no_budget(pair[1].arm.policy)]
    conditions = (
        "answer as many requests as the best" if len(answering) < len(usable) else "",
        f"keep to their budgets within {OVERSPENT * 100:.0f} %" if len(in_budget) < len(answering) else "",
    )
    regime = group.regime if len(_evaluators(group)) == 1 else f"{group.regime}, {evaluator}"
    return _Best(
        where=f"{group.scenario} ({regime})",
        overall=_lowest(within),
        chosen=_lowest(budgeted or within),
        limit=limit,
        baselines=baselines,
        conditions=tuple(filter(None, conditions)),
    )


def _sentences(best: _Best, *, named: bool) -> list[str]:
    _, cell = best.chosen
    where = f"{best.where}: " if named else ""
    those = f" that {' and '.join(best.conditions)}" if best.conditions else ""
    within = "" if best.limit is None else f" at no more than {best.limit.arm.policy}'s cost"
    out = [
        (
            f"{where}{_label(best.overall)} has the lowest P99 TTFT of the policies compared{those}{within}: "
            f"{number(_p99(best.overall[1]))} s."
        )
    ]
    # If a budgeted policy is as good as the best, the first sentence already names it.
    if best.chosen != best.overall:
        out.append(f"Of those with a budget, {_label(best.chosen)} has the lowest: {number(_p99(cell))} s.")
    compared = [
        f"against {other.arm.policy} ({number(_p99(other))} s) {_change(_p99(cell), _p99(other))} P99 TTFT and "
        f"{_change(_cost(cell), _cost(other))} cost"
        for other in best.baselines
        if other is not cell
    ]
    if compared:
        out.append(f"That is {'; '.join(compared)}.")
    out += [
        f"{other.arm.policy} alone is no slower and no more expensive than that."
        for other in best.baselines
        if other is not cell and _p99(other) <= _p99(cell) and _cost(other) <= _cost(cell)
    ]
    if cell.regret_p99_s is not None:
        out.append(_distance(cell, cell.regret_p99_s.mean))
    return out


def _label(named: Named) -> str:
    name, cell = named
    return name if keeps_no_budget(cell.arm.policy) else f"{name} at a budget of {cell.arm.budget:g}"


def _distance(cell: Cell, regret_s: float) -> str:
    oracle_s = _p99(cell) - regret_s
    same = "the same budget" if not keeps_no_budget(cell.arm.policy) else f"a budget of {cell.arm.budget:g}"
    known_bound = f"An oracle that knows every TTFT in advance has {number(oracle_s)} s at {same}"
    if regret_s < SAME_S:
        return f"{known_bound}: no better."
    share = f"{regret_s / _p99(cell) * 100:.0f} %"
    return f"{known_bound}: {number(regret_s)} s ({share}) is the most that could still be gained."


def _overall(found: Sequence[_Best], *, of: int) -> list[str]:
    """Return sentences on many scenarios, of which `found` have a best policy."""
    limited = [best for best in found if best.limit is not None]
    within = " at no more than the cost of the more expensive endpoint alone" if limited else ""
    within += " where one was run" if 0 < len(limited) < len(found) else ""
    scenarios = f"{len(found)} scenarios" if of == len(found) else f"{len(found)} of {of} scenarios"
    winners = _counted([best.overall for best in found])
    conditions = list(dict.fromkeys(condition for best in found for condition in best.conditions))
    those = f" of the policies that {' and '.join(conditions)}" if conditions else ""
    out = [f"Lowest P99 TTFT{those}{within}, in {scenarios}: {winners}."]
    chosen = [best.chosen for best in found]
    if any(best.chosen != best.overall for best in found):
        out.append(f"Of those with a budget: {_counted(chosen)}.")
    for policy in (SERVER_ONLY, DEVICE_ONLY):
        pairs = [
            (best.chosen[1], other)
            for best in found
            for other in best.baselines
            if other.arm.policy == policy and _p99(other) > 0 and _cost(other) > 0
        ]
        if pairs:
            slower = [_p99(cell) / _p99(other) - 1 for cell, other in pairs]
            costlier = [_cost(cell) / _cost(other) - 1 for cell, other in pairs]
            where = "" if len(pairs) == len(found) else f" in {len(pairs)} of them"
            out.append(f"Against {policy}{where}: P99 TTFT {_spread(slower)}, cost {_spread(costlier)}.")
    regrets = [(cell, cell.regret_p99_s.mean) for _, cell in chosen if cell.regret_p99_s is not None]
    shares = [regret_s / (_p99(cell) - regret_s) for cell, regret_s in regrets if _p99(cell) > regret_s]
    if shares:
        where = "" if len(shares) == len(found) else f" in {len(shares)} of them"
        out.append(f"P99 TTFT above the oracle's at the same budget{where}: {_spread(shares)}.")
    return out


def _counted(named: Sequence[Named]) -> str:
    counts = Counter(name for name, _ in named).most_common()
    return ", ".join(f"{name} in {count}" for name, count in counts)


def _lowest(cells: Sequence[Named]) -> Named:
    """Return the one of the lowest P99; of those alike in it the cheapest, and then one with a budget."""
    least_s = min(_p99(cell) for _, cell in cells)
    alike = [named for named in cells if _p99(named[1]) <= least_s + SAME_S]
    return min(
        alike, key=lambda named: (_cost(named[1]), _p99(named[1]), keeps_no_budget(named[1].arm.policy))
    )


def _keeps_budget(cell: Cell) -> bool:
    return keeps_no_budget(cell.arm.policy) or cell.summary.budget_used.mean <= cell.arm.budget + OVERSPENT


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
    if share >= _MANY:
        return f"{number(float(f'{1 + share:.3g}'))} times"
    return "0 %" if abs(share) < 0.005 else f"{share * 100:+,.0f} %".replace("-", "−")


def _p99(cell: Cell) -> float:
    return cell.summary.ttft_p99_s.mean


def _cost(cell: Cell) -> float:
    return cell.summary.cost_usd.mean
