"""A table of refined prompts: for each arm and share, means over questions with intervals. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from papers.trace_file import check_columns, read_trace, write_trace

__all__ = ["RefineRow", "RefineTable", "load_refine_table", "save_refine_table", "shipped_refine_table"]

_FORMAT: Final = "disco refine table 1"
_DATA: Final = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True, slots=True)
class RefineRow:
    """One arm at one share. An interval is of 95 %, over paragraphs; nan stands where nothing was measured.

    Attributes:
        arm: "full", "none", a selector, or an arm that needs the model.
        keep: the share aimed at.
        begun: tokens of the server that the answer begins with.
        questions: on which the figures stand.
        kept_share: the kept share of the text, tokens by estimate.
        prompt_tokens: of the prompt with its instruction, examples and question, tokens of the model.
        nats, nats_low, nats_high: minus the log probability of a token of the right answer: mean over questions.
        over_full, over_full_low, over_full_high: the same minus that of the whole text, on the same questions.
        over_random, over_random_low, over_random_high: the same minus that of random units at the same share.
        f1, f1_low, f1_high: SQuAD's F1 of the greedy answer.
        f1_over_full, f1_over_full_low, f1_over_full_high: the same minus that of the whole text.
        gold_kept, gold_kept_low, gold_kept_high: share of questions of which all units with the right answer were kept.
    """

    arm: str
    keep: float
    begun: int
    questions: int
    kept_share: float
    prompt_tokens: float
    nats: float
    nats_low: float
    nats_high: float
    over_full: float
    over_full_low: float
    over_full_high: float
    over_random: float
    over_random_low: float
    over_random_high: float
    f1: float
    f1_low: float
    f1_high: float
    f1_over_full: float
    f1_over_full_low: float
    f1_over_full_high: float
    gold_kept: float
    gold_kept_low: float
    gold_kept_high: float


@dataclass(frozen=True, slots=True)
class RefineTable:
    """The rows of one measurement.

    Attributes:
        name, source, licence: of the texts.
        model: that answered.
        rows: one for each arm and share.
        notes: how it was measured.
    """

    name: str
    source: str
    licence: str
    model: str
    rows: tuple[RefineRow, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    def row(self, arm: str, keep: float, begun: int = 0) -> RefineRow:
        """Return one arm's row.

        Raises:
            KeyError: the table has none.
        """
        for row in self.rows:
            if row.arm == arm and math.isclose(row.keep, keep) and row.begun == begun:
                return row
        raise KeyError((arm, keep, begun))


_COLUMNS = [one.name for one in fields(RefineRow)]


def save_refine_table(table: RefineTable, path: str | Path) -> None:
    """Write a table; an existing file is replaced."""
    about = {
        "format": _FORMAT, "name": table.name, "source": table.source, "licence": table.licence,
        "model": table.model, "notes": dict(table.notes),
    }  # fmt: skip
    rows = (
        [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in astuple(row)] for row in table.rows
    )
    write_trace(path, about, _COLUMNS, rows)


def load_refine_table(path: str | Path) -> RefineTable:
    """Read a table that `save_refine_table` wrote.

    Raises:
        ConfigurationError: the file cannot be read, or it is no such table.
    """
    return read_trace(path, _FORMAT, _read, what="refined prompts", command="python -m papers.measure refine")


def _read(about: Mapping[str, Any], lines: Iterator[list[str]]) -> RefineTable:
    check_columns(lines, _COLUMNS)
    rows = tuple(_row(cells) for cells in lines)
    return RefineTable(about["name"], about["source"], about["licence"], about["model"], rows, about["notes"])


def _row(cells: list[str]) -> RefineRow:
    arm, keep, begun, questions, *figures = cells
    return RefineRow(arm, float(keep), int(begun), int(questions), *map(float, figures))


def shipped_refine_table(name: str) -> RefineTable:
    """Return a table that the package carries, by its file name without the ending.

    Raises:
        ConfigurationError: the package carries no such table.
    """
    return load_refine_table(_DATA / f"{name}.csv")
