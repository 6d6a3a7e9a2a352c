"""The sentences below the tables of the DiSCo paper's evaluation can be read off those tables."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from disco.replay.papers.disco import paper_tables, run_paper


@pytest.fixture(scope="module")
def tables():
    """By the first word or two of their titles."""
    result = run_paper(runs=1, requests=30, budgets=(0.0, 0.5, 1.0), event_requests=2)
    return {table.title.split(":")[0]: table for table in paper_tables(result)}


def test_table_2_is_counted_and_its_other_cells_are_named(tables):
    table = tables["Table 2"]
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    counted, *others, inner = table.notes
    verdicts = Counter(row["where we stand"] for row in rows)
    said = re.match(rf"Of {len(rows)} cells: (.+?)\. Out of reach", counted)[1]
    assert said == ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    assert others == [
        f"{row['device']} × {row['server']} {row['']}: {row['where we stand']}; printed {row['printed']} %, ours "
        f"{row['ours'].split('±')[0]} %, the oracle {row['oracle']} %."
        for row in rows
        if row["where we stand"] != "ahead"
    ]
    changes = [float(row["inner b"]) - float(row["ours"].split("±")[0]) for row in rows]
    low, high = map(float, re.search(r"cut is ([+-][\d.]+) to ([+-][\d.]+) points", inner).groups())
    assert (low, high) == (pytest.approx(min(changes), abs=0.11), pytest.approx(max(changes), abs=0.11))


def test_figure_6s_range_is_that_of_its_rows(tables):
    table = tables["Figure 6"]
    ranges = [re.fullmatch(r"(-?\d+) to (-?\d+)", row[-1]).groups() for row in table.rows if row[-1] != "–"]
    low, high = min(int(a) for a, _ in ranges), max(int(b) for _, b in ranges)
    assert f"Mean TTFT lies {low} to {high} % below stochastic dispatch" in table.notes[1]


def test_figure_7s_best_savings_are_those_of_its_rows(tables):
    table = tables["Figure 7"]
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    found = [
        re.match(r"([SD]), (.+?): at most (-?[\d.]+) % \(.+ × (.+) at budget", note) for note in table.notes
    ]
    said = {(m[1], m[2]): (float(m[3]), m[4]) for m in found if m}
    assert set(said) == {(row[""], row["order"]) for row in rows}
    for (regime, order), (percent, server) in said.items():
        mine = [row for row in rows if (row[""], row["order"]) == (regime, order)]
        best = max(mine, key=lambda row: float(row["best device"]))
        assert percent == float(best["best device"])
        assert server in {row["server"] for row in mine if float(row["best device"]) == percent}
