"""What the live page is told of one answer: from its session while it runs, then from its route record."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from disco.client.live_driver import LiveSession
from disco.cost import Phase
from disco.session.attempt.attempt_state import AttemptState
from disco.session.records.route_record import RouteRecord

__all__ = ["finished_facts", "running_facts"]

_DIGITS = 4  # of seconds: 0.1 ms


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
        "attempts": [_attempt(state, began_at) for state in session.attempts],
    }


def _attempt(state: AttemptState, began_at: float) -> dict[str, Any]:
    def since(at: float | None) -> float | None:
        return None if at is None else _round(at - began_at)

    return {
        "endpoint": state.candidate.name,
        "outcome": str(state.outcome),
        "failure": None if state.failure is None else str(state.failure),
        "start": since(state.started_at),
        "first": since(state.first_content_at),
        "end": since(state.ended_at),
        "tokens": state.tokens,
    }


def finished_facts(route: RouteRecord, lost: Collection[Phase]) -> dict[str, Any]:
    """Return the facts of a finished answer; times in seconds since the request, costs in USD.

    Args:
        route: its record.
        lost: phases in which no reader got the text.
    """
    ttft_s = route.pace.ttft_released_s
    writing_s = None if route.pace.ttft_raw_s is None else route.duration_s - route.pace.ttft_raw_s
    wrote: dict[str, int] = {}
    for segment in route.segments:
        wrote[segment.endpoint] = wrote.get(segment.endpoint, 0) + segment.end_char - segment.start_char
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
        "cost_usd": route.cost,
        "losers_usd": sum(c.cost for c in route.ledger.charges if c.phase in lost),
        "cost": {name: sums.cost for name, sums in route.ledger.by_endpoint().items()},
        "wrote": wrote,
        "attempts": [
            {
                "endpoint": attempt.endpoint,
                "outcome": attempt.outcome,
                "failure": attempt.failure,
                "start": _round(attempt.started_s),
                "first": None if attempt.first_content_s is None else _round(attempt.first_content_s),
                "end": None if attempt.ended_s is None else _round(attempt.ended_s),
                "tokens": attempt.tokens,
                "kept": attempt.kept_tokens,
            }
            for attempt in route.attempts
        ],
        "moves": [
            {
                "from": move.source,
                "to": move.target,
                "why": move.reason,
                "outcome": move.outcome,
                "at": _round(move.switched_s if move.switched_s is not None else move.decided_s),
            }
            for move in route.migrations
        ],
        "failovers": [
            {"attempt": next(n for n, a in enumerate(route.attempts) if a is failed), "to": heir.endpoint}
            for failed, heir in route.failovers
        ],
    }


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if tokens > 1 and seconds > 0 else None


def _round(seconds: float) -> float:
    return round(seconds, _DIGITS)
