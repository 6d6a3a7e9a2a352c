"""Contents of a file before interpretation: batches of columns from CSV, JSON or Parquet, with the place of each row.

Parquet needs pyarrow (`disco-llm[replay]`).
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.record.reading import NOT_JSON
from disco.record.text_files import lines, open_text, readable, rest
from disco.record.versions import NewerRecordError
from disco.replay.formats.format_adapter import Adapter, BadCellError, Row

__all__ = [
    "FAILED",
    "Batch",
    "Cells",
    "Column",
    "CsvSource",
    "JsonSource",
    "ParquetSource",
    "Problem",
    "Ragged",
    "Source",
    "pyarrow",
]

FAILED = "failed at the source"

# A longer value may be a prompt in the wrong column; prompts are never shown.
_LONGEST_SHOWN = 32


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one row is not valid.

    Attributes:
        place: line, row or entry, from 1.
        reason: a few words by which rows are counted.
        column: the source's name; None if the problem concerns the whole row.
        value: the value found; None if there was none.
        remedy: how to fix the row; empty where the reason says so.
        is_newer: the row is a newer disco's: of a log, too, it is left out only where the reader was asked to.
    """

    place: int
    reason: str
    remedy: str
    column: str | None = None
    value: Any = None
    is_newer: bool = False

    def error(self, path: Path, unit: str) -> ConfigurationError:
        """Return the exception that reports the problem; `unit` is "line", "row" or "entry"."""
        where = f"{path}, {unit} {self.place}"
        if self.column is not None:
            where += f", column {self.column}"
        found = "" if self.value is None else f"{_shown(self.value)} is "
        remedy = f"; {self.remedy}" if self.remedy else ""
        return ConfigurationError(
            f"{where}: {found}{self.reason}{remedy} (or leave such rows out: --skip-invalid, in Python "
            "skip_invalid=True)"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    if len(text) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"
    return text


ROWS = 16_384
"""Rows per batch: many enough that NumPy's overhead per call vanishes, few enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A Parquet column.

    Attributes:
        values: shape (n,); undefined where `null`.
        null: where the file has no value; bool, shape (n,).
    """

    values: NDArray[Any]
    null: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.values.size)

    def listed(self) -> list[Any]:
        """Return the cells as from JSON: None where the file has no value."""
        cells = self.values.astype(object)
        cells[self.null] = None
        return list(cells.tolist())


@dataclass(frozen=True, slots=True)
class Ragged:
    """A Parquet column of lists of numbers.

    Attributes:
        counts: number of values in each row; int64, shape (n,).
        values: the values of all rows; float64, shape (counts.sum(),), NaN where null.
    """

    counts: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.counts.size)

    def listed(self) -> list[Any]:
        """Return a list of numbers per row."""
        return [part.tolist() for part in np.split(self.values, self.counts.cumsum()[:-1])]


# CSV: text. JSON: any JSON value. Parquet: `Cells` and `Ragged`.
Column = Sequence[Any] | Cells | Ragged


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows, in file order.

    Attributes:
        columns: by the source's names.
        places: line, row or entry of each row, from 1.
        problems: rows that could not be parsed; not in `columns`.
        failed: places of rows that failed at the source; not in `columns`.
    """

    columns: Mapping[str, Column]
    places: Sequence[int]
    problems: Sequence[Problem] = ()
    failed: Sequence[int] = ()


class Source(Protocol):
    """An open file."""

    path: Path
    unit: str  # of places: "line", "row" or "entry"

    @property
    def columns(self) -> Sequence[str]:
        """The column names of the header, or the keys of the first object."""

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        """By which a format is detected: `columns`; of JSON objects, the keys of each of the first ones."""

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        """Yield the rows in batches; may be called once."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""


