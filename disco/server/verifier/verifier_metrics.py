"""Prometheus metrics of a verify server: numbers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from disco.speculate.messages import Verdict, VerifierFacts

__all__ = ["VerifierMetrics"]

_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 65, 256, 1024, 4096)


class VerifierMetrics:
    """Counts the verdicts of one verify server.

    Mutable: the metrics themselves.

    Args:
        registry: of the server's other metrics.
        facts: gives the load whenever the metrics are read.
    """

    def __init__(self, registry: CollectorRegistry, facts: Callable[[], VerifierFacts]) -> None:
        rounds = Counter(
            "disco_verify_rounds",
            "Verdicts sent: on a window of drafted tokens, or of a model that goes on alone",
            ["mode"],
            registry=registry,
        )
        self._rounds = {mode: rounds.labels(mode) for mode in ("window", "alone")}
        drafted = Counter(
            "disco_verify_drafted_tokens",
            "Drafted tokens that were compared, up to the first of a round that differed",
            ["verdict"],
            registry=registry,
        )
        self._accepted, self._differed = drafted.labels("accepted"), drafted.labels("differed")
        self._rows = Histogram(
            "disco_verify_round_rows",
            "Tokens computed for a verdict, the rejected ones and a prompt included",
            buckets=_ROWS,
            registry=registry,
        )
        self._queue_s = Histogram(
            "disco_verify_queue_seconds",
            "How long rounds waited for the model",
            buckets=_S,
            registry=registry,
        )
        self._batch_s = Histogram(
            "disco_verify_batch_seconds",
            "How long the batch of a verdict took",
            buckets=_S,
            registry=registry,
        )
        waiting = Gauge("disco_verify_rounds_waiting", "Rounds that wait for the model", registry=registry)
        waiting.set_function(lambda: facts().waiting)
        busy = Gauge("disco_verify_slots_busy", "Answers that hold a slot", registry=registry)
        busy.set_function(lambda: facts().busy)
        slots = Gauge("disco_verify_slots", "Answers whose caches fit", registry=registry)
        slots.set_function(lambda: facts().slots)

    def verdict(self, verdict: Verdict, mode: str) -> None:
        """Count a verdict; `mode` is "window" or "alone"."""
        self._rounds[mode].inc()
        if verdict.judged:
            self._accepted.inc(verdict.accepted)
            self._differed.inc(verdict.judged - verdict.accepted)
        if verdict.rows:
            self._rows.observe(verdict.rows)
            self._queue_s.observe(verdict.queue_s)
            self._batch_s.observe(verdict.compute_s)
