"""Recorded answers that one model began and another ended: numbers that say how good they are; never a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from papers.trace_file import check_columns, read_trace, write_trace

__all__ = [
    "MEASURES",
    "QUALITY_COLUMNS",
    "MixedRow",
    "QualityTrace",
    "load_quality_trace",
    "save_quality_trace",
]

_FORMAT = "disco quality trace 1"

MEASURES: Final = ("f1", "recall", "gold_nats", "told_nats", "judge_nats", "preferred")
"""The measures of an answer's quality, in the order of their columns; each may be absent."""

_COUNTS: Final = ("prompt", "group", "prompt_tokens", "cut", "kept_tokens", "tokens", "chars")
_COMMON: Final = ("same_tokens", "same_chars")
QUALITY_COLUMNS: Final = ("first", "second", "finish", *_COUNTS, *_COMMON, *MEASURES)


class MixedRow(NamedTuple):
    """One answer to one prompt.

    Attributes:
        first: the model that begins the answer; empty where there is no answer (see `told_nats`).
        second: the model that ends it; empty where `first` writes all of it.
        finish: the finish reason, "stop" or "length"; empty where there is no answer.
        prompt: number of the prompt, from 0.
        group: number of the prompt's paragraph; prompts of one group are not independent.
        prompt_tokens: length of the prompt.
        cut: after how many tokens of `first` the hand-over comes; 0 where there is none.
        kept_tokens: tokens of `first` in the answer: fewer than `cut`, because the last word is written anew. Where
            `first` had ended before the cut: all tokens of the answer.
        tokens, chars: length of the answer.
        same_tokens, same_chars: length of the common beginning with the reference model's answer, for answers of one
            model; None for others, and of tokens where an endpoint does not report them.
        measures: the known ones of `MEASURES`. `f1` and `recall`: of the answer's words, in [0, 1]. `gold_nats`: nats
            for a token of the right answer, if `first` writes its tokens up to the cut and `second` the others.
            `told_nats`: nats for a token of the right answer, under the judge, which is told the answer in place of the
            text. `judge_nats`: nats for a token of the answer, under the judge. `preferred`: how far the judge prefers
            the answer to the small model's, in [0, 1].
    """

    first: str
    second: str
    finish: str
    prompt: int
    group: int
    prompt_tokens: int
    cut: int
    kept_tokens: int
    tokens: int
    chars: int
    same_tokens: int | None
    same_chars: int | None
    measures: Mapping[str, float]

    @property
    def handed_over(self) -> bool:
        """Whether `second` wrote a part of the answer."""
        return bool(self.second) and self.kept_tokens < self.tokens

    def cells(self) -> list[str]:
        """Return the row as the cells of a trace file."""
        common = ["" if value is None else str(value) for value in (self.same_tokens, self.same_chars)]
        measures = ["" if (v := self.measures.get(name)) is None else f"{v:.4f}" for name in MEASURES]
        return [*map(str, self[:10]), *common, *measures]

    @classmethod
    def of_cells(cls, cells: Sequence[str]) -> MixedRow:
        """Return the row of these cells. Raises ValueError where they are none."""
        if len(cells) != len(QUALITY_COLUMNS):
            raise ValueError(f"{len(QUALITY_COLUMNS)} cells were expected, {len(cells)} came")
        first, second, finish = cells[:3]
        counts = [int(cell) for cell in cells[3:10]]
        common = [int(cell) if cell else None for cell in cells[10:12]]
        measures = {name: float(cell) for name, cell in zip(MEASURES, cells[12:], strict=True) if cell}
        if min([*counts, *(value for value in common if value is not None)]) < 0:
            raise ValueError("a count is negative")
        if not all(map(math.isfinite, measures.values())):
            raise ValueError("a measure is not finite")
        return cls(
            first,
            second,
            finish,
            prompt=counts[0],
            group=counts[1],
            prompt_tokens=counts[2],
            cut=counts[3],
            kept_tokens=counts[4],
            tokens=counts[5],
            chars=counts[6],
            same_tokens=common[0],
            same_chars=common[1],
            measures=measures,
        )


@dataclass(frozen=True, slots=True, eq=False)
class QualityTrace:
    """The answers of two models, and mixed ones, to n prompts.

    Attributes:
        name: of the prompts, such as "XQuAD en".
        source, licence: of the prompts.
        small, large: the names of the two models that answers are mixed of.
        also: further models, whose own answers are compared with the large one's.
        judge: the name of the judge; empty where there was none.
        tokens: the most tokens of an answer.
        rows: the answers, prompt by prompt.
        notes: further facts, such as how the prompts are made.
    """

    name: str
    source: str
    licence: str
    small: str
    large: str
    also: tuple[str, ...]
    judge: str
    tokens: int
    rows: tuple[MixedRow, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return len({row.prompt for row in self.rows})

    @property
    def groups(self) -> int:
        """The number of groups, such as paragraphs."""
        return len({row.group for row in self.rows})


def save_quality_trace(trace: QualityTrace, path: str | Path) -> None:
    """Write a trace, compressed where the file's name ends in .gz.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    header = {
        "format": _FORMAT,
        "name": trace.name,
        "source": trace.source,
        "licence": trace.licence,
        "small": trace.small,
        "large": trace.large,
        "also": list(trace.also),
        "judge": trace.judge,
        "tokens": trace.tokens,
        "notes": dict(trace.notes),
    }
    write_trace(path, header, QUALITY_COLUMNS, (row.cells() for row in trace.rows))


def load_quality_trace(path: str | Path) -> QualityTrace:
    """Read a trace that `python -m papers.measure quality` wrote.

    Raises:
        ConfigurationError: there is no such file, or it is not such a trace; the message names the line.
    """
    return read_trace(path, _FORMAT, _read, what="mixed answers", command="python -m papers.measure quality")


def _read(header: Mapping[str, Any], rows: Iterator[list[str]]) -> QualityTrace:
    check_columns(rows, QUALITY_COLUMNS)
    found = tuple(MixedRow.of_cells(cells) for cells in rows)
    if not found:
        raise ValueError("it has no rows")
    texts = {key: str(header[key]) for key in ("name", "source", "licence", "small", "large", "judge")}
    return QualityTrace(
        **texts,
        also=tuple(map(str, header["also"])),
        tokens=int(header["tokens"]),
        rows=found,
        notes=dict(header["notes"]),
    )
