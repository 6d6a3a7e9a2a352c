"""Writer of traces in disco's own record format."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.replay.formats.files import pyarrow
from disco.replay.formats.trace_pieces import COLUMNS, OPTIONAL
from disco.replay.workload.trace import Trace

__all__ = ["write_trace"]

_ROW_GROUP = 1 << 16
_BATCH = 1 << 14


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace so that reading the file returns it; optional columns are written only if something is known.

    CSV has no types: a text feature of digits only is read back as numbers. JSON lines and Parquet keep the types.

    Args:
        trace: what to write.
        path: ends in .csv, .jsonl or .ndjson, each also with .gz, or in .parquet. An existing file is replaced.

    Raises:
        ConfigurationError: another suffix, a feature with the name of a column, or pyarrow is missing.
    """
    file = Path(path)
    for name in trace.features:
        if name in COLUMNS or name == "gaps_s":
            raise ConfigurationError(f"feature {name!r} has the name of a column; rename it")
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix != ".gz"][-1:]
    if suffixes == [".parquet"] and file.suffix != ".gz":
        _write_parquet(trace, file)
    elif suffixes == [".csv"]:
        with _text(file) as out:
            _write_csv(trace, out)
    elif suffixes in ([".jsonl"], [".ndjson"]):
        with _text(file) as out:
            _write_jsonl(trace, out)
    else:
        raise ConfigurationError(f"{file}: a trace can be written as .csv, .jsonl or .parquet")


def _write_csv(trace: Trace, out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    names = _names(trace)
    writer.writerow([*names, *(["gaps_s"] if trace.gaps is not None else []), *trace.features])
    for start in range(0, len(trace), _BATCH):
        part = trace.take(start, start + _BATCH)
        columns: list[Sequence[Any]] = [_cells(getattr(part, name), "") for name in names]
        if part.gaps is not None:
            columns.append([";".join(map(repr, part.gaps.of(i).tolist())) for i in range(len(part))])
        columns += [_cells(values, "") for values in part.features.values()]
        writer.writerows(zip(*columns, strict=True))


def _write_jsonl(trace: Trace, out: IO[str]) -> None:
    names = _names(trace)
    for start in range(0, len(trace), _BATCH):
        part = trace.take(start, start + _BATCH)
        columns = {name: _cells(getattr(part, name), None) for name in names}
        if part.gaps is not None:
            columns["gaps_s"] = [part.gaps.of(i).tolist() for i in range(len(part))]
        columns |= {name: _cells(values, None) for name, values in part.features.items()}
        for row in zip(*columns.values(), strict=True):
            out.write(
                json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=str) + "\n"
            )


def _write_parquet(trace: Trace, file: Path) -> None:
    pa = pyarrow()
    columns: dict[str, Any] = {name: _arrow(pa, getattr(trace, name)) for name in _names(trace)}
    if trace.gaps is not None:
        columns["gaps_s"] = pa.LargeListArray.from_arrays(trace.gaps.offsets, trace.gaps.values_s)
    columns |= {name: _arrow(pa, values) for name, values in trace.features.items()}
    try:
        pa.parquet.write_table(pa.table(columns), file, row_group_size=_ROW_GROUP)
    except OSError as refused:
        raise ConfigurationError(f"{file} cannot be written: {refused.strerror or refused}") from refused


def _arrow(pa: Any, values: NDArray[Any]) -> Any:
    # Object arrays hold texts only (see `features`).
    if values.dtype.kind in "UO":
        return pa.array(values.tolist(), type=pa.large_string())
    unknown = np.isnan(values) if values.dtype.kind == "f" else None
    return pa.array(values, mask=unknown)


def _names(trace: Trace) -> list[str]:
    return [name for name in COLUMNS if name not in OPTIONAL or not np.isnan(getattr(trace, name)).all()]


def _cells(values: NDArray[Any], unknown: Any) -> Sequence[Any]:
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f" and np.isnan(values).any():
        return [unknown if cell != cell else cell for cell in cells]  # noqa: PLR0124 (only NaN differs from itself)
    return cells


def _text(file: Path) -> IO[str]:
    try:
        if file.suffix == ".gz":
            return gzip.open(file, "wt", encoding="utf-8", newline="")
        return file.open("w", encoding="utf-8", newline="")
    except OSError as refused:
        raise ConfigurationError(f"{file} cannot be written: {refused.strerror or refused}") from refused
