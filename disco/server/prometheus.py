"""Prometheus metrics, fed by the route record of every finished answer: numbers and endpoint names only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from disco.session.records.route_record import RouteRecord

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_WAIT_S: Final = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
)
_TOKEN_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
# A server may give any reason; a label must not grow with what it says.
_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call", "cancelled"})

Timeline = Sequence[tuple[float, int]]


class Metrics:
    """Counts what one server does, in a registry of its own.

    Pass `answer` as `on_route` to the client, and the object to `make_app`. Mutable: the metrics themselves.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "disco_http_requests",
            "HTTP requests; 499: the client left first",
            ["path", "status"],
            registry=registry,
        )
        self._request_s = Histogram(
            "disco_http_request_seconds",
            "Whole HTTP requests, streams to their end",
            ["path"],
            buckets=_WAIT_S,
            registry=registry,
        )
        self._in_flight = Gauge("disco_http_requests_in_flight", "Requests being answered", registry=registry)
        self._answers = Counter(
            "disco_answers",
            "Routed answers, by who spoke first",
            ["winner", "finish_reason"],
            registry=registry,
        )
        self._ttft_s = Histogram(
            "disco_time_to_first_token_seconds",
            "From the request to the first content, as generated and as given to the reader",
            ["stage"],
            buckets=_WAIT_S,
            registry=registry,
        )
        self._token_s = Histogram(
            "disco_time_per_output_token_seconds",
            "Mean time between tokens of an answer, as generated and as given to the reader",
            ["stage"],
            buckets=_TOKEN_S,
            registry=registry,
        )
        self._cost = Counter(
            "disco_cost_usd", "What was charged, in unified cost", ["endpoint"], registry=registry
        )
        self._tokens = Counter(
            "disco_tokens",
            "Tokens charged, by why they were processed",
            ["endpoint", "phase", "kind"],
            registry=registry,
        )
        self._migrations = Counter(
            "disco_migrations", "Migrations, completed (switched) or given up", ["outcome"], registry=registry
        )
        self._failovers = Counter(
            "disco_failovers",
            "Failed attempts that another endpoint replaced, by the endpoint that took over",
            ["endpoint"],
            registry=registry,
        )
        self._budget_left = Gauge(
            "disco_budget_left",
            "What the last answer left of an absolute budget, in the limit's own unit",
            ["limit"],
            registry=registry,
        )
        self._failures = Counter(
            "disco_attempt_failures", "Failed attempts", ["endpoint", "failure"], registry=registry
        )

    def watch(self, busy: Callable[[], int]) -> None:
        """Take the number of requests in flight from `busy` whenever somebody asks."""
        self._in_flight.set_function(busy)

    def request(self, path: str, status: int, took_s: float) -> None:
        """Count a finished HTTP request; `path` is the route's, not what the client wrote."""
        self._requests.labels(path, str(status)).inc()
        self._request_s.labels(path).observe(took_s)

    def answer(self, route: RouteRecord) -> None:
        """Take in the route record of a finished answer."""
        reason = route.finish_reason or "failed"
        if reason not in _REASONS and reason != "failed":
            reason = "other"
        self._answers.labels(route.winner or "none", reason).inc()
        first = {"generated": route.pace.ttft_raw_s, "released": route.pace.ttft_released_s}
        lines = {"generated": route.generated, "released": route.released}
        for stage, ttft_s in first.items():
            if ttft_s is not None:
                self._ttft_s.labels(stage).observe(ttft_s)
            between_s = _per_token_s(lines[stage])
            if between_s is not None:
                self._token_s.labels(stage).observe(between_s)
        for charge in route.ledger.charges:
            self._cost.labels(charge.endpoint).inc(charge.cost)
            phase = charge.phase.value
            self._tokens.labels(charge.endpoint, phase, "prompt").inc(charge.prompt_tokens)
            self._tokens.labels(charge.endpoint, phase, "completion").inc(charge.completion_tokens)
        for limit, facts in route.budget.items():
            self._budget_left.labels(limit).set(facts["left"])
        for transfer in route.migrations:
            self._migrations.labels(transfer.outcome).inc()
        for attempt in route.attempts:
            if attempt.failure is not None:
                self._failures.labels(attempt.endpoint, attempt.failure).inc()
        for _, by in route.failovers:
            self._failovers.labels(by.endpoint).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


def _per_token_s(timeline: Timeline) -> float | None:
    """Mean seconds between tokens after the first delta; None where there is no "between"."""
    tokens = sum(count for _, count in timeline[1:])
    return None if tokens < 1 else max(0.0, timeline[-1][0] - timeline[0][0]) / tokens
