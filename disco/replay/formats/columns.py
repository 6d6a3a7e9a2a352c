"""Conversion of batches to pieces of a trace: names, units, and all checks. The same for all formats.

Cells become arrays fast if all of them are valid, else one by one, so that a bad cell has a place.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.record.left_out import SkipLog
from disco.replay.formats.files import FAILED, Batch, Cells, Column, Problem, Ragged, Source
from disco.replay.formats.format_adapter import LASTS_S, Adapter
from disco.replay.formats.trace_pieces import COLUMNS, OPTIONAL, pick
from disco.replay.workload.trace import Gaps, Trace

__all__ = ["Assembler"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOT_A_NUMBER = "not a number"
NAN = "not a number (NaN)"
MISSING = "missing value"
NEGATIVE = "negative"
NOT_FINITE = "not finite"
NOT_WHOLE = "not a whole number"
NOT_A_DATE = "not a date"

_NEEDED = "every request needs this value"
_LEAVE_EMPTY = "leave the cell empty (null in JSON and Parquet) where it is unknown"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Sieve:
    """The rows of one batch: which are not valid and why, and which failed at the source. Mutable: `bad`, `failed`."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.bad: dict[int, Problem] = {}
        self.failed: list[int] = []

    def reject(self, row: int, column: str, value: Any, reason: str, remedy: str) -> None:
        """Reject row number `row` of the batch; only the first reason is kept."""
        if row not in self.bad:
            self.bad[row] = Problem(self.places[row], reason, remedy, column, value)

    def reject_where(self, mask: Bools, column: str, values: Column, reason: str, remedy: str) -> None:
        """Reject every row under the mask."""
        if mask.any():
            for row in mask.nonzero()[0].tolist():
                self.reject(row, column, _cell(values, row), reason, remedy)


def floats(column: Column, name: str, sieve: Sieve, *, required: bool = False) -> Floats:
    """Return numbers, 0 or more, shape (n,); NaN where the cell is empty.

    Args:
        column: the cells.
        name: the source's name of the column.
        sieve: gets the rows whose cell is not such a number.
        required: whether empty cells are rejected, too.
    """
    values, empty = _numbers(column, name, sieve)
    sieve.reject_where(np.isnan(values) & ~empty, name, column, NAN, _NEEDED if required else _LEAVE_EMPTY)
    sieve.reject_where(np.isinf(values), name, column, NOT_FINITE, "write a finite number")
    sieve.reject_where(values < 0, name, column, NEGATIVE, "times and counts are 0 or more")
    if required:
        sieve.reject_where(empty, name, column, MISSING, _NEEDED)
    return values


def whole_numbers(column: Column, name: str, sieve: Sieve) -> Ints:
    """Return whole numbers, 0 or more, int64, shape (n,); 0 where the row was rejected."""
    exact = _exact(column)
    if exact is not None:
        sieve.reject_where(exact < 0, name, column, NEGATIVE, "a token count is 0 or more")
        return exact
    values = floats(column, name, sieve, required=True)
    known = np.isfinite(values) & (values >= 0) & (values < 2.0**53)
    values = np.where(known, values, 0.0)
    whole = values.astype(np.int64)
    sieve.reject_where(
        ~known | (whole != values), name, column, NOT_WHOLE, "tokens are counted in whole numbers"
    )
    return whole


def dates(column: Column, name: str, sieve: Sieve) -> Ints:
    """Return nanoseconds since 1970 of ISO 8601 dates, int64, shape (n,); 0 where the row was rejected."""
    if isinstance(column, Cells) and column.values.dtype.kind == "M":
        sieve.reject_where(column.null, name, column, MISSING, _NEEDED)
        ticks: Ints = column.values.astype("datetime64[ns]").view(np.int64)
        return np.where(column.null, 0, ticks)
    cells = _listed(column)
    quick = _quick_dates(cells)
    if quick is not None:
        return quick
    found = np.zeros(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells):
        try:
            at = dt.datetime.fromisoformat(cell.strip())
            since = (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)) - _EPOCH
            found[row] = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
        except (AttributeError, ValueError, OverflowError):
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                sieve.reject(row, name, None, MISSING, _NEEDED)
            else:
                sieve.reject(row, name, cell, NOT_A_DATE, "write it as 2023-11-16 18:15:46.680590")
    return found


