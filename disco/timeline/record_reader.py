"""Reads a route record back from a line of a recording, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from disco.cost import Charge, Ledger
from disco.errors import ConfigurationError
from disco.plan import BudgetCut, CoolDown, Power
from disco.rates import Rates
from disco.reasons import Reason
from disco.session.records.assist_record import AssistRecord
from disco.session.records.record_lines import record_row
from disco.session.records.route_record import (
    AttemptRecord,
    CandidateRecord,
    JudgementRecord,
    LatencyRecord,
    MigrationRecord,
    RouteRecord,
    SegmentRecord,
)

__all__ = ["read_record"]

_PLAIN: Final[dict[str, Any]] = {
    "created_s": float | None,
    "preset": str,
    "exchange_rate": float | None,
    "finish_reason": str | None,
    "prompt_tokens": int,
    "answer_tokens": int,
    "max_tokens": int | None,
    "winner": str | None,
    "duration_s": float,
    "endpoints": tuple[CandidateRecord, ...],
    "attempts": tuple[AttemptRecord, ...],
    "segments": tuple[SegmentRecord, ...],
    "migrations": tuple[MigrationRecord, ...],
    "judgements": tuple[JudgementRecord, ...],
    "deprioritised": tuple[CoolDown, ...],
    "budget_cuts": tuple[BudgetCut, ...],
    "budget": dict[str, dict[str, float | str]],
    "assist": AssistRecord | None,
    "power": Power | None,
    "pace": LatencyRecord,
    "generated": tuple[tuple[float, int], ...],
    "released": tuple[tuple[float, int], ...],
    "turns": tuple[tuple[int, int], ...],
    "served_as": str | None,
    "why": tuple[Reason, ...],
}
"""Fields of a `RouteRecord` that are read as they are written."""
_DEFAULTS: Final[dict[str, Any]] = {
    "judgements": [],
    "deprioritised": [],
    "budget_cuts": [],
    "budget": {},
    "assist": None,
    "power": None,
    "generated": [],
    "released": [],
    "turns": [],
    "max_tokens": None,
    "winner": None,
    "created_s": None,
    "served_as": None,
    "why": [],
    "exchange_rate": None,
}
"""What fields that older records lack are read as; `generated` and others are left out on request, too."""
_MOST_TOKENS: Final = (
    10_000_000  # of one answer: more is damage, and what is drawn takes memory for each token
)


@dataclass(frozen=True, slots=True)
class _Start:
    endpoint: str
    after_s: float


@dataclass(frozen=True, slots=True)
class _Charges:
    charges: tuple[Charge, ...]


def read_record(line: str | bytes | Mapping[str, Any]) -> RouteRecord:
    """Return the record that a line of a recording holds, without its shadow.

    Args:
        line: JSON as `RouteRecord.to_json` writes it, with or without timelines; or the same, decoded.

    Raises:
        ConfigurationError: it is no route record, or one of a newer version of disco. The message names the field and
            what is wrong with it; it has nothing else of the line.
    """
    row = record_row(line)
    version = row.get("schema")
    fields = {**_DEFAULTS, **row}
    values = {name: _read(name, fields, version) for name in _PLAIN}
    record = RouteRecord(
        **values,
        starts=tuple((start.endpoint, start.after_s) for start in _read("starts", fields, version)),
        ledger=_ledger(_read("ledger", fields, version).charges, values["endpoints"]),
    )
    for where, what in _faults(record):
        raise ConfigurationError(f"the field {where!r}: {what} (version {version} of records)")
    return record


def _faults(record: RouteRecord) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong) of what types do not tell: a time that is none, a number of no attempt."""
    for where, at_s in _times(record):
        if at_s is not None and not 0 <= at_s < math.inf:
            yield where, "a time must be finite and not negative"
    attempts, pieces = len(record.attempts), len(record.generated)
    for n, segment in enumerate(record.segments):
        if not 0 <= segment.attempt < attempts:
            yield f"segments.{n}.attempt", "there is no attempt with this number"
    for n, (place, number) in enumerate(record.turns):
        if not (0 <= place <= pieces and 0 <= number < attempts):
            yield f"turns.{n}", "there is no such place, or no attempt with this number"
    for name, deltas in (("generated", record.generated), ("released", record.released)):
        if any(tokens < 0 for _, tokens in deltas) or sum(tokens for _, tokens in deltas) > _MOST_TOKENS:
            yield name, f"an answer has 0 to {_MOST_TOKENS:,} tokens"


def _times(record: RouteRecord) -> Iterator[tuple[str, float | None]]:
    """Yield (field, time) of each time that a time line has, s."""
    yield "duration_s", record.duration_s
    for n, (_, after_s) in enumerate(record.starts):
        yield f"starts.{n}.after_s", after_s
    for n, attempt in enumerate(record.attempts):
        for name in ("started_s", "began_s", "read_s", "first_content_s", "doubted_s", "ended_s"):
            yield f"attempts.{n}.{name}", getattr(attempt, name)
        report = attempt.speculation
        for window in report.timed_windows if report is not None else ():
            for at_s in window[:2]:
                yield f"attempts.{n}.speculation.timed_windows", at_s
    for n, move in enumerate(record.migrations):
        for name in ("decided_s", "switched_s"):
            yield f"migrations.{n}.{name}", getattr(move, name)
    for n, judgement in enumerate(record.judgements):
        yield f"judgements.{n}.at_s", judgement.at_s
    if record.assist is not None:
        yield "assist.read_s", record.assist.read_s
    for name, deltas in (("generated", record.generated), ("released", record.released)):
        for n, (at_s, _) in enumerate(deltas):
            yield f"{name}.{n}", at_s


def _read(name: str, fields: Mapping[str, Any], version: Any) -> Any:
    if name not in fields:
        raise ConfigurationError(f"the field {name!r} is missing (version {version} of records)")
    try:
        return _adapters()[name].validate_python(fields[name])
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join([name, *map(str, first["loc"])])
        raise ConfigurationError(
            f"the field {where!r}: {first['msg'].lower()} (version {version} of records)"
        ) from None


def _ledger(charges: tuple[Charge, ...], endpoints: tuple[CandidateRecord, ...]) -> Ledger:
    try:
        ledger = Ledger({e.name: _rates(e) for e in endpoints})
    except ValueError as error:
        raise ConfigurationError(f"the field 'endpoints': {error}") from None
    for charge in charges:
        ledger.enter(charge)
    return ledger


def _rates(of: CandidateRecord) -> Rates:
    return Rates(of.cost_in, of.cost_out, of.cached_share, is_money=of.is_money, j_in=of.j_in, j_out=of.j_out)


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    kinds = {**_PLAIN, "starts": tuple[_Start, ...], "ledger": _Charges}
    return {name: TypeAdapter(kind) for name, kind in kinds.items()}
