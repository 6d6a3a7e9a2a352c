"""The plots of a result: distributions, curves over the budget, cost against tail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from disco.replay.metrics.over_seeds import CDF_LEVELS, Cell, Figure
from disco.replay.report.chart_style import (
    Plot,
    Style,
    Trace,
    axis,
    band,
    endpoint_colours,
    layout,
    legend_above,
    literal,
    log_axis,
    numbers,
    see_through,
)
from disco.replay.report.report_data import Group, Line, bound, cost_per_1000_usd, known, pareto_front
from disco.replay.vector.arm_delays import ORACLE

__all__ = ["cdf_levels_shown", "figures"]

CDF_NUMBERS = 120_000
"""Limit on quantiles that a page holds, approximately; above it the curves get fewer points below P90."""

# One pattern per phase, to distinguish phases within one endpoint's colour.
_PATTERNS = {
    "answer": "",
    "race_loser": "/",
    "parked": ".",
    "migration": "x",
    "failover": "\\",
    "failed": "-",
    "hedge": "+",
    "discarded": "|",
}


def figures(groups: Sequence[Group], styles: dict[str, Style]) -> list[Plot]:
    """Return every plot of cells."""
    shown = cdf_levels_shown(groups)
    return [
        _distribution(groups, styles, shown, tail=False),
        _distribution(groups, styles, shown, tail=True),
        _over_budget(groups, styles, "mean"),
        _over_budget(groups, styles, "p99"),
        _cost(groups, styles),
        _pareto(groups, styles),
        _cost_parts(groups),
    ]


def cdf_levels_shown(groups: Sequence[Group]) -> list[int]:
    """Return the indices into `CDF_LEVELS` that the curves show: all, or fewer below P90 in a very large report."""
    curves = 2 * sum(len(group.lines) * len(group.budgets) for group in groups)
    step = max(1, -(-curves * len(CDF_LEVELS) // CDF_NUMBERS))
    return [i for i, level in enumerate(CDF_LEVELS) if level >= 0.9 or i % step == 0]


def _distribution(
    groups: Sequence[Group], styles: dict[str, Style], shown: Sequence[int], *, tail: bool
) -> Plot:
    frames: dict[str, list[Trace]] = {}
    for number, group in enumerate(groups):
        for place, budget in enumerate(group.budgets):
            at_budget = [(line, line.at(budget)) for line in group.lines]
            frames[f"{number}/{place}"] = [
                {
                    **_curve(line, styles[line.name]),
                    "x": numbers(cell.summary.ttft_quantiles_s[i] for i in shown),
                    "y": "@exceeding" if tail else "@levels",
                    "hovertemplate": f"%{{x:.3g}} s · %{{y:.{1 if tail else 0}%}}",
                }
                for line, cell in at_budget
                if cell is not None and cell.summary.ttft_quantiles_s
            ]
    if tail:
        y = axis(
            "share of requests that wait longer",
            type="log",
            range=[-3.05, 0.05],
            tickvals=[0.001, 0.01, 0.05, 0.1, 0.5, 1],
            ticktext=["0.1 %", "1 % (P99)", "5 %", "10 % (P90)", "50 %", "100 %"],
        )
        return Plot(
            "ttft-tail",
            "Requests that wait long",
            "The same from above: the share of requests that wait longer than a given time.",
            layout(xaxis=log_axis("TTFT, s"), yaxis=y),
            "budget",
            frames,
        )
    y = axis("share of requests", tickformat=".0%", range=[0, 1.02])
    return Plot(
        "ttft-cdf",
        "Time to first token",
        "Share of requests that have their first token within a given time, at the chosen budget.",
        layout(xaxis=log_axis("TTFT, s"), yaxis=y),
        "budget",
        frames,
    )


def _over_budget(groups: Sequence[Group], styles: dict[str, Style], measure: str) -> Plot:
    def of(cell: Cell) -> Figure:
        figure: Figure = getattr(cell.summary, f"ttft_{measure}_s")
        return figure

    frames: dict[str, list[Trace]] = {}
    for number, group in enumerate(groups):
        best = bound(group, measure)
        lines = [line for line in group.lines if not (best and line.policy == ORACLE)]
        traces = _curves(lines, styles, of, "%{x:.2f} · %{y:.3g} s")
        if best:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "marker": {"color": "@ink", "size": 4},
                    "name": f"oracle (least {'mean' if measure == 'mean' else 'P99'})",
                    "legendgroup": ORACLE,
                    "x": numbers(best),
                    "y": numbers(best.values()),
                    "line": {"color": "@ink", "dash": "dash", "width": 1.8},
                    "hovertemplate": "%{x:.2f} · %{y:.3g} s",
                }
            )
        frames[str(number)] = traces
    what = "Mean" if measure == "mean" else "P99"
    return Plot(
        f"ttft-{measure}-over-budget",
        f"{what} TTFT over budget",
        "Bands are 95 % intervals over seeds; dashed: the best possible with every TTFT known in advance.",
        layout(xaxis=_budget_axis(), yaxis=axis(f"{what} TTFT, s", rangemode="tozero")),
        "scenario",
        frames,
    )


def _cost(groups: Sequence[Group], styles: dict[str, Style]) -> Plot:
    def of(cell: Cell) -> Figure:
        figure = cell.summary.cost_usd
        return Figure(figure.mean * 1000, figure.low * 1000, figure.high * 1000)

    frames = {
        str(number): _curves(group.lines, styles, of, "%{x:.2f} · $%{y:.3g} per 1000")
        for number, group in enumerate(groups)
    }
    return Plot(
        "cost-over-budget",
        "Cost over budget",
        "Everything charged on both sides: losers of a race and repeated prefills included.",
        layout(xaxis=_budget_axis(), yaxis=axis("cost of 1000 requests, USD", rangemode="tozero")),
        "scenario",
        frames,
    )


def _curves(
    lines: Sequence[Line],
    styles: dict[str, Style],
    of: Callable[[Cell], Figure],
    hover: str,
) -> list[Trace]:
    """Return bands below and curves above; a policy without a budget is a horizontal line."""
    bands: list[Trace] = []
    curves: list[Trace] = []
    for line in lines:
        style = styles[line.name]
        cells = line.cells
        x = [cell.arm.budget for cell in cells]
        if line.budgetless:
            x, cells = [0.0, 1.0], (cells[0], cells[0])
        values = [of(cell) for cell in cells]
        trace = {**_curve(line, style), "x": numbers(x), "y": numbers(v.mean for v in values)}
        trace["hovertemplate"] = hover
        if not line.budgetless:
            trace |= {"mode": "lines+markers", "marker": _marker(style, 7)}
        curves.append(trace)
        drawn = [(at, v) for at, v in zip(x, values, strict=True) if known(v.low) and known(v.high)]
        if any(v.high > v.low for _, v in drawn) and style.colour.startswith("#"):
            at, lows, highs = zip(*((at, v.low, v.high) for at, v in drawn), strict=True)
            bands.append({**band(at, lows, highs, style.colour), "legendgroup": line.name})
    return [*bands, *curves]


def _pareto(groups: Sequence[Group], styles: dict[str, Style]) -> Plot:
    frames = {}
    for number, group in enumerate(groups):
        front = pareto_front(c for line in group.lines if line.policy != ORACLE for c in line.cells)
        traces: list[Trace] = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "not beaten in both cost and P99",
                "x": numbers(cost_per_1000_usd(cell) for cell in front),
                "y": numbers(cell.summary.ttft_p99_s.mean for cell in front),
                # Between two points: the cost of the more expensive one with the P99 of the cheaper one.
                "line": {"color": "@muted", "width": 7, "shape": "hv"},
                "opacity": 0.3,
                "hoverinfo": "skip",
            }
        ]
        for line in group.lines:
            style = styles[line.name]
            traces.append(
                {
                    **_curve(line, style),
                    "mode": "markers",
                    "marker": _marker(style, 9),
                    "x": numbers(cost_per_1000_usd(cell) for cell in line.cells),
                    "y": numbers(cell.summary.ttft_p99_s.mean for cell in line.cells),
                    "customdata": [
                        "no budget" if line.budgetless else f"budget {c.arm.budget:g}" for c in line.cells
                    ],
                    "hovertemplate": "%{customdata}<br>$%{x:.3g} per 1000 · P99 %{y:.3g} s",
                }
            )
        frames[str(number)] = traces
    return Plot(
        "pareto",
        "Cost against tail",
        "Each point is a policy at a budget; lower left is better. "
        "Grey: policies that no other beats in both cost and P99 (without the oracle).",
        layout(xaxis=axis("cost of 1000 requests, USD"), yaxis=axis("P99 TTFT, s")),
        "scenario",
        frames,
    )


def _cost_parts(groups: Sequence[Group]) -> Plot:
    keys = sorted(
        {key for group in groups for cell in group.cells for key in cell.summary.cost_by}, key=_part_order
    )
    colours = endpoint_colours({place: place for place in (key.partition("/")[0] for key in keys)})
    frames: dict[str, list[Trace]] = {}
    for number, group in enumerate(groups):
        for place, budget in enumerate(group.budgets):
            at_budget = [(line.name, cell) for line in group.lines if (cell := line.at(budget)) is not None]
            # plotly draws the first bar at the bottom.
            at_budget.reverse()
            frames[f"{number}/{place}"] = [
                _bars(key, at_budget, colours)
                for key in keys
                if any(cell.summary.cost_by.get(key) for _, cell in at_budget)
            ]
    return Plot(
        "cost-parts",
        "Cost by endpoint and reason",
        "Colours are endpoints, patterns are reasons; at the chosen budget.",
        layout(
            barmode="stack",
            bargap=0.35,
            showlegend=True,
            legend=legend_above(),
            xaxis=axis("cost of 1000 requests, USD", rangemode="tozero"),
            yaxis=axis("", ticks="", showgrid=False),
        ),
        "budget",
        frames,
        wide=True,
    )


def _bars(key: str, at_budget: Sequence[tuple[str, Cell]], colours: dict[str, str]) -> Trace:
    place, _, phase = key.partition("/")
    colour = colours[place]
    return {
        "type": "bar",
        "orientation": "h",
        "name": literal(f"{place}: {phase.replace('_', ' ')}"),
        "y": [literal(name) for name, _ in at_budget],
        "x": numbers(cell.summary.cost_by.get(key, 0.0) * 1000 for _, cell in at_budget),
        "marker": {
            "color": colour if phase == "answer" else see_through(colour, 0.45),
            "pattern": {"shape": _PATTERNS.get(phase, "+"), "fgcolor": colour, "size": 7, "solidity": 0.35},
            "line": {"color": colour, "width": 1},
        },
        "hovertemplate": "$%{x:.3g} per 1000",
    }


def _part_order(key: str) -> tuple[int, str, str]:
    place, _, phase = key.partition("/")
    order = list(_PATTERNS)
    return (order.index(phase) if phase in order else len(order), place, phase)


def _curve(line: Line, style: Style) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": literal(line.name),
        "legendgroup": line.name,
        "line": {"color": style.colour, "dash": style.dash, "width": 2.2},
    }


def _marker(style: Style, size: int) -> dict[str, Any]:
    return {
        "color": style.colour,
        "symbol": style.symbol,
        "size": size,
        "line": {"width": 1.5, "color": style.colour},
    }


def _budget_axis() -> dict[str, Any]:
    return axis("budget b: share of prompt tokens on the constrained side", range=[-0.02, 1.02])
