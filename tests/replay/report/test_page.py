"""A report's tables, JSON, timeline and page as text; see also test_browser."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest
import reports
from made_cells import BASELINES, cell, report

from disco.cost import Ledger, Rates
from disco.errors import ConfigurationError

# ---------------------------------------------------------------------- tables
from disco.record.written import stretches
from disco.replay.report import Report, terminal_tables, to_html, to_json
from disco.replay.report.chart_style import styles
from disco.replay.report.html_page import figures, timeline
from disco.replay.report.report_data import bound, groups, line_names, pareto_front
from disco.session.records.route_record import (
    AttemptRecord,
    LatencyRecord,
    MigrationRecord,
    RouteRecord,
    SegmentRecord,
)


def test_a_table_shows_every_cell_with_its_cost_and_its_distance_to_the_oracle():
    measured = cell("wait_time", p99=1.0, cost=5.0, regret=0.25, half=0.1)
    (table,) = terminal_tables(report(*BASELINES, measured))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["policy"] for row in rows] == ["server_only", "device_only", "wait_time"]
    assert rows[0]["budget"] == "–", "it keeps to none"
    assert rows[2] == {
        "policy": "wait_time",
        "budget": "0.5",
        "used": "50 %",
        "TTFT mean": "0.333±0.100",
        "P50": "0.500",
        "P90": "0.900",
        "P99": "1.00±0.10",
        "$/1000": "5.00",
        "× server": "0.50×",
        "device won": "25 %",
        "mean vs oracle": "+0.250",
        "P99 vs oracle": "+0.250",
    }
    assert "1,000 requests × 3 seeds" in table.title
    assert "unanswered" not in table.header
    (table,) = terminal_tables(report(cell("race", p99=1, cost=1, failed=0.003)))
    assert (table.header[-1], table.rows[0][-1]) == ("unanswered", "0.3 %")


def test_every_scenario_has_its_table_with_the_oracle_last_and_events_add_the_readers_side():
    tables = terminal_tables(reports.without_moves())
    assert [t.title.split(" · ")[0] for t in tables] == ["phone × deepseek", "phone on battery × deepseek"]
    assert [t.rows[-1][0] for t in tables] == ["oracle", "oracle"]
    main, reader = terminal_tables(reports.with_moves())
    assert len(main.rows) == len(reader.rows) == 4
    assert all(len(row) == len(table.header) for table in (*tables, main, reader) for row in table.rows)
    moved = {row[0]: row[reader.header.index("moved")] for row in reader.rows}
    assert moved["auto"] == "0 %"
    assert moved["auto + migration"] not in {"0 %", "–"}


def test_arms_with_one_label_are_told_apart_by_what_differs():
    low, high = (cell("wait_time", p99=1, cost=1, tail=tail) for tail in (0.0, 0.1))
    assert line_names([low, high]) == ["wait_time, α = 0", "wait_time, α = 0.1"]
    by_evaluator = [low, replace(low, evaluator="events")]
    assert line_names(by_evaluator) == ["wait_time (vectorised)", "wait_time (events)"]
    assert line_names([low]) == ["wait_time"]


def test_the_bound_is_what_the_distances_say_and_the_pareto_front_what_nothing_beats():
    (group,) = groups([cell("a", p99=1.0, cost=1, budget=b, regret=0.25 * b) for b in (0.8, 0.4)])
    assert bound(group, "p99") == {0.4: pytest.approx(0.9), 0.8: pytest.approx(0.8)}
    points = [(1, 9), (2, 5), (3, 6), (4, 5), (5, 1), (2, 8)]
    front = pareto_front(cell("a", p99=p99, cost=cost) for cost, p99 in points)
    found = [(round(c.summary.cost_usd.mean * 1000), c.summary.ttft_p99_s.mean) for c in front]
    assert found == [(1, 9), (2, 5), (5, 1)]


def test_json_holds_the_cells_and_the_example_as_plain_numbers():
    shown = reports.with_moves()
    document = json.loads(to_json(shown))
    assert set(document) == {"schema", "title", "notes", "findings", "cdf_levels", "cells", "example"}
    assert document["schema"] == 1
    assert document["cells"] == [c.to_dict() for c in shown.cells]
    assert len(document["cdf_levels"]) == len(document["cells"][0]["summary"]["ttft_quantiles_s"])
    assert document["example"] == json.loads(json.dumps(shown.example.to_dict(timelines=True)))
    assert len(document["example"]["generated"]) == len(shown.example.generated) > 0
    # What is not a number is null.
    document = json.loads(to_json(report(cell("wait_time", p99=math.nan, cost=math.inf))))
    summary = document["cells"][0]["summary"]
    assert (summary["ttft_p99_s"]["mean"], summary["cost_usd"]["mean"], document["example"]) == (None,) * 3


# ---------------------------------------------------------------------- timeline


def moved_record() -> RouteRecord:
    """Ten tokens by the device, six kept; then four by the server; what does not matter for a timeline is nothing."""

    def blank(kind, **known):
        return kind(**{**dict.fromkeys((field.name for field in fields(kind)), 0), **known})

    device = {"started_s": 0.0, "first_content_s": 0.1, "ended_s": 1.0, "kept_tokens": 6}
    server = {"started_s": 0.6, "first_content_s": 1.0, "ended_s": 1.4, "kept_tokens": 4}
    return blank(
        RouteRecord,
        preset="wait_time",
        answer_tokens=10,
        attempts=(
            blank(AttemptRecord, endpoint="device", outcome="handed_over", **device),
            blank(AttemptRecord, endpoint="server", outcome="finished", **server),
        ),
        segments=(SegmentRecord(0, "device", 0, 20, 1, 1), SegmentRecord(1, "server", 20, 30, 2, 2)),
        migrations=(MigrationRecord("device", "server", "switched", 0.6, 1.0, 20, 6, 0.4, 0.4, 0.5, 0),),
        pace=LatencyRecord(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 5.0),
        ledger=Ledger({"device": Rates(0, 0), "server": Rates(0, 0)}),
        generated=(*((round(0.1 * i, 1), 1) for i in range(1, 10)), (0.95, 1), (1.0, 2), (1.4, 2)),
        released=tuple((0.1 + 0.14 * i, 1) for i in range(10)),
    )


def test_every_token_of_the_timeline_has_the_writer_that_wrote_it():
    device, server = stretches(moved_record())
    assert (device.endpoint, server.endpoint) == ("device", "server")
    assert device.kept == tuple((round(0.1 * i, 1), i) for i in range(1, 7))
    assert device.dropped == ((0.6, 6), (0.7, 7), (0.8, 8), (0.9, 9), (0.95, 10))
    assert server.kept == ((1.0, 8), (1.4, 10))
    assert server.dropped == ()


def test_the_caption_says_who_wrote_and_what_was_late():
    moved = moved_record()
    late = replace(moved, migrations=(replace(moved.migrations[0], late_tokens=3),))
    captions = [timeline(record).caption for record in (moved, late, replace(moved, migrations=()))]
    assert captions[0].startswith(
        "Preset wait_time: 10 tokens, begun by device and migrated to server after 6. The new endpoint took 0.40 s to "
        "its first token, while the reader read from the buffer; no token was late."
    )
    assert "3 tokens were late" in captions[1]
    assert captions[2] == "Preset wait_time: 10 tokens, written by device and server."
    assert timeline(replace(moved, generated=(), released=())) is None


# ---------------------------------------------------------------------- page


class Page(HTMLParser):
    """Ids, loads, elements, visible text and the data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.loads, self.elements, self.inside = set(), [], [], []
        self.text = self.data = ""
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


