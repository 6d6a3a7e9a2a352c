"""Prometheus metrics from the route records of finished answers: numbers and endpoint names only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

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
# A server may give any finish reason. Unknown ones share one label, so that the number of labels stays small.
_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call", "cancelled"})

Timeline = Sequence[tuple[float, int]]


class Metrics:
    """Counts the requests and answers of one server, in a registry of its own.

    Pass `answer` as `on_route` to the client, and the object to `make_app`. Mutable: the metrics themselves.

    Args:
        by_model: whether all that is counted of answers has the label `model`, too: the record's `served_as`. For
            servers that offer models by name.
    """

    def __init__(self, *, by_model: bool = False) -> None:
        self._by_model = by_model
        model = ["model"] if by_model else []
        registry = self.registry = CollectorRegistry(auto_describe=True)
        self._budgets: Callable[[], Mapping[tuple[str, ...], float]] = dict
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
            "Routed answers, by the endpoint that wrote first",
            [*model, "winner", "finish_reason"],
            registry=registry,
        )
        self._ttft_s = Histogram(
            "disco_time_to_first_token_seconds",
            "From the request to the first content, as generated and as given to the reader",
            [*model, "stage"],
            buckets=_WAIT_S,
            registry=registry,
        )
        self._token_s = Histogram(
            "disco_time_per_output_token_seconds",
            "Mean time between tokens of an answer, as generated and as given to the reader",
            [*model, "stage"],
            buckets=_TOKEN_S,
            registry=registry,
        )
        self._bill = Counter(
            "disco_bill_usd", "Money paid to servers", [*model, "endpoint"], registry=registry
        )
        self._energy = Counter(
            "disco_device_energy_joules",
            "Energy of the user's own machines, as far as it is known",
            [*model, "endpoint"],
            registry=registry,
        )
        self._policy_cost = Counter(
            "disco_policy_cost_usd",
            "What policies count: the bill, and energy at the preset's exchange rate",
            [*model, "endpoint"],
            registry=registry,
        )
        self._tokens = Counter(
            "disco_tokens",
            "Tokens charged, by the purpose they were processed for",
            [*model, "endpoint", "phase", "kind"],
            registry=registry,
        )
        self._migrations = Counter(
            "disco_migrations",
            "Migrations, completed (switched) or given up",
            [*model, "outcome"],
            registry=registry,
        )
        self._failovers = Counter(
            "disco_failovers",
            "Failed attempts that another endpoint replaced, by the endpoint that took over",
            [*model, "endpoint"],
            registry=registry,
        )
        self._budget_left = Gauge(
            "disco_budget_left",
            "What is left of an absolute budget, over all programs that share it, in the limit's own unit",
            [*model, "limit"],
            registry=registry,
        )
        self._failures = Counter(
            "disco_attempt_failures", "Failed attempts", [*model, "endpoint", "failure"], registry=registry
        )

    def watch(self, busy: Callable[[], int]) -> None:
        """Read the number of requests in flight from `busy` whenever the metrics are read."""
        self._in_flight.set_function(busy)

    def watch_budgets(self, left: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Read what is left of each absolute budget, by its labels, from `left` whenever the metrics are read."""
        self._budgets = left

    def request(self, path: str, status: int, took_s: float) -> None:
        """Count a finished HTTP request; `path` is the route's name, not what the client wrote.

        Args:
            path: the route's name.
            status: the HTTP status.
            took_s: from the request's arrival to the end of the answer, s.
        """
        _of(self._requests, path, str(status)).inc()
        _of(self._request_s, path).observe(took_s)

    def answer(self, route: RouteRecord) -> None:
        """Count a finished answer by its route record."""
        reason = route.finish_reason or "failed"
        if reason not in _REASONS and reason != "failed":
            reason = "other"
        of = (route.served_as or "",) if self._by_model else ()
        _of(self._answers, *of, route.winner or "none", reason).inc()
        first = {"generated": route.pace.ttft_raw_s, "released": route.pace.ttft_released_s}
        lines = {"generated": route.generated, "released": route.released}
        for stage, ttft_s in first.items():
            if ttft_s is not None:
                _of(self._ttft_s, *of, stage).observe(ttft_s)
            between_s = _per_token_s(lines[stage])
            if between_s is not None:
                _of(self._token_s, *of, stage).observe(between_s)
        for charge in route.ledger.charges:
            _of(self._bill, *of, charge.endpoint).inc(charge.bill_usd)
            if charge.device_energy_j is not None:
                _of(self._energy, *of, charge.endpoint).inc(charge.device_energy_j)
            _of(self._policy_cost, *of, charge.endpoint).inc(charge.policy_cost)
            phase = charge.phase.value
            _of(self._tokens, *of, charge.endpoint, phase, "prompt").inc(charge.prompt_tokens)
            _of(self._tokens, *of, charge.endpoint, phase, "completion").inc(charge.completion_tokens)
        for limit, facts in route.budget.items():
            _of(self._budget_left, *of, limit).set(facts["left"])
        for transfer in route.migrations:
            _of(self._migrations, *of, transfer.outcome).inc()
        for attempt in route.attempts:
            if attempt.failure is not None:
                _of(self._failures, *of, attempt.endpoint, attempt.failure).inc()
        for _, by in route.failovers:
            _of(self._failovers, *of, by.endpoint).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        for labels, left in self._budgets().items():  # other programs may have spent since the last answer
            _of(self._budget_left, *labels).set(left)
        return generate_latest(self.registry)


@lru_cache(maxsize=1024)
def _of(metric: Any, *labels: str) -> Any:
    """Return the metric of these labels, which `labels` takes long to find."""
    return metric.labels(*labels)


def _per_token_s(timeline: Timeline) -> float | None:
    """Return the mean seconds between tokens after the first delta; None for fewer than two deltas."""
    tokens = sum(count for _, count in timeline[1:])
    return None if tokens < 1 else max(0.0, timeline[-1][0] - timeline[0][0]) / tokens
