"""CSV files, line by line."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from disco.errors import ConfigurationError
from disco.replay.formats.columns.row_problems import Problem
from disco.replay.formats.format_adapter import Adapter
from disco.replay.formats.sources.batches import ROWS, Batch
from disco.replay.formats.sources.text_files import lines, open_text, readable

__all__ = ["CsvSource"]


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
