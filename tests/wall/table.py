"""The wall, run: every row in every way in. Prints what differs, and writes the page of the documentation.

    python tests/wall/table.py                # what is worse or wrong, and the sums
    python tests/wall/table.py --rows tool    # rows with that in their names; with --all also what is right
    python tests/wall/table.py --write        # docs/results/wild.md: all rows, some five minutes

The checkout that is on PYTHONPATH is the one that is tried.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests / part) for part in ("", "support", "support/servers")]
    os.environ.update(DISCO_STATE="off", DISCO_POWER="off", DISCO_ATTACH="off")

from wall.network import entered, quiet, run
from wall.script import Row, read_rows
from wall.seen import Seen
from wall.verdict import BAD, Cell, Kind, judged, plain_of, reference_of
from wall.ways import SETUPS, SHAPES, SYNC, Way, look, ways

__all__ = ["PAGE", "Result", "page_of", "played"]

PAGE = Path(__file__).parents[2] / "docs" / "results" / "wild.md"


class Result(NamedTuple):
    """A cell of the wall."""

    row: Row
    way: Way
    cell: Cell
    seen: Seen
    sdk: Seen


def played(rows: Iterable[Row], some: Iterable[Way] | None = None) -> Iterator[Result]:
    """Every row in every way that it has."""
    asked = list(some or ways())
    with entered(), quiet():
        for row in rows:
            sdk: dict[Way, Seen] = {}
            for way in asked:
                if not way.is_named(row.ways):
                    continue
                reference, plain = reference_of(row, way), plain_of(way)
                for each in (reference, plain):
                    if each is not None and each not in sdk:
                        sdk[each] = _look(row, each)
                seen = _look(row, way)
                cell = judged(row, way, seen, sdk[reference], None if plain is None else sdk[plain])
                yield Result(row, way, cell, seen, sdk[reference])


def _look(row: Row, way: Way) -> Seen:
    return run(look, row, way) if way.is_async else look(row, way)


COLUMNS = [(setup, True) for setup in SETUPS] + [(setup, False) for setup in SYNC]


def _signs(results: Mapping[Way, Result], setup: str, is_async: bool) -> str:
    """The verdicts on a row in one set-up, in the order of the shapes; one where they are all the same."""
    ways_ = [Way(setup, shape, is_async) for shape in SHAPES]
    signs = "".join(results[way].cell.kind.value if way in results else "." for way in ways_)
    return signs[0] if len(set(signs)) == 1 else signs


def page_of(results: Iterable[Result]) -> str:
    """The page of the documentation."""
    by_row: dict[Row, dict[Way, Result]] = {}
    for result in results:
        by_row.setdefault(result.row, {})[result.way] = result
    counts = Counter(r.cell.kind for row in by_row.values() for r in row.values())
    lines = [ABOUT.format(rows=len(by_row), cells=sum(counts.values()), **{k.name: counts[k] for k in Kind})]
    heads = [setup if is_async else f"{setup}, sync" for setup, is_async in COLUMNS]
    for theme, rows in itertools.groupby(by_row, lambda row: row.theme):
        heading, _, about = theme.partition(": ")
        lines += [f"## {heading.rstrip('.')}", "", *([about[:1].upper() + about[1:], ""] if about else [])]
        lines.append("| what the server does | " + " | ".join(heads) + " |")
        lines.append("|---|" + "---|" * len(heads))
        for row in rows:
            cells = [f"`{_signs(by_row[row], *column)}`" for column in COLUMNS]
            lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
        lines.append("")
    purposes: dict[tuple[str, str], list[str]] = {}
    for row, found in by_row.items():
        for way, result in found.items():
            if result.cell.kind is Kind.PURPOSE:
                purposes.setdefault((row.name, result.cell.why), []).append(str(way))
    if purposes:
        lines += ["## Different on purpose", "", "| what the server does | where | why |", "|---|---|---|"]
        lines += [f"| {name} | {', '.join(where)} | {why} |" for (name, why), where in purposes.items()]
    return "\n".join(lines).rstrip("\n") + "\n"


ABOUT = """<!-- Written by tests/wall/table.py --write: change the rows, and run it. -->
# Servers in the wild

What servers do that no documentation says: each row is a public report, or a neighbour of one. A fake server does it,
and is asked in every way in; the plain `openai` SDK asked in the same way is the measure. {rows} rows, {cells} cells:

| sign | | cells |
|---|---|---|
| `=` | as the SDK: the same answer, or an error of the same class after the same text | {SAME} |
| `+` | better: the whole answer where the SDK raises | {BETTER} |
| `~` | different on purpose; the reason is below | {PURPOSE} |
| `-` | worse: something is lost, late, or asked for too often | {WORSE} |
| `!` | wrong: an answer that nobody gave, or an exception that is no `OpenAIError` | {WRONG} |
| `.` | not asked | |

`python tests/wall/table.py --write` makes this page, and `--rows "part of a name" --all` shows some rows cell by cell
(with the test group: `pip install --group test -e .`). A program gives the verdicts: `tests/wall/verdict.py` has the
rules, `tests/wall/rows/` the rows, in a few lines each, with the number of the report in the maintainers' list where
there is one.

A cell has six signs, for a stream, a whole answer, `.stream()` ("helper"), `parse()`, Responses and streamed Responses;
or one, where all six are the same. So `=+====` reads: better for a whole answer, else as the SDK. The columns are the
ways in:

| column | the client |
|---|---|
| one server | takes the SDK's own way to the server |
| budget | the same with a budget, for which a session reads the answer |
| two alike | has a backup with the same fault |
| backup, device | have a backup, or a model on this machine, that is in order |
| serve, serve+backup | the SDK asks `disco serve`, which has the server, or has a backup in order, too |
| sync | the client without `await` |
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="", help="only rows with this in their names")
    parser.add_argument(
        "--ways", nargs="*", default=[], help="only these ways, as serve, stream or backup/stream"
    )
    parser.add_argument("--all", action="store_true", help="print every cell")
    parser.add_argument("--write", action="store_true", help="write the page of the documentation")
    given = parser.parse_args()
    if given.write and (given.rows or given.ways):
        parser.error("--write makes the whole page: without --rows and --ways")
    rows = [row for row in read_rows() if given.rows.lower() in row.name.lower()]
    if not rows:
        parser.error(f"no row has {given.rows!r} in its name")
    unknown = [name for name in given.ways if not any(way.is_named([name]) for way in ways())]
    if unknown:
        parser.error(f"no way is called {', '.join(unknown)}; known: {', '.join((*SETUPS, *SHAPES))}")
    results = []
    for result in played(rows, [way for way in ways() if way.is_named(given.ways)]):
        results.append(result)
        kind, why = result.cell
        if given.all or kind in BAD:
            print(f"{kind.value} {result.row.name} | {result.way} | {why}")
    counts = Counter(r.cell.kind for r in results)
    print(", ".join(f"{kind.name.lower()} {counts[kind]}" for kind in Kind))
    if given.write:
        PAGE.write_text(page_of(results), encoding="utf-8")
    return 1 if any(r.cell.kind in BAD for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
