"""An answer as spans: one for the answer, from its start, and a child for each attempt, made when the answer ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from disco.session.records.route_record import AttemptRecord, RouteRecord
from disco.telemetry.otel_names import ERROR_TYPE, endpoint_attributes, request_attributes
from disco.telemetry.record_facts import Fact, RequestFacts, outcome

__all__ = ["finish_span", "start_span"]

_SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
# Facts with a name in the conventions. The names of all others begin with disco.
_CONVENTIONAL = {
    "error_type": ERROR_TYPE,
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
_SAID_ELSEWHERE = {"model", "stream", "finish_reason"}

Event = tuple[float, str, dict[str, Fact]]


def start_span(tracer: Tracer, asked: RequestFacts) -> Span:
    """Start the span of an answer, as a child of the current one."""
    attributes = request_attributes(asked)
    if asked.stream:
        attributes["gen_ai.request.stream"] = True
    for name in _SAMPLING:
        value = asked.params.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{name}"] = value if name == "seed" else float(value)
    return tracer.start_span(
        f"chat {asked.model}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        start_time=_ns(asked, 0.0),
    )


def finish_span(
    tracer: Tracer, span: Span, asked: RequestFacts, route: RouteRecord, row: Mapping[str, Fact]
) -> None:
    """Set the attributes, make the spans of the attempts, and end the span."""
    if span.is_recording():
        below = trace.set_span_in_context(span)
        for attempt in route.attempts:
            child = tracer.start_span(
                f"attempt {attempt.endpoint}",
                context=below,
                kind=SpanKind.INTERNAL if attempt.place == "device" else SpanKind.CLIENT,
                attributes=_of_attempt(asked, attempt),
                start_time=_ns(asked, attempt.started_s),
            )
            if attempt.first_content_s is not None:
                child.add_event("disco.first_token", timestamp=_ns(asked, attempt.first_content_s))
            if attempt.failure is not None:
                child.set_status(Status(StatusCode.ERROR))
            child.end(end_time=_ns(asked, route.duration_s if attempt.ended_s is None else attempt.ended_s))
        span.set_attributes(_of_answer(asked, route, row))
        for at_s, name, attributes in sorted(_events(route), key=lambda event: event[0]):
            span.add_event(name, attributes, timestamp=_ns(asked, at_s))
        if outcome(route) == "failed":
            # Without a description: a server's text about a failure may quote the prompt or the key.
            span.set_status(Status(StatusCode.ERROR))
    span.end(end_time=_ns(asked, route.duration_s))


def _of_answer(
    asked: RequestFacts, route: RouteRecord, row: Mapping[str, Fact]
) -> dict[str, Fact | list[str]]:
    attributes: dict[str, Fact | list[str]] = {
        _CONVENTIONAL.get(name, f"disco.{name}"): value
        for name, value in row.items()
        if name not in _SAID_ELSEWHERE
    }
    if route.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = route.max_tokens
    if route.finish_reason is not None and outcome(route) == "finished":
        attributes["gen_ai.response.finish_reasons"] = [route.finish_reason]
    if asked.stream and route.pace.ttft_released_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = route.pace.ttft_released_s
    return attributes


def _of_attempt(asked: RequestFacts, attempt: AttemptRecord) -> dict[str, Fact]:
    # No gen_ai.operation.name and no gen_ai.usage.*: the answer is one operation, and a sum over all spans must
    # not count its tokens twice.
    peer = endpoint_attributes(asked, attempt.place)
    attributes: dict[str, Fact] = {
        **{name: value for name, value in peer.items() if name != "gen_ai.operation.name"},
        "disco.endpoint": attempt.endpoint,
        "disco.place": attempt.place,
        "disco.role": attempt.role,
        "disco.outcome": attempt.outcome,
        "disco.cold": attempt.cold,
        "disco.prefix_chars": attempt.prefix_chars,
        "disco.tokens.written": attempt.tokens,
        "disco.tokens.kept": attempt.kept_tokens,
        "disco.tokens.prompt": attempt.prompt_tokens,
        "disco.tokens.cached": attempt.cached_tokens,
        "disco.tokens.completion": attempt.completion_tokens,
        "disco.bill_usd": attempt.bill_usd,
        "disco.policy_cost": attempt.policy_cost,
    }
    if attempt.device_energy_j is not None:
        attributes["disco.device_energy_j"] = attempt.device_energy_j
    if attempt.failure is not None:
        attributes[ERROR_TYPE] = attempt.failure
    return attributes


def _events(route: RouteRecord) -> Iterator[Event]:
    pace = route.pace
    if pace.ttft_raw_s is not None:
        first = min(
            (t for t in route.attempts if t.first_content_s is not None),
            key=lambda t: t.first_content_s or 0.0,
            default=None,
        )
        yield (
            pace.ttft_raw_s,
            "disco.first_token",
            {} if first is None else {"disco.endpoint": first.endpoint},
        )
    if pace.ttft_released_s is not None:
        yield pace.ttft_released_s, "disco.first_release", {}
    for move in route.migrations:
        way: dict[str, Fact] = {"disco.source": move.source, "disco.target": move.target}
        planned: dict[str, Fact] = {"disco.outcome": move.outcome, "disco.expected_s": move.expected_s}
        yield (
            move.decided_s,
            "disco.migration.decided",
            {**way, **planned, "disco.cut_tokens": move.cut_tokens},
        )
        if move.switched_s is not None:
            took = 0.0 if move.took_s is None else move.took_s
            late: dict[str, Fact] = {"disco.took_s": took, "disco.late_tokens": move.late_tokens}
            yield move.switched_s, "disco.migration.switched", {**way, **late}
    for judgement in route.judgements:
        said: dict[str, Fact | None] = {
            "disco.endpoint": judgement.endpoint,
            "disco.task": judgement.task,
            "disco.confidence": judgement.kind,
            "disco.outcome": judgement.outcome,
            "disco.score": judgement.score,
            "disco.threshold": judgement.threshold,
        }
        known = {name: value for name, value in said.items() if value is not None}
        yield judgement.at_s, "disco.judged", known
    for dead, by in route.failovers:
        at_s = max(by.started_s, dead.ended_s or 0.0)
        failed: dict[str, Fact] = {"disco.source": dead.endpoint, "disco.target": by.endpoint}
        yield at_s, "disco.failover", {**failed, ERROR_TYPE: dead.failure or "_OTHER"}


def _ns(asked: RequestFacts, at_s: float) -> int:
    """Return the Unix time in nanoseconds of a moment given in seconds since the request."""
    return int((asked.created_s + at_s) * 1e9)
