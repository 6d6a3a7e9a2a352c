"""A report as one self-contained HTML page: it loads nothing, and its content policy forbids the browser to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from disco._resources import resource_text
from disco.errors import ConfigurationError
from disco.replay.metrics.over_seeds import CDF_LEVELS
from disco.replay.report.chart_style import Plot, Style, styles
from disco.replay.report.charts import cdf_levels_shown, figures
from disco.replay.report.findings import findings
from disco.replay.report.report_data import Group, Report, groups
from disco.replay.report.terminal_tables import TableData, scenario_tables
from disco.replay.report.timeline import timeline

__all__ = ["to_html"]

# The page may contact no address, whatever a name in the report or the plotting library asks for.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
}


def to_html(report: Report) -> str:
    """Return the page as text; write it to a file and open it in any browser, without a network.

    Raises:
        ConfigurationError: plotly is not installed, or the report is empty.
    """
    if not report.cells:
        raise ConfigurationError("the report has no cells to show; run at least one policy")
    library = _plotly_js()
    found = groups(report.cells)
    look = styles(line for group in found for line in group.lines)
    plots = figures(found, look)
    if report.example is not None and (one := timeline(report.example)) is not None:
        plots.append(one)
    title = escape(report.title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_own("page.css")}</style>
<script>{_own("count_errors.js")}</script>
</head>
<body>
<header>
<p class="kicker">disco replay</p>
<h1>{title}</h1>
{_list(report.notes)}
{_findings(report)}
</header>
<nav class="bar" aria-label="What is shown"><form autocomplete="off">
{_selectors(found)}
<div class="lines" aria-label="Policies; press to hide">{_legend(look)}</div>
</form></nav>
<main>
<noscript><p>The plots need JavaScript; the tables below do not.</p></noscript>
<div class="plots">
{"".join(_figure(plot) for plot in plots)}
</div>
<section class="card tables">
<h2>In numbers</h2>
<label><input type="checkbox" id="every-budget"> every budget</label>
{"".join(_tables(number, group) for number, group in enumerate(found))}
</section>
</main>
<footer>TTFT: seconds from the request to the first token the reader gets, over answered requests. ± is half the
95&nbsp;% interval over seeds. Costs are unified money (USD): prices per token, and energy at the exchange rate.
Distances to the oracle compare at the same budget; policies without a budget may lie below it.</footer>
<script>{library}</script>
<script type="application/json" id="data">{_json(_data(found, plots))}</script>
<script>{_own("page.js")}</script>
</body>
</html>
"""


def _own(file: str) -> str:
    """Return the page's own style or script, a file beside this module."""
    return resource_text("disco.replay.report", file)


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            'the HTML report needs plotly for its plots: pip install "disco-llm[replay]"'
        ) from error
    library: str = get_plotlyjs()
    return library.replace("</script", "<\\/script")


def _json(value: Any) -> str:
    """Return JSON that cannot end the script element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(found: Sequence[Group], plots: Sequence[Plot]) -> dict[str, Any]:
    levels = [CDF_LEVELS[i] for i in cdf_levels_shown(found)]
    return {
        "config": _CONFIG,
        "shared": {
            "@levels": levels,
            # A share of 0 has no place on a logarithmic axis.
            "@exceeding": [round(1 - level, 6) if level < 1 else None for level in levels],
        },
        "scenarios": [
            {"budgets": [f"{budget:g}" for budget in group.budgets], "start": _middle(group)}
            for group in found
        ],
        "plots": [
            {"key": plot.key, "by": plot.by, "layout": plot.layout, "frames": plot.frames} for plot in plots
        ],
    }


def _middle(group: Group) -> int:
    """Return the index of the budget shown first: the one nearest to 0.5."""
    return min(range(len(group.budgets)), key=lambda i: abs(group.budgets[i] - 0.5))


def _list(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'


def _findings(report: Report) -> str:
    sentences = findings(report)
    if not sentences:
        return ""
    inside = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<section class="findings" aria-label="Findings">{inside}</section>'


def _selectors(found: Sequence[Group]) -> str:
    options = "".join(
        f'<option value="{i}">{escape(group.scenario)} ({escape(group.regime)})</option>'
        for i, group in enumerate(found)
    )
    hidden = " hidden" if len(found) == 1 else ""
    return (
        f'<label{hidden}>scenario<select id="scenario">{options}</select></label>'
        '<label>budget<select id="budget"></select></label>'
    )


def _legend(look: dict[str, Style]) -> str:
    return "".join(
        f'<button type="button" data-line="{escape(name)}" aria-pressed="true">{_sample(style)}{escape(name)}</button>'
        for name, style in look.items()
    )


def _sample(style: Style) -> str:
    colour = "currentColor" if style.colour.startswith("@") else style.colour
    dashes = {"dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}.get(style.dash, "none")
    return (
        '<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" '
        f'stroke="{colour}" stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
    )


def _figure(plot: Plot) -> str:
    wide = ' class="wide"' if plot.wide else ""
    height = int(plot.layout["height"])
    return (
        f"<figure{wide}><figcaption><h2>{escape(plot.title)}</h2><p>{escape(plot.caption)}</p></figcaption>"
        f'<div class="plot" id="{plot.key}" role="img" aria-label="{escape(plot.title)}" '
        f'style="min-height:{height}px"></div></figure>\n'
    )


def _tables(number: int, group: Group) -> str:
    inside = "".join(_table(table, group) for table in scenario_tables(group))
    return f'<div data-scenario="{number}">{inside}</div>'


def _table(table: TableData, group: Group) -> str:
    head = "".join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in table.header
    )
    places = {f"{budget:g}": str(i) for i, budget in enumerate(group.budgets)}
    budget_column = table.header.index("budget")
    rows = "".join(
        f'<tr data-budget="{places.get(row[budget_column], "")}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
