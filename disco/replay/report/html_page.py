"""A report of policies and budgets as one self-contained HTML page.

Its plots: distributions, curves over the budget, cost against tail, and the time line of one answer that migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from disco.errors import ConfigurationError
from disco.record.written import WrittenStretch, stretches
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
    styles,
)
from disco.replay.report.findings import findings
from disco.replay.report.page_skeleton import PageContent, PageScenario, render_page
from disco.replay.report.report_data import (
    Group,
    Line,
    Report,
    bound,
    cost_per_1000_usd,
    groups,
    known,
    pareto_front,
)
from disco.replay.report.terminal_tables import scenario_tables
from disco.replay.vector.arm_delays import ORACLE
from disco.session.records.route_record import MigrationRecord, RouteRecord

__all__ = ["figures", "timeline", "to_html"]

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


def timeline(record: RouteRecord) -> Plot | None:
    """Return the plot; None if the record has no timelines."""
    if not record.generated or not record.released:
        return None
    written = stretches(record)
    colours = endpoint_colours({attempt.endpoint: attempt.place for attempt in record.attempts})
    read = _running(record.released)
    end_s = max(record.generated[-1][0], read[-1][0])
    kept = [point for stretch in written for point in stretch.kept]
    traces = [*_between(kept, read, end_s), *_deadline(record, end_s)]
    for stretch in written:
        traces += _written(stretch, colours[stretch.endpoint])
    traces += _lifelines(record, colours)
    switched = next((t for t in record.migrations if t.outcome == "switched"), None)
    return Plot(
        "timeline",
        "One answer, token by token",
        _caption(record, switched),
        layout(
            height=520,
            showlegend=True,
            legend=legend_above(1.06),
            xaxis=axis("seconds since the request", rangemode="tozero", anchor="y2"),
            yaxis=axis("tokens of the answer", rangemode="tozero", domain=[0.24, 1.0]),
            yaxis2=axis(
                "",
                domain=[0.0, 0.15],
                ticks="",
                showgrid=False,
                type="category",
                range=[-0.7, len(colours) - 0.3],
            ),
            shapes=[_upright(at) for at in _moments(switched)],
            annotations=_labels(switched),
        ),
        "nothing",
        {"": traces},
        wide=True,
    )


def _running(timeline: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    total = 0
    out = []
    for at, tokens in timeline:
        total += tokens
        out.append((at, total))
    return out


def _between(
    kept: Sequence[tuple[float, int]], read: Sequence[tuple[float, int]], end_s: float
) -> list[Trace]:
    """Draw the tokens released to the reader as a line, and the tokens waiting in the buffer as the area above it."""
    shown = [*read, (end_s, read[-1][1])]
    held = [(read[0][0], 0), *kept, (end_s, kept[-1][1] if kept else 0)]
    return [
        {
            **_step(shown),
            "name": "released to the reader",
            "line": {"shape": "hv", "color": "@ink", "width": 2},
            "hovertemplate": "%{x:.2f} s · token %{y}",
        },
        {
            **_step([point for point in held if point[0] >= read[0][0]]),
            "name": "buffer",
            "line": {"shape": "hv", "width": 0, "color": "rgba(134,142,150,0.5)"},
            "fill": "tonexty",
            "fillcolor": "rgba(134,142,150,0.22)",
            "hoverinfo": "skip",
        },
    ]


def _deadline(record: RouteRecord, end_s: float) -> list[Trace]:
    """Draw when the reader reaches each token: D_i = TTFT + i/r_c (docs/reference/metrics.md)."""
    pace_tps = record.pace.pace_tps
    if pace_tps is None:
        return []
    first_s = record.released[0][0]
    total = sum(tokens for _, tokens in record.released)
    last_s = min(first_s + (total - 1) / pace_tps, max(end_s, first_s))
    last_token = 1 + (last_s - first_s) * pace_tps
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"reader's deadline ({pace_tps:g} tokens/s)",
            "x": numbers([first_s, last_s], 6),
            "y": numbers([1.0, last_token], 6),
            "line": {"color": "@muted", "dash": "dot", "width": 2},
            "hoverinfo": "skip",
        }
    ]


def _written(stretch: WrittenStretch, colour: str) -> list[Trace]:
    out: list[Trace] = []
    if stretch.kept:
        out.append(
            {
                **_step(stretch.kept),
                "mode": "lines+markers",
                "name": literal(f"written by {stretch.endpoint}"),
                "line": {"shape": "hv", "color": colour, "width": 1.5},
                "marker": {"color": colour, "size": 4},
                "hovertemplate": "%{x:.2f} s · token %{y}",
            }
        )
    if stretch.dropped:
        out.append(
            {
                **_step(stretch.dropped),
                "name": literal(f"{stretch.endpoint}, beyond the cut"),
                "line": {"shape": "hv", "color": colour, "width": 2, "dash": "dot"},
                "opacity": 0.7,
                "hovertemplate": "%{x:.2f} s · not shown",
            }
        )
    return out


def _lifelines(record: RouteRecord, colours: dict[str, str]) -> list[Trace]:
    """Draw a line per attempt: thin before its first content, thick while it writes."""
    out: list[Trace] = []
    for attempt in record.attempts:
        colour, name = colours[attempt.endpoint], literal(attempt.endpoint)
        ended_s = record.duration_s if attempt.ended_s is None else attempt.ended_s
        first_s = ended_s if attempt.first_content_s is None else min(attempt.first_content_s, ended_s)
        hover = literal(f"{attempt.role}, {attempt.outcome.replace('_', ' ')}")
        for from_s, to_s, width, what in (
            (attempt.started_s, first_s, 3, "silent"),
            (first_s, ended_s, 12, "writing"),
        ):
            if to_s > from_s:
                out.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": f"{name} {what}",
                        "showlegend": False,
                        "yaxis": "y2",
                        "x": numbers([from_s, to_s], 6),
                        "y": [name, name],
                        "line": {"color": colour, "width": width},
                        "text": [hover, hover],
                        "hovertemplate": "%{text}: %{x:.2f} s",
                    }
                )
    return out


def _step(points: Sequence[tuple[float, int]]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers((at for at, _ in points), 6),
        "y": [total for _, total in points],
        "line": {"shape": "hv"},
    }


def _moments(transfer: MigrationRecord | None) -> list[float]:
    if transfer is None:
        return []
    return [transfer.decided_s, *([] if transfer.switched_s is None else [transfer.switched_s])]


def _upright(at_s: float) -> dict[str, Any]:
    line = {"color": "@muted", "width": 1, "dash": "dash"}
    return {"type": "line", "x0": at_s, "x1": at_s, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _labels(transfer: MigrationRecord | None) -> list[dict[str, Any]]:
    texts = zip(_moments(transfer), ("decided", "switched"), ("right", "left"), strict=False)
    return [
        {
            "x": at_s,
            "y": 1.0,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": anchor,
            "text": f"{text} {at_s:.2f} s",
            "showarrow": False,
            "font": {"size": 11, "color": "@muted"},
        }
        for at_s, text, anchor in texts
    ]


def _caption(record: RouteRecord, transfer: MigrationRecord | None) -> str:
    what = f"Preset {record.preset}: {record.answer_tokens} tokens"
    if transfer is None or transfer.took_s is None:
        writers = dict.fromkeys(piece.endpoint for piece in record.segments)
        return f"{what}, written by {' and '.join(writers)}."
    late = "no token was late" if transfer.late_tokens == 0 else f"{transfer.late_tokens} tokens were late"
    return (
        f"{what}, begun by {transfer.source} and migrated to {transfer.target} after {transfer.cut_tokens}. The new "
        f"endpoint took {transfer.took_s:.2f} s to its first token, while the reader read from the buffer; {late}. "
        "Below: thin while an endpoint is silent, thick while it writes."
    )


_FOOTER: Final = (
    "TTFT: seconds from the request to the first token the reader gets, over answered requests. ± is half the "
    "95\u00a0% interval over seeds. Costs are policy costs (USD): the server's bill, and energy at the exchange rate. "
    "Each time in a line of the oracle is the smallest that its budget allows. Distances to the oracle compare at the "
    "same budget, or at what the policy used, where that is more."
)


def to_html(report: Report) -> str:
    """Return the page as text; write it to a file and open it in any browser, without a network.

    Raises:
        ConfigurationError: plotly is not installed, or the report is empty.
    """
    if not report.cells:
        raise ConfigurationError("the report has no cells to show; run at least one policy")
    found = groups(report.cells)
    look = styles(line for group in found for line in group.lines)
    plots = figures(found, look)
    if report.example is not None and (one := timeline(report.example)) is not None:
        plots.append(one)
    levels = [CDF_LEVELS[i] for i in cdf_levels_shown(found)]
    return render_page(
        PageContent(
            title=report.title,
            notes=report.notes,
            findings=findings(report),
            scenarios=[
                PageScenario(
                    f"{group.scenario} ({group.regime})",
                    scenario_tables(group),
                    [f"{budget:g}" for budget in group.budgets],
                    _middle(group),
                )
                for group in found
            ],
            look=look,
            plots=plots,
            footer=_FOOTER,
            shared={
                "@levels": levels,
                # A share of 0 has no place on a logarithmic axis.
                "@exceeding": [round(1 - level, 6) if level < 1 else None for level in levels],
            },
        )
    )


def _middle(group: Group) -> int:
    """Return the index of the budget shown first: the one nearest to 0.5."""
    return min(range(len(group.budgets)), key=lambda i: abs(group.budgets[i] - 0.5))
