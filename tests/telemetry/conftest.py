"""OpenTelemetry as an application sets it up, in memory, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass
class Otel:
    """What was exported."""

    provider: TracerProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def answer(self) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name.startswith("chat "))
        return span

    def attempts(self) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name.startswith("attempt ")), key=lambda s: s.start_time)

    def metrics(self) -> dict[str, Any]:
        """Metrics by name."""
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else [s for r in data.resource_metrics for s in r.scope_metrics]
        assert {s.scope.name for s in scopes} <= {"disco"}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """(attributes, data point) of a metric; empty where nothing was recorded."""
        metric = self.metrics().get(name)
        return [] if metric is None else [(dict(p.attributes), p) for p in metric.data.data_points]


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Otel]:
    # Providers can be set only once in a process, so for a test they are put in place by hand.
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", meters)
    yield Otel(provider, exporter, reader)
    meters.shutdown()
    provider.shutdown()
