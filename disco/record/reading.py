"""Reads recordings: the one place that says which lines are route records, and what is wrong with the others.

A recording is a file to which programs append (`disco.RouteLog`). One that is killed, or a full disk, leaves half a
line. So a reader uses the lines that are records, and names and counts the others. A record of a newer disco is none of
these: its reader stops there, and says that disco is to be updated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from disco.cost import Charge, Ledger
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.record.left_out import SkipLog
from disco.record.text_files import existing_file, open_packed, readable
from disco.record.versions import NewerRecordError, present
from disco.session.records.route_record import CandidateRecord, RouteRecord

__all__ = ["NOT_JSON", "RecordLine", "lines_of", "read_record", "record_in", "records_of"]

NOT_JSON: Final = "this is not JSON; a program that was killed may leave half a line"
_NO_TIME: Final = "a time must be finite and not negative"
_MOST: Final = 1e18  # more than any count, time or amount in a record
_BEYOND: Final = f"it has a number beyond {_MOST:g}"
_MOST_TOKENS: Final = (
    10_000_000  # of one answer: more is damage, and what is drawn takes memory for each token
)


class RecordLine(NamedTuple):
    """A line of a recording that is not empty; its number counts from 1, as editors count."""

    number: int
    text: bytes


def lines_of(path: Path) -> Iterator[RecordLine]:
    """Yield the lines of a recording that are not empty, one at a time. It may be compressed, as `.gz`.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    number = 0
    with readable(existing_file(path), lambda: number), open_packed(path) as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield RecordLine(number, text)


def records_of(
    path: Path, log: SkipLog, lines: Iterable[RecordLine] | None = None
) -> Iterator[tuple[int, RouteRecord]]:
    """Yield the records of a recording, each with the number of its line. Other lines go into the log.

    Args:
        path: of the recording.
        log: counts the lines that are no records.
        lines: of the recording, those that are read; None: all.

    Raises:
        NewerRecordError: a record is one of a newer disco; the message names the file and the line.
        ConfigurationError: the file cannot be read.
    """
    for line in lines_of(path) if lines is None else lines:
        try:
            yield line.number, read_record(line.text)
        except NewerRecordError as error:
            raise NewerRecordError(f"{path}, line {line.number}: {error}") from None
        except ConfigurationError as error:
            log.add(str(error), line.number)


def record_in(line: RecordLine, path: Path) -> RouteRecord:
    """Return the record in a line.

    Raises:
        ConfigurationError: there is none; the message names the file and the line.
    """
    try:
        return read_record(line.text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}, line {line.number}: {error}") from None


def read_record(line: str | bytes | Mapping[str, Any]) -> RouteRecord:
    """Return the record that a line of a recording holds.

    Args:
        line: JSON as `RouteRecord.to_json` writes it, with or without timelines; or the same, decoded.

    Raises:
        NewerRecordError: it is a record of a newer version of disco.
        ConfigurationError: it is no route record. The message names the field and what is wrong with it; it has nothing
            else of the line.
    """
    row = line if isinstance(line, Mapping) else _decoded(line)
    if not isinstance(row, Mapping) or "attempts" not in row or "ledger" not in row:
        raise ConfigurationError("this is not a route record, as disco.RouteLog writes them")
    written_as = f"(schema {row.get('schema')})"
    try:
        found = dict(_wire().model_validate(present(row)))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        wrong = " is missing" if first["type"] == "missing" else f": {_wanted(first['type'], first['msg'])}"
        raise ConfigurationError(f"the field {where!r}{wrong} {written_as}") from None
    found["starts"] = tuple((start.endpoint, start.after_s) for start in found["starts"])
    found["ledger"] = _ledger(found["ledger"].charges, found["endpoints"])
    record = RouteRecord(**found)
    for where, what in _faults(record):
        raise ConfigurationError(f"the field {where!r}: {what} {written_as}")
    return record


def _wanted(kind: str, otherwise: str) -> str:
    """Return what a field should be, in the words of JSON."""
    if kind in ("tuple_type", "list_type"):
        return "a list is expected"
    if kind in ("dict_type", "dataclass_type", "dataclass_exact_type", "model_type"):
        return "an object is expected"
    return otherwise.lower()


def _decoded(line: str | bytes) -> Any:
    if isinstance(line, str) and not line.isascii():
        line = line.encode(
            errors="surrogateescape"
        )  # of a file: with its bytes that are no text, which are no JSON
    try:
        return json.loads(line, parse_int=_integer, parse_float=_real)
    except ConfigurationError:  # a ValueError itself
        raise
    except (ValueError, RecursionError):
        raise ConfigurationError(NOT_JSON) from None


