"""Reads a route record back from a line of a recording, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from disco.cost import Charge, Ledger
from disco.errors import ConfigurationError
from disco.plan import BudgetCut, CoolDown, Power
from disco.rates import Rates
from disco.session.records.assist_record import AssistRecord
from disco.session.records.route_record import (
    RENAMED,
    SCHEMA,
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
    "budget": dict[str, dict[str, float]],
    "assist": AssistRecord | None,
    "power": Power | None,
    "pace": LatencyRecord,
    "generated": tuple[tuple[float, int], ...],
    "released": tuple[tuple[float, int], ...],
    "turns": tuple[tuple[int, int], ...],
    "served_as": str | None,
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
}
"""What fields that older records lack are read as; `generated` and others are left out on request, too."""


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
    if not isinstance(line, Mapping):
        try:
            line = json.loads(line)
        except ValueError:
            raise ConfigurationError(
                "this is not JSON; a program that was killed may leave half a line"
            ) from None
    if not isinstance(line, Mapping) or ("attempts" not in line and "tries" not in line):
        raise ConfigurationError("this is not a route record, as disco.RouteLog writes them")
    version = line.get("schema")
    if isinstance(version, int) and version > SCHEMA:
        raise ConfigurationError(
            f"this record has version {version}, and this disco reads records up to version {SCHEMA}: update disco"
        )
    fields = {**_DEFAULTS, **{RENAMED.get(name, name): value for name, value in line.items()}}
    values = {name: _read(name, fields, version) for name in _PLAIN}
    return RouteRecord(
        **values,
        starts=tuple((start.endpoint, start.after_s) for start in _read("starts", fields, version)),
        ledger=_ledger(_read("ledger", fields, version).charges, values["endpoints"]),
    )


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
    ledger = Ledger({e.name: Rates(e.cost_in, e.cost_out, e.cached_share) for e in endpoints})
    for charge in charges:
        ledger.enter(charge)
    return ledger


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    kinds = {**_PLAIN, "starts": tuple[_Start, ...], "ledger": _Charges}
    return {name: TypeAdapter(kind) for name, kind in kinds.items()}
