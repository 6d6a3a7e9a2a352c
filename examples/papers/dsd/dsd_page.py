"""The result as an HTML page: the figures drawn, Table 2 by data set, with all tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from disco.replay.report import (
    PageContent,
    PageScenario,
    Plot,
    Style,
    axis,
    layout,
    literal,
    numbers,
    render_page,
)
from papers.dsd.dsd_claims import claims
from papers.dsd.dsd_run import (
    ALONE,
    DISTRIBUTED,
    DRAFTERS,
    FUSED,
    LOADS,
    ROUND_TRIPS_MS,
    DsdResult,
)
from papers.dsd.dsd_tables import dsd_tables, table2
from papers.dsd.printed_values import (
    ADAPTIVE,
    CONFIGURATIONS,
    DATASETS,
    DYNAMIC,
    STATIC,
    WINDOWS,
    printed,
)

__all__ = ["dsd_page"]

_LOOK: Final = {
    STATIC: Style("#868E96", "solid", "circle"),
    DYNAMIC: Style("#DD8500", "solid", "square"),
    ADAPTIVE: Style("#009E73", "solid", "diamond"),
    ALONE: Style("#0072B2", "dash", "triangle-up"),
    DISTRIBUTED: Style("#009E73", "solid", "circle"),
    FUSED: Style("#D9480F", "dash", "square"),
    "JSQ": Style("#0072B2", "solid", "circle"),
    "round-robin": Style("#DD8500", "solid", "square"),
    "JSQ, LAB": Style("#009E73", "dash", "diamond"),
}


def dsd_page(result: DsdResult) -> str:
    """Return the page as text.

    Raises:
        ConfigurationError: plotly is not installed.
    """
    shared = [table for table in dsd_tables(result) if not table.title.startswith("Table 2")]
    return render_page(
        PageContent(
            title="The DSD paper's evaluation",
            notes=(
                f"Runs of each point: {result.runs}.",
                "Calibrated on one column of Table 2 (static window, configuration 1); the rest is predicted.",
            ),
            findings=[
                f"{one.claim}: printed {one.printed}; here {one.ours}. {one.verdict}."
                for one in claims(result)
            ],
            scenarios=[PageScenario(data, [table2(result, data), *shared]) for data in DATASETS],
            look=_LOOK,
            plots=[
                _table2(result),
                _modes(result),
                _policies(result, "tpot_ms", "TPOT, ms"),
                _policies(result, "requests_per_s", "requests/s"),
            ],
            footer="TTFT: time to first token. TPOT: time per output token. JSQ: join the shortest queue. "
            'LAB: length-aware batches. AWC: the paper\'s adaptive window, here "adaptive".',
        )
    )


def _table2(result: DsdResult) -> Plot:
    columns = [f"{number}: {c.drafters}D, {c.rtt_ms:.0f} ms" for number, c in CONFIGURATIONS.items()]
    frames: dict[str, list[dict[str, Any]]] = {}
    for place, data in enumerate(DATASETS):
        frames[str(place)] = [
            _line(arm, columns, [result.table2[data, n, arm].cell.tpot_ms for n in CONFIGURATIONS])
            for arm in (*WINDOWS, ALONE)
        ] + [
            {
                **_line(
                    arm, columns, [printed(data, n, arm).tpot_ms for n in CONFIGURATIONS], mode="markers"
                ),
                "marker": {"color": _LOOK[arm].colour, "symbol": "x", "size": 9},
                "hovertemplate": f"{arm}, printed %{{y}}",
            }
            for arm in WINDOWS
        ]
    return Plot(
        "table2",
        "TPOT of Table 2: crosses are printed, lines are ours",
        "Only the static window of configuration 1 is calibrated. Choose the data set above.",
        layout(height=420, xaxis={**axis(""), "type": "category"}, yaxis=axis("ms", rangemode="tozero")),
        "scenario",
        frames,
        wide=True,
    )


def _modes(result: DsdResult) -> Plot:
    drafters = LOADS[1]
    traces = [
        _line(
            DISTRIBUTED,
            ROUND_TRIPS_MS,
            [result.modes[DISTRIBUTED, drafters, rtt].cell.tpot_ms for rtt in ROUND_TRIPS_MS],
        )
    ]
    for mode in (FUSED, ALONE):
        flat = result.modes[mode, drafters, 0].cell.tpot_ms
        traces.append(_line(mode, (ROUND_TRIPS_MS[0], ROUND_TRIPS_MS[-1]), (flat, flat), mode="lines"))
    return Plot(
        "modes",
        f"Distributed, fused and alone by round trip (Figure 6), {drafters:,} drafters",
        "The paper's curves cross at 50 to 60 ms.",
        layout(xaxis=axis("round trip, ms"), yaxis=axis("TPOT, ms", rangemode="tozero")),
        "nothing",
        {"": traces},
    )


def _policies(result: DsdResult, part: str, title: str) -> Plot:
    return Plot(
        f"policies-{part.split('_', maxsplit=1)[0]}",
        f"Routing and batching by drafters: {title} (Figures 7 to 10)",
        "Static window, GSM8K, round trip of 10 ms.",
        layout(xaxis=axis("drafters"), yaxis=axis(title, rangemode="tozero")),
        "nothing",
        {
            "": [
                _line(name, DRAFTERS, [getattr(result.policies[name, n].cell, part) for n in DRAFTERS])
                for name in ("JSQ", "round-robin", "JSQ, LAB")
            ]
        },
    )


def _line(
    name: str, x: Sequence[float] | Sequence[str], y: Sequence[float], *, mode: str = "lines+markers"
) -> dict[str, Any]:
    style = _LOOK[name]
    return {
        "type": "scatter",
        "mode": mode,
        "name": literal(name),
        "legendgroup": name,
        "x": [each if isinstance(each, str) else numbers([each])[0] for each in x],
        "y": numbers(y),
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.symbol, "size": 7},
        "hovertemplate": f"{literal(name)} %{{x}} · %{{y}}",
    }
