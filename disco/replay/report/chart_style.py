"""Style shared by all plots: colours of policies and endpoints, axes, and escaping of text for plotly.

Figures are plain dictionaries in plotly's schema, so building them does not need plotly. A string that begins with
"@" names a value that the page fills in: "@ink", "@muted", "@grid", "@card" (colours of the light or dark theme),
"@levels" and "@exceeding" (the y values that all distribution curves share).
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from disco.replay.report.report_data import Line, known
from disco.replay.vector.arm_delays import ORACLE
from disco.replay.workload.scenario import DEVICE, SERVER

__all__ = [
    "Plot",
    "Style",
    "Trace",
    "axis",
    "band",
    "endpoint_colours",
    "layout",
    "legend_above",
    "literal",
    "log_axis",
    "numbers",
    "see_through",
    "styles",
]

Trace = dict[str, Any]

# Colour-blind readers can distinguish these on light and on dark ground (after Okabe and Ito, some slightly darker).
_COLOURS: Final = {
    "server_only": "#0072B2",
    "device_only": "#DD8500",
    "race": "#C75B9B",
    "random": "#868E96",
    "length_threshold": "#4FA3DA",
    "wait_time": "#009E73",
    "optimal_wait": "#D9480F",
    "auto": "#7A5FC0",
}
_OTHERS: Final = ("#A6761D", "#5C940D", "#15AABF", "#E64980", "#8C564B", "#6741D9")
_SYMBOLS: Final = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "pentagon",
    "star",
    "hexagon",
)


@dataclass(frozen=True, slots=True)
class Style:
    """How a line is drawn in every plot; the oracle's colour is the theme's text colour.

    Attributes:
        colour: `#rrggbb`, or "@ink" and its like.
        dash, symbol: plotly's names.
    """

    colour: str
    dash: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of the page.

    Attributes:
        key: the plot's id in the page.
        title, caption: text above the plot.
        layout: plotly's layout.
        by: what its traces depend on: nothing, the chosen scenario, or the chosen scenario and budget.
        frames: traces by "", by "scenario", or by "scenario/budget" (both as numbers from 0).
        wide: the plot takes the whole width.
    """

    key: str
    title: str
    caption: str
    layout: Mapping[str, Any]
    by: Literal["nothing", "scenario", "budget"]
    frames: Mapping[str, Sequence[Trace]]
    wide: bool = False


def styles(lines: Iterable[Line]) -> dict[str, Style]:
    """Return a style per line name; variants of one policy share its colour and differ in dash and symbol."""
    out: dict[str, Style] = {}
    policies: dict[str, str] = {}
    variants: dict[str, int] = {}
    for line in lines:
        if line.name in out:
            continue
        policy = line.policy
        if policy not in policies:
            others = sum(name not in _COLOURS and name != ORACLE for name in policies)
            fallback = "@ink" if policy == ORACLE else _OTHERS[others % len(_OTHERS)]
            policies[policy] = _COLOURS.get(policy, fallback)
        variant = variants[policy] = variants.get(policy, -1) + 1
        dash = ("solid", "dash", "dot", "dashdot")[variant % 4]
        symbol = _SYMBOLS[list(policies).index(policy) % len(_SYMBOLS)]
        out[line.name] = Style(
            policies[policy],
            "dash" if policy == ORACLE else dash,
            symbol if variant == 0 else f"{symbol}-open",
        )
    return out


def endpoint_colours(places: Mapping[str, str]) -> dict[str, str]:
    """Return a colour per endpoint: the first of a place has the colour of `device_only` or `server_only`.

    Args:
        places: "device" or "server" for each endpoint.
    """
    free = itertools.cycle(_OTHERS)
    own = {DEVICE: _COLOURS["device_only"], SERVER: _COLOURS["server_only"]}
    return {name: own.pop(place) if place in own else next(free) for name, place in places.items()}


def literal(text: str) -> str:
    """Escape text so that plotly shows it literally: plotly reads names as a kind of HTML."""
    return html.escape(text, quote=False)


def numbers(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Return `values` rounded, None where there is nothing to draw.

    Args:
        values: in any unit.
        digits: number of significant digits.
    """
    return [float(f"{value:.{digits}g}") if known(value) else None for value in values]


def see_through(colour: str, alpha: float) -> str:
    """Return the colour `#rrggbb` with opacity `alpha`."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> Trace:
    """Return the trace of the area between two curves.

    Args:
        x: where the curves have their points.
        low: the lower curve's values there.
        high: the upper one's.
        colour: of the area, `#rrggbb`.
    """
    return {
        "type": "scatter",
        "x": numbers([*x, *reversed(x)]),
        "y": numbers([*high, *reversed(low)]),
        "fill": "toself",
        "fillcolor": see_through(colour, 0.18),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return plotly's axis with a `title`, in the page's style; `more`: plotly's own settings."""
    return {
        "title": {"text": title, "standoff": 10},
        "gridcolor": "@grid",
        "linecolor": "@muted",
        "tickcolor": "@muted",
        "ticks": "outside",
        "ticklen": 4,
        "zeroline": False,
        "automargin": True,
        **more,
    }


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return a logarithmic `axis` of seconds with a `title` and readable ticks; `more`: plotly's own settings."""
    ticks = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
    return axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], **more)


def legend_above(y: float = 1.02) -> dict[str, Any]:
    """Return a legend in one line above the plot, in the order of the traces."""
    return {
        "orientation": "h",
        "traceorder": "normal",
        "y": y,
        "yanchor": "bottom",
        "x": 0,
        "font": {"size": 11.5},
    }


def layout(**more: Any) -> dict[str, Any]:
    """Return plotly's layout in the page's style; `more`: plotly's own settings."""
    return {
        "height": 380,
        "margin": {"l": 60, "r": 16, "t": 30, "b": 52},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@muted", "activecolor": "@ink"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12.5, "color": "@ink"},
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@muted", "font": {"color": "@ink"}},
        "showlegend": False,
        "hovermode": "closest",
        **more,
    }
