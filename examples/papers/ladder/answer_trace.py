"""Recorded free-text answers of one model: how good each was, and the log probabilities of its tokens; never a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from papers.trace_file import check_columns, read_trace, write_trace

__all__ = ["ANSWER_COLUMNS", "AnswerRow", "AnswerTrace", "load_answer_trace", "save_answer_trace"]

_FORMAT = "disco answer trace 1"
_DECIMALS = 4

ANSWER_COLUMNS = (
    "paragraph",
    "text_bytes",
    "prompt_tokens",
    "gold_bytes",
    "answer_bytes",
    "f1",
    "recall",
    "exact",
    "finish",
    "logp",
)


class AnswerRow(NamedTuple):
    """One answer.

    Attributes:
        paragraph: number of the question's paragraph, from 0; answers on one paragraph are not independent.
        text_bytes: length of the paragraph with its question, UTF-8 bytes.
        prompt_tokens: tokens of the whole prompt, with instruction and examples.
        gold_bytes: length of the right answer.
        answer_bytes: length of the model's answer.
        f1: token F1 of the model's answer against the right one, in [0, 1].
        recall: share of the right answer's words that are in the model's answer; unlike F1, long answers lose nothing.
        exact: whether the two are equal after normalisation.
        finish: the finish reason, "stop" or "length".
        logp: log probability (natural) of each token of the answer, in order.
    """

    paragraph: int
    text_bytes: int
    prompt_tokens: int
    gold_bytes: int
    answer_bytes: int
    f1: float
    recall: float
    exact: bool
    finish: str
    logp: tuple[float, ...]

    def cells(self) -> list[str]:
        """Return the row as the cells of a trace file."""
        logp = " ".join(f"{value:.{_DECIMALS}f}" for value in self.logp)
        counts = (self.paragraph, self.text_bytes, self.prompt_tokens, self.gold_bytes, self.answer_bytes)
        shares = [f"{share:.{_DECIMALS}f}" for share in (self.f1, self.recall)]
        return [*map(str, counts), *shares, str(int(self.exact)), self.finish, logp]

    @classmethod
    def of_cells(cls, cells: Sequence[str]) -> AnswerRow:
        """Return the row of these cells. Raises ValueError where they are none."""
        if len(cells) != len(ANSWER_COLUMNS):
            raise ValueError(f"{len(ANSWER_COLUMNS)} cells were expected, {len(cells)} came")
        counts = [int(cell) for cell in cells[:5]]
        f1, recall, exact, finish = float(cells[5]), float(cells[6]), cells[7], cells[8]
        logp = tuple(float(value) for value in cells[9].split())
        if min(counts) < 0 or not (0.0 <= f1 <= 1.0 and 0.0 <= recall <= 1.0):
            raise ValueError("a count is negative, or F1 or recall is not in [0, 1]")
        if exact not in ("0", "1"):
            raise ValueError("exact is neither 0 nor 1")
        if not all(map(math.isfinite, logp)) or max(logp, default=0.0) > 0.0:
            raise ValueError("a log probability is above 0 or not finite")
        return cls(
            counts[0], counts[1], counts[2], counts[3], counts[4], f1, recall, exact == "1", finish, logp
        )


@dataclass(frozen=True, slots=True, eq=False)
class AnswerTrace:
    """The answers of one model to n questions.

    Attributes:
        name: of the questions, such as "XQuAD en".
        source, licence: of the questions.
        model: that answered.
        rows: the answers, in the order of the questions.
        notes: further facts, such as the command that made the trace.
    """

    name: str
    source: str
    licence: str
    model: str
    rows: tuple[AnswerRow, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def f1(self) -> NDArray[np.float64]:
        """Token F1, shape (n,)."""
        return np.array([row.f1 for row in self.rows], dtype=np.float64)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Whether the answer equals the right one, shape (n,)."""
        return np.array([row.exact for row in self.rows], dtype=bool)

    @property
    def paragraph(self) -> NDArray[np.int64]:
        """Number of each question's paragraph, shape (n,)."""
        return np.array([row.paragraph for row in self.rows], dtype=np.int64)

    @property
    def text_bytes(self) -> NDArray[np.float64]:
        """Length of paragraph and question, shape (n,)."""
        return np.array([row.text_bytes for row in self.rows], dtype=np.float64)

    @property
    def answer_bytes(self) -> NDArray[np.float64]:
        """Length of the model's answers, shape (n,)."""
        return np.array([row.answer_bytes for row in self.rows], dtype=np.float64)

    @property
    def gold_bytes(self) -> NDArray[np.float64]:
        """Length of the right answers, shape (n,)."""
        return np.array([row.gold_bytes for row in self.rows], dtype=np.float64)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of the model's answers, shape (n,)."""
        return np.array([len(row.logp) for row in self.rows], dtype=np.int64)


def save_answer_trace(trace: AnswerTrace, path: str | Path) -> None:
    """Write a trace: a line of JSON, a line of column names, a line for each answer.

    Args:
        trace: its shares and log probabilities are rounded to 4 decimals.
        path: an existing file is replaced; compressed where the name ends in .gz.
    """
    header = {
        "format": _FORMAT,
        "name": trace.name,
        "source": trace.source,
        "licence": trace.licence,
        "model": trace.model,
        "notes": dict(trace.notes),
    }
    write_trace(path, header, ANSWER_COLUMNS, (row.cells() for row in trace.rows))


def load_answer_trace(path: str | Path) -> AnswerTrace:
    """Read a trace that `save_answer_trace` wrote.

    Raises:
        ConfigurationError: there is no such file, or it is not such a trace; the message names the line.
    """
    return read_trace(path, _FORMAT, _read, what="answers", command="python -m papers.measure answers")


def _read(header: Mapping[str, Any], table: Iterator[list[str]]) -> AnswerTrace:
    check_columns(table, ANSWER_COLUMNS)
    rows = tuple(AnswerRow.of_cells(cells) for cells in table)
    return AnswerTrace(
        name=str(header["name"]),
        source=str(header["source"]),
        licence=str(header["licence"]),
        model=str(header["model"]),
        rows=rows,
        notes={str(name): str(value) for name, value in header["notes"].items()},
    )
