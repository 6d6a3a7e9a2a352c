"""An answer as metrics, recorded when the answer has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.metrics import Histogram, Meter

from disco.session.records.route_record import AttemptRecord, RouteRecord
from disco.telemetry.otel_names import ERROR_TYPE, endpoint_attributes, request_attributes
from disco.telemetry.record_facts import Fact, RequestFacts

__all__ = ["MOST_GAPS", "Instruments", "gaps_s"]

# The conventions' own buckets.
_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS: Final = tuple(4**power for power in range(14))
MOST_GAPS: Final = 32  # most times between chunks recorded per answer; each takes microseconds

Timeline = Sequence[tuple[float, int]]


class Instruments:
    """disco's metrics from one meter provider."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str) -> Histogram:
            return meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=_SECONDS
            )

        self._duration = seconds("gen_ai.client.operation.duration", "GenAI operation duration.")
        self._first_chunk = seconds(
            "gen_ai.client.operation.time_to_first_chunk", "Time until the application gets the first chunk."
        )
        self._per_chunk = seconds(
            "gen_ai.client.operation.time_per_output_chunk",
            "Time between chunks as the application gets them.",
        )
        self._generated_first = seconds(
            "disco.generation.time_to_first_chunk", "Time until an endpoint writes the first chunk."
        )
        self._generated_per_chunk = seconds(
            "disco.generation.time_per_output_chunk", "Time between chunks as the endpoints write them."
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens charged, per attempt.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._bill = meter.create_counter("disco.bill", unit="{USD}", description="Money paid to servers.")
        self._energy = meter.create_counter(
            "disco.device_energy", unit="J", description="Energy of the user's own machines, as far as known."
        )
        self._policy_cost = meter.create_counter(
            "disco.policy_cost",
            unit="{USD}",
            description="What policies count: the bill, and energy at the preset's exchange rate.",
        )
        self._attempts = meter.create_counter("disco.attempts", unit="{attempt}", description="Attempts.")
        self._migrations = meter.create_counter(
            "disco.migrations", unit="{move}", description="Migrations, switched or given up."
        )
        self._failovers = meter.create_counter(
            "disco.failovers",
            unit="{failover}",
            description="Failed attempts that another endpoint replaced.",
        )

    def record(self, asked: RequestFacts, route: RouteRecord, row: Mapping[str, Fact]) -> None:
        """Record one answer.

        Args:
            asked: the facts of the request.
            route: the route record of the answer.
            row: the `facts` of the answer.
        """
        common = request_attributes(asked)
        ended = {**common, "disco.outcome": row["outcome"]}
        if "error_type" in row:
            ended[ERROR_TYPE] = row["error_type"]
        self._duration.record(float(row["duration_s"]), ended)
        self._timing(self._generated_first, self._generated_per_chunk, route.generated, common)
        if asked.stream:
            self._timing(self._first_chunk, self._per_chunk, route.released, common)
        for attempt in route.attempts:
            self._attempt(asked, attempt)
        places = {endpoint.name: endpoint.place for endpoint in route.endpoints}
        for charge in route.ledger.charges:
            peer = endpoint_attributes(asked, places.get(charge.endpoint, "server"))
            of = {**peer, "disco.endpoint": charge.endpoint, "disco.phase": charge.phase.value}
            self._bill.add(charge.bill_usd, of)
            if charge.device_energy_j is not None:
                self._energy.add(charge.device_energy_j, of)
            self._policy_cost.add(charge.policy_cost, of)
        for move in route.migrations:
            way = {"disco.source": move.source, "disco.target": move.target}
            self._migrations.add(1, {**way, "disco.outcome": move.outcome})
        for dead, by in route.failovers:
            way = {"disco.source": dead.endpoint, "disco.target": by.endpoint}
            self._failovers.add(1, {**way, ERROR_TYPE: dead.failure or "_OTHER"})

    def _timing(
        self, first: Histogram, between: Histogram, line: Timeline, attributes: dict[str, Fact]
    ) -> None:
        if line:
            first.record(line[0][0], attributes)
        for gap_s in gaps_s(line):
            between.record(gap_s, attributes)

    def _attempt(self, asked: RequestFacts, attempt: AttemptRecord) -> None:
        of: dict[str, Fact] = {
            "disco.endpoint": attempt.endpoint,
            "disco.place": attempt.place,
            "disco.role": attempt.role,
            "disco.outcome": attempt.outcome,
        }
        self._attempts.add(1, of if attempt.failure is None else {**of, ERROR_TYPE: attempt.failure})
        peer = {**endpoint_attributes(asked, attempt.place), "disco.endpoint": attempt.endpoint}
        for kind, tokens in (("input", attempt.prompt_tokens), ("output", attempt.completion_tokens)):
            if tokens:
                self._tokens.record(tokens, {**peer, "gen_ai.token.type": kind})


def gaps_s(line: Timeline, most: int = MOST_GAPS) -> Iterator[float]:
    """Yield the seconds between chunks. For a long answer, only `most` of them, evenly spread over the answer."""
    gaps = len(line) - 1
    for number in range(min(gaps, most)):
        at = number if gaps <= most else number * gaps // most
        yield max(0.0, line[at + 1][0] - line[at][0])
