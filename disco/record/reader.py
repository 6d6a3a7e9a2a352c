"""What the reader had of an answer, and when: text given out, text in the bank, late tokens."""

from __future__ import annotations

from itertools import accumulate

from disco.playback import reader_metrics
from disco.record.model import Reader
from disco.record.written import stretches
from disco.session.records.route_record import RouteRecord

__all__ = ["reader_of", "retracted_tokens"]


def retracted_tokens(record: RouteRecord) -> int:
    """Return how many tokens the reader was given that were then taken back: a higher tier's answer replaced them."""
    return max(0, sum(tokens for _, tokens in record.released) - record.answer_tokens)


def reader_of(record: RouteRecord) -> Reader | None:
    """Return what the reader had; None where the record has no times."""
    if not record.generated and not record.released:
        return None
    totals = accumulate(tokens for _, tokens in record.released)
    shown = tuple((at, total) for (at, _), total in zip(record.released, totals, strict=True))
    return Reader(shown, _bank(record, shown), _late(record))


def _late(record: RouteRecord) -> tuple[float, ...]:
    pace_tps, times = record.pace.pace_tps, reader_metrics.token_times(record.released)
    if not pace_tps:
        return ()
    lateness = reader_metrics.lateness_s(record.released, pace_tps)
    return tuple(at for at, s in zip(times, lateness, strict=True) if s > reader_metrics.TOLERANCE_S)


def _bank(record: RouteRecord, shown: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    """Return how many tokens of the answer were written and not shown, from each time until the next."""
    back = retracted_tokens(record)
    changes: list[tuple[float, int]] = []
    for stretch in stretches(record):
        written = stretch.begins
        for at, total in (*stretch.kept, *stretch.dropped):
            now_written = min(total, stretch.ends)  # a packet may straddle the cut
            changes.append((at, max(0, now_written - written)))
            written = max(written, now_written)
    given = 0
    for at, total in shown:
        now_given = max(0, total - back)
        changes.append((at, given - now_given))
        given = now_given
    bank, points = 0, []
    for at, change in sorted(changes, key=lambda entry: (entry[0], -entry[1])):
        bank += change
        points.append((at, max(0, bank)))
    return tuple(dict(points).items())
