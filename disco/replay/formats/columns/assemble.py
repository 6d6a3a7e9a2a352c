"""Conversion of batches to pieces of a trace: names, units, and all checks. The same for all formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.record.left_out import SkipLog
from disco.replay.formats.columns.cells import Sieve, dates, floats, gaps, whole_numbers
from disco.replay.formats.columns.extra_columns import Kind, feature
from disco.replay.formats.columns.row_problems import FAILED
from disco.replay.formats.columns.trace_pieces import COLUMNS, OPTIONAL, pick
from disco.replay.formats.format_adapter import LASTS_S, Adapter
from disco.replay.formats.sources.batches import Batch, Column, Source
from disco.replay.formats.unit_checks import check_names, check_units
from disco.replay.workload.trace import Trace

__all__ = ["Assembler"]

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
