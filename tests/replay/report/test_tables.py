"""Tables, lines, bounds and JSON of a report."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import reports
from made_cells import BASELINES, cell, report

from disco.replay.report import terminal_tables, to_json
from disco.replay.report.report_data import bound, groups, line_names, pareto_front


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
    (table,) = terminal_tables(report(cell("race", p99=1, cost=1, failed=0.003)))
    assert (table.header[-1], table.rows[0][-1]) == ("unanswered", "0.3 %")


def test_arms_with_one_label_are_told_apart_by_what_differs():
    low, high = (cell("wait_time", p99=1, cost=1, tail=tail) for tail in (0.0, 0.1))
    assert line_names([low, high]) == ["wait_time, α = 0", "wait_time, α = 0.1"]
    by_evaluator = [low, replace(low, evaluator="events")]
    assert line_names(by_evaluator) == ["wait_time (vectorised)", "wait_time (events)"]
    assert line_names([low]) == ["wait_time"]


def test_the_bound_is_what_the_distances_say():
    (group,) = groups([cell("a", p99=1.0, cost=1, budget=b, regret=0.25 * b) for b in (0.8, 0.4)])
    assert bound(group, "p99") == {0.4: pytest.approx(0.9), 0.8: pytest.approx(0.8)}


def test_the_pareto_front_is_what_nothing_beats():
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
    arm = {"policy": "auto", "budget": 0.5, "tail": 0.05, "migrate": False, "order": "make_before_break"}
    assert document["cells"][2]["arm"] == arm
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
