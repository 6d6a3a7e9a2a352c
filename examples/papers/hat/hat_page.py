"""The result as an HTML page: TTFT and TBT by load, Table V, with all tables and the bound of the uplink."""

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
from papers.hat.bandwidth_bound import bound_ms
from papers.hat.hat_claims import claims
from papers.hat.hat_fleets import DATA, MAKESPAN
from papers.hat.hat_printed import (
    ARM_NAMES,
    CNN_DM,
    DATASETS,
    HAT,
    SARATHI,
    SPEC_BENCH,
    STEPS,
    TABLE_5,
    TTFT_AT,
    U_MEDUSA,
    U_SHAPE,
)
from papers.hat.hat_run import ARMS, RATES, HatResult
from papers.hat.hat_tables import hat_tables

__all__ = ["hat_page"]

_BOUND: Final = "bound of the uplink"
_LOOK: Final = {
    HAT: Style("#009E73", "solid", "diamond"),
    MAKESPAN: Style("#0072B2", "solid", "circle"),
    SARATHI: Style("#DD8500", "solid", "square"),
    U_MEDUSA: Style("#D9480F", "solid", "triangle-up"),
    U_SHAPE: Style("#868E96", "solid", "circle"),
    _BOUND: Style("#000000", "dash", "circle"),
}


def hat_page(result: HatResult) -> str:
    """Return the page as text.

    Raises:
        ConfigurationError: plotly is not installed.
    """
    tables = hat_tables(result)
    others = {SPEC_BENCH: CNN_DM, CNN_DM: SPEC_BENCH}
    return render_page(
        PageContent(
            title="The HAT paper's evaluation",
            notes=(
                f"Runs of each point: {result.runs}.",
                "Calibrated on the U-shape row of Table V; accept lengths are inputs; the rest is predicted.",
            ),
            findings=[
                f"{one.claim}: printed {one.printed}; here {one.ours}. {one.verdict}."
                for one in claims(result)
            ],
            scenarios=[
                PageScenario(data, [table for table in tables if f", {others[data]}" not in table.title])
                for data in DATASETS
            ],
            look=_LOOK,
            plots=[
                _loads(result, "all", "TTFT by load, all rows come down as in the paper"),
                _loads(result, "last", "TTFT by load, only the last row comes down"),
                _tbt(result),
                _ablation(result),
            ],
            footer="TTFT: time to first token. TBT: time between tokens. PC: chunks of the prompt. SD: drafts. "
            "PD: drafts in parallel.",
        )
    )


def _loads(result: HatResult, reply: str, title: str) -> Plot:
    frames: dict[str, list[dict[str, Any]]] = {}
    for place, data in enumerate(DATASETS):
        rates = RATES[data]
        bound = bound_ms(data).spread / DATA[data].link_factor
        frames[str(place)] = [
            *(_line(arm, rates, [result.loads[data, reply, arm, r].ttft_ms for r in rates]) for arm in ARMS),
            _line(_BOUND, (rates[0], rates[-1]), (bound, bound), mode="lines"),
        ]
        if reply == "all":
            figure, at = ("6", 6.0) if data == SPEC_BENCH else ("7", 4.0)
            frames[str(place)] += [
                _printed(arm, (at,), (value,))
                for arm, value in zip(ARM_NAMES, TTFT_AT[figure, data], strict=True)
            ]
    return Plot(
        f"ttft-{reply}",
        title,
        "Crosses are printed. Dashed: what the prompt's states need on the uplink, at the calibrated rates.",
        layout(xaxis=axis("requests/s"), yaxis=axis("TTFT, ms", rangemode="tozero")),
        "scenario",
        frames,
    )


def _tbt(result: HatResult) -> Plot:
    return Plot(
        "tbt",
        "TBT by load (Figures 6 and 7)",
        "All rows come down. The paper's text has only ratios.",
        layout(xaxis=axis("requests/s"), yaxis=axis("TBT, ms", rangemode="tozero")),
        "scenario",
        {
            str(place): [
                _line(arm, RATES[data], [result.loads[data, "all", arm, r].tbt_ms for r in RATES[data]])
                for arm in ARMS
            ]
            for place, data in enumerate(DATASETS)
        },
    )


def _ablation(result: HatResult) -> Plot:
    return Plot(
        "table5",
        "TBT of Table V: crosses are printed, the line is ours",
        "Only the first column is calibrated.",
        layout(xaxis={**axis(""), "type": "category"}, yaxis=axis("ms", rangemode="tozero")),
        "scenario",
        {
            str(place): [
                _line(HAT, STEPS, [result.ablation[data, "all", step].tbt_ms for step in STEPS]),
                _printed(HAT, STEPS, [TABLE_5[data][step][1] for step in STEPS]),
            ]
            for place, data in enumerate(DATASETS)
        },
    )


def _printed(name: str, x: Sequence[float] | Sequence[str], y: Sequence[float]) -> dict[str, Any]:
    return {
        **_line(name, x, y, mode="markers"),
        "marker": {"color": _LOOK[name].colour, "symbol": "x", "size": 9},
        "hovertemplate": f"{literal(name)}, printed %{{y}}",
        "showlegend": False,
    }


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
