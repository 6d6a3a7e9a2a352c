"""Tables that `papers.measure` makes with a real model: quality against r, and answers that both sides wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from disco.replay import Table
from papers import quality, refinement
from papers.evaluation import UNKNOWN
from papers.quality.quality_figures import quality_figures
from papers.quality.quality_tables import quality_tables
from papers.quality.quality_trace import load_quality_trace
from papers.refinement import RefineRow, RefineTable, load_refine_table

__all__ = ["MIXED", "REFINED", "measured_tables"]

REFINED: Final = Path(refinement.__file__).parent / "data"
"""Shipped tables of `python -m papers.measure refine`."""
MIXED: Final = Path(quality.__file__).parent / "data"
"""Shipped traces of `python -m papers.measure quality`."""


def measured_tables(refined: Path = REFINED, mixed: Path = MIXED) -> list[Table]:
    """Return the tables of every file; where there is none, a table says that it is not measured yet.

    Args:
        refined: folder of `*.csv` files of `python -m papers.measure refine`.
        mixed: folder of `*.csv.gz` files of `python -m papers.measure quality`.
    """
    tables = [_against_r(load_refine_table(path)) for path in sorted(refined.glob("*.csv"))]
    if not tables:
        tables.append(_missing("Figure 4a: quality against r", "python -m papers.measure refine"))
    traces = [load_quality_trace(path) for path in sorted(mixed.glob("*.csv.gz"))]
    for trace in traces:
        tables += quality_tables(trace, quality_figures(trace))
    if not traces:
        tables.append(_missing("Figures 3a, 7b: two models' answers", "python -m papers.measure quality"))
    return tables


def _against_r(table: RefineTable) -> Table:
    rows = tuple(_cells(row) for row in table.rows)
    return Table(
        f"Figure 4a: quality against r on {table.name}, {table.model}",
        (
            "arm",
            "r",
            "server's tokens",
            "questions",
            "nats a gold token",
            "over the whole text",
            "over random",
            "F1",
            "gold kept",
        ),
        rows,
        ("In brackets: 95 % intervals over paragraphs. Printed: r = 0.6 costs at most several percent.",),
    )


def _cells(row: RefineRow) -> tuple[str, ...]:
    return (
        row.arm,
        f"{row.keep:g}",
        str(row.begun),
        f"{row.questions:,}",
        _interval(row.nats, row.nats_low, row.nats_high),
        _interval(row.over_full, row.over_full_low, row.over_full_high, sign="+"),
        _interval(row.over_random, row.over_random_low, row.over_random_high, sign="+"),
        _interval(row.f1, row.f1_low, row.f1_high),
        _interval(row.gold_kept, row.gold_kept_low, row.gold_kept_high),
    )


def _interval(value: float, low: float, high: float, sign: str = "") -> str:
    """Return the figure with its interval; nan stands where nothing was measured."""
    return UNKNOWN if value != value else f"{value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"  # noqa: PLR0124


def _missing(title: str, command: str) -> Table:
    return Table(title, ("state", "command"), (("not measured yet", command),), ())
