"""OpenTelemetry. Loaded only if the application has set it up.

Names and units are those of the GenAI semantic conventions, version 1.41.1, the last release that contains them.
Names outside the conventions begin with `disco.`. docs/reference/observability.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

from opentelemetry import metrics, trace

from disco.session.records.route_record import RouteRecord
from disco.telemetry.otel_metrics import Instruments
from disco.telemetry.otel_spans import finish_span, start_span
from disco.telemetry.record_facts import Fact, RequestFacts

__all__ = ["Traced", "start"]

_SCOPE = "disco"
_SCHEMA = "https://opentelemetry.io/schemas/1.41.1"


def start(asked: RequestFacts) -> Traced | None:
    """Start an answer's span as a child of the current one; None if the application has set no provider."""
    tracer = _tracer(trace.get_tracer_provider())
    instruments = _instruments(metrics.get_meter_provider())
    return None if tracer is None and instruments is None else Traced(tracer, instruments, asked)


class Traced:
    """One answer's span and metrics."""

    __slots__ = ("_asked", "_instruments", "_span", "_tracer")

    def __init__(
        self, tracer: trace.Tracer | None, instruments: Instruments | None, asked: RequestFacts
    ) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._asked = asked
        self._span = None if tracer is None else start_span(tracer, asked)

    def current(self) -> AbstractContextManager[object]:
        """Make the span the current one, so that the spans of an instrumented HTTP client become its children."""
        if self._span is None:
            return nullcontext()
        return trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def finish(self, route: RouteRecord, row: Mapping[str, Fact]) -> None:
        """End the span, add a child span for each attempt, and record the metrics."""
        if self._tracer is not None and self._span is not None:
            finish_span(self._tracer, self._span, self._asked, route, row)
        if self._instruments is not None:
            self._instruments.record(self._asked, route, row)


# Cached by provider. The provider is looked up every time, because it may be set after the first answer.


@lru_cache(maxsize=1)
def _tracer(provider: trace.TracerProvider) -> trace.Tracer | None:
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider.get_tracer(_SCOPE, schema_url=_SCHEMA)


@lru_cache(maxsize=1)
def _instruments(provider: metrics.MeterProvider) -> Instruments | None:
    # The API's own placeholder, in use until a provider is set, has no public name.
    if type(provider).__module__.startswith("opentelemetry.metrics"):
        return None
    return Instruments(provider.get_meter(_SCOPE, schema_url=_SCHEMA))
