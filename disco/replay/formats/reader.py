"""Readers of traces: whole, or in chunks with memory bounded by the chunk."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from disco.errors import ConfigurationError
from disco.record.left_out import SkipLog, Skipped
from disco.replay.formats.columns import Assembler
from disco.replay.formats.files import CsvSource, JsonSource, ParquetSource, Source
from disco.replay.formats.format_registry import AUTO, adapter_for, known_format
from disco.replay.formats.sources.text_files import existing_file
from disco.replay.formats.trace_pieces import join, pick
from disco.replay.workload.trace import Trace

__all__ = ["TraceChunks", "read_chunks", "read_trace"]

_SOURCES: dict[str, type[CsvSource | JsonSource | ParquetSource]] = {
    ".csv": CsvSource,
    ".json": JsonSource,
    ".jsonl": JsonSource,
    ".ndjson": JsonSource,
    ".parquet": ParquetSource,
    ".pq": ParquetSource,
}


def read_trace(
    path: str | Path,
    *,
    format: str = AUTO,  # noqa: A002 (the users' word)
    skip_invalid: bool = False,
    limit: int | None = None,
) -> tuple[Trace, Skipped]:
    """Read a trace from a CSV, JSON or Parquet file.

    Args:
        path: ends in .csv, .jsonl, .ndjson or .json, each also with .gz, or in .parquet.
        format: what the columns mean: a name in `FORMATS`, or "auto" to detect it by the column names.
        skip_invalid: leave out rows that are not valid and count them; otherwise the first such row is an error. Of
            route records they are always left out, but for those of a newer disco.
        limit: at most this many requests, from the beginning; None: all.

    Returns:
        The trace, and the rows that were left out. Requests that failed at the source are always left out.

    Raises:
        ConfigurationError: a file or a row is not valid; the message names file, line, column and remedy.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be at least 1 request, not {limit}")
    chunks = TraceChunks(path, chunk_rows=None, format=format, skip_invalid=skip_invalid, limit=limit)
    with chunks:
        (trace,) = chunks
    return trace, chunks.skipped


def read_chunks(
    path: str | Path,
    *,
    chunk_rows: int,
    format: str = AUTO,  # noqa: A002
    skip_invalid: bool = False,
) -> TraceChunks:
    """Read a trace piece by piece; memory depends on the chunk, not on the file.

    Times of arrival continue from chunk to chunk, and their order is checked across chunks. Two kinds of file are held
    in memory: a `.json` array or document, and a format that must be sorted first.

    Args:
        path: as for `read_trace`.
        chunk_rows: requests per chunk, at least 1; the last one may have fewer.
        format: as for `read_trace`.
        skip_invalid: as for `read_trace`; `skipped` of the result counts while chunks are read.

    Raises:
        ConfigurationError: as for `read_trace`; for a bad row, when its chunk is read.
    """
    if chunk_rows < 1:
        raise ConfigurationError(f"chunk_rows must be at least 1 request, not {chunk_rows}")
    return TraceChunks(path, chunk_rows=chunk_rows, format=format, skip_invalid=skip_invalid, limit=None)


class TraceChunks(Iterator[Trace]):
    """Iterator over a file's chunks. Closes the file at the end, or when used in `with`. Mutable: the position.

    Args:
        path: the file.
        chunk_rows: most requests of a chunk; None: all in one.
        format: the name of its format.
        skip_invalid: leave out rows that cannot be used, and count them.
        limit: most rows that are read; None: all.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        chunk_rows: int | None,
        format: str,  # noqa: A002
        skip_invalid: bool,
        limit: int | None,
    ) -> None:
        if format != AUTO:
            known_format(format)
        file = existing_file(path)
        self._open = ExitStack()
        source = _source(file)
        self._open.callback(source.close)
        try:
            adapter = adapter_for(format, source.heads, file)
            self._log = SkipLog(file, source.unit)
            name = file.name.split(".")[0] or "trace"
            assembler = Assembler(source, adapter, name, skip_invalid=skip_invalid, log=self._log)
        except BaseException:
            self._open.close()
            raise
        pieces = assembler.pieces()
        if adapter.sorts:
            pieces = _sorted(pieces)
        self._path = file
        self._chunks = _cut(pieces, chunk_rows, limit)
        self._any = False

    @property
    def skipped(self) -> Skipped:
        """The rows that were left out so far."""
        return self._log.skipped

    def __next__(self) -> Trace:
        try:
            chunk = next(self._chunks)
            chunk.check()
        except BaseException as end:
            self.close()
            if isinstance(end, StopIteration) and not self._any:
                told = [*self.skipped.named(), *dict.fromkeys(self.skipped.remedies.values())]
                why = "".join(f"; {one}" for one in told)
                raise ConfigurationError(f"{self._path} has no request that can be used{why}") from None
            raise
        self._any = True
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._chunks.close()
        self._open.close()


def _source(file: Path) -> Source:
    suffix = file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix
    kind = _SOURCES.get(suffix.lower())
    if kind is None or (kind is ParquetSource and file.suffix == ".gz"):
        known = ", ".join(_SOURCES)
        raise ConfigurationError(
            f"{file}: a trace file must end in one of {known} (all but Parquet also with .gz), not in {suffix!r}"
        )
    return kind(file)


def _cut(pieces: Iterator[Trace], chunk_rows: int | None, limit: int | None) -> Generator[Trace]:
    """Group pieces into chunks of `chunk_rows` requests; None: all in one chunk."""
    waiting: list[Trace] = []
    rows = given = 0
    for piece in pieces:
        if limit is not None and given + len(piece) >= limit:
            waiting.append(piece.take(0, limit - given))
            break
        waiting.append(piece)
        rows, given = rows + len(piece), given + len(piece)
        if chunk_rows is not None and rows >= chunk_rows:
            whole = join(waiting)
            full = rows - rows % chunk_rows
            yield from (whole.take(start, start + chunk_rows) for start in range(0, full, chunk_rows))
            waiting = [whole.take(full, rows)] if full < rows else []
            rows -= full
    if waiting:
        yield join(waiting)


def _sorted(pieces: Iterator[Trace]) -> Iterator[Trace]:
    """Join all pieces into one, in order of arrival, from 0."""
    found = list(pieces)
    if found:
        trace = join(found)
        trace = pick(trace, np.argsort(trace.arrival_s, kind="stable"))
        yield replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])