class CsvSource:
    """A CSV file with a header: commas, UTF-8. Mutable: the file's position.

    Raises:
        ConfigurationError: the header is missing or not valid.
    """

    unit = "line"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_text(path)
        self._reader = csv.reader(lines(self._file, path))
        try:
            with readable(path, self._line), self._sound():
                self._header = [name.strip() for name in next(self._reader, [])]
            self._check_header()
        except BaseException:
            self.close()
            raise

    @property
    def columns(self) -> Sequence[str]:
        return [name for name in self._header if name]

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        return [self.columns]

    def close(self) -> None:
        self._file.close()

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        del adapter  # CSV lines are flat already
        with readable(self.path, self._line), self._sound():
            before = self._line()
            while rows := list(itertools.islice(self._reader, ROWS)):
                yield self._batch(rows, before)
                before = self._line()

    def _batch(self, rows: list[list[str]], before: int) -> Batch:
        width = len(self._header)
        places: Sequence[int] = range(before + 1, before + 1 + len(rows))
        problems: list[Problem] = []
        if self._line() - before != len(rows):
            places = _beginnings(rows, before)
        if any(len(row) != width for row in rows):
            for row, place in zip(rows, places, strict=True):
                if len(row) != width and any(map(str.strip, row)):
                    remedy = (
                        f"the row has {len(row)} cells and the header {width}; check its commas and quotes"
                    )
                    problems.append(Problem(place, "wrong number of cells", remedy))
            fitting = [len(row) == width for row in rows]
            places = list(itertools.compress(places, fitting))
            rows = list(itertools.compress(rows, fitting))
        by_column = list(zip(*rows, strict=True)) or [()] * width
        # pandas writes its row numbers into a column without a name.
        columns = {name: cells for name, cells in zip(self._header, by_column, strict=True) if name}
        return Batch(columns, places, problems)

    def _line(self) -> int:
        return self._reader.line_num

    def _check_header(self) -> None:
        names = [name for name in self._header if name]
        if not names:
            raise ConfigurationError(f"{self.path} is empty; its first line must name the columns")
        if len(names) == 1 and any(separator in names[0] for separator in ";\t|"):
            raise ConfigurationError(f"{self.path}, line 1: columns must be separated by commas")
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigurationError(
                f"{self.path}, line 1: the header names {', '.join(map(repr, sorted(twice)))} more than once; rename "
                "or remove the repeated columns"
            )

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Explain errors of the csv module."""
        try:
            yield
        except csv.Error as broken:
            raise ConfigurationError(
                f"{self.path}, line {self._line()}: {broken}. A quote is not closed, or a list is too long for CSV; "
                "write such traces as JSONL or Parquet"
            ) from broken


def _beginnings(rows: Sequence[Sequence[str]], before: int) -> list[int]:
    """Return the line in which each row begins; a quoted cell may hold line breaks."""
    lengths = (
        1 + sum(cell.count("\n") + cell.count("\r") - cell.count("\r\n") for cell in row) for row in rows
    )
    return list(itertools.accumulate(lengths, initial=before + 1))[:-1]


_LINES = {".jsonl", ".ndjson"}
_LOOKED_AT = 100  # entries by which a format is detected: the first lines may be damaged
_NO_OBJECT = partial(Problem, reason="not a JSON object", remedy="write one JSON object per request")
_Entry = tuple[int, Any]  # place, and the text of a line, or what a document has there


class JsonSource:
    """A JSON file. Lines are read one by one, an array or a document is held in memory. Mutable: the position.

    Raises:
        ConfigurationError: the file holds no JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unit = "line"
        self._read = 0
        self._file = open_text(path, errors="surrogateescape")  # one damaged line of a log is no damaged file
        try:
            with readable(path, lambda: self._read):
                self._entries = self._open()
                self._first = self._look()
        except BaseException:
            self.close()
            raise

    @property
    def columns(self) -> Sequence[str]:
        return list(self._first[0])

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        return [list(row) for row in self._first]

    def close(self) -> None:
        self._file.close()

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        with readable(self.path, lambda: self._read):
            entries = self._entries
            if adapter.document is not None:
                entries = self._of_document(adapter)
            while taken := list(itertools.islice(entries, ROWS)):
                yield _batch(taken, adapter)

    def _open(self) -> Iterator[_Entry]:
        """Return the entries one by one; detect whether the file is lines or one JSON text."""
        read = lines(self._file, self.path)
        blank = 0  # lines before the first that is not blank
        first = ""
        for first in read:
            if first.strip():
                break
            blank += 1
        start = first.strip()
        whole = start.startswith("[")
        if not whole and not _LINES & set(self.path.suffixes):
            try:
                _loaded(start)
            except json.JSONDecodeError:
                whole = True  # one object over several lines
            except (RecursionError, ValueError):
                pass  # `_decoded` reports it
        if not whole:
            return self._lines(itertools.chain([first], read), blank + 1)
        try:
            found = _loaded(first + rest(self._file, self.path))
        except UnicodeError:
            raise
        except json.JSONDecodeError as broken:
            raise ConfigurationError(
                f"{self.path}, line {blank + broken.lineno}: broken JSON ({broken.msg}); the file may be cut off, "
                "fetch or write it again"
            ) from None
        except (RecursionError, ValueError) as broken:
            raise ConfigurationError(
                f"{self.path}: {_unreadable(broken)}; write plain JSON objects"
            ) from None
        self.unit = "entry"
        entries = enumerate(found if isinstance(found, list) else [found], start=1)
        return iter([(n, _NO_OBJECT(n) if isinstance(one, str) else one) for n, one in entries])

    def _lines(self, read: Iterable[str], start: int) -> Iterator[_Entry]:
        for number, line in enumerate(read, start):
            self._read = number
            if line.strip():
                yield number, line

    def _look(self) -> list[Row]:
        """Return the first objects; the entries read to find them are put back."""
        seen: list[_Entry] = []
        found: list[Row] = []
        for entry in self._entries:
            seen.append(entry)
            row = _decoded(*entry)
            if isinstance(row, dict):
                found.append(row)
            if found and len(seen) >= _LOOKED_AT:
                break
        self._entries = itertools.chain(seen, self._entries)
        if found:
            return found
        if not seen:
            raise ConfigurationError(f"{self.path} is empty; a trace needs at least one request")
        problem = next((row for entry in seen if isinstance(row := _decoded(*entry), Problem)), None)
        why = f"{self.path}, {self.unit} {problem.place}: {problem.reason}. " if problem else ""
        raise ConfigurationError(f"{why}{self.path} holds no JSON object; write one per request")

    def _of_document(self, adapter: Adapter) -> Iterator[_Entry]:
        assert adapter.document is not None
        documents = [_decoded(*entry) for entry in itertools.islice(self._entries, 2)]
        if len(documents) > 1:
            raise ConfigurationError(f"{self.path} holds several results; write each to its own file")
        self.unit = "entry"
        try:
            return iter(list(enumerate(adapter.document(documents[0]), start=1)))
        except ConfigurationError as unfit:
            raise ConfigurationError(f"{self.path}: {unfit}") from None


