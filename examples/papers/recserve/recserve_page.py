"""The result as an HTML page: accuracy against bytes, ours beside the printed, with all tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from disco.replay.report import (
    PageContent,
    PageScenario,
    Plot,
    Style,
    axis,
    band,
    layout,
    literal,
    numbers,
    render_page,
)
from papers.ladder.ladder_evaluation import EXACT, FIXED, LENGTH, PAPER, RANDOM, ArmFigures
from papers.recserve.printed_readings import Derived, derived
from papers.recserve.recserve_run import LadderResult, RecServeResult
from papers.recserve.recserve_tables import arm_table, shared_tables

__all__ = ["recserve_page"]

SINGLE: Final = "one tier"
ORACLE: Final = "oracle"

_LOOK: Final = {
    EXACT: Style("#009E73", "solid", "circle"),
    PAPER: Style("#D9480F", "dash", "square"),
    FIXED: Style("#7A5FC0", "dot", "diamond"),
    RANDOM: Style("#868E96", "solid", "triangle-up"),
    LENGTH: Style("#4FA3DA", "dashdot", "triangle-down"),
    SINGLE: Style("#0072B2", "solid", "star"),
    ORACLE: Style("@ink", "dash", "circle"),
}
# The paper has one RecServe; it stands in the colour of its rule.
_PRINTED: Final = {"ColServe": RANDOM, "CasServe": FIXED, "RecServe": PAPER}


def recserve_page(result: RecServeResult) -> str:
    """Return the page as text.

    Raises:
        ConfigurationError: plotly is not installed.
    """
    shared = shared_tables(result)
    return render_page(
        PageContent(
            title="The RecServe paper's evaluation",
            notes=(
                f"{result.runs} passes through each trace, each in an order of its own.",
                *(
                    f"{one.name}: {one.rows:,} texts; tiers {' < '.join(tier.name for tier in one.tiers)}."
                    for one in result.ladders
                ),
            ),
            findings=_findings(result),
            scenarios=[PageScenario(one.name, [arm_table(one), *shared]) for one in result.ladders],
            look=_LOOK,
            plots=[_ours(result.ladders), _printed(result.ladders)],
            footer="Bytes: of all hops of the chain, both ends counted, relative to all requests sent directly to the "
            "top tier. Accuracy: of the label that the user gets.",
        )
    )


def _findings(result: RecServeResult) -> list[str]:
    return [
        f"{one.name}: RecServe at beta 0.3 is {100 * one.expected.lead.mean:+.1f} points from ColServe at 0.5, with "
        f"{one.expected.of_bytes:.2f} of its bytes."
        for one in result.ladders
    ]


def _ours(ladders: Sequence[LadderResult]) -> Plot:
    frames: dict[str, list[dict[str, Any]]] = {}
    for number, ladder in enumerate(ladders):
        single = [arm for arm in ladder.arms if arm.share is None]
        traces: list[dict[str, Any]] = []
        for name in (RANDOM, LENGTH, FIXED, PAPER, EXACT):
            arms = [arm for arm in ladder.arms if arm.arm == name]
            if name in (RANDOM, EXACT):
                low, high = ([100 * getattr(arm.quality, end) for arm in arms] for end in ("low", "high"))
                area = band([arm.ratio for arm in arms], low, high, _LOOK[name].colour)
                traces.append({**area, "legendgroup": name})
            traces.append(_line(name, arms))
        bound = sorted(ladder.arms, key=lambda arm: arm.ratio)
        points = [(a.ratio, 100 * a.oracle, ORACLE) for a in bound]
        traces.append({**_curve(ORACLE, points), "mode": "lines"})
        traces.append({**_line(SINGLE, single), "mode": "markers"})
        frames[str(number)] = traces
    return Plot(
        "accuracy-bytes",
        "Accuracy against bytes (the paper's Figures 2 and 3)",
        "Each point of a line is a share, from 0.1 to 0.6. Bands: 95 % intervals over texts, which all arms share, so "
        "that differences between arms are surer than the bands say.",
        layout(height=460, xaxis=_bytes_axis(), yaxis=axis("accuracy, %")),
        "scenario",
        frames,
        wide=True,
    )


def _printed(ladders: Sequence[LadderResult]) -> Plot:
    frames: dict[str, list[dict[str, Any]]] = {}
    for number, ladder in enumerate(ladders):
        rows = [one for one in derived() if one.row.dataset == ladder.printed]
        traces = []
        for method, name in _PRINTED.items():
            mine = sorted((one for one in rows if one.row.method == method), key=lambda one: one.ratio or 0.0)
            traces.append(_printed_line(name, mine))
        single = [one for one in rows if one.row.parameter is None]
        traces.append({**_printed_line(SINGLE, single), "mode": "markers"})
        frames[str(number)] = traces
    return Plot(
        "accuracy-bytes-printed",
        "As printed in Table II",
        "The paper's dataset beside ours: other models, on the same kind of texts.",
        layout(height=380, xaxis=_bytes_axis(), yaxis=axis("accuracy, %")),
        "scenario",
        frames,
        wide=True,
    )


def _bytes_axis() -> dict[str, Any]:
    return axis("bytes, relative to all requests sent to the top", rangemode="tozero")


def _line(name: str, arms: Sequence[ArmFigures]) -> dict[str, Any]:
    return _curve(name, [(arm.ratio, 100 * arm.quality.mean, arm.label) for arm in arms])


def _printed_line(name: str, rows: Sequence[Derived]) -> dict[str, Any]:
    return _curve(name, [(one.ratio or 0.0, one.row.quality, one.row.label) for one in rows])


def _curve(name: str, points: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    """Return the line through points: bytes relative to the top, accuracy in %, and what the pointer shows."""
    style = _LOOK[name]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": literal(name),
        "legendgroup": name,
        "x": numbers([x for x, _, _ in points]),
        "y": numbers([y for _, y, _ in points]),
        "text": [literal(text) for _, _, text in points],
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.symbol, "size": 8},
        "hovertemplate": "%{text} %{x:.3f} · %{y:.1f} %",
    }
