"""The result as an HTML page: the seam, the display's pace, L, TTFT, capacity and masks, with all tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from disco.dispatch.assist_solver import NoShare
from disco.replay.report import (
    PageContent,
    PageScenario,
    Plot,
    Style,
    axis,
    layout,
    literal,
    log_axis,
    numbers,
    render_page,
)
from papers.pd_device.assist_play import (
    CONSISTENT,
    LEXICAL,
    MASK,
    OURS,
    PARALLEL,
    PRINTED,
    our_case,
    pace_s,
)
from papers.pd_device.assumptions import CLOUD, KEPT, NPU, SLOWEST_S
from papers.pd_device.drawn_tables import situation_table
from papers.pd_device.length_figures import ALL_SEAM_ARMS
from papers.pd_device.paper_forms import PaperCase
from papers.pd_device.pd_run import PdResult
from papers.pd_device.pd_tables import shared_tables
from papers.pd_device.printed_claims import claims
from papers.pd_device.session_runs import SESSION_SEAM
from papers.pd_device.ttft_runs import ASSIST, DEVICE, LEVELS, PAPER_DEVICE, SERVER

__all__ = ["pd_page"]

FORMULA, ONE_POOL, TWO_POOLS, REFINING = "formula", "one pool", "two pools", "two pools, refining"
PROMPT: Final = 8_192
"""Prompt length of the plots of one request, tokens."""

_LOOK: Final = {
    PRINTED: Style("#D9480F", "dash", "square"),
    CONSISTENT: Style("#7A5FC0", "dot", "diamond"),
    OURS: Style("#009E73", "solid", "circle"),
    SESSION_SEAM: Style("#0072B2", "solid", "star"),
    LEXICAL: Style("#009E73", "solid", "circle"),
    MASK: Style("#4FA3DA", "dashdot", "triangle-down"),
    PARALLEL: Style("#0072B2", "solid", "star"),
    SERVER: Style("#0072B2", "solid", "circle"),
    DEVICE: Style("#DD8500", "solid", "square"),
    ASSIST: Style("#009E73", "solid", "diamond"),
    PAPER_DEVICE: Style("#D9480F", "dash", "triangle-up"),
    FORMULA: Style("#D9480F", "dash", "square"),
    ONE_POOL: Style("#868E96", "solid", "triangle-up"),
    TWO_POOLS: Style("#009E73", "solid", "circle"),
    REFINING: Style("#4FA3DA", "dashdot", "triangle-down"),
}


def pd_page(result: PdResult) -> str:
    """Return the page as text.

    Raises:
        ConfigurationError: plotly is not installed.
    """
    shared = shared_tables(result)
    pairs = list(dict.fromkeys((one.server, one.device) for one in result.situations))
    mine = {
        pair: tuple(one for one in result.situations if (one.server, one.device) == pair) for pair in pairs
    }
    return render_page(
        PageContent(
            title="The P/D-Device paper's evaluation",
            notes=(
                (
                    f"{result.requests:,} requests in each situation, {result.arrivals:,} arrivals in the queues, "
                    f"drawn from a table derived from {result.source}."
                ),
                "The paper prints few constants: those that are assumed are listed below.",
            ),
            findings=[
                f"Figure {one.place}: printed: {one.claim}. Here: {one.ours}." for one in claims(result)
            ],
            scenarios=[
                PageScenario(f"{server} · {device}", [situation_table(mine[server, device]), *shared])
                for server, device in pairs
            ],
            look=_LOOK,
            plots=[_seam(), _pace(), _least(result), _ttft(result, pairs), _capacity(result), _masks(result)],
            footer="TTFT: time to first token. L: tokens that the server writes. r: kept share of the prompt. "
            "tau: slowest pace of the display.",
        )
    )


def _seam() -> Plot:
    case = PaperCase(PROMPT, KEPT[0], CLOUD, NPU)
    tokens = case.consistent_least_tokens(SLOWEST_S) or 2
    traces = []
    for name, arm in ALL_SEAM_ARMS.items():
        played = arm(case, tokens)
        shown = range(1, len(played.shown_s) + 1)
        traces.append({**_line(name, played.shown_s, shown), "line": {**_stroke(name), "shape": "hv"}})
    return Plot(
        "seam",
        f"The seam: tokens shown over time, {PROMPT:,} prompt tokens, L = {tokens}",
        "NPU-like device, r = 0.25. With Eq. 4 as printed the display stands still where the server's "
        "tokens end.",
        layout(height=420, xaxis=axis("s after the request"), yaxis=axis("tokens shown")),
        "nothing",
        {"": traces},
        wide=True,
    )


def _pace() -> Plot:
    case = PaperCase(PROMPT, KEPT[0], CLOUD, NPU)
    ours = our_case(case)
    tokens = [*range(3, 41), *range(44, 121, 4)]
    curves = {
        PRINTED: [case.smooth_s(n) for n in tokens],
        CONSISTENT: [case.consistent_smooth_s(n) for n in tokens],
        PARALLEL: [pace_s(ours, ours.read_s(), n) for n in tokens],
        **{one.name: [pace_s(ours, ours.read_s(one), n) for n in tokens] for one in ours.refinings},
    }
    return Plot(
        "pace",
        "The display's pace by L (Figures 3b, 7c)",
        f"{PROMPT:,} prompt tokens, NPU-like device, r = 0.25. The slowest pace is {SLOWEST_S:g} s.",
        layout(xaxis=axis("L, tokens"), yaxis=log_axis("s per token")),
        "nothing",
        {"": [_line(name, tokens, values) for name, values in curves.items()]},
    )


def _least(result: PdResult) -> Plot:
    rows = [row for row in result.lengths if (row.device, row.kept) == (NPU.name, KEPT[0])]
    traces = [
        _points(PRINTED, [(row.prompt_tokens, row.paper_tokens) for row in rows]),
        _points(CONSISTENT, [(row.prompt_tokens, row.consistent_tokens) for row in rows]),
    ]
    for name in (PARALLEL, LEXICAL, MASK):
        found = [(row.prompt_tokens, row.tokens[name]) for row in rows]
        traces.append(_points(name, [(at, None if isinstance(n, NoShare) else n) for at, n in found]))
    return Plot(
        "least-share",
        "Least L by prompt length",
        "NPU-like device, r = 0.25 but for the whole prompt.",
        layout(xaxis=_tokens_axis("prompt tokens"), yaxis=_tokens_axis("L, tokens")),
        "nothing",
        {"": traces},
    )


def _ttft(result: PdResult, pairs: Sequence[tuple[str, str]]) -> Plot:
    frames = {}
    for number, pair in enumerate(pairs):
        one = next(s for s in result.situations if (s.server, s.device) == pair)
        frames[str(number)] = [
            _line(arm, one.ttft_s[arm], [100 * level for level in LEVELS])
            for arm in (SERVER, DEVICE, ASSIST, PAPER_DEVICE)
        ]
    return Plot(
        "ttft",
        "Distribution of TTFT (Figure 7a)",
        "Of drawn requests, without a refiner but for the paper's TTFT_d. Choose the server and device above.",
        layout(height=420, xaxis=log_axis("s"), yaxis=axis("% of requests", rangemode="tozero")),
        "scenario",
        frames,
        wide=True,
    )


def _capacity(result: PdResult) -> Plot:
    rows, whole = result.capacity[:-1], result.capacity[-1]
    shares = [row.tokens or 0 for row in rows]
    curves = {
        FORMULA: [row.formula for row in rows],
        ONE_POOL: [row.real_rps / whole.real_rps for row in rows],
        TWO_POOLS: [row.pools_rps / whole.pools_rps for row in rows],
        REFINING: [row.refining_rps / whole.refining_rps for row in rows],
    }
    return Plot(
        "capacity",
        "Requests/s relative to whole answers (Figure 7d)",
        "P99 TTFT of at most 1 s, real answer lengths in the queues.",
        layout(xaxis=axis("L, tokens"), yaxis=axis("times", rangemode="tozero")),
        "nothing",
        {"": [_line(name, shares, values, mode="lines+markers") for name, values in curves.items()]},
    )


def _masks(result: PdResult) -> Plot:
    rows = [row for row in result.masks if row.prompt_tokens == PROMPT]
    kinds = {
        "sentences, a bit each": [row.sentence_bits for row in rows],
        "sentences, a bit a token": [row.by_sentence for row in rows],
        "groups of tokens": [row.pooled for row in rows],
        "single tokens": [row.single for row in rows],
    }
    traces: list[dict[str, Any]] = [
        {"type": "bar", "name": literal(name), "x": [f"r = {row.kept:g}" for row in rows], "y": values}
        for name, values in kinds.items()
    ]
    return Plot(
        "masks",
        "Bytes of a mask at 8k (Figure 9c)",
        "gzip. The figure's hundreds of KB would be more than the prompt.",
        layout(barmode="group", showlegend=True, xaxis=axis(""), yaxis=axis("bytes")),
        "nothing",
        {"": traces},
    )


def _tokens_axis(title: str) -> dict[str, object]:
    ticks = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 4_096, 8_192, 16_384, 32_768]
    return axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])


def _points(name: str, points: Sequence[tuple[int, int | None]]) -> dict[str, Any]:
    drawn = [(x, y) for x, y in points if y is not None]
    return _line(name, [x for x, _ in drawn], [y for _, y in drawn], mode="lines+markers")


def _line(name: str, x: Sequence[float], y: Sequence[float], *, mode: str = "lines") -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": literal(name),
        "legendgroup": name,
        "x": numbers(x),
        "y": numbers(y),
        "line": _stroke(name),
        "marker": {"color": _LOOK[name].colour, "symbol": _LOOK[name].symbol, "size": 7},
        "hovertemplate": f"{literal(name)} %{{x}} · %{{y}}",
    }


def _stroke(name: str) -> dict[str, object]:
    return {"color": _LOOK[name].colour, "dash": _LOOK[name].dash, "width": 2}
