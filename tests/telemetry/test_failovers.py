"""A failover is one thing: record, log, span, OpenTelemetry and Prometheus count the same."""

from __future__ import annotations

import logging

import pytest
from watched import answer, endpoint, preset

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.server import Metrics

DIES = {"kind": FailureKind.SERVER}
NOBODY = Fault(7, kind=FailureKind.CRASHED)


def prometheus(route) -> dict[str, float]:
    metrics = Metrics()
    metrics.answer(route)
    found = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {s.labels["endpoint"]: s.value for s in found if s.name == "disco_failovers_total" and s.value}


@pytest.mark.parametrize(
    ("policy", "device", "server", "leave_after", "failovers"),
    [
        # A hedge was under way when the mute server failed, and won the race.
        ("race", {"ttft_s": 0.5}, {"fault": Fault(0, **DIES), "ttft_s": 0.1}, None, []),
        # The loser fails when the race is over.
        ("race", {"ttft_s": 0.1}, {"fault": Fault(3, **DIES), "ttft_s": 0.3}, None, []),
        # In mid-answer, and before it.
        ("server_only", {"ttft_s": 0.4}, {"fault": Fault(5, **DIES)}, None, [("server", "device")]),
        ("server_only", {"ttft_s": 0.4}, {"fault": Fault(0, **DIES)}, None, [("server", "device")]),
        # The reader leaves after it: it has happened all the same.
        ("server_only", {"ttft_s": 0.4}, {"fault": Fault(5, **DIES)}, 8, [("server", "device")]),
        # Nobody goes on.
        ("server_only", None, {"fault": NOBODY}, None, []),
    ],
    ids=["hedge", "loser fails", "mid-answer", "mute", "left", "nobody"],
)
def test_everybody_counts_the_same(otel, caplog, policy, device, server, leave_after, failovers):
    local = None if device is None else endpoint("device", **device)
    with caplog.at_level(logging.INFO, logger="disco"):
        live = answer(local, endpoint("server", **server), preset(policy), leave_after=leave_after)
    route = live.record
    assert prometheus(route) == {by: 1.0 for _, by in failovers}
    (said,) = (r.disco_failovers for r in caplog.records if hasattr(r, "disco_failovers"))
    span = otel.answer()
    assert said == span.attributes["disco.failovers"] == len(failovers)
    events = [e.attributes for e in span.events if e.name == "disco.failover"]
    counted = [a for a, point in otel.points("disco.failovers") for _ in range(point.value)]
    for attributes in (events, counted):
        assert [(a["disco.source"], a["disco.target"]) for a in attributes] == failovers
    assert (route.finish_reason == "stop") == (leave_after is None and server["fault"] != NOBODY)
    assert any(attempt.failure for attempt in route.attempts) or device == {"ttft_s": 0.1}
    assert [(dead.endpoint, by.endpoint) for dead, by in route.failovers] == failovers