def _integer(digits: str) -> int:
    if len(digits) > len("-1000000000000000000"):
        raise ConfigurationError(_BEYOND)
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if abs(value) > _MOST:
        raise ConfigurationError(_BEYOND)
    return value


@dataclass(frozen=True, slots=True)
class _Start:
    endpoint: str
    after_s: float


@dataclass(frozen=True, slots=True)
class _Charges:
    charges: tuple[Charge, ...]


@cache
def _wire() -> type[BaseModel]:
    """Return the model of a record's JSON: the fields of `RouteRecord`, two of which are written another way."""
    kinds = get_type_hints(RouteRecord) | {
        "starts": tuple[_Start, ...],
        "ledger": _Charges,
        "budget": dict[str, dict[str, float | str]],
    }
    # Left out on request, or by older records, of what has no default.
    absent: dict[str, Any] = {"generated": (), "released": (), "created_s": None, "max_tokens": None}
    shape: dict[str, Any] = {}
    for one in fields(RouteRecord):
        default = absent.get(one.name, ...) if one.default is MISSING else one.default
        shape[one.name] = (kinds[one.name], {} if one.name == "budget" else default)
    return create_model("RouteRecord", **shape)


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


def _faults(record: RouteRecord) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong) of what types do not tell: a time that is none, a number of no attempt."""
    for where, at_s in _times(record):
        if at_s is not None and not 0 <= at_s < math.inf:
            yield where, _NO_TIME
    for where, amount in _amounts(record):
        if amount is not None and not math.isfinite(amount):
            yield where, "an amount must be finite"
    for where, count in _counts(record):
        if count < 0:
            yield where, "a count must not be negative"
    for name, deltas in (("generated", record.generated), ("released", record.released)):
        for n, (at_s, _) in enumerate(deltas):  # hundreds of them
            if not 0 <= at_s < math.inf:
                yield f"{name}.{n}", _NO_TIME
        if any(tokens < 0 for _, tokens in deltas) or sum(tokens for _, tokens in deltas) > _MOST_TOKENS:
            yield name, f"an answer has 0 to {_MOST_TOKENS:,} tokens"
    attempts, pieces = len(record.attempts), len(record.generated)
    for n, segment in enumerate(record.segments):
        if not 0 <= segment.attempt < attempts:
            yield f"segments.{n}.attempt", "there is no attempt with this number"
    for n, (place, number) in enumerate(record.turns):
        if not (0 <= place <= pieces and 0 <= number < attempts):
            yield f"turns.{n}", "there is no such place, or no attempt with this number"


def _amounts(record: RouteRecord) -> Iterator[tuple[str, float | None]]:
    """Yield (field, number) of each moment, rate and amount, but those of `Rates`, that figures are made of."""
    yield "created_s", record.created_s
    yield "exchange_rate", record.exchange_rate
    yield "pace.pace_tps", record.pace.pace_tps
    if record.power is not None:
        yield "power.energy_factor", record.power.energy_factor
    for n, charge in enumerate(record.ledger.charges):
        for name in ("bill_usd", "device_energy_j", "policy_cost"):
            yield f"ledger.charges.{n}.{name}", getattr(charge, name)


def _counts(record: RouteRecord) -> Iterator[tuple[str, int]]:
    """Yield (field, tokens) of each count that is charged or replayed."""
    yield "prompt_tokens", record.prompt_tokens
    yield "answer_tokens", record.answer_tokens
    for n, attempt in enumerate(record.attempts):
        for name in ("tokens", "kept_tokens", "prompt_tokens", "completion_tokens", "cached_tokens"):
            yield f"attempts.{n}.{name}", getattr(attempt, name)
    for n, charge in enumerate(record.ledger.charges):
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            yield f"ledger.charges.{n}.{name}", getattr(charge, name)


def _times(record: RouteRecord) -> Iterator[tuple[str, float | None]]:
    """Yield (field, time) of each time since the request but those of tokens, s."""
    yield "duration_s", record.duration_s
    yield "pace.ttft_raw_s", record.pace.ttft_raw_s
    yield "pace.ttft_released_s", record.pace.ttft_released_s
    for n, (_, after_s) in enumerate(record.starts):
        yield f"starts.{n}.after_s", after_s
    for n, attempt in enumerate(record.attempts):
        for name in ("started_s", "began_s", "read_s", "first_content_s", "doubted_s", "ended_s", "paused_s"):
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