def gaps(column: Column, name: str, sieve: Sieve) -> Gaps:
    """Return times between tokens, from lists or from text with ';' between the numbers; empty cells have no gaps."""
    if isinstance(column, Ragged):
        counts, values = column.counts, column.values
    else:
        cells = _listed(column)
        lists = [_gap_list(row, cell, name, sieve) for row, cell in enumerate(cells)]
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        values = np.array([gap for gaps in lists for gap in gaps], dtype=np.float64)
    offsets = np.zeros(counts.size + 1, dtype=np.int64)
    counts.cumsum(out=offsets[1:])
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        for at in wrong.nonzero()[0].tolist():
            row = int(offsets.searchsorted(at, side="right")) - 1
            reason = NEGATIVE if values[at] < 0 else NOT_A_NUMBER
            sieve.reject(row, name, float(values[at]), reason, "each gap is a time in seconds, 0 or more")
    return Gaps(offsets, values)


def _numbers(column: Column, name: str, sieve: Sieve) -> tuple[Floats, Bools]:
    """Return numbers, and where the cells are empty; NaN where a cell is empty or not a number."""
    if isinstance(column, Cells) and column.values.dtype.kind in "iuf":
        values = column.values.astype(np.float64)
        values[column.null] = np.nan
        return values, column.null
    cells = _listed(column)
    kinds = set(map(type, cells))
    try:
        if kinds <= {int, float}:
            return np.array(cells, dtype=np.float64), np.zeros(len(cells), dtype=np.bool_)
        if kinds == {str}:
            values = np.array([float(cell) if cell else math.nan for cell in cells])
            unknown = np.isnan(values)
            return values, (
                np.array([not cell for cell in cells], dtype=np.bool_) if unknown.any() else unknown
            )
    except (ValueError, OverflowError):
        pass  # the loop below finds the bad cells
    values = np.full(len(cells), np.nan)
    empty = np.zeros(len(cells), dtype=np.bool_)
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            empty[row] = True
            continue
        try:
            if isinstance(cell, bool) or not isinstance(cell, str | int | float):
                raise ValueError
            values[row] = float(cell)
        except (ValueError, OverflowError):
            empty[row] = True  # the row is rejected already: do not reject it as NaN, too
            sieve.reject(row, name, cell, NOT_A_NUMBER, "write a number with a decimal point, without units")
    return values, empty