def _loaded(text: str) -> Any:
    """Return decoded JSON. Raises UnicodeError, a ValueError, where the file had bytes that are no text."""
    if not text.isascii():
        text.encode()
    return json.loads(text)


def _decoded(place: int, entry: Any) -> Any:
    """Return what a line holds, or the problem with it; what a document has as it is."""
    if not isinstance(entry, str):
        return entry
    try:
        return _loaded(entry)
    except json.JSONDecodeError:
        return Problem(place, NOT_JSON, "")
    except UnicodeError:
        return Problem(place, "not UTF-8 text", "save the file as UTF-8")
    except (RecursionError, ValueError) as broken:
        return Problem(place, _unreadable(broken), "write one plain JSON object per line")


def _unreadable(broken: Exception) -> str:
    """Return why JSON that may be valid cannot be read."""
    return "nested too deep" if isinstance(broken, RecursionError) else "a number with too many digits"


def _batch(entries: Iterable[_Entry], adapter: Adapter) -> Batch:
    rows: list[Row] = []
    places: list[int] = []
    problems: list[Problem] = []
    failed: list[int] = []
    for place, entry in entries:
        row = _row(place, entry, adapter)
        if row is None:
            failed.append(place)
        elif isinstance(row, Problem):
            problems.append(row)
        else:
            rows.append(row)
            places.append(place)
    names = dict.fromkeys(name for row in rows for name in row if name not in adapter.drops)
    return Batch({name: [row.get(name) for row in rows] for name in names}, places, problems, failed)


def _row(place: int, entry: Any, adapter: Adapter) -> Row | Problem | None:
    """Return the row of an entry, the problem with it, or None where it failed at the source."""
    row: Row | Problem = entry if adapter.is_log else _decoded(place, entry)
    if isinstance(row, Problem):
        return row
    if not isinstance(row, dict) and not adapter.is_log:
        return _NO_OBJECT(place)
    if adapter.row is None:
        return row
    try:
        return adapter.row(row)
    except BadCellError as bad:
        return Problem(place, bad.reason, bad.remedy, bad.column, bad.value)
    except ConfigurationError as unfit:
        return Problem(place, str(unfit), "", is_newer=isinstance(unfit, NewerRecordError))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Problem(place, "of another shape", f"write each request as in {adapter.about}")


# Column chunks are read through a buffer of this size, not whole: memory stays flat for any row group.
_BUFFER_BYTES = 1 << 18


def pyarrow() -> Any:
    """Return the pyarrow module, with its Parquet part imported.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 (an extra; heavy)
        import pyarrow.compute  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigurationError(
            'Parquet files need pyarrow; install it with: pip install "disco-llm[replay]"'
        ) from missing
    return pa


class ParquetSource:
    """A Parquet file. Mutable: the position.

    Raises:
        ConfigurationError: pyarrow is missing, or the file is not a Parquet file.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pa = pyarrow()
        try:
            self._file = self._pa.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (self._pa.ArrowException, OSError) as broken:
            raise ConfigurationError(
                f"{path} is not a complete Parquet file; fetch or write it again"
            ) from broken

    @property
    def columns(self) -> Sequence[str]:
        return [str(name) for name in self._file.schema_arrow.names]

    @property
    def heads(self) -> Sequence[Sequence[str]]:
        return [self.columns]

    def close(self) -> None:
        self._file.close()

    def batches(self, adapter: Adapter) -> Iterator[Batch]:
        wanted = [name for name in self.columns if name not in adapter.drops]
        place = 1
        try:
            for found in self._file.iter_batches(batch_size=ROWS, columns=wanted):
                columns = {name: self._column(found.column(name)) for name in wanted}
                yield Batch(columns, range(place, place + found.num_rows))
                place += found.num_rows
        except (self._pa.ArrowException, OSError) as broken:
            raise ConfigurationError(
                f"{self.path} is damaged after row {place - 1}; fetch or write it again"
            ) from broken

    def _column(self, array: Any) -> Column:
        types = self._pa.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_list(array.type) or types.is_large_list(array.type):
            inner = array.type.value_type
            if types.is_floating(inner) or types.is_integer(inner):
                counts = self._pa.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
                values = array.flatten().to_numpy(zero_copy_only=False)
                return Ragged(counts.astype(np.int64), values.astype(np.float64))
        null = array.is_null().to_numpy(zero_copy_only=False)
        return Cells(array.to_numpy(zero_copy_only=False), null)
