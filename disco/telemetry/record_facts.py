"""Facts about a finished answer for logs and spans, from its route record: numbers and names only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from disco.session.records.route_record import RouteRecord

__all__ = ["Fact", "RequestFacts", "billed", "facts", "outcome"]

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known about a request before it is answered.

    Attributes:
        model: the server's model, as the application named it.
        stream: whether the answer is streamed.
        params: the request's parameters; only sampling numbers are used.
        created_s: when the request came, Unix time in seconds.
        local_model: the name of the model on this machine; None if there is none.
        address: host and port of the server; None if there is none.
    """

    model: str
    stream: bool
    params: Mapping[str, Any] = field(repr=False)
    created_s: float
    local_model: str | None = None
    address: tuple[str, int] | None = None


def outcome(route: RouteRecord) -> str:
    """Return how the answer ended: "finished", "cancelled" (the reader stopped reading) or "failed"."""
    if route.finish_reason is None:
        return "failed"
    return "cancelled" if route.finish_reason == "cancelled" else "finished"


def facts(route: RouteRecord, asked: RequestFacts, error: Exception | None) -> dict[str, Fact]:
    """Return the facts of an answer in one flat row; facts that do not apply are left out."""
    usage, totals = billed(route), route.ledger.totals()
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
        **_judged(route),
        "input_tokens": usage[0],
        "output_tokens": usage[1],
        "ttft_generated_s": route.pace.ttft_raw_s,
        "ttft_released_s": route.pace.ttft_released_s,
        "late_tokens": route.pace.late_tokens,
        "duration_s": route.duration_s,
        "bill_usd": totals.bill_usd,
        "device_energy_j": totals.device_energy_j,
        "policy_cost": totals.policy_cost,
    }
    return {
        name: round(value, 6) if isinstance(value, float) and name.endswith("_s") else value
        for name, value in row.items()
        if value is not None
    }


def _judged(route: RouteRecord) -> dict[str, int]:
    """Return how many attempts were judged, handed up, and stood; empty without a cascade."""
    if not route.judgements:
        return {}
    outcomes = [judgement.outcome for judgement in route.judgements]
    return {
        "judged": sum(judgement.score is not None for judgement in route.judgements),
        "handed_up": outcomes.count("handed_up"),
        "stood": outcomes.count("stood"),
    }


def billed(route: RouteRecord) -> tuple[int, int]:
    """Return prompt and answer tokens as in the answer's own `usage`: the prompt once, the answer's tokens once."""
    prompt, answer = route.prompt_tokens, route.answer_tokens
    if route.segments:
        first = route.attempts[route.segments[0].attempt]
        if first.prompt_tokens:
            prompt = first.prompt_tokens
            if len(route.segments) == 1 and first.completion_tokens:
                answer = first.completion_tokens
    return prompt, answer
