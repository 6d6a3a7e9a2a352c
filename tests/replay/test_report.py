"""What a report says: findings, tables, JSON and the page's text; how the page looks is in test_report_browser."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import reports

from disco.cost import Ledger, Rates
from disco.errors import ConfigurationError
from disco.replay.metrics.over_seeds import CDF_LEVELS, Cell, Figure, Summary
from disco.replay.report import Report, findings, terminal_tables, to_html, to_json
from disco.replay.report.chart_style import styles
from disco.replay.report.charts import cdf_levels_shown, figures
from disco.replay.report.findings import number
from disco.replay.report.report_data import bound, groups, line_names, pareto_front
from disco.replay.report.timeline import stretches, timeline
from disco.replay.workload.scenario import Arm
from disco.session.records.route_record import (
    AttemptRecord,
    LatencyRecord,
    MigrationRecord,
    RouteRecord,
    SegmentRecord,
)


def one(value: float, half: float = 0.0) -> Figure:
    return Figure(value, value - half, value + half)


def cell(
    policy: str,
    *,
    p99: float,
    cost: float,
    budget: float = 0.5,
    used: float | None = None,
    failed: float = 0.0,
    regret: float | None = None,
    scenario: str = "phone × server",
    half: float = 0.0,
    **arm,
) -> Cell:
    """A cell written down by hand; cost in USD per 1000 requests."""
    quantiles = tuple(np.quantile([p99 / 4, p99 / 2, p99], CDF_LEVELS).tolist())
    summary = Summary(
        requests=1000,
        seeds=3 if half else 1,
        ttft_mean_s=one(p99 / 3, half),
        ttft_p50_s=one(p99 / 2),
        ttft_p90_s=one(p99 * 0.9),
        ttft_p99_s=one(p99, half),
        budget_used=one(budget if used is None else used),
        cost_usd=one(cost / 1000),
        cost_by={"server/answer": cost / 1000},
        device_won=one(0.25),
        failed=one(failed),
        ttft_quantiles_s=quantiles,
    )
    distance = None if regret is None else one(regret)
    regime = "server-constrained"
    return Cell(scenario, regime, Arm(policy, budget, **arm), "vectorised", summary, distance, distance)


def report(*cells: Cell) -> Report:
    return Report("A report", (), cells)


BASELINES = (cell("server_only", p99=2.0, cost=10.0), cell("device_only", p99=4.0, cost=1.0))


# ---------------------------------------------------------------------- findings


def test_the_finding_is_the_best_p99_within_the_cost_of_the_dearer_endpoint():
    good = cell("optimal_wait", p99=1.0, cost=8.0, budget=0.4, regret=0.2)
    faster_but_dearer = cell("optimal_wait", p99=0.9, cost=10.1, budget=0.9)
    slower = cell("random", p99=1.1, cost=2.0)
    impossible = cell("oracle", p99=0.8, cost=8.0, budget=0.4)
    best, compared, oracle = findings(report(*BASELINES, slower, good, faster_but_dearer, impossible))
    assert best == (
        "optimal_wait at a budget of 0.4 has the lowest P99 TTFT of the policies compared at no more than "
        "server_only's cost: 1.00 s."
    )
    assert compared == (
        "That is against server_only (2.00 s) 50 % less P99 TTFT and 20 % less cost; against device_only (4.00 s) "
        "75 % less P99 TTFT and 8.00 times the cost."
    )
    assert oracle == (
        "An oracle that knows every TTFT in advance has 0.800 s at the same budget: 0.200 s (25 %) is the most that "
        "could still be gained."
    )


def test_what_overspends_or_does_not_answer_is_no_finding():
    honest = cell("random", p99=1.9, cost=5.0, used=0.53)
    overspent = cell("wait_time", p99=0.5, cost=5.0, budget=0.2, used=0.9)
    silent = cell("length_threshold", p99=0.4, cost=5.0, failed=0.3)
    assert findings(report(*BASELINES, overspent, silent, honest))[0].startswith("random at a budget of 0.5")


def test_a_single_endpoint_that_is_better_in_both_is_named():
    sentences = findings(report(*BASELINES, cell("random", p99=5.0, cost=2.0)))
    assert "device_only alone is no slower and no dearer than that." in sentences


def test_an_oracle_that_could_do_no_better_is_said_so():
    sentences = findings(report(*BASELINES, cell("wait_time", p99=1.0, cost=2.0, regret=0.0)))
    assert sentences[-1].endswith("1.00 s at the same budget: no better.")


def test_many_scenarios_are_summed_up():
    cells = [
        replace(c, scenario=f"scenario {i}")
        for i in range(4)
        for c in (*BASELINES, cell("wait_time", p99=1.0 + 0.2 * i, cost=5.0, regret=0.1))
    ]
    assert findings(report(*cells)) == [
        "Lowest P99 TTFT at no more than the cost of the dearer endpoint alone, in 4 scenarios: wait_time in 4.",
        "Against server_only: P99 TTFT −50 % to −20 % (median −35 %), cost −50 % to −50 % (median −50 %).",
        "Against device_only: P99 TTFT −75 % to −60 % (median −68 %), cost +400 % to +400 % (median +400 %).",
        "P99 TTFT above the oracle's at the same budget: +7 % to +11 % (median +8 %).",
    ]


def test_nothing_measured_is_nothing_found():
    assert findings(report(cell("wait_time", p99=math.nan, cost=1.0))) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.6, "1,235"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.123"),
        (0.001234, "0.00123"),
        (0, "0.000"),
        (1.5e-6, "0.0000015"),
        (math.nan, "–"),
        (-0.0514, "-0.0514"),
    ],
)
def test_numbers_have_about_three_digits_and_no_exponent(value, text):
    assert number(value) == text


# ---------------------------------------------------------------------- tables


def test_a_table_shows_every_cell_with_its_cost_and_its_distance_to_the_oracle():
    (table,) = terminal_tables(
        report(*BASELINES, cell("wait_time", p99=1.0, cost=5.0, regret=0.25, half=0.1))
    )
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


def test_the_event_accurate_evaluator_adds_the_readers_side():
    main, reader = terminal_tables(reports.with_moves())
    assert len(main.rows) == len(reader.rows) == 4
    moved = {row[0]: row[reader.header.index("moved")] for row in reader.rows}
    assert moved["auto"] == "0 %"
    assert moved["auto + migration"] not in {"0 %", "–"}


def test_every_scenario_has_its_table_and_the_oracle_comes_last():
    tables = terminal_tables(reports.without_moves())
    assert [t.title.split(" · ")[0] for t in tables] == ["phone × deepseek", "phone on battery × deepseek"]
    for table in tables:
        assert all(len(row) == len(table.header) for row in table.rows)
        assert table.rows[-1][0] == "oracle"


def test_unanswered_requests_get_a_column_only_where_there_are_some():
    assert "unanswered" not in terminal_tables(report(*BASELINES))[0].header
    assert "unanswered" in terminal_tables(report(cell("race", p99=1, cost=1, failed=0.1)))[0].header


# ---------------------------------------------------------------------- lines, bounds, fronts


def test_arms_with_one_label_are_told_apart_by_what_differs():
    low, high = (cell("wait_time", p99=1, cost=1, tail=tail) for tail in (0.0, 0.1))
    assert line_names([low, high]) == ["wait_time, α = 0", "wait_time, α = 0.1"]
    assert line_names([low, replace(low, evaluator="events")]) == [
        "wait_time (vectorised)",
        "wait_time (events)",
    ]
    assert line_names([low]) == ["wait_time"]


def test_the_bound_is_what_the_distances_say():
    (group,) = groups([cell("a", p99=1.0, cost=1, budget=b, regret=0.25 * b) for b in (0.8, 0.4)])
    assert bound(group, "p99") == {0.4: pytest.approx(0.9), 0.8: pytest.approx(0.8)}


def test_the_pareto_front_is_what_nothing_beats():
    points = [(1, 9), (2, 5), (3, 6), (4, 5), (5, 1), (2, 8)]
    front = pareto_front(cell("a", p99=p99, cost=cost) for cost, p99 in points)
    assert [(round(c.summary.cost_usd.mean * 1000), c.summary.ttft_p99_s.mean) for c in front] == [
        (1, 9),
        (2, 5),
        (5, 1),
    ]


def test_a_policy_has_one_colour_and_its_variants_differ():
    cells = [cell("wait_time", p99=1, cost=1), cell("wait_time", p99=1, cost=1, migrate=True)]
    other = cell("theirs", p99=1, cost=1)
    looks = styles(groups([*cells, other])[0].lines)
    plain, moving, theirs = looks["wait_time"], looks["wait_time + migration"], looks["theirs"]
    assert plain.colour == moving.colour != theirs.colour
    assert (plain.dash, plain.symbol) != (moving.dash, moving.symbol)


# ---------------------------------------------------------------------- JSON


def test_json_holds_the_cells_and_the_example_as_plain_numbers():
    shown = reports.with_moves()
    document = json.loads(to_json(shown))
    assert set(document) == {"schema", "title", "notes", "findings", "cdf_levels", "cells", "example"}
    assert document["schema"] == 1
    assert document["cells"] == [c.to_dict() for c in shown.cells]
    assert document["cells"][2]["arm"] == {
        "policy": "auto",
        "budget": 0.5,
        "tail": 0.05,
        "migrate": False,
        "order": "make_before_break",
    }
    assert document["cells"][3]["summary"]["reading"]["moved"]["mean"] > 0
    assert len(document["cdf_levels"]) == len(document["cells"][0]["summary"]["ttft_quantiles_s"])
    assert document["example"] == json.loads(json.dumps(shown.example.to_dict(timelines=True)))
    assert len(document["example"]["generated"]) == len(shown.example.generated) > 0
    assert document["example"]["migrations"][0]["outcome"] == "switched"


def test_what_is_not_a_number_is_null_in_json():
    document = json.loads(to_json(report(cell("wait_time", p99=math.nan, cost=math.inf))))
    summary = document["cells"][0]["summary"]
    assert summary["ttft_p99_s"]["mean"] is None
    assert summary["cost_usd"]["mean"] is None
    assert document["example"] is None


# ---------------------------------------------------------------------- the timeline


def attempt(endpoint: str, outcome: str, **known) -> AttemptRecord:
    """What does not matter for a timeline is nothing."""
    values = dict.fromkeys((field.name for field in fields(AttemptRecord)), 0)
    return AttemptRecord(
        **{**values, "endpoint": endpoint, "place": endpoint, "role": "", "outcome": outcome, **known}
    )


def moved_record() -> RouteRecord:
    """Ten tokens by the device, six kept; then four by the server; made by hand."""
    tries = (
        attempt("device", "handed_over", started_s=0.0, first_content_s=0.1, ended_s=1.0, kept_tokens=6),
        attempt("server", "finished", started_s=0.6, first_content_s=1.0, ended_s=1.4, kept_tokens=4),
    )
    generated = (*((round(0.1 * i, 1), 1) for i in range(1, 10)), (0.95, 1), (1.0, 2), (1.4, 2))
    return RouteRecord(
        created_s=None,
        max_tokens=None,
        endpoints=(),
        policy="wait_time",
        finish_reason="stop",
        prompt_tokens=5,
        answer_tokens=10,
        starts=(("device", 0.0),),
        attempts=tries,
        segments=(SegmentRecord(0, "device", 0, 20, 1, 1), SegmentRecord(1, "server", 20, 30, 2, 2)),
        migrations=(MigrationRecord("device", "server", "switched", 0.6, 1.0, 20, 6, 0.4, 0.4, 0.5, 0),),
        pace=LatencyRecord(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 5.0),
        ledger=Ledger({"device": Rates(0, 0), "server": Rates(0, 0)}),
        duration_s=1.5,
        generated=generated,
        released=tuple((0.1 + 0.14 * i, 1) for i in range(10)),
        winner="device",
    )


def test_every_token_of_the_timeline_has_the_writer_that_wrote_it():
    device, server = stretches(moved_record())
    assert (device.endpoint, server.endpoint) == ("device", "server")
    assert device.kept == tuple((round(0.1 * i, 1), i) for i in range(1, 7))
    assert device.dropped == ((0.6, 6), (0.7, 7), (0.8, 8), (0.9, 9), (0.95, 10))
    assert server.kept == ((1.0, 8), (1.4, 10))
    assert server.dropped == ()


def test_a_real_moved_answer_adds_up():
    record = reports.with_moves().example
    parts = stretches(record)
    assert [part.endpoint for part in parts] == [piece.endpoint for piece in record.segments]
    assert parts[-1].kept[-1][1] == record.answer_tokens
    assert parts[0].kept[-1][1] == record.migrations[-1].cut_tokens
    drawn = {at for part in parts for at, _ in (*part.kept, *part.dropped)}
    assert {at for at, _ in record.generated} == drawn


def test_a_record_without_timelines_has_no_plot():
    assert timeline(replace(moved_record(), generated=(), released=())) is None


# ---------------------------------------------------------------------- the page


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


def test_a_very_large_report_stays_small_and_quick():
    names = [f"policy {i}" for i in range(8)]
    cells = [
        cell(name, p99=1.0 + i / 10, cost=1.0, budget=b / 10, scenario=f"scenario {s}", regret=0.1)
        for s in range(24)
        for i, name in enumerate(names)
        for b in range(11)
    ]
    began_at = time.process_time()
    text = to_html(Report("large", (), tuple(cells)))
    assert time.process_time() - began_at < 6.0  # 1 s on a quiet machine
    assert len(Page(text).data) < 4_000_000
    shown = cdf_levels_shown(groups(cells))
    assert {CDF_LEVELS[i] for i in shown} >= {0.9, 0.95, 0.99, 0.999, 1.0}


def test_a_page_without_plotly_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[replay\]"'):
        to_html(report(*BASELINES))


def test_an_empty_report_is_refused():
    with pytest.raises(ConfigurationError, match="without cells"):
        to_html(report())
