"""An answer as metrics: names, units and buckets of the conventions, and figures that are the record's."""

from __future__ import annotations

import itertools
import logging
import math

import numpy as np
import pytest
from opentelemetry.trace import StatusCode
from watched import answer, ask, endpoint, preset

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.server import Metrics
from disco.telemetry.otel_metrics import MOST_GAPS, gaps_s

ANSWER = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "gpt-4o-mini",
    "gen_ai.provider.name": "disco",
}


def dies(after_tokens):
    return {"fault": Fault(after_tokens, kind=FailureKind.SERVER)}


def test_the_figures_are_those_of_the_record(otel):
    device = endpoint("device", ttft_s=0.2, packet_tokens=8)  # in bursts, which playback smooths
    live = answer(device, endpoint("server", ttft_s=0.3), preset(pace_tps=20.0), request=ask(max_tokens=20))
    route = live.record
    ((attributes, duration),) = otel.points("gen_ai.client.operation.duration")
    assert attributes == {**ANSWER, "disco.outcome": "finished"}
    assert (duration.count, duration.sum) == (1, pytest.approx(route.duration_s))
    longest_s = []
    for name, line in (("gen_ai.client.operation", route.released), ("disco.generation", route.generated)):
        times = [at for at, _ in line]
        ((attributes, first),) = otel.points(f"{name}.time_to_first_chunk")
        assert (attributes, first.sum) == (ANSWER, pytest.approx(times[0]))
        ((_, between),) = otel.points(f"{name}.time_per_output_chunk")
        assert between.count == len(line) - 1 < MOST_GAPS
        assert between.sum == pytest.approx(times[-1] - times[0])
        assert between.max == pytest.approx(max(np.diff(times)))
        longest_s.append(between.max)
    assert longest_s[0] < 0.9 * longest_s[1], "playback smooths, and the two are told apart"

    points = otel.points("gen_ai.client.token.usage")
    used = {(a["disco.endpoint"], a["gen_ai.token.type"]): (p.sum, p.count, a) for a, p in points}
    provided = {"server": ("openai", "gpt-4o-mini"), "device": ("local", "local/device")}
    for attempt in route.attempts:
        tokens, count, attributes = used[attempt.endpoint, "input"]
        provider, model = provided[attempt.endpoint]
        assert (tokens, count) == (attempt.prompt_tokens, 1)
        assert attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.token.type": "input",
            "disco.endpoint": attempt.endpoint,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
    outputs = [tokens for (_, kind), (tokens, _, _) in used.items() if kind == "output"]
    assert sum(outputs) == route.ledger.totals().completion_tokens
    costs = otel.points("disco.policy_cost")
    assert math.fsum(p.value for _, p in costs) == pytest.approx(route.policy_cost)
    bills = otel.points("disco.bill")
    assert math.fsum(p.value for _, p in bills) == pytest.approx(route.bill_usd)
    charged = {(c.endpoint, c.phase.value) for c in route.ledger.charges}
    assert {(a["disco.endpoint"], a["disco.phase"]) for a, _ in costs} == charged
    named = ("disco.endpoint", "disco.role", "disco.outcome")
    tried = {tuple(a[name] for name in named) for a, _ in otel.points("disco.attempts")}
    assert tried == {("device", "starter", "finished"), ("server", "starter", "lost")}
    assert otel.points("disco.migrations") == otel.points("disco.failovers") == []


@pytest.mark.parametrize("length", [0, 1, 2, 5, 6, 40])
def test_times_between_chunks_are_all_of_a_short_answer_and_a_spread_of_a_long_one(length):
    line = [(number**2 / 10, 1) for number in range(length)]
    every = [b - a for (a, _), (b, _) in itertools.pairwise(line)]
    some = list(gaps_s(line, most=5))
    if len(every) <= 5:
        assert some == every
    else:
        assert len(set(some) & set(every)) == len(some) == 5, "none twice"
        assert some == sorted(some)
        assert np.mean(some) == pytest.approx(np.mean(every), rel=0.25)


def prometheus(route) -> dict[str, float]:
    metrics = Metrics()
    metrics.answer(route)
    found = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {s.labels["endpoint"]: s.value for s in found if s.name == "disco_failovers_total" and s.value}


ONE = [("server", "device")]


@pytest.mark.parametrize(
    ("policy", "device", "server", "leave_after", "failovers"),
    [
        ("race", {"ttft_s": 0.5}, {**dies(0), "ttft_s": 0.1}, None, []),  # a hedge was under way and won
        ("race", {"ttft_s": 0.1}, {**dies(3), "ttft_s": 0.3}, None, []),  # fails when the race is over
        ("server_only", {"ttft_s": 0.4}, dies(5), None, ONE),
        ("server_only", {"ttft_s": 0.4}, dies(0), None, ONE),
        ("server_only", {"ttft_s": 0.4}, dies(5), 8, ONE),  # the reader leaves after it: it has happened
        ("server_only", None, dies(7), None, []),  # nobody goes on
    ],
    ids=["hedge", "loser fails", "mid-answer", "mute", "left", "nobody"],
)
def test_record_log_span_and_metrics_count_the_same(
    otel, caplog, policy, device, server, leave_after, failovers
):
    local = None if device is None else endpoint("device", **device)
    with caplog.at_level(logging.INFO, logger="disco"):
        live = answer(local, endpoint("server", **server), preset(policy), leave_after=leave_after)
    route = live.record
    assert [(dead.endpoint, by.endpoint) for dead, by in route.failovers] == failovers
    assert prometheus(route) == {by: 1.0 for _, by in failovers}
    (said,) = (r.disco_failovers for r in caplog.records if hasattr(r, "disco_failovers"))
    whole, attempts = otel.answer(), otel.attempts()
    assert said == whole.attributes["disco.failovers"] == len(failovers)
    events = [event for event in whole.events if event.name == "disco.failover"]
    counted = [a for a, point in otel.points("disco.failovers") for _ in range(point.value)]
    for attributes in ([e.attributes for e in events], counted):
        told = [(a["disco.source"], a["disco.target"], a["error.type"]) for a in attributes]
        assert told == [(*way, "server") for way in failovers]
    assert (route.finish_reason == "stop") == (leave_after is None and device is not None)
    if failovers:  # only the attempt is an error
        dead, by = attempts
        assert whole.status.status_code is by.status.status_code is StatusCode.UNSET
        assert (dead.status.status_code, dead.attributes["error.type"]) == (StatusCode.ERROR, "server")
        assert by.attributes["disco.role"] == ("takeover" if server == dies(5) else "starter")
        assert [event.timestamp for event in events] == [by.start_time]
