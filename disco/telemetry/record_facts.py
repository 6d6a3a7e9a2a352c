"""What logs and spans say about a finished answer, taken from its route record: numbers and names only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from disco.session.records.route_record import RouteRecord

__all__ = ["Fact", "RequestFacts", "billed", "facts", "outcome"]

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request before it is answered.

    Attributes:
        model: the server's model, as the application named it.
        stream: the answer is given piece by piece.
        params: the request's parameters; only sampling numbers are taken from them.
        created_s: when it came, Unix time in seconds.
        local_model: what the model on this machine is called; None where there is none.
        address: host and port of the server; None where there is none.
    """

    model: str
    stream: bool
    params: Mapping[str, Any] = field(repr=False)
    created_s: float
    local_model: str | None = None
    address: tuple[str, int] | None = None


def outcome(route: RouteRecord) -> str:
    """What became of it: "finished", "cancelled" (nobody wanted the rest) or "failed"."""
    if route.finish_reason is None:
        return "failed"
    return "cancelled" if route.finish_reason == "cancelled" else "finished"


def facts(route: RouteRecord, asked: RequestFacts, error: Exception | None) -> dict[str, Fact]:
    """An answer in one flat row; what did not happen is left out."""
    usage = billed(route)
    row: dict[str, Fact | None] = {
        "model": asked.model,
        "preset": route.preset,
        "stream": asked.stream,
        "outcome": outcome(route),
        "finish_reason": route.finish_reason,
        "error_type": None if error is None else type(error).__qualname__,
        "winner": route.winner,
        "last_writer": route.segments[-1].endpoint if route.segments else None,
        "attempts": len(route.attempts),
        "migrations": sum(transfer.outcome == "switched" for transfer in route.migrations),
        "failovers": len(route.failovers),
        "input_tokens": usage[0],
        "output_tokens": usage[1],
        "ttft_generated_s": route.pace.ttft_raw_s,
        "ttft_released_s": route.pace.ttft_released_s,
        "late_tokens": route.pace.late_tokens,
        "duration_s": route.duration_s,
        "cost_usd": route.cost,
    }
    return {
        name: round(value, 6) if isinstance(value, float) and name.endswith("_s") else value
        for name, value in row.items()
        if value is not None
    }


def billed(route: RouteRecord) -> tuple[int, int]:
    """Prompt and answer tokens as the answer's own `usage` has them: the prompt once, its tokens once."""
    prompt, answer = route.prompt_tokens, route.answer_tokens
    if route.segments:
        first = route.attempts[route.segments[0].attempt]
        if first.prompt_tokens:
            prompt = first.prompt_tokens
            if len(route.segments) == 1 and first.completion_tokens:
                answer = first.completion_tokens
    return prompt, answer