def _exact(column: Column) -> Ints | None:
    """Return whole numbers without conversion to floats, if all cells are whole numbers; else None."""
    try:
        if isinstance(column, Cells):
            return (
                None
                if column.values.dtype.kind not in "iu" or column.null.any()
                else column.values.astype(np.int64)
            )
        if isinstance(column, Ragged):
            return None
        kinds = set(map(type, column))
        if kinds == {int}:
            return np.array(column, dtype=np.int64)
        if kinds == {str}:
            return np.array(list(map(int, column)), dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    return None


def _quick_dates(cells: Sequence[Any]) -> Ints | None:
    """Parse all cells at once, with the full resolution of the text, if all are plain UTC dates; else None."""
    if set(map(type, cells)) != {str}:
        return None
    plain = [
        cell[:-6] if cell[-6:] == "+00:00" else cell[:-1] if cell[-1:] == "Z" else cell for cell in cells
    ]
    # NumPy reads a bare number as a year, and wraps around outside the years that nanoseconds can represent.
    if min(map(len, plain)) < len("2023-11-16") or min(plain) < "1678" or max(plain) > "2262":
        return None
    if any("+" in cell or cell.count("-") != 2 for cell in plain):
        return None
    try:
        ticks: Ints = np.array(plain, dtype="datetime64[ns]").view(np.int64)
    except ValueError:
        return None
    return ticks


def _gap_list(row: int, cell: Any, name: str, sieve: Sieve) -> list[float]:
    if cell is None or cell == "":
        return []
    try:
        if isinstance(cell, str):
            return [float(gap) for gap in cell.split(";")]
        if isinstance(cell, list) and not any(isinstance(gap, bool | str) for gap in cell):
            return [float(gap) for gap in cell]
    except (TypeError, ValueError, OverflowError):
        pass
    remedy = "write a list of seconds, in CSV with ';' between them"
    sieve.reject(row, name, cell, "not a list of numbers", remedy)
    return []


def _listed(column: Column) -> Sequence[Any]:
    return column.listed() if isinstance(column, Cells | Ragged) else column


def _cell(column: Column, row: int) -> Any:
    if isinstance(column, Cells):
        found = None if column.null[row] else column.values[row]
        return found.item() if isinstance(found, np.generic) else found
    if isinstance(column, Ragged):
        return None
    cell = column[row]
    return None if isinstance(cell, str) and not cell.strip() else cell


Kind = Literal["number", "truth", "text", "other"] | None
"""The kind of a feature; None while every cell was empty; "other" is a Parquet type that is kept unchanged."""

# For longer texts a fixed-width array would take the length of the longest one for every row.
_WIDEST = 64
_LARGEST = 10**300
_TRUTHS = {"True": True, "true": True, "False": False, "false": False}
_MISFIT = "of another kind than the column was so far"


def feature(column: Column, name: str, kind: Kind, sieve: Sieve) -> tuple[NDArray[Any], Kind]:
    """Return a feature's array, shape (n,), and its kind.

    The first batch with a value decides the kind, so that every chunk of a file has the same kind. Unknown numbers
    are NaN, unknown texts are empty.

    Args:
        column: the cells.
        name: the source's name of the column.
        kind: the kind so far.
        sieve: gets the rows that do not fit the kind.
    """
    if isinstance(column, Cells):
        if column.values.dtype.kind in "biuf" and not column.null.any():
            return column.values, "truth" if column.values.dtype.kind == "b" else "number"
        if column.values.dtype.kind in "iuf":
            values = column.values.astype(np.float64)
            values[column.null] = np.nan
            return values, "number"
        if column.values.dtype.kind != "O" and not column.null.any():
            return column.values, "other"
    cells: Sequence[Any] = column.listed() if isinstance(column, Cells | Ragged) else column
    found = _kind(cells)
    if kind is None:
        kind = found
    if kind is None:
        return np.full(len(cells), np.nan), None
    if kind in {"text", "other"}:
        return _texts(cells), "text"
    if found not in (kind, None):
        cells = list(cells)
        for row, cell in enumerate(cells):
            if _kind([cell]) not in (kind, None):
                sieve.reject(
                    row,
                    name,
                    cell,
                    _MISFIT,
                    f"the first rows hold a {kind} each; write the same kind in all rows",
                )
                cells[row] = None
    if kind == "truth":
        for row, cell in enumerate(cells):
            if cell is None or cell == "":
                sieve.reject(row, name, None, "missing value", "write true or false in every row")
        return np.array([_TRUTHS.get(str(cell), False) for cell in cells], dtype=np.bool_), kind
    return _feature_numbers(cells), kind


def _kind(cells: Sequence[Any]) -> Kind:
    kinds = set(map(type, cells)) - {type(None)}
    if not kinds:
        return None
    if kinds == {bool}:
        return "truth" if None not in cells else "text"
    if kinds <= {int, float}:
        return "number" if all(map(_fits, cells)) else "text"
    if kinds != {str}:
        return "text"
    said = set(cells) - {"", None}
    if not said:
        return None
    if said <= _TRUTHS.keys():
        return "truth" if len(cells) == sum(map(bool, cells)) else "text"
    return "number" if all(map(_is_number, said)) else "text"


def _fits(cell: float | None) -> bool:
    """Return whether an array can hold the number: JSON's whole numbers may have any length."""
    return cell is None or not isinstance(cell, int) or abs(cell) < _LARGEST


def _is_number(text: str) -> bool:
    if text[0] == "0" and text[1:].isdigit():
        return False  # a name such as 007
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _feature_numbers(cells: Sequence[Any]) -> NDArray[Any]:
    try:
        if {type(cell) for cell in cells} <= {int, str}:
            return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    return np.array([math.nan if cell is None or cell == "" else float(cell) for cell in cells])


def _texts(cells: Sequence[Any]) -> NDArray[Any]:
    texts = [
        cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell, default=str)
        for cell in cells
    ]
    return np.array(texts, dtype=np.str_ if max(map(len, texts), default=0) <= _WIDEST else object)


_TIMES = ("arrival", "ttft", "device_ttft", "tpot", "device_tpot", "gaps")
_PER_SECOND = {"ms": "1000", "us": "1,000,000", "ns": "1,000,000,000"}

# If a tenth of the values is above these limits (s), the column is in milliseconds. A phone may take minutes to read a
# long prompt; no reader waits more than a few seconds for each single token.
_IMPLAUSIBLE_S = {
    "ttft_s": 300.0,
    "device_ttft_s": 3600.0,
    "tpot_s": 5.0,
    "device_tpot_s": 5.0,
    "gaps_s": 5.0,
}
_SHARE = 0.1
# Seconds since 1970 stay below the first of these until the year 5138.
_EPOCH_UNITS = ((1e17, "nanoseconds", "1e9"), (1e14, "microseconds", "1e6"), (1e11, "milliseconds", "1000"))


