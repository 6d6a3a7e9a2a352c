"""What the live page is told of one answer: from its session while it runs, then from its route record.

Lanes and marks are those of `disco show`: see `disco.record`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from disco.client.live_driver import LiveSession
from disco.cost import Phase
from disco.reasons import sentence
from disco.record.lanes import end_of, lanes_of
from disco.record.marks import marks_of
from disco.record.model import MarkKind, SpanKind
from disco.session.attempt.attempt_state import AttemptState
from disco.session.records.route_record import RouteRecord

__all__ = ["finished_facts", "running_facts"]

_DIGITS: Final = 4  # of seconds: 0.1 ms
# What the lanes show by themselves needs no words.
_PLAIN: Final = frozenset(
    {
        MarkKind.FIRST,
        MarkKind.UNSTARTED,
        MarkKind.DRAFTING,
        MarkKind.SHOWN,
        MarkKind.FINISHED,
        MarkKind.DELIVERED,
    }
)


def running_facts(live: LiveSession, now: float) -> dict[str, Any]:
    """Return the facts of an answer that is being written; times in seconds since its session began.

    Args:
        live: the answer.
        now: on the event loop's clock, s.
    """
    session = live.session
    transcript, began_at = session.transcript, session.started_at
    first_at = transcript.generated.at[0] if transcript.generated.at else None
    duration_s = now - began_at if session.attempts else 0.0
    return {
        "state": "running",
        "duration_s": _round(duration_s),
        "writer": None if transcript.writer is None else transcript.writer.candidate.name,
        "tokens": transcript.tokens,
        "ttft_s": None if first_at is None else _round(first_at - began_at),
        "tps": None if first_at is None else _rate(transcript.tokens, now - first_at),
        "total_s": _round(duration_s),
        "lanes": [_lane(state, began_at, now) for state in session.attempts],
    }


def _lane(state: AttemptState, began_at: float, now: float) -> dict[str, Any]:
    ended_at = now if state.ended_at is None else state.ended_at
    first_at = ended_at if state.first_content_at is None else state.first_content_at
    spans = [_span(SpanKind.READING, state.started_at - began_at, first_at - began_at)]
    if state.first_content_at is not None:
        spans.append(_span(SpanKind.WRITING, first_at - began_at, ended_at - began_at))
    return {"endpoint": state.candidate.name, "spans": spans}


def finished_facts(route: RouteRecord, lost: Collection[Phase]) -> dict[str, Any]:
    """Return the facts of a finished answer; times in seconds since the request, money in USD, energy in J.

    Args:
        route: its record; the timelines in it are not needed.
        lost: phases in which no reader got the text.
    """
    ttft_s = route.pace.ttft_released_s
    writing_s = None if route.pace.ttft_raw_s is None else route.duration_s - route.pace.ttft_raw_s
    wrote: dict[str, int] = {}
    for segment in route.segments:
        wrote[segment.endpoint] = wrote.get(segment.endpoint, 0) + segment.end_char - segment.start_char
    lanes = lanes_of(route)
    return {
        "state": "failed" if route.finish_reason is None else "done",
        "finish_reason": route.finish_reason,
        "preset": route.preset,
        "winner": route.winner,
        "prompt_tokens": route.prompt_tokens,
        "tokens": route.answer_tokens,
        "ttft_s": None if ttft_s is None else _round(ttft_s),
        "tps": None if writing_s is None else _rate(route.answer_tokens, writing_s),
        "duration_s": _round(route.duration_s),
        "bill_usd": route.bill_usd,
        "device_energy_j": route.device_energy_j,
        "losers_usd": sum(c.bill_usd for c in route.ledger.charges if c.phase in lost),
        "spent": {
            name: {"bill_usd": sums.bill_usd, "device_energy_j": sums.device_energy_j}
            for name, sums in route.ledger.by_endpoint().items()
        },
        "wrote": wrote,
        "why": [sentence(reason) for reason in route.why],
        "total_s": _round(end_of(route)),
        "lanes": [
            {"endpoint": lane.endpoint, "spans": [_span(s.kind, s.start_s, s.end_s) for s in lane.spans]}
            for lane in lanes
        ],
        "marks": [
            {"at": _round(mark.at_s), "kind": str(mark.kind), "lane": mark.lane, "text": mark.text}
            for mark in marks_of(route, lanes)
            if mark.kind not in _PLAIN
        ],
    }


def _span(kind: SpanKind, start_s: float, end_s: float) -> list[str | float]:
    return [str(kind), _round(start_s), _round(end_s)]


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if tokens > 1 and seconds > 0 else None


def _round(seconds: float) -> float:
    return round(seconds, _DIGITS)
