"""Instruments that watch openai by wrapping its classes, each with its spans kept in memory."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

__all__ = ["INSTRUMENTS", "Spans"]

Spans = Callable[[], list[dict[str, Any]]]
"""Returns what was recorded since the last call: each span's name, kind, status, attributes and events."""

WRAPPED = (
    "chat.completions",
    "completions",
    "embeddings",
    "images",
    "responses",
)  # modules of `openai.resources`
# These differ from call to call: a point in time, and lines of code that are ours under our client.
PASSING = ("langfuse.observation.completion_start_time", "exception.stacktrace")


def _spans(processor: Callable[[Any], Any]) -> tuple[Any, Spans]:
    """Return a provider of tracers, and what its spans say; `processor` is made with their exporter."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    processor(provider, exporter)

    def taken() -> list[dict[str, Any]]:
        provider.force_flush()
        spans = exporter.get_finished_spans()
        exporter.clear()
        return [_said(span) for span in spans]

    return provider, taken


def _said(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "attributes": _lasting(span.attributes),
        "events": [(event.name, _lasting(event.attributes)) for event in span.events],
    }


def _lasting(attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in PASSING}


@contextlib.contextmanager
def _unwrapped_after() -> Iterator[None]:
    """Take every wrapper back at the end: not each instrument does so itself."""
    modules = [importlib.import_module(f"openai.resources.{name}") for name in WRAPPED]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    before = {kind: dict(vars(kind)) for kind in kinds if kind.__module__.startswith("openai.resources")}
    try:
        yield
    finally:
        for kind, members in before.items():
            for name, member in members.items():
                if vars(kind)[name] is not member:
                    setattr(kind, name, member)


@contextlib.contextmanager
def _opentelemetry(module: str) -> Iterator[Spans]:
    instrument = pytest.importorskip(
        module, reason="not installed: make test-frameworks"
    ).OpenAIInstrumentor()
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider, spans = _spans(
        lambda provider, exporter: provider.add_span_processor(SimpleSpanProcessor(exporter))
    )
    with _unwrapped_after():
        instrument.instrument(tracer_provider=provider)
        try:
            yield spans
        finally:
            instrument.uninstrument()
            provider.shutdown()


@functools.cache  # Langfuse keeps its clients, and uses none where there are several
def _langfuse_spans() -> Spans:
    from langfuse import Langfuse

    keys = {"public_key": "pk-test", "secret_key": "sk-test", "base_url": "http://langfuse.invalid"}
    _, spans = _spans(
        lambda provider, exporter: Langfuse(**keys, tracer_provider=provider, span_exporter=exporter)
    )
    return spans


@contextlib.contextmanager
def _langfuse() -> Iterator[Spans]:
    pytest.importorskip("langfuse", reason="not installed: make test-frameworks")
    with _unwrapped_after():
        if (known := sys.modules.get("langfuse.openai")) is None:
            importlib.import_module("langfuse.openai")  # which wraps openai's methods
        else:
            known.register_tracing()
        yield _langfuse_spans()


INSTRUMENTS = {
    "opentelemetry's": lambda: _opentelemetry("opentelemetry.instrumentation.openai_v2"),
    "traceloop's": lambda: _opentelemetry("opentelemetry.instrumentation.openai"),
    "langfuse's": _langfuse,
}