def check_names(columns: Collection[str], path: Path) -> None:
    """Reject a column such as `ttft_ms`, which would become a feature while the TTFT seems to be known.

    Raises:
        ConfigurationError: there is such a column, and none with the right name.
    """
    for base in _TIMES:
        if f"{base}_s" in columns:
            continue
        for unit, factor in _PER_SECOND.items():
            if f"{base}_{unit}" in columns:
                raise ConfigurationError(
                    f"{path}: column {base}_{unit} is not in seconds; divide it by {factor} and call it {base}_s"
                )
        if base in columns:
            raise ConfigurationError(
                f"{path}: column {base} does not name its unit; call it {base}_s if it is in seconds"
            )


def check_units(trace: Trace, path: Path, adapter: Adapter) -> None:
    """Check the beginning of a file, which is enough to see that a column is in another unit.

    Raises:
        ConfigurationError: a column seems to be in another unit; the message names it and how to convert it.
    """
    first_s = float(trace.arrival_s[0])
    for limit, unit, factor in _EPOCH_UNITS:
        if first_s > limit:
            raise ConfigurationError(
                f"{path}: column {adapter.theirs('arrival_s')} begins at {first_s:.6g}, which looks like {unit} since "
                f"1970; divide it by {factor}"
            )
    for name, limit in _IMPLAUSIBLE_S.items():
        values = _known(trace, name)
        above = int((values > limit).sum())
        if above <= _SHARE * values.size:
            continue
        verb = "looks" if above > values.size / 2 else "has rows that look"
        raise ConfigurationError(
            f"{path}: {above} of the first {values.size} values of column {adapter.theirs(name)} are above "
            f"{limit:g} s; the column {verb} like milliseconds. Write seconds throughout: divide by 1000"
        )


def _known(trace: Trace, name: str) -> NDArray[np.float64]:
    if name == "gaps_s":
        return np.empty(0) if trace.gaps is None else trace.gaps.values_s
    values: NDArray[np.float64] = getattr(trace, name)
    return values[~np.isnan(values)]


GAPS_S = "gaps_s"

_OURS = frozenset((*COLUMNS, GAPS_S, LASTS_S))


