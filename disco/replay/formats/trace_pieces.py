"""Functions to select, join and sort traces with their gaps and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.replay.workload.trace import Gaps, Trace

__all__ = ["COLUMNS", "OPTIONAL", "join", "pick"]

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("ttft_s", "device_ttft_s", "tpot_s", "device_tpot_s", "confidence")
COLUMNS = REQUIRED + OPTIONAL

Ints = NDArray[np.int64]


def pick(trace: Trace, rows: Ints) -> Trace:
    """Return the requests with these numbers, in this order."""
    return replace(
        trace,
        **{column: getattr(trace, column)[rows] for column in COLUMNS},
        gaps=None if trace.gaps is None else pick_gaps(trace.gaps, rows),
        features={name: values[rows] for name, values in trace.features.items()},
    )


def pick_gaps(gaps: Gaps, rows: Ints) -> Gaps:
    """Return the gaps of the answers with these numbers, in this order."""
    counts = np.diff(gaps.offsets)[rows]
    offsets = np.zeros(rows.size + 1, dtype=np.int64)
    counts.cumsum(out=offsets[1:])
    # Position of each gap in the source: the beginning of its answer there, plus its index in the answer.
    at = np.arange(offsets[-1]) + np.repeat(gaps.offsets[:-1][rows] - offsets[:-1], counts)
    return Gaps(offsets, gaps.values_s[at])


def join(traces: Sequence[Trace]) -> Trace:
    """Join consecutive pieces, at least one. Values that a piece does not have are unknown there."""
    if len(traces) == 1:
        return traces[0]
    gaps = None
    if any(trace.gaps is not None for trace in traces):
        counts = [
            np.zeros(len(t), dtype=np.int64) if t.gaps is None else np.diff(t.gaps.offsets) for t in traces
        ]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.concatenate(counts).cumsum()])
        gaps = Gaps(offsets, np.concatenate([t.gaps.values_s for t in traces if t.gaps is not None]))
    names = dict.fromkeys(name for trace in traces for name in trace.features)
    columns: dict[str, Any] = {c: np.concatenate([getattr(trace, c) for trace in traces]) for c in COLUMNS}
    return replace(
        traces[0],
        **columns,
        gaps=gaps,
        features={name: _joined(traces, name) for name in names},
    )


def _joined(traces: Sequence[Trace], name: str) -> NDArray[Any]:
    parts = [trace.features.get(name, np.full(len(trace), np.nan)) for trace in traces]
    if any(part.dtype.kind in "UO" for part in parts):
        # A column without values so far has no type either: take it as text if another piece has text.
        parts = [part if part.dtype.kind in "UO" else np.full(part.size, "") for part in parts]
    return np.concatenate(parts)
