"""Prometheus metrics of a layer server: numbers only."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from disco.endpoints.llamacpp.layers.chunk import Computed, Outcome, Refused
from disco.server.layers.layer_host import LayerHost
from disco.speculate.layer_facts import Code

__all__ = ["LayerMetrics"]

_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 65, 256, 1024, 4096)


class LayerMetrics:
    """Counts what becomes of the chunks of one layer server.

    Mutable: `connections`, how many devices are connected, and the metrics themselves.

    Args:
        registry: of the server's other metrics.
        engine: gives the load whenever the metrics are read.
    """

    def __init__(self, registry: CollectorRegistry, engine: LayerHost) -> None:
        self._engine = engine
        self._passes_seen = 0
        self.connections = 0
        self._rows = Counter("disco_layers_rows", "Rows of devices that were computed", registry=registry)
        self._passes = Counter("disco_layers_passes", "Passes over the weights", registry=registry)
        refused = Counter("disco_layers_refused", "Frames refused", ["code"], registry=registry)
        self._refused = {code: refused.labels(code.name.lower()) for code in Code}
        self._chunk_rows = Histogram(
            "disco_layers_chunk_rows", "Rows of a chunk", buckets=_ROWS, registry=registry
        )
        self._pass_rows = Histogram(
            "disco_layers_pass_rows",
            "Rows of the largest pass that a chunk was in, those of other devices included",
            buckets=_ROWS,
            registry=registry,
        )
        self._queue_s = Histogram(
            "disco_layers_queue_seconds",
            "How long chunks waited for the model",
            buckets=_S,
            registry=registry,
        )
        self._compute_s = Histogram(
            "disco_layers_compute_seconds",
            "How long the passes of a chunk took",
            buckets=_S,
            registry=registry,
        )
        gauges = {
            "load": ("Rows of a pass of late, averaged", lambda: engine.facts().load),
            "chunks_waiting": ("Chunks that wait for the model", lambda: engine.facts().waiting),
            "sequences": ("Sequences whose caches are kept", lambda: engine.facts().busy),
            "slots": ("Sequences whose caches fit", lambda: engine.facts().slots),
            "connections": ("Devices that are connected", lambda: self.connections),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"disco_layers_{name}", text, registry=registry).set_function(value)

    def outcome(self, outcome: Outcome) -> None:
        """Count what became of a chunk."""
        passes = self._engine.passes
        self._passes.inc(passes - self._passes_seen)
        self._passes_seen = passes
        if isinstance(outcome, Computed):
            chunk = outcome.chunk
            self._rows.inc(len(chunk.states))
            self._chunk_rows.observe(len(chunk.states))
            self._pass_rows.observe(chunk.batch_rows)
            self._queue_s.observe(outcome.queue_s)
            self._compute_s.observe(chunk.compute_s)
        elif isinstance(outcome, Refused) and outcome.chunk is not None:
            self.refused(outcome.code)

    def refused(self, code: Code) -> None:
        """Count a frame that was refused."""
        self._refused[code].inc()
