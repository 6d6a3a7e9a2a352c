"""The ladders of the evaluation: recorded label scores of real texts, and the texts for tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from papers.ladder.label_trace import LabelTrace, load_label_trace

__all__ = ["DATA", "TUNING_SHARE", "Material", "cut_for_tuning", "shipped_materials", "shipped_trace"]

TUNING_SHARE: Final = 0.2
"""Share of a trace that thresholds are tuned on, where no other trace serves."""

DATA: Final = Path(__file__).resolve().parent / "data"
"""The folder of the shipped traces."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """One trace to evaluate.

    Attributes:
        trace: the rows that are evaluated.
        tuning: the rows that fixed thresholds are tuned on; none of `trace`.
        tuned_on: what these are, in words.
        printed: the paper's dataset whose rows stand beside ours; None without one.
    """

    trace: LabelTrace
    tuning: LabelTrace
    tuned_on: str
    printed: str | None


def shipped_trace(name: str) -> LabelTrace:
    """Return a trace that the package carries, by its file name without the ending."""
    return load_label_trace(DATA / f"{name}.csv.gz")


def shipped_materials() -> list[Material]:
    """Return the three shipped ladders.

    SST-2's sentences and those of Rotten Tomatoes (MR) are of one kind, and no sentence is in both traces: each is
    tuned on the other. The reviews of IMDb are cut.
    """
    sst2, mr, imdb = (shipped_trace(name) for name in ("sst2-dev", "mr", "imdb"))
    return [
        Material(sst2, mr, "the Rotten Tomatoes trace", "SST-2"),
        Material(mr, sst2, "the SST-2 trace", "Rotten Tomatoes"),
        cut_for_tuning(imdb, "IMDB"),
    ]


def cut_for_tuning(trace: LabelTrace, printed: str | None = None) -> Material:
    """Return a trace of which a random share `TUNING_SHARE`, always the same, is set aside for tuning."""
    order = np.random.default_rng(20).permutation(len(trace))
    cut = round(TUNING_SHARE * len(trace))
    return Material(
        _rows(trace, np.sort(order[cut:])),
        _rows(trace, np.sort(order[:cut])),
        f"{cut:,} rows of its own, which no arm is evaluated on",
        printed,
    )


def _rows(trace: LabelTrace, rows: NDArray[np.intp]) -> LabelTrace:
    return replace(trace, gold=trace.gold[rows], text_bytes=trace.text_bytes[rows], scores=trace.scores[rows])
