"""Draws the plots of docs/concepts/policies.md: `python docs/pictures/plots.py`. Needs matplotlib (group `docs`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from plot_series import SERIES, Figure

HERE: Final = Path(__file__).parent
# As in the pages of `disco replay --html`.
POLICIES: Final = {
    "server_only": "#0072B2",
    "device_only": "#DD8500",
    "race": "#C75B9B",
    "random": "#868E96",
    "length_threshold": "#4FA3DA",
    "wait_time": "#009E73",
    "optimal_wait": "#D9480F",
}
# Each plot has its own white card, for dark pages.
COLOURS: Final = ("#0072B2", "#DD8500", "#009E73", "#C75B9B", "#D9480F", "#7A5FC0")


class Axes(NamedTuple):
    """The text of a plot's axes, and how they run."""

    x: str
    y: str
    x_scale: str = "linear"
    x_limit: tuple[float, float] | None = None
    y_limit: tuple[float, float] | None = None


AXES: Final = {
    "plot-baselines": Axes("time to first token, s", "share of requests", x_limit=(0, 4), y_limit=(0, 1)),
    "plot-length-threshold": Axes(
        "prompt length, tokens", "share of tokens up to this length", x_limit=(0, 120)
    ),
    "plot-waits": Axes("prompt length, tokens", "wait of the device, s", y_limit=(0, 4)),
    "plot-server-budget": Axes("budget b: share of tokens at the server", "mean time to first token, s"),
    "plot-device-budget": Axes("budget b: share of tokens on the device", "mean time to first token, s"),
    "plot-assist": Axes("time after the request, s", "tokens of the answer", x_limit=(0, 12)),
    "plot-cascade": Axes("answers", "share handed up so far", y_limit=(0, 1)),
    "plot-drafting": Axes("window, drafted tokens", "time per token, ms", y_limit=(0, None)),  # type: ignore[arg-type]
    "plot-split": Axes("chunk, tokens", "time until the prompt is read, s", "log", y_limit=(0, None)),  # type: ignore[arg-type]
}


def draw(name: str, figure: Figure) -> None:
    """Draw one plot as SVG, the same bytes for the same series."""
    axes = AXES[name]
    canvas, plot = plt.subplots(figsize=(7.2, 3.9), layout="constrained")
    paired = name in {"plot-cascade", "plot-drafting"}  # two lines of one colour, the second dashed
    for number, (label, line) in enumerate(figure.items()):
        colour = POLICIES.get(
            label.partition(",")[0], COLOURS[(number // 2 if paired else number) % len(COLOURS)]
        )
        dash = "--" if (paired and number % 2) or label.endswith("slope") else "-"
        mark = "o" if len(line["x"]) == 1 else ""
        plot.plot(line["x"], line["y"], dash, color=colour, label=label, marker=mark, linewidth=2)
    plot.set(xlabel=axes.x, ylabel=axes.y, xscale=axes.x_scale, xlim=axes.x_limit, ylim=axes.y_limit)
    if axes.x_scale == "log":
        plot.xaxis.set_major_formatter("{x:,.0f}")
    plot.grid(visible=True, color="#e4e4e4")
    plot.spines[["top", "right"]].set_visible(False)
    plot.legend(frameon=False, fontsize=9)
    canvas.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None, "Title": axes.y})
    plt.close(canvas)


def main() -> None:
    """Compute every series, draw it, and keep the numbers for the test."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "disco", "svg.fonttype": "none", "font.family": "sans-serif"})
    figures = {name: make() for name, make in SERIES.items()}
    for name, figure in figures.items():
        draw(name, figure)
    (HERE / "plots.json").write_text(json.dumps(figures, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
