"""What happened to an answer at which moment, as marks with a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from disco.amounts import plural
from disco.record.lanes import end_of, unstarted
from disco.record.model import Lane, Mark, MarkKind
from disco.record.reader import retracted_tokens
from disco.record.words import seconds
from disco.session.attempt.attempt_state import AttemptOutcome, Role
from disco.session.records.route_record import (
    TIMELINE_DIGITS,
    AttemptRecord,
    JudgementRecord,
    MigrationRecord,
    RouteRecord,
)

__all__ = ["marks_of"]

_ROUNDING_S = 1e-5
_LOSERS = (AttemptOutcome.LOST, AttemptOutcome.PARKED)
_VERDICTS = {
    "kept": "kept",
    "handed_up": "handed up",
    "stood": "it stands, for want of a higher tier",
    "not_judged": "not judged",
}
_GIVEN_UP = {
    "late": "its target would have come too late",
    "target_failed": "its target failed",
    "target_empty": "its target had nothing to add",
    "source_finished": "the answer was complete before",
    "source_back": "the silent endpoint wrote again",
    "not_text": "its target did not go on with the text",
    "running": "the answer ended before",
}

Found = tuple[MarkKind, float, str | None, str]
"""Kind, time (s), endpoint in whose lane it is (None: the reader's), sentence."""


def marks_of(record: RouteRecord, lanes: Sequence[Lane]) -> tuple[Mark, ...]:
    """Return the marks of a record, in order of time."""
    total_s = end_of(record)
    found = [
        *_starts(record),
        *_moves(record),
        *_verdicts(record),
        *_assist(record),
        *_drafting(record),
        *_failures(record),
        *_ends(record),
    ]
    marks = []
    for kind, at_s, endpoint, text in found:
        at = min(
            max(0.0, round(at_s, TIMELINE_DIGITS)), total_s
        )  # as those of tokens: else one is 0.1 ms apart
        marks.append(Mark(kind, at, _lane(lanes, endpoint, at), text))
    order = list(MarkKind)
    return tuple(sorted(marks, key=lambda mark: (mark.at_s, order.index(mark.kind))))


def _lane(lanes: Sequence[Lane], endpoint: str | None, at_s: float) -> int | None:
    """Return the place of the endpoint's lane that has a span at this time; else of its first one."""
    own = [place for place, lane in enumerate(lanes) if lane.endpoint == endpoint]

    def reaches(place: int) -> bool:
        return any(s.start_s - _ROUNDING_S <= at_s <= s.end_s + _ROUNDING_S for s in lanes[place].spans)

    return next((place for place in own if reaches(place)), own[0] if own else None)


def _beginner(record: RouteRecord) -> AttemptRecord | None:
    """Return the attempt that wrote first of those that began the answer."""
    first = [a for a in record.attempts if a.first_content_s is not None and not a.prefix_chars]
    return min(first, key=lambda a: a.first_content_s or 0.0, default=None)


def _starts(record: RouteRecord) -> Iterator[Found]:
    for attempt in record.attempts:
        if attempt.doubted_s is not None:
            text = f"{attempt.endpoint} has been silent for unusually long: another endpoint starts"
            yield MarkKind.DOUBTED, attempt.doubted_s, attempt.endpoint, text
    for name, after_s, until_s in unstarted(record):
        text = f"{name} was to start after {seconds(after_s)}, and is not needed"
        yield MarkKind.UNSTARTED, until_s, name, text
    first = _beginner(record)
    if first is not None and first.first_content_s is not None:
        losers = [a for a in record.attempts if a.outcome in _LOSERS and a.started_s <= first.first_content_s]
        told = [
            f"{a.endpoint} {'reads on' if a.outcome == AttemptOutcome.PARKED else 'is cancelled'}"
            for a in losers
        ]
        wins = "writes first and wins the race" if losers else "writes the first token"
        yield (
            MarkKind.FIRST,
            first.first_content_s,
            first.endpoint,
            "; ".join([f"{first.endpoint} {wins}", *told]),
        )


def _moves(record: RouteRecord) -> Iterator[Found]:
    for move in record.migrations:
        yield MarkKind.ORDERED, move.decided_s, move.source, _ordered(move)
        if move.switched_s is not None:
            yield MarkKind.SWITCHED, move.switched_s, move.target, _switched(move)
        else:
            ended_s = _target_ended_s(record, move)
            if ended_s is not None:
                why = _GIVEN_UP.get(move.outcome, move.outcome.replace("_", " "))
                yield MarkKind.GIVEN_UP, ended_s, move.source, f"the move to {move.target} is given up: {why}"


def _ordered(move: MigrationRecord) -> str:
    cut = f"behind token {move.cut_tokens:,} (character {move.cut_char:,})"
    paused = f"; {move.source} is paused" if move.paused_s > 0 else ""
    return {
        "cost": f"a move to {move.target} is ordered; the text of {move.source} is cut {cut}{paused}",
        "confidence": f"{move.target} is asked to go on {cut}",
        "assist": f"the part of {move.source} ends {cut}; {move.target} is to go on",
        "silence": f"{move.target} is asked to go on {cut}, while {move.source} is silent",
    }.get(move.reason, f"{move.target} is to go on {cut}")


def _switched(move: MigrationRecord) -> str:
    took = "" if move.took_s is None else f", {seconds(move.took_s)} later"
    late = plural(move.late_tokens, "late token") if move.late_tokens else "no token late"
    wasted = (
        f"; {plural(move.wasted_tokens, 'token')} behind the cut for nothing" if move.wasted_tokens else ""
    )
    return f"{move.target} goes on{took}: {late}{wasted}"


def _target_ended_s(record: RouteRecord, move: MigrationRecord) -> float | None:
    roles = (Role.TARGET, Role.RISE, Role.HEIR)
    tried = (a for a in record.attempts if a.endpoint == move.target and a.role in roles)
    return next((a.ended_s for a in tried if a.started_s >= move.decided_s - _ROUNDING_S), None)


def _verdicts(record: RouteRecord) -> Iterator[Found]:
    for judgement in record.judgements:
        yield MarkKind.VERDICT, judgement.at_s, judgement.endpoint, _verdict(judgement)
    back = retracted_tokens(record)
    for attempt in record.attempts:
        if attempt.role != Role.RISE or attempt.prefix_chars:
            continue
        yield MarkKind.RISE, attempt.started_s, attempt.endpoint, f"{attempt.endpoint} is asked instead"
        if attempt.first_content_s is not None:
            taken = f"; {plural(back, 'token')} that were shown are taken back" if back else ""
            text = f"{attempt.endpoint} writes the answer anew{taken}"
            yield MarkKind.SWITCHED, attempt.first_content_s, attempt.endpoint, text


def _verdict(judgement: JudgementRecord) -> str:
    followed = _VERDICTS.get(judgement.outcome, judgement.outcome.replace("_", " "))
    if judgement.score is None:
        return f"the answer of {judgement.endpoint}: {followed} ({(judgement.why or 'no score').replace('_', ' ')})"
    against = "the first score of its history"
    if judgement.threshold is not None:
        against = f"threshold {judgement.threshold:.3f} of {plural(judgement.history, 'earlier score')}"
    what = f"{judgement.endpoint} is judged after {plural(judgement.tokens, 'token')}"
    return f"{what}: score {judgement.score:.3f}, {against}: {followed}"


def _assist(record: RouteRecord) -> Iterator[Found]:
    assist = record.assist
    if assist is None or assist.heir is None or assist.read_s is None:
        return
    text = f"{assist.heir} has read the prompt; {assist.writer} may write {plural(assist.tokens, 'token')}"
    yield MarkKind.READ, assist.read_s, assist.heir, text


def _drafting(record: RouteRecord) -> Iterator[Found]:
    for attempt in record.attempts:
        report = attempt.speculation
        if report is None or not report.timed_windows:
            continue
        windows = len(report.timed_windows)
        text = (
            f"drafting: {plural(windows, 'window')}, {report.accepted} of {report.judged} compared tokens right, "
            f"{report.rejected} computed in vain; {report.distributed_tokens} tokens of the answer by drafts, "
            f"{report.alone_tokens} by {attempt.endpoint} alone"
        )
        yield MarkKind.DRAFTING, min(sent for sent, *_ in report.timed_windows), attempt.endpoint, text


def _failures(record: RouteRecord) -> Iterator[Found]:
    for attempt in record.attempts:
        if attempt.failure is not None:
            ended_s = end_of(record) if attempt.ended_s is None else attempt.ended_s
            what = attempt.failure.replace("_", " ")
            yield MarkKind.FAILED, ended_s, attempt.endpoint, f"{attempt.endpoint} fails ({what})"
    replaced: dict[
        int, tuple[AttemptRecord, dict[str, None]]
    ] = {}  # one attempt may replace many failed ones
    for failed, later in record.failovers:
        at_s = later.first_content_s
        if at_s is not None and at_s + _ROUNDING_S >= (failed.ended_s or inf):
            replaced.setdefault(id(later), (later, {}))[1][failed.endpoint] = None
    for later, names in replaced.values():
        text = f"{later.endpoint} takes over from {', '.join(names)}"
        behind = f" behind character {later.prefix_chars:,}" if later.prefix_chars else ""
        yield MarkKind.TAKEN_OVER, later.first_content_s or 0.0, later.endpoint, text + behind


def _ends(record: RouteRecord) -> Iterator[Found]:
    if record.finish_reason == "cancelled":
        left = [a.ended_s for a in record.attempts if a.outcome == "cancelled" and a.ended_s is not None]
        yield MarkKind.CANCELLED, min(left, default=end_of(record)), None, "the reader leaves"
    for attempt in record.attempts:
        is_last = record.segments and record.attempts[record.segments[-1].attempt] is attempt
        if attempt.outcome == AttemptOutcome.FINISHED and attempt.ended_s is not None and is_last:
            how = (
                ""
                if record.finish_reason in (None, "stop")
                else f" ({record.finish_reason.replace('_', ' ')})"
            )
            text = f"{attempt.endpoint} has written the end{how}"
            yield MarkKind.FINISHED, attempt.ended_s, attempt.endpoint, text
    if record.released:
        first_s, last_s = record.released[0][0], record.released[-1][0]
        at_once = first_s == last_s
        yield (
            MarkKind.SHOWN,
            first_s,
            None,
            "the reader gets the answer" if at_once else "the reader gets the first text",
        )
        if not at_once and record.finish_reason not in (None, "cancelled"):
            late = record.pace.late_tokens
            text = "the reader has all of it"
            if record.pace.pace_tps is not None:
                told = plural(late, "late token") if late else "no token late"
                text += f", shown at {record.pace.pace_tps:g} tokens/s or faster: {told}"
            yield MarkKind.DELIVERED, last_s, None, text
