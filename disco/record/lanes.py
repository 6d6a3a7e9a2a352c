"""From the attempts of a route record to lanes of spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from disco.record.model import Lane, Span, SpanKind, Window
from disco.record.written import last_written_s, stretches
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.records.route_record import AttemptRecord, MigrationRecord, RouteRecord

__all__ = ["end_of", "lanes_of", "moves_from", "unstarted"]

_ROUNDING_S = 1e-5  # times of a written record are rounded to the microsecond
_KEEP_NOTHING = (AttemptOutcome.PARKED, AttemptOutcome.LOST)


def end_of(record: RouteRecord) -> float:
    """Return when the last thing of an answer happened, seconds since the request."""
    ends = [record.duration_s, *(a.ended_s for a in record.attempts if a.ended_s is not None)]
    ends += [times[-1][0] for times in (record.generated, record.released) if times]
    return max(0.0, *ends)


def unstarted(record: RouteRecord) -> Iterator[tuple[str, float, float]]:
    """Yield (endpoint, planned start, when it was given up) of each planned start that did not happen, s."""
    started = {attempt.endpoint for attempt in record.attempts}
    for name, after_s in record.starts:
        if name not in started:
            won_s = record.pace.ttft_raw_s
            yield name, after_s, min(after_s, end_of(record) if won_s is None else won_s)


def moves_from(record: RouteRecord, number: int) -> list[MigrationRecord]:
    """Return the migrations away from an attempt."""
    return [move for move in record.migrations if _source_of(record, move) == number]


def _source_of(record: RouteRecord, move: MigrationRecord) -> int | None:
    """Return the number of the attempt that wrote when the move was ordered: the newest of its endpoint by then."""
    found = None
    for number, attempt in enumerate(record.attempts):
        first_s = attempt.first_content_s
        if (
            attempt.endpoint == move.source
            and first_s is not None
            and first_s <= move.decided_s + _ROUNDING_S
        ):
            found = number
    return found


def lanes_of(record: RouteRecord) -> tuple[Lane, ...]:
    """Return a lane for each endpoint that started or was to start, in the order of the record's endpoints."""
    places = {endpoint.name: endpoint.place for endpoint in record.endpoints}
    for attempt in record.attempts:
        places.setdefault(attempt.endpoint, attempt.place)
    waited = {name: until_s for name, _, until_s in unstarted(record)}
    lanes: list[Lane] = []
    for name, place in places.items():
        own = [number for number, attempt in enumerate(record.attempts) if attempt.endpoint == name]
        lanes += [_lane(record, name, place, row) for row in _rows(record, own)]
        if not own and name in waited:
            spans = (Span(SpanKind.DELAYED, 0.0, waited[name]),) if waited[name] > 0 else ()
            lanes.append(Lane(name, place, spans))
    return tuple(lanes)


def _rows(record: RouteRecord, numbers: list[int]) -> list[list[tuple[int, float]]]:
    """Divide an endpoint's attempts, each as (number, end), among as few rows as they need not to overlap."""
    rows: list[list[tuple[int, float]]] = []
    free_s: list[float] = []  # from when on each row has room
    total_s = end_of(record)
    for place, number in enumerate(numbers):
        attempt = record.attempts[number]
        end_s = total_s if attempt.ended_s is None else attempt.ended_s
        is_free_s = end_s
        if attempt.outcome in _KEEP_NOTHING and attempt.first_content_s is None and place + 1 < len(numbers):
            # What it reads, the next one goes on with: that waits for its turn until this one has read.
            later = record.attempts[numbers[place + 1]]
            end_s = min(end_s, max(attempt.started_s, later.began_s or later.started_s))
            is_free_s = min(end_s, later.started_s)
        row = next((n for n, at in enumerate(free_s) if at <= attempt.started_s + _ROUNDING_S), len(rows))
        if row == len(rows):
            rows.append([])
            free_s.append(0.0)
        rows[row].append((number, end_s))
        free_s[row] = max(free_s[row], is_free_s)
    return rows


def _lane(record: RouteRecord, name: str, place: str, row: list[tuple[int, float]]) -> Lane:
    spans: list[Span] = []
    windows: list[Window] = []
    for number, end_s in row:
        attempt = record.attempts[number]
        report = attempt.speculation
        if not spans and attempt.started_s > 0 and any(n == name and s > 0 for n, s in record.starts):
            spans.append(Span(SpanKind.DELAYED, 0.0, attempt.started_s))
        for span in _spans(record, number, attempt, end_s):
            begin_s = max(span.start_s, spans[-1].end_s) if spans else max(0.0, span.start_s)
            if span.end_s > begin_s:
                spans.append(replace(span, start_s=begin_s))
        windows += [Window(*one) for one in (report.timed_windows if report is not None else ())]
    return Lane(name, place, tuple(spans), tuple(sorted(windows, key=lambda w: (w.sent_s, w.judged_s))))


def _spans(record: RouteRecord, number: int, attempt: AttemptRecord, end_s: float) -> Iterator[Span]:
    """Yield what one attempt did, in order; a span may be empty."""
    works_s = attempt.started_s if attempt.began_s is None else attempt.began_s
    works_s = min(max(works_s, attempt.started_s), end_s)
    yield Span(SpanKind.QUEUED, attempt.started_s, works_s, number)
    if attempt.first_content_s is None:
        read_s = end_s if attempt.read_s is None else min(max(attempt.read_s, works_s), end_s)
        yield Span(SpanKind.READING, works_s, read_s, number)
        yield Span(SpanKind.HOLDING, read_s, end_s, number)
        return
    first_s = min(max(attempt.first_content_s, works_s), end_s)
    yield Span(SpanKind.READING, works_s, first_s, number)
    yield from _writing(record, number, attempt, first_s, end_s)


def _last_kept_s(record: RouteRecord, number: int) -> float | None:
    """Return when an attempt wrote the last token that was kept, s; None where all were, or that is not known."""
    stretch = next((s for s in stretches(record) if s.attempt == number), None)
    return stretch.kept[-1][0] if stretch is not None and stretch.kept and stretch.dropped else None


def _writing(
    record: RouteRecord, number: int, attempt: AttemptRecord, first_s: float, end_s: float
) -> Iterator[Span]:
    moves = moves_from(record, number)
    left_s = min((m.decided_s for m in moves if m.outcome == "switched"), default=end_s)
    if not attempt.kept_tokens and attempt.tokens:
        left_s = first_s
    elif (kept_s := _last_kept_s(record, number)) is not None:
        left_s = min(left_s, kept_s)
    silent_s = last_written_s(record, number) if attempt.failure is not None else None
    pauses = [(m.decided_s, m.decided_s + m.paused_s) for m in moves if m.paused_s > 0]
    edges = {first_s, end_s, left_s, *(edge for pause in pauses for edge in pause)}
    if silent_s is not None:
        edges.add(silent_s)
    inside = sorted(edge for edge in edges if first_s <= edge <= end_s)
    for begin, end in pairwise(inside):
        if any(start <= begin < stop for start, stop in pauses):
            kind = SpanKind.PAUSED
        elif silent_s is not None and begin >= silent_s:
            kind = SpanKind.SILENT
        else:
            kind = SpanKind.HIDDEN if begin >= left_s else SpanKind.WRITING
        yield Span(kind, begin, end, number)
