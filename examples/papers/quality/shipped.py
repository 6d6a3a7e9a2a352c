"""The traces of mixed answers that this folder carries, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from disco.replay import Table
from papers.quality.quality_figures import quality_figures
from papers.quality.quality_tables import quality_tables
from papers.quality.quality_trace import QualityTrace, load_quality_trace

__all__ = ["SHIPPED", "shipped_tables", "shipped_trace"]

_DATA: Final = Path(__file__).resolve().parent / "data"

SHIPPED: Final = ("xquad-long", "xquad-short", "common-1", "common-5")
"""Answers in whole sentences and in a few words; answers of single models to prompts of one and of five paragraphs."""


def shipped_trace(name: str) -> QualityTrace:
    """Return a trace that the package carries, by its name in `SHIPPED`."""
    return load_quality_trace(_DATA / f"{name}.csv.gz")


def shipped_tables() -> list[Table]:
    """Return the tables of all shipped traces, in the order of `SHIPPED`."""
    traces = [shipped_trace(name) for name in SHIPPED]
    return [table for trace in traces for table in quality_tables(trace, quality_figures(trace))]
