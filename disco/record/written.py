"""Which attempt wrote each piece of an answer when, and which of its tokens are in the answer."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from disco.session.records.route_record import RouteRecord

__all__ = ["WrittenStretch", "last_written_s", "stretches", "turns_of"]


@dataclass(frozen=True, slots=True)
class WrittenStretch:
    """What one attempt wrote.

    Attributes:
        attempt: its number in the record.
        endpoint: the endpoint's name.
        begins: how many tokens the answer has before the attempt's first one.
        ends: how many it has with all that was kept of the attempt.
        kept: (seconds since the request, tokens of the answer at that time).
        dropped: the same for tokens that the attempt wrote beyond the cut; the reader never got them, unless the whole
            answer was replaced.
    """

    attempt: int
    endpoint: str
    begins: int
    ends: int
    kept: tuple[tuple[float, int], ...]
    dropped: tuple[tuple[float, int], ...]


def turns_of(record: RouteRecord) -> tuple[tuple[int, int], ...]:
    """Return `RouteRecord.turns`; of a record without them, what first contents and segments tell.

    There, an attempt's turn begins with its first content (the first one's with the answer), and ends with that of the
    next.
    """
    if record.turns or not record.generated:
        return record.turns
    times = [at for at, _ in record.generated]
    writers = list(dict.fromkeys(segment.attempt for segment in record.segments))
    begins = [0, *(bisect.bisect_left(times, record.attempts[n].first_content_s or 0.0) for n in writers[1:])]
    return tuple(zip(begins, writers, strict=False))


def _pieces(record: RouteRecord) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, number of the attempt) of each piece of `generated` by one attempt."""
    turns = turns_of(record)
    for (begin, number), (end, _) in pairwise([*turns, (len(record.generated), -1)]):
        yield begin, end, number


def stretches(record: RouteRecord) -> list[WrittenStretch]:
    """Return what each attempt wrote, in the order in which they first wrote.

    Of the tokens of an attempt, the answer has the first ones, as many as the record says were kept.
    """
    pieces: dict[int, list[tuple[float, int]]] = {}
    for begin, end, number in _pieces(record):
        pieces.setdefault(number, []).extend(record.generated[begin:end])
    before, offsets = 0, {}
    for number in dict.fromkeys(segment.attempt for segment in record.segments):
        offsets[number] = before
        before += record.attempts[number].kept_tokens
    return [_stretch(record, number, piece, offsets.get(number, 0)) for number, piece in pieces.items()]


def _stretch(record: RouteRecord, number: int, piece: list[tuple[float, int]], before: int) -> WrittenStretch:
    limit = before + record.attempts[number].kept_tokens
    kept: list[tuple[float, int]] = []
    dropped: list[tuple[float, int]] = []
    total = before
    for at, tokens in piece:
        total += tokens
        if total <= limit:
            kept.append((at, total))
        else:
            if not dropped:  # join on to the kept tokens, also if a packet straddles the cut
                dropped.append(kept[-1] if kept else (at, before))
            dropped.append((at, total))
    name = record.attempts[number].endpoint
    return WrittenStretch(number, name, before, limit, tuple(kept), tuple(dropped))


def last_written_s(record: RouteRecord, number: int) -> float | None:
    """Return when an attempt wrote its last piece, seconds since the request; None where that is not known."""
    places = [end - 1 for begin, end, by in _pieces(record) if by == number and end > begin]
    return record.generated[places[-1]][0] if places else None
