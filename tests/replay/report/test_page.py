"""The page as text: it holds every plot, runs nothing of a name's, and loads nothing; see also test_browser."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import reports
from made_cells import BASELINES, cell, report

from disco.errors import ConfigurationError
from disco.replay.metrics.over_seeds import CDF_LEVELS
from disco.replay.report import Report, to_html
from disco.replay.report.chart_style import styles
from disco.replay.report.charts import cdf_levels_shown, figures
from disco.replay.report.report_data import groups
from disco.replay.report.timeline import timeline


class Page(HTMLParser):
    """Ids, loads, visible text and the data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.elements: list[str] = []
        self.text = ""
        self.data = ""
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.elements.append(tag)
        self.ids |= {named["id"]} if "id" in named else set()
        self.loads += [f"{tag} {key}" for key in ("src", "href", "srcset", "action", "data") if key in named]
        if tag in ("script", "style"):
            self.inside.append(named.get("id") or tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text += data
        elif self.inside[-1] == "data":
            self.data += data


PLOTS = {
    "ttft-cdf",
    "ttft-tail",
    "ttft-mean-over-budget",
    "ttft-p99-over-budget",
    "cost-over-budget",
    "pareto",
    "cost-parts",
}


def test_the_page_has_every_plot_and_loads_nothing():
    text = to_html(reports.with_moves())
    page = Page(text)
    assert page.ids >= PLOTS | {"timeline"}
    assert page.loads == []
    assert not set(page.elements) & {"link", "img", "iframe", "object", "embed", "base"}
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)  # all but the plotting library
    assert len(own) < 400_000 < len(text)
    assert "://" not in own
    assert "@import" not in own
    assert "default-src 'none'" in own


def test_without_an_example_there_is_no_timeline():
    assert "timeline" not in Page(to_html(reports.without_moves())).ids


def test_names_are_shown_as_they_are_and_run_nothing():
    evil = '</script><script>alert("x")</script> <b>&amp; "q"'
    cells = [cell("wait_time", p99=1, cost=1, scenario=evil), *(replace(c, scenario=evil) for c in BASELINES)]
    text = to_html(Report(evil, (evil,), tuple(cells)))
    assert "<script>alert" not in text
    page = Page(text)
    assert "b" not in page.elements
    assert page.text.count(evil) >= 4  # title, heading, note, table
    assert json.loads(page.data)["scenarios"] == [{"budgets": ["0.5"], "start": 0}]


def test_names_are_literal_in_plots_too():
    plots = figures(*_grouped([cell("a<b>&", p99=1, cost=1)]))
    assert {t["name"] for p in plots[:2] for t in p.frames["0/0"]} == {"a&lt;b&gt;&amp;"}


def _grouped(cells):
    found = groups(cells)
    return found, styles(line for group in found for line in group.lines)


def resolved(value):
    """As the page fills it in."""
    known = {"@ink": "#000000", "@muted": "#555555", "@grid": "#eeeeee", "@card": "#ffffff"}
    known |= {"@levels": [0.0, 1.0], "@exceeding": [1.0, 0.5]}
    if isinstance(value, str):
        return known.get(value, value)
    if isinstance(value, list | tuple):
        return [resolved(item) for item in value]
    if isinstance(value, dict):
        return {key: resolved(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("shown", [reports.without_moves, reports.with_moves])
def test_every_figure_is_valid_for_plotly(shown):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    plots = figures(*_grouped(shown().cells))
    if shown().example is not None:
        plots.append(timeline(shown().example))
    for plot in plots:
        assert plot.frames
        for traces in plot.frames.values():
            assert traces
            graph_objects.Figure(
                data=resolved(traces), layout=resolved(dict(plot.layout))
            )  # raises what is not


def test_bands_are_drawn_only_where_seeds_differ():
    def bands(*cells):
        mean = figures(*_grouped(cells))[2]
        return [t for t in mean.frames["0"] if t.get("fill") == "toself"]

    assert len(bands(cell("wait_time", p99=1, cost=1, half=0.1))) == 1
    assert bands(cell("wait_time", p99=1, cost=1)) == []


def test_a_policy_has_one_colour_and_its_variants_differ():
    cells = [cell("wait_time", p99=1, cost=1), cell("wait_time", p99=1, cost=1, migrate=True)]
    other = cell("theirs", p99=1, cost=1)
    looks = styles(groups([*cells, other])[0].lines)
    plain, moving, theirs = looks["wait_time"], looks["wait_time + migration"], looks["theirs"]
    assert plain.colour == moving.colour != theirs.colour
    assert (plain.dash, plain.symbol) != (moving.dash, moving.symbol)


def test_a_very_large_report_stays_small():
    names = [f"policy {i}" for i in range(8)]
    cells = [
        cell(name, p99=1.0 + i / 10, cost=1.0, budget=b / 10, scenario=f"scenario {s}", regret=0.1)
        for s in range(8)
        for i, name in enumerate(names)
        for b in range(11)
    ]
    assert len(Page(to_html(Report("large", (), tuple(cells)))).data) < 2_000_000
    shown = cdf_levels_shown(groups(cells))
    assert {CDF_LEVELS[i] for i in shown} >= {0.9, 0.95, 0.99, 0.999, 1.0}


def test_a_page_without_plotly_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[replay\]"'):
        to_html(report(*BASELINES))


def test_an_empty_report_is_refused():
    with pytest.raises(ConfigurationError, match="has no cells"):
        to_html(report())
