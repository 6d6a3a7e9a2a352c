"""JSON: one object per line, an array of objects, or one document of a benchmark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError
from disco.record.reading import NOT_JSON
from disco.record.versions import NewerRecordError
from disco.replay.formats.columns.row_problems import Problem
from disco.replay.formats.format_adapter import Adapter, BadCellError, Row
from disco.replay.formats.sources.batches import ROWS, Batch
from disco.replay.formats.sources.text_files import lines, open_text, readable, rest

__all__ = ["JsonSource"]

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
