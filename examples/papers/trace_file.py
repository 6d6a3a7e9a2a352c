"""The file of a recorded trace: a line of JSON, a line of column names, a line of numbers for each text."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from disco.errors import ConfigurationError
from papers.text_files import open_text

__all__ = ["check_columns", "read_trace", "write_trace"]

Trace = TypeVar("Trace")


def write_trace(
    path: str | Path, header: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write a trace; an existing file is replaced. The file is compressed where its name ends in .gz.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    file, text = Path(path), io.StringIO(newline="")
    text.write(json.dumps(header) + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    data = text.getvalue().encode()
    # Without the time of writing, equal traces are equal files.
    try:
        file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)
    except OSError as broken:
        raise ConfigurationError(f"{file} cannot be written: {broken.strerror or broken}") from broken


def read_trace(
    path: str | Path,
    kind: str,
    read: Callable[[Mapping[str, Any], Iterator[list[str]]], Trace],
    *,
    what: str,
    command: str,
) -> Trace:
    """Read a trace that `write_trace` wrote.

    Args:
        path: the file.
        kind: the header's `format`.
        read: makes the trace from the header and the rows, the first of which has the names of the columns. It may
            raise KeyError, TypeError or ValueError where something is wrong.
        what: the kind of trace in words, for the message.
        command: the command that makes such a trace, for the message.

    Raises:
        ConfigurationError: there is no such file, or it is not such a trace; the message names the line.
    """
    at = [0]

    def counted(source: IO[str]) -> Iterator[str]:
        for line in source:
            at[0] += 1
            yield line

    with open_text(path) as source:
        try:
            given = counted(source)
            header = json.loads(next(given, "null"))
            if not isinstance(header, dict) or header.get("format") != kind:
                raise ValueError("the first line is not its header")
            return read(header, csv.reader(given))
        except (KeyError, TypeError, ValueError, csv.Error) as broken:
            if isinstance(broken, (ConfigurationError, UnicodeDecodeError)):
                raise
            raise ConfigurationError(
                f"{path}, line {at[0]}: this is no trace of {what} ({_reason(broken)}). Make one with `{command}`."
            ) from broken


def check_columns(rows: Iterator[list[str]], columns: Sequence[str]) -> None:
    """Read the row with the names of the columns. Raises ValueError where it names others."""
    if next(rows, None) != list(columns):
        raise ValueError(f"the second line does not name these columns: {', '.join(columns)}")


def _reason(broken: Exception) -> str:
    if isinstance(broken, KeyError):
        return f"{broken.args[0]!r} is missing in the header"
    return "the header is not as expected" if isinstance(broken, TypeError) else str(broken).rstrip(".")
