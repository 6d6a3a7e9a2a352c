"""An answer in a few words, for lists of answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.records.route_record import RouteRecord

__all__ = ["happenings", "writers"]

_LOSERS = (AttemptOutcome.LOST, AttemptOutcome.PARKED)


def writers(record: RouteRecord) -> tuple[str, ...]:
    """Return the endpoints that wrote the answer, in order; one that wrote twice in a row counts once."""
    return tuple(name for name, _ in groupby(segment.endpoint for segment in record.segments))


def happenings(record: RouteRecord) -> tuple[str, ...]:
    """Return what happened besides writing, as words: "race", "moved", "failed over", ...; empty where nothing did."""
    return tuple(dict.fromkeys(_happenings(record)))


def _happenings(record: RouteRecord) -> Iterator[str]:
    if any(attempt.outcome in _LOSERS for attempt in record.attempts):
        yield "race"
    if any(attempt.speculation is not None and attempt.speculation.windows for attempt in record.attempts):
        yield "drafted"
    for move in record.migrations:
        moved = {"assist": "assisted", "confidence": "handed up", "silence": "heir went on"}.get(
            move.reason, "moved"
        )
        yield moved if move.outcome == "switched" else "move given up"
    for judgement in record.judgements:
        if judgement.outcome in ("handed_up", "stood"):
            yield judgement.outcome.replace("_", " ")
    if record.failovers:
        yield "failed over"
    elif any(attempt.failure is not None for attempt in record.attempts):
        yield "an endpoint failed"
    if record.finish_reason in (None, "cancelled"):
        yield "failed" if record.finish_reason is None else "cancelled"
