"""Own measurements as a file: what a pass over some rows took, and how attention grows with what was cached.

The columns are those of the shipped `linear.csv`, and two more. Lines that begin with # say where figures are from.

    # source: disco speculate check, two cores of ...
    hardware,model,tp,rows,linear_ms,other_ms,kv_ms,row_kv_ms
    cpu,smollm2-135m-f32,1,1,29.000,0.0,0.0,0.0005
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Final

from disco.errors import ConfigurationError, nearest
from papers.fleet.pass_costs import PassCosts, step_costs

__all__ = ["COLUMNS", "load_costs", "write_costs"]

COLUMNS: Final = ("hardware", "model", "tp", "rows", "linear_ms", "other_ms", "kv_ms", "row_kv_ms")
"""`linear_ms` + `other_ms`: of a whole pass with these rows behind an empty cache. `kv_ms` is added for each token
cached, `row_kv_ms` for each pair of a row and a token before it; both are the same in all lines of a model."""


def write_costs(
    path: str | PathLike[str],
    points: Sequence[tuple[int, float]],
    *,
    hardware: str,
    model: str,
    source: str,
    kv_s: float = 0.0,
    row_kv_s: float = 0.0,
) -> None:
    """Write a file of costs.

    Args:
        path: of the file; replaced if it exists.
        points: (rows, seconds) of a pass, medians; at least one.
        hardware: where it was measured, in a word.
        model: the measured model.
        source: one line that says what was measured, when, and how.
        kv_s: s for each cached token.
        row_kv_s: s for each pair of a row and a token before it.

    Raises:
        ConfigurationError: no point, or one that is not positive.
    """
    if not points or any(rows < 1 or seconds <= 0 for rows, seconds in points):
        raise ConfigurationError("costs need at least one point (rows, seconds), both above 0")
    text = io.StringIO()
    text.write(f"# source: {' '.join(source.split())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rows, seconds in sorted(points):
        writer.writerow(
            (hardware, model, 1, rows, repr(seconds * 1e3), 0.0, repr(kv_s * 1e3), repr(row_kv_s * 1e3))
        )
    Path(path).write_text(text.getvalue(), encoding="utf-8")


def load_costs(path: str | PathLike[str], model: str | None = None, *, overhead_s: float = 0.0) -> PassCosts:
    """Load measured costs.

    Args:
        path: a file as `write_costs` makes it.
        model: which of the file's models; None: the only one.
        overhead_s: added to each pass.

    Raises:
        ConfigurationError: the file cannot be read, lacks a column, or has no such model.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the costs {path} cannot be read: {error}") from error
    reader = csv.DictReader(line for line in lines if line and not line.startswith("#"))
    missing = [name for name in COLUMNS[:6] if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigurationError(
            f"{path}: the columns {', '.join(missing)} are missing; needed: {', '.join(COLUMNS)}"
        )
    rows = list(reader)
    known = sorted({row["model"] for row in rows})
    if model is None and len(known) == 1:
        model = known[0]
    if model not in known:
        raise ConfigurationError(f"{path} has no model {model!r}. {nearest(str(model), known)}")
    own = [row for row in rows if row["model"] == model]
    try:
        points = [
            (float(row["rows"]), (float(row["linear_ms"]) + float(row["other_ms"])) / 1e3) for row in own
        ]
        kv_s, row_kv_s = (float(own[0].get(name) or 0) / 1e3 for name in ("kv_ms", "row_kv_ms"))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: a line of {model!r} has no number where one belongs: {error}"
        ) from error
    return step_costs(points, overhead_s=overhead_s, kv_s=kv_s, row_kv_s=row_kv_s)
