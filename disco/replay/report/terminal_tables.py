"""A report as plain tables, for the terminal and for the HTML page."""

from __future__ import annotations

from collections.abc import Callable

from disco.replay.metrics.over_seeds import Cell, Figure
from disco.replay.report.findings import SAME_S, decimals, number
from disco.replay.report.report_data import (
    SERVER_ONLY,
    Group,
    Line,
    Report,
    cost_per_1000_usd,
    groups,
    known,
)
from disco.replay.report.table import Table

__all__ = ["scenario_tables", "share", "spread", "terminal_tables", "times"]


Row = tuple[Line, Cell, Cell | None]  # the line, its cell, and server_only's on the same scenario
Column = tuple[str, Callable[[Row], str]]

_MAIN: tuple[Column, ...] = (
    ("policy", lambda row: row[0].name),
    ("budget", lambda row: "–" if row[0].budgetless else f"{row[1].arm.budget:g}"),
    ("used", lambda row: share(row[1].summary.budget_used)),
    ("TTFT mean", lambda row: spread(row[1].summary.ttft_mean_s)),
    ("P50", lambda row: number(row[1].summary.ttft_p50_s.mean)),
    ("P90", lambda row: number(row[1].summary.ttft_p90_s.mean)),
    ("P99", lambda row: spread(row[1].summary.ttft_p99_s)),
    ("$/1000", lambda row: number(cost_per_1000_usd(row[1]))),
    ("× server", lambda row: times(row[1], row[2])),
    ("device won", lambda row: share(row[1].summary.device_won)),
    ("mean vs oracle", lambda row: regret(row[1].regret_mean_s)),
    ("P99 vs oracle", lambda row: regret(row[1].regret_p99_s)),
)

_READER: tuple[Column, ...] = (
    ("policy", lambda row: row[0].name),
    ("budget", lambda row: "–" if row[0].budgetless else f"{row[1].arm.budget:g}"),
    ("TBT P99 s", lambda row: _reading(row[1], "tbt_p99_s", spread)),
    ("late tokens", lambda row: _reading(row[1], "late_tokens", spread)),
    ("stalled", lambda row: _reading(row[1], "stall_ratio", share)),
    ("QoE", lambda row: _reading(row[1], "qoe", spread)),
    ("moved", lambda row: _reading(row[1], "moved", share)),
    ("moved: TBT P99 s", lambda row: _reading(row[1], "moved_tbt_p99_s", spread)),
    ("late at the seam", lambda row: _reading(row[1], "handover_late_tokens", spread)),
    ("failed over", lambda row: _reading(row[1], "failed_over", share)),
)

_DRAFTING: tuple[Column, ...] = (
    ("policy", lambda row: row[0].name),
    ("budget", lambda row: "–" if row[0].budgetless else f"{row[1].arm.budget:g}"),
    ("used", lambda row: share(row[1].summary.budget_used)),
    ("TTFT mean", lambda row: spread(row[1].summary.ttft_mean_s)),
    ("TBT mean s", lambda row: _reading(row[1], "tbt_mean_s", spread)),
    ("TBT P99 s", lambda row: _reading(row[1], "tbt_p99_s", spread)),
    ("device $/1000", lambda row: _charged(row[1], "device/")),
    ("of it drafts", lambda row: _charged(row[1], "device/draft")),
    ("server $/1000", lambda row: _charged(row[1], "server/")),
    ("of it in vain", lambda row: _charged(row[1], "server/draft")),
)

# With one decimal: a policy counts in the findings only if it answers nearly as many requests as the best.
_FAILED: Column = ("unanswered", lambda row: f"{row[1].summary.failed.mean * 100:.1f} %")


def terminal_tables(report: Report) -> list[Table]:
    """Return one table per scenario, and one for the reader's side where the event-accurate evaluator ran.

    TTFT is in seconds over answered requests; ± is half the 95 % interval over seeds. "used" is the share of prompt
    tokens that the constrained endpoint was started on. Cost is of a thousand requests, in USD and as a multiple of
    `server_only`. Distances to the oracle are in seconds. Each time in a line of the oracle is that of the oracle that
    minimises it.

    Args:
        report: what to show.
    """
    return [table for group in groups(report.cells) for table in scenario_tables(group)]


def scenario_tables(group: Group) -> list[Table]:
    """Return the tables of one scenario."""
    rows = _rows(group)
    where = f"{group.scenario} · {group.regime}"
    columns = _MAIN
    if any(cell.summary.failed.mean > 0 for _, cell, _ in rows):
        columns = (*_MAIN, _FAILED)
    tables = [_table(f"{where} · {_size(group)} · TTFT in s", columns, rows)]
    read = [row for row in rows if row[1].summary.reading is not None]
    if read:
        tables.append(_table(f"{where} · the reader's side", _READER, read))
    if any(cell.arm.drafts for _, cell, _ in rows):
        tables.append(_table(f"{where} · drafted on the device, verified by the server", _DRAFTING, read))
    return tables


def spread(figure: Figure) -> str:
    """Format the mean, and half its interval if there is one."""
    half = f"{(figure.high - figure.low) / 2:.{decimals(figure.mean)}f}"
    return f"{number(figure.mean)}±{half}" if known(figure.mean) and float(half) > 0 else number(figure.mean)


def share(figure: Figure) -> str:
    """Format a share in percent."""
    return f"{figure.mean * 100:.0f} %" if known(figure.mean) else "–"


def times(cell: Cell, reference: Cell | None) -> str:
    """Format the cost as a multiple of the reference's."""
    if reference is None or not reference.summary.cost_usd.mean > 0 or not known(cell.summary.cost_usd.mean):
        return "–"
    multiple = cell.summary.cost_usd.mean / reference.summary.cost_usd.mean
    return f"{multiple:.2f}×" if multiple < 10 else f"{number(multiple)}×"


def regret(figure: Figure | None) -> str:
    """Format the seconds above the oracle."""
    if figure is None or not known(figure.mean):
        return "–"
    if abs(figure.mean) < SAME_S:
        return "0"
    return f"{figure.mean:+,.{min(3, decimals(figure.mean))}f}"


def _rows(group: Group) -> list[Row]:
    return [
        (line, cell, group.baseline(SERVER_ONLY, cell.evaluator))
        for line in group.lines
        for cell in line.cells
    ]


def _table(title: str, columns: tuple[Column, ...], rows: list[Row]) -> Table:
    return Table(
        title,
        tuple(name for name, _ in columns),
        tuple(tuple(value(row) for _, value in columns) for row in rows),
    )


def _reading(cell: Cell, name: str, show: Callable[[Figure], str]) -> str:
    figure = None if cell.summary.reading is None else getattr(cell.summary.reading, name)
    return "–" if figure is None else show(figure)


def _charged(cell: Cell, what: str) -> str:
    """Format the cost of a thousand requests that was charged at a place, or in a phase there, USD."""
    cost_by = cell.summary.cost_by.items()
    return number(1000.0 * sum(usd for key, usd in cost_by if key.startswith(what)))


def _size(group: Group) -> str:
    requests = {cell.summary.requests for cell in group.cells}
    seeds = {cell.summary.seeds for cell in group.cells}
    many = f"{max(requests):,} requests"
    return many if max(seeds) == 1 else f"{many} × {max(seeds)} seeds"
