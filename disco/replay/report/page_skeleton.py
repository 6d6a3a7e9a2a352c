"""The HTML page of a result: one self-contained file, which loads nothing and whose content policy forbids it to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from disco._resources import resource_text
from disco.errors import ConfigurationError
from disco.replay.report.chart_style import Plot, Style
from disco.replay.report.table import Table

__all__ = ["PageContent", "PageScenario", "render_page"]

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


@dataclass(frozen=True, slots=True)
class PageScenario:
    """What the page shows for one choice of the scenario.

    Attributes:
        name: in the selector.
        tables: of this scenario. Rows of a column "budget" with a value of `budgets` show for that budget only.
        budgets: in the second selector, which is hidden where there are fewer than two.
        start: index of the budget shown first.
    """

    name: str
    tables: Sequence[Table]
    budgets: Sequence[str] = ("",)
    start: int = 0


@dataclass(frozen=True, slots=True)
class PageContent:
    """Everything that a page shows.

    Attributes:
        title: of the page.
        notes: sentences below the title.
        findings: sentences that stand out.
        scenarios: at least one.
        look: every line's style, by name; the legend, whose names are the traces' `legendgroup`.
        plots: with frames for the scenarios (and budgets).
        footer: definitions.
        shared: values that plots name by "@...".
    """

    title: str
    notes: Sequence[str]
    findings: Sequence[str]
    scenarios: Sequence[PageScenario]
    look: Mapping[str, Style]
    plots: Sequence[Plot]
    footer: str
    shared: Mapping[str, Any] = field(default_factory=dict)


def render_page(content: PageContent) -> str:
    """Return the page of a `content` as text; write it to a file and open it in any browser, without a network.

    Raises:
        ConfigurationError: plotly is not installed.
    """
    library = _plotly_js()
    title = escape(content.title)
    tables = "".join(
        f'<div data-scenario="{number}">{"".join(_table(table, one.budgets) for table in one.tables)}</div>'
        for number, one in enumerate(content.scenarios)
    )
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
{_list(content.notes)}
{_findings(content.findings)}
</header>
<nav class="bar" aria-label="What is shown"><form autocomplete="off">
{_selectors(content.scenarios)}
<div class="lines" aria-label="Policies; press to hide">{_legend(content.look)}</div>
</form></nav>
<main>
<noscript><p>The plots need JavaScript; the tables below do not.</p></noscript>
<div class="plots">
{"".join(_figure(plot) for plot in content.plots)}
</div>
<section class="card tables">
<h2>In numbers</h2>
<label><input type="checkbox" id="every-budget"> every budget</label>
{tables}
</section>
</main>
<footer>{escape(content.footer)}</footer>
<script>{library}</script>
<script type="application/json" id="data">{_json(_data(content))}</script>
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


def _data(content: PageContent) -> dict[str, Any]:
    return {
        "config": _CONFIG,
        "shared": dict(content.shared),
        "scenarios": [{"budgets": list(one.budgets), "start": one.start} for one in content.scenarios],
        "plots": [
            {"key": plot.key, "by": plot.by, "layout": plot.layout, "frames": plot.frames}
            for plot in content.plots
        ],
    }


def _list(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'


def _findings(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    inside = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<section class="findings" aria-label="Findings">{inside}</section>'


def _selectors(scenarios: Sequence[PageScenario]) -> str:
    options = "".join(
        f'<option value="{number}">{escape(one.name)}</option>' for number, one in enumerate(scenarios)
    )
    hidden = " hidden" if len(scenarios) == 1 else ""
    return (
        f'<label{hidden}>scenario<select id="scenario">{options}</select></label>'
        '<label>budget<select id="budget"></select></label>'
    )


def _legend(look: Mapping[str, Style]) -> str:
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


def _table(table: Table, budgets: Sequence[str]) -> str:
    head = "".join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in table.header
    )
    places = {budget: str(i) for i, budget in enumerate(budgets)}
    column = table.header.index("budget") if "budget" in table.header else None
    rows = "".join(
        f'<tr data-budget="{"" if column is None else places.get(row[column], "")}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{_list(table.notes)}"
    )