class Assembler:
    """Makes pieces of a trace from a file's batches, in order. Each piece is checked against the ones before it.

    Mutable: `_begin_ticks`, `_begin_s`, `_last_s`, `_clock_s` (arrival times), `_kinds` (of features), `_units_seen`.
    """

    def __init__(
        self, source: Source, adapter: Adapter, name: str, *, skip_invalid: bool, log: SkipLog
    ) -> None:
        self._source = source
        self._adapter = adapter
        self._name = name
        self._skip_invalid = skip_invalid
        self._log = log
        self._begin_ticks: int | None = None
        self._begin_s: float | None = None
        self._last_s = -np.inf
        self._clock_s = 0.0
        self._kinds: dict[str, Kind] = {}
        self._units_seen = False
        if adapter.row is None:
            check_names(source.columns, source.path)

    def pieces(self) -> Iterator[Trace]:
        """Yield the pieces that hold a request; those of a source that `sorts` are not in order yet.

        Raises:
            ConfigurationError: for the first row that is not valid, unless such rows are skipped; or the file is in
                another unit than it says.
        """
        for batch in self._source.batches(self._adapter):
            piece = self._piece(batch)
            if len(piece):
                yield piece

    def _piece(self, batch: Batch) -> Trace:
        sieve = Sieve(batch.places)
        columns = {
            self._adapter.renames.get(name, name): cells
            for name, cells in batch.columns.items()
            if name not in self._adapter.drops
        }
        n = len(batch.places)
        found: dict[str, NDArray[Any]] = {
            "prompt_tokens": self._tokens(columns, "prompt_tokens", n, sieve),
            "output_tokens": self._tokens(columns, "output_tokens", n, sieve),
        }
        for name in OPTIONAL:
            found[name] = self._times(columns, name, n, sieve)
        confidence = found["confidence"]
        sieve.reject_where(
            confidence > 1,
            self._theirs("confidence"),
            columns.get("confidence", ()),
            "above 1",
            "write a share between 0 and 1",
        )
        given = columns.get(GAPS_S)
        known_gaps = None if given is None else gaps(given, self._theirs(GAPS_S), sieve)
        features = {}
        for name, cells in columns.items():
            if name not in _OURS:
                features[name], self._kinds[name] = feature(
                    cells, self._theirs(name), self._kinds.get(name), sieve
                )
        back_to_back = "arrival_s" not in columns and LASTS_S in columns
        found["arrival_s"] = (
            self._times(columns, LASTS_S, n, sieve, required=True)
            if back_to_back
            else self._arrivals(columns, n, sieve)
        )
        if self._adapter.failed is not None:
            for row in self._adapter.failed(found).nonzero()[0].tolist():
                sieve.bad.pop(row, None)
                sieve.failed.append(row)
        kept = self._in_order(found["arrival_s"], columns, sieve, back_to_back=back_to_back)
        self._report(batch, sieve)
        piece = Trace(**found, gaps=known_gaps, features=features, name=self._name, source=self._words())
        if kept.size < n:
            piece = pick(piece, kept)
        if len(piece) and not self._units_seen:
            self._units_seen = True
            check_units(piece, self._source.path, self._adapter)
        return self._timed(piece, back_to_back=back_to_back)

    def _theirs(self, ours: str) -> str:
        return self._adapter.theirs(ours)

    def _tokens(self, columns: Mapping[str, Column], name: str, n: int, sieve: Sieve) -> NDArray[np.int64]:
        return whole_numbers(columns.get(name, [None] * n), self._theirs(name), sieve)

    def _times(
        self, columns: Mapping[str, Column], name: str, n: int, sieve: Sieve, *, required: bool = False
    ) -> NDArray[np.float64]:
        if name not in columns and not required:
            return np.full(n, np.nan)
        values = floats(columns.get(name, [None] * n), self._theirs(name), sieve, required=required)
        return values / self._adapter.divide[name] if name in self._adapter.divide else values

    def _arrivals(self, columns: Mapping[str, Column], n: int, sieve: Sieve) -> NDArray[np.float64]:
        if not self._adapter.dates:
            return self._times(columns, "arrival_s", n, sieve, required=True)
        ticks = dates(columns.get("arrival_s", [None] * n), self._theirs("arrival_s"), sieve)
        if self._begin_ticks is None:
            good = [row for row in range(n) if row not in sieve.bad][:1]
            self._begin_ticks = int(ticks[good[0]]) if good else None
        # Subtract before the division: a float would lose the last digits of a date.
        return np.asarray((ticks - (self._begin_ticks or 0)) / 1e9)

    def _in_order(
        self,
        arrival_s: NDArray[np.float64],
        columns: Mapping[str, Column],
        sieve: Sieve,
        *,
        back_to_back: bool,
    ) -> NDArray[np.int64]:
        """Return the numbers of the rows to keep; rows that are out of order go into the sieve."""
        usable = np.ones(arrival_s.size, dtype=np.bool_)
        usable[[*sieve.bad, *sieve.failed]] = False
        kept = usable.nonzero()[0]
        if back_to_back or self._adapter.sorts or not kept.size:
            return kept
        times = arrival_s[kept]
        latest = np.maximum.accumulate(np.concatenate([[self._last_s], times]))
        late = times < latest[:-1]
        self._last_s = float(latest[-1])
        if late.any():
            name = self._theirs("arrival_s")
            mask = np.zeros(arrival_s.size, dtype=np.bool_)
            mask[kept[late]] = True
            remedy = f"this row is earlier than a row above it; sort the file by {name}"
            sieve.reject_where(mask, name, columns["arrival_s"], "out of order", remedy)
        return kept[~late]

    def _report(self, batch: Batch, sieve: Sieve) -> None:
        problems = sorted((*batch.problems, *sieve.bad.values()), key=lambda problem: problem.place)
        unfit = [] if self._skip_invalid else [p for p in problems if p.is_newer or not self._adapter.is_log]
        if unfit:
            raise unfit[0].error(self._source.path, self._source.unit)
        for problem in problems:
            where = f"{problem.column}: " if self._adapter.is_log and problem.column is not None else ""
            self._log.add(f"{where}{problem.reason}", problem.place, problem.remedy)
        for place in sorted((*batch.failed, *(batch.places[row] for row in sieve.failed))):
            self._log.add(FAILED, place)

    def _timed(self, piece: Trace, *, back_to_back: bool) -> Trace:
        """Return the piece with its requests' times of arrival."""
        if not len(piece):
            return piece
        arrival_s = piece.arrival_s
        if back_to_back:
            ends = self._clock_s + arrival_s.cumsum()
            arrival_s = np.concatenate([[self._clock_s], ends[:-1]])
            self._clock_s = float(ends[-1])
        elif self._adapter.from_zero and not self._adapter.sorts:
            if self._begin_s is None:
                self._begin_s = float(arrival_s[0])
            arrival_s = arrival_s - self._begin_s
        return replace(piece, arrival_s=arrival_s)

    def _words(self) -> str:
        note = f"; {self._adapter.note}" if self._adapter.note else ""
        return f"{self._source.path.name} (format {self._adapter.name}){note}"
