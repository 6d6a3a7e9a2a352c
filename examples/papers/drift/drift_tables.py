"""The comparison as tables of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from disco.replay import Figure, Table, figure
from papers.drift.drift_planners import ADAPTIVE, PLANNERS, ROLLING
from papers.drift.drift_run import TEN_USERS, DriftResult, DriftRow
from papers.evaluation import UNKNOWN

__all__ = ["drift_tables"]

_SIDES: Final = {
    "device": "the device's work is limited (DiSCo-D)",
    "server": "the server's work is limited (DiSCo-S)",
}
# The paper's errors of its four forecasts: MAPE in %, MAE in s.
_PRINTED: Final = {
    "deepseek-v3-2025": ("27.8 / 0.396", "27.4 / 0.377", "33.0 / 0.475", "27.5 / 0.400"),
    "gpt-4.1-nano-2026": ("24.6 / 0.100", "20.9 / 0.084", "28.7 / 0.113", "24.8 / 0.100"),
}
_FORECASTS: Final = ("moving average", "exponential smoothing", "random forest", "boosted trees")


def drift_tables(result: DriftResult) -> tuple[Table, ...]:
    """Return the tables: ours beside the rolling window, all planners, and the errors of the point forecasts."""
    tables = []
    for limited in _SIDES:
        for budget in result.budgets:
            if limited == "device":
                tables.append(_differences(result, limited, budget))
            tables.append(_planners(result, limited, budget))
    if result.forecasts:
        tables.append(_errors(result))
    return tuple(tables)


def _differences(result: DriftResult, limited: str, budget: float) -> Table:
    """Ours minus the rolling window, seed by seed: both under the budget's rule."""
    rows = []
    for source in _workloads(result, each_user=True):
        ours = result.find(source, limited, budget, ADAPTIVE)
        rolling = result.find(source, limited, budget, ROLLING)
        if ours is None or rolling is None:
            continue
        mean = result.difference(ours, rolling, "mean_s")
        p99 = result.difference(ours, rolling, "p99_s")
        free = result.find(source, limited, budget, "adaptive, no rule")
        free_rolling = result.find(source, limited, budget, "rolling window, no rule")
        rows.append(
            (
                source,
                f"{_mean(rolling.mean_s):.3f}",
                _signed(mean),
                _signed(p99),
                _verdict(mean) if result.runs > 1 else UNKNOWN,
                f"{_mean(rolling.used):.3f}",
                f"{_mean(ours.used):.3f}",
                *(
                    UNKNOWN if row is None else f"{_mean(row.used):.3f}, {_mean(row.worst_prompts):.1f}"
                    for row in (free_rolling, free)
                ),
            )
        )
    return Table(
        f"Adaptive less rolling window, both under the budget's rule: {_SIDES[limited]}, budget {budget:g}",
        (
            "workload",
            "rolling: mean s",
            "ours less: mean s",
            "ours less: P99 s",
            "mean",
            "used, rolling",
            "used, ours",
            "no rule: rolling",
            "no rule: ours",
        ),
        tuple(rows),
        (
            f"Differences seed by seed over {result.runs} seeds, with 95 % intervals; negative: ours is faster."
            if result.runs > 1
            else "One seed: its intervals are empty, and nothing is known of chance. Negative: ours is faster.",
            '"ahead" and "behind": the interval of the mean excludes 0.',
            "No rule: share used, and by how many prompts the worst window of 200 exceeds the budget, mean over seeds.",
        ),
    )


def _planners(result: DriftResult, limited: str, budget: float) -> Table:
    rows = []
    for source in _workloads(result, each_user=False):
        for planner in PLANNERS:
            row = result.find(source, limited, budget, planner.name)
            if row is not None:
                rows.append((source, planner.name, *_cells(row)))
    notes = [
        f"Mean and 95 % interval over {result.runs} seeds.",
        "Worst window: the most prompts by which a window of 200 exceeds the budget; the rule promises at most 1.",
    ]
    if limited == "server":
        notes.append(
            "The threshold looks at lengths only: planners with a distribution of the server's times all decide alike."
        )
    return Table(
        f"All planners: {_SIDES[limited]}, budget {budget:g}",
        ("workload", "planner", "mean s", "P99 s", "used", "worst window", "changes"),
        tuple(rows),
        (*notes, *result.notes),
    )


def _errors(result: DriftResult) -> Table:
    rows = []
    for source in result.sources:
        mine = {row.forecast: row for row in result.forecasts if row.source == source}
        printed = _PRINTED.get(source, (UNKNOWN,) * len(_FORECASTS))
        for name, theirs in zip(_FORECASTS, printed, strict=True):
            if name in mine:
                row = mine[name]
                rows.append((source, name, f"{100 * row.mape:.1f} / {row.mae_s:.3f}", theirs))
    return Table(
        "Errors of the point forecasts: MAPE in % / MAE in s",
        ("workload", "forecast", "ours", "paper (its own trace)"),
        tuple(rows),
        ("The paper's traces of DeepSeek and GPT-4o-mini are not public; other servers stand in for them.",),
    )


def _workloads(result: DriftResult, *, each_user: bool) -> Iterator[str]:
    """Return the workloads in order, the users as one behind (or without) themselves."""
    told = False
    for source in result.sources:
        is_user = any(row.group == "user" and row.source == source for row in result.rows)
        if is_user and not told:
            told = True
            yield TEN_USERS
        if each_user or not is_user:
            yield source


def _cells(row: DriftRow) -> tuple[str, ...]:
    changes = _mean(row.changes)
    return (
        _interval(figure(row.mean_s)),
        _interval(figure(row.p99_s)),
        f"{_mean(row.used):.3f}",
        f"{max(row.worst_prompts):.2f}",
        f"{changes:.1f}" if changes or "adaptive" in row.planner else UNKNOWN,
    )


def _mean(values: tuple[float, ...] | tuple[int, ...]) -> float:
    return sum(values) / len(values)


def _interval(one: Figure) -> str:
    return f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]"


def _signed(one: Figure) -> str:
    return f"{one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _verdict(one: Figure) -> str:
    if one.high < 0.0:
        return "ahead"
    return "behind" if one.low > 0.0 else "even"
