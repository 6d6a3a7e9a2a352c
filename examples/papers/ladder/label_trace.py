"""Recorded label scores of several tiers on texts with known labels: numbers only, never a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.trace_file import check_columns, read_trace, write_trace

__all__ = ["LabelTrace", "TraceTier", "load_label_trace", "save_label_trace"]

_FORMAT = "disco label trace 1"
_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class TraceTier:
    """What is known of one tier besides its scores.

    Attributes:
        name: unique within the trace.
        answer_bytes: mean length of the tier's answers, UTF-8 bytes.
        cpu_s: mean processor time for one answer, seconds.
        flops: estimate of the floating-point operations for one answer.
        about: how the scores were made.
    """

    name: str
    answer_bytes: float
    cpu_s: float
    flops: float
    about: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LabelTrace:
    """The label scores of n texts by each tier, from the lowest tier to the highest.

    Attributes:
        name: of the texts, such as "SST-2 dev".
        source, licence: of the texts.
        labels: the labels' names, in the order of the scores.
        tiers: from the lowest to the highest.
        gold: shape (n,), int64; index of the right label.
        text_bytes: shape (n,), int64; length of the text, UTF-8 bytes.
        scores: shape (n, tiers, labels), float64; log probability of each label, nats, or any other logits.
        notes: further facts, such as the command that made the trace.

    Raises:
        ValueError: an array has another shape, a score is not finite, a label is unknown, or a name comes twice.
    """

    name: str
    source: str
    licence: str
    labels: tuple[str, ...]
    tiers: tuple[TraceTier, ...]
    gold: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    scores: NDArray[np.float64]
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError("A trace of label scores needs at least two labels, no two of them equal.")
        names = [tier.name for tier in self.tiers]
        if not names or len(set(names)) < len(names):
            raise ValueError("A trace of label scores needs at least one tier, no two of them with one name.")
        rows = len(self.gold)
        expected = (rows, len(names), len(self.labels))
        if self.gold.shape != (rows,) or self.text_bytes.shape != (rows,) or self.scores.shape != expected:
            raise ValueError(f"The scores must have the shape {expected}, not {self.scores.shape}.")
        if not np.isfinite(self.scores).all():
            raise ValueError("A label's score is not a finite number.")
        if rows and not (self.gold.min() >= 0 and self.gold.max() < len(self.labels)):
            raise ValueError(f"The right labels must be numbers from 0 to {len(self.labels) - 1}.")

    def __len__(self) -> int:
        return len(self.gold)

    def tier(self, name: str) -> int:
        """Return a tier's place, from 0 for the lowest. Raises KeyError for an unknown name."""
        for place, tier in enumerate(self.tiers):
            if tier.name == name:
                return place
        raise KeyError(f"The trace {self.name!r} has no tier {name!r}.")


def save_label_trace(trace: LabelTrace, path: str | Path) -> None:
    """Write a trace: a line of JSON, a line of column names, a line of numbers for each text.

    Args:
        trace: its scores are rounded to 4 decimals.
        path: an existing file is replaced; compressed where the name ends in .gz.
    """
    header = {
        "format": _FORMAT,
        "name": trace.name,
        "source": trace.source,
        "licence": trace.licence,
        "labels": trace.labels,
        "tiers": [asdict(tier) for tier in trace.tiers],
        "notes": dict(trace.notes),
    }
    scores = trace.scores.reshape(len(trace), len(trace.tiers) * len(trace.labels))
    columns = zip(trace.gold.tolist(), trace.text_bytes.tolist(), scores.tolist(), strict=True)
    rows = ([gold, size, *(f"{score:.{_DECIMALS}f}" for score in row)] for gold, size, row in columns)
    write_trace(path, header, _columns(trace.tiers, trace.labels), rows)


def _columns(tiers: tuple[TraceTier, ...], labels: tuple[str, ...]) -> list[str]:
    return ["gold", "text_bytes", *(f"{tier.name}:{label}" for tier in tiers for label in labels)]


def load_label_trace(path: str | Path) -> LabelTrace:
    """Read a trace that `save_label_trace` wrote.

    Raises:
        ConfigurationError: there is no such file, or it is not such a trace; the message names the line.
    """
    return read_trace(path, _FORMAT, _read, what="label scores", command="python -m papers.measure ladder")


def _read(header: Mapping[str, Any], rows: Iterator[list[str]]) -> LabelTrace:
    labels = tuple(str(label) for label in header["labels"])
    tiers = tuple(TraceTier(**tier) for tier in header["tiers"])
    columns = _columns(tiers, labels)
    check_columns(rows, columns)
    numbers: list[list[float]] = []
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{len(columns)} numbers were expected, {len(row)} came")
        numbers.append(_numbers(row, len(labels)))
    table = np.array(numbers, dtype=np.float64).reshape(len(numbers), len(columns))
    return LabelTrace(
        name=str(header["name"]),
        source=str(header["source"]),
        licence=str(header["licence"]),
        labels=labels,
        tiers=tiers,
        gold=table[:, 0].astype(np.int64),
        text_bytes=table[:, 1].astype(np.int64),
        scores=table[:, 2:].reshape(len(table), len(tiers), len(labels)),
        notes={str(name): str(value) for name, value in header.get("notes", {}).items()},
    )


def _numbers(row: list[str], labels: int) -> list[float]:
    numbers = [float(cell) for cell in row]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    if not 0 <= int(row[0]) < labels:
        raise ValueError(f"the right label must be a number from 0 to {labels - 1}")
    return numbers
