"""The wall: no row, in no way in, is worse than the SDK alone or wrong. `python tests/wall/table.py` prints why."""

from __future__ import annotations

import pytest
from wall.script import Row, read_rows
from wall.table import PAGE, page_of, played
from wall.verdict import BAD, Kind
from wall.ways import Way, ways

ROWS = read_rows()
# In every run; the others in `make test-slow`.
FIRST = [
    Way(setup, shape)
    for setup in ("one server", "budget", "backup", "serve+backup")
    for shape in ("stream", "whole")
]
OTHERS = [way for way in ways() if way not in FIRST]


def _bad(row: Row, some: list[Way]) -> list[str]:
    return [f"{r.cell.kind.name} {r.way}: {r.cell.why}" for r in played([row], some) if r.cell.kind in BAD]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_never_worse_than_the_sdk_alone(row: Row) -> None:
    assert _bad(row, FIRST) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_never_worse_in_the_other_ways(row: Row) -> None:
    assert _bad(row, OTHERS) == []


@pytest.mark.slow
def test_the_page_is_current_and_every_difference_on_purpose_is_one() -> None:
    results = list(played(ROWS))
    assert PAGE.read_text(encoding="utf-8") == page_of(results), "run: python tests/wall/table.py --write"
    met = {(r.row.name, r.cell.why) for r in results if r.cell.kind is Kind.PURPOSE}
    said = {(row.name, why) for row in ROWS for why in row.but.values()}
    assert said - met == set(), "these differ no longer"


def test_the_page_has_every_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f"| {row.name} |" not in page] == [], (
        "run: python tests/wall/table.py --write"
    )


def test_names_are_unique_and_ways_exist() -> None:
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(set(names))
    assert [row.name for row in ROWS if not any(way.is_named(row.ways) for way in ways())] == []
