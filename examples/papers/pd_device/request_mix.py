"""Prompt lengths, answer lengths and arrivals of a real conversation service, from a table of derived numbers.

The table has the number of arrivals in each second. For each span of five minutes it has the mean lengths of groups:
prompts by length, and within a group of prompts answers by length. Drawn requests so keep how bursty the service was,
how lengths changed over the hour, how answers depend on prompts, and the mean lengths. `summarise` makes such a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["DATA", "RequestMix", "Requests", "shipped_mix", "summarise"]

DATA: Final = Path(__file__).resolve().parent / "data"
"""The folder of the shipped tables."""

_SPAN_S: Final = 300
_BINS: Final = 8
_GROUPS: Final = 10

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Drawn requests, in order of arrival; every column has shape (n,).

    Attributes:
        arrival_s: s after the first second began.
        prompt_tokens, answer_tokens: at least 1.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    answer_tokens: Ints

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self) / float(self.arrival_s[-1])


@dataclass(frozen=True, slots=True, eq=False)
class RequestMix:
    """A table of derived numbers.

    Attributes:
        source, licence: of the data.
        per_second: arrivals in each second, shape (seconds,).
        span_s: length of the spans, s.
        prompts, answers: mean tokens of equally large groups, shape (spans, bins, groups). The bins are equally large
            parts of a span's prompts by length; prompts and answers of a bin are grouped by their own lengths.
    """

    source: str
    licence: str
    per_second: Ints
    span_s: int
    prompts: Floats
    answers: Floats

    def draw(self, seed: int, most: int | None = None) -> Requests:
        """Draw the whole span of arrivals, or its first `most` requests; lengths are drawn for each request."""
        rng = np.random.default_rng(seed)
        second = np.repeat(np.arange(self.per_second.size), self.per_second)[:most]
        arrival_s = np.sort(second + rng.random(second.size))
        span = np.minimum(second // self.span_s, len(self.prompts) - 1)
        bins, *groups = (
            rng.integers(size, size=second.size) for size in (*self.prompts.shape[1:], self.prompts.shape[2])
        )
        prompts, answers = (
            np.maximum(np.rint(means[span, bins, group]), 1).astype(np.int64)
            for means, group in zip((self.prompts, self.answers), groups, strict=True)
        )
        return Requests(arrival_s, prompts, answers)


def summarise(
    arrival_s: ArrayLike, prompt_tokens: ArrayLike, output_tokens: ArrayLike, *, source: str, licence: str
) -> dict[str, Any]:
    """Return the table of a trace as plain data; it needs at least 80 requests in each span of five minutes.

    Args:
        arrival_s: s, ascending from 0, shape (n,).
        prompt_tokens: shape (n,).
        output_tokens: shape (n,).
        source: where the trace comes from.
        licence: of the trace.
    """
    seconds, prompts, answers = (np.asarray(column) for column in (arrival_s, prompt_tokens, output_tokens))
    span = np.minimum(seconds // _SPAN_S, max(seconds[-1] // _SPAN_S - 1, 0)).astype(np.int64)
    parts = [
        [rows[part] for part in np.array_split(np.argsort(prompts[rows], kind="stable"), _BINS)]
        for rows in (np.flatnonzero(span == k) for k in range(span[-1] + 1))
    ]
    return {
        "source": source,
        "licence": licence,
        "span_s": _SPAN_S,
        "per_second": np.bincount(seconds.astype(np.int64)).tolist(),
        **{
            name: [[_group_means(column[part]) for part in bins] for bins in parts]
            for name, column in (("prompts", prompts), ("answers", answers))
        },
    }


def _group_means(tokens: NDArray[Any]) -> list[float]:
    return [round(float(group.mean()), 1) for group in np.array_split(np.sort(tokens), _GROUPS)]


def shipped_mix() -> RequestMix:
    """Return the table that the package carries."""
    return _of(json.loads((DATA / "azure-conv-2023.json").read_text(encoding="utf-8")))


def _of(table: Mapping[str, Any]) -> RequestMix:
    return RequestMix(
        source=table["source"],
        licence=table["licence"],
        per_second=np.asarray(table["per_second"], dtype=np.int64),
        span_s=int(table["span_s"]),
        prompts=np.asarray(table["prompts"], dtype=np.float64),
        answers=np.asarray(table["answers"], dtype=np.float64),
    )