def test_the_page_has_every_plot_and_loads_nothing():
    text = to_html(reports.with_moves())
    page = Page(text)
    of_budgets = {"ttft-mean-over-budget", "ttft-p99-over-budget", "cost-over-budget"}
    assert page.ids >= {"ttft-cdf", "ttft-tail", *of_budgets, "pareto", "cost-parts", "timeline"}
    assert page.loads == []
    assert not set(page.elements) & {"link", "img", "iframe", "object", "embed", "base"}
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)  # all but the plotting library
    assert len(own) < 400_000 < len(text)
    assert "://" not in own
    assert "@import" not in own
    assert "default-src 'none'" in own
    assert "timeline" not in Page(to_html(reports.without_moves())).ids  # without an example


def test_names_are_shown_as_they_are_and_run_nothing():
    evil = '</script><script>alert("x")</script> <b>&amp; "q"'
    cells = [cell("wait_time", p99=1, cost=1, scenario=evil), *(replace(c, scenario=evil) for c in BASELINES)]
    text = to_html(Report(evil, (evil,), tuple(cells)))
    assert "<script>alert" not in text
    page = Page(text)
    assert "b" not in page.elements
    assert page.text.count(evil) >= 4  # title, heading, note, table
    assert json.loads(page.data)["scenarios"] == [{"budgets": ["0.5"], "start": 0}]
    plots = figures(*_grouped([cell("a<b>&", p99=1, cost=1)]))
    assert {t["name"] for p in plots[:2] for t in p.frames["0/0"]} == {"a&lt;b&gt;&amp;"}


def _grouped(cells):
    found = groups(cells)
    return found, styles(line for group in found for line in group.lines)


def test_a_policy_has_one_colour_and_its_variants_differ():
    cells = [cell("wait_time", p99=1, cost=1), cell("wait_time", p99=1, cost=1, migrate=True)]
    other = cell("theirs", p99=1, cost=1)
    lines = groups([*cells, other])[0].lines
    looks = styles(lines)
    assert styles([*lines, *lines]) == looks, "the same in every scenario"
    plain, moving, theirs = looks["wait_time"], looks["wait_time + migration"], looks["theirs"]
    assert plain.colour == moving.colour != theirs.colour
    assert (plain.dash, plain.symbol) != (moving.dash, moving.symbol)
    # Bands are drawn only where seeds differ.
    for half, bands in ((0.1, 1), (0.0, 0)):
        mean = figures(*_grouped([cell("wait_time", p99=1, cost=1, half=half)]))[2]
        assert sum(t.get("fill") == "toself" for t in mean.frames["0"]) == bands


def test_a_page_without_plotly_says_how_to_get_it_and_one_of_nothing_is_refused(monkeypatch):
    with pytest.raises(ConfigurationError, match="has no cells"):
        to_html(report())
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[replay\]"'):
        to_html(report(*BASELINES))
