"""An answer as metrics: names, units and buckets of the conventions, and figures that are the record's."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from watched import answer, ask, endpoint, preset

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.telemetry.otel_metrics import MOST_GAPS, gaps_s

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**n for n in range(14))
ANSWER = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "disco",
    "gen_ai.request.model": "gpt-4o-mini",
}


def test_names_units_and_buckets(otel):
    dying = endpoint("server", fault=Fault(5, kind=FailureKind.SERVER))
    answer(endpoint("device", ttft_s=0.4), dying, preset("server_only"))
    device = endpoint("device", ttft_s=0.8, answer=None, answer_tokens=400)
    server = endpoint("server", answer=None, answer_tokens=400)
    answer(device, server, preset(moves=True, pace_tps=10.0))
    found = otel.metrics()
    assert {name: metric.unit for name, metric in found.items()} == {
        "gen_ai.client.operation.duration": "s",
        "gen_ai.client.operation.time_to_first_chunk": "s",
        "gen_ai.client.operation.time_per_output_chunk": "s",
        "gen_ai.client.token.usage": "{token}",
        "disco.generation.time_to_first_chunk": "s",
        "disco.generation.time_per_output_chunk": "s",
        "disco.cost": "{USD}",
        "disco.attempts": "{attempt}",
        "disco.migrations": "{move}",
        "disco.failovers": "{failover}",
    }
    for name, metric in found.items():
        for point in metric.data.data_points:
            if metric.unit == "s":
                assert point.explicit_bounds == SECONDS, name
            elif metric.unit == "{token}":
                assert point.explicit_bounds == TOKENS


def test_the_figures_are_those_of_the_record(otel):
    device = endpoint("device", ttft_s=0.2, packet_tokens=8)  # in bursts, which playback smooths
    live = answer(device, endpoint("server", ttft_s=0.3), preset(pace_tps=20.0), request=ask(max_tokens=20))
    route = live.record
    ((attributes, duration),) = otel.points("gen_ai.client.operation.duration")
    assert attributes == {**ANSWER, "disco.outcome": "finished"}
    assert (duration.count, duration.sum) == (1, pytest.approx(route.duration_s))
    longest_s = {}
    for name, line in (("gen_ai.client.operation", route.released), ("disco.generation", route.generated)):
        ((attributes, first),) = otel.points(f"{name}.time_to_first_chunk")
        assert attributes == ANSWER
        assert first.sum == pytest.approx(line[0][0])
        ((_, between),) = otel.points(f"{name}.time_per_output_chunk")
        assert between.count == len(line) - 1 < MOST_GAPS
        assert between.sum == pytest.approx(line[-1][0] - line[0][0])
        longest_s[name] = between.max
        assert between.max == pytest.approx(max(b - a for (a, _), (b, _) in itertools.pairwise(line)))
    as_released, as_generated = longest_s.values()
    assert as_released < 0.9 * as_generated, "playback smooths, and the two are told apart"

    used = {
        (a["disco.endpoint"], a["gen_ai.token.type"]): (p.sum, p.count, a)
        for a, p in otel.points("gen_ai.client.token.usage")
    }
    for attempt in route.attempts:
        assert used[attempt.endpoint, "input"][:2] == (attempt.prompt_tokens, 1)
    assert sum(used[name, "output"][0] for name in ("device", "server") if (name, "output") in used) == (
        route.ledger.tokens().completion_tokens
    )
    assert used["server", "input"][2] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.token.type": "input",
        "disco.endpoint": "server",
    }
    assert used["device", "input"][2]["gen_ai.provider.name"] == "local"
    assert used["device", "input"][2]["gen_ai.request.model"] == "local/device"

    costs = otel.points("disco.cost")
    assert math.fsum(p.value for _, p in costs) == pytest.approx(route.cost)
    assert {(a["disco.endpoint"], a["disco.phase"]) for a, _ in costs} == {
        (c.endpoint, c.phase.value) for c in route.ledger.charges
    }
    assert {
        (a["disco.endpoint"], a["disco.role"], a["disco.outcome"]) for a, _ in otel.points("disco.attempts")
    } == {
        ("device", "starter", "finished"),
        ("server", "starter", "lost"),
    }
    assert otel.points("disco.migrations") == otel.points("disco.failovers") == []


@pytest.mark.parametrize("length", [0, 1, 2, 5, 6, 40])
def test_times_between_chunks_are_all_of_a_short_answer_and_a_spread_of_a_long_one(length):
    line = [(number**2 / 10, 1) for number in range(length)]
    every = [b - a for (a, _), (b, _) in itertools.pairwise(line)]
    some = list(gaps_s(line, most=5))
    assert len(some) == min(5, len(every))
    if len(every) <= 5:
        assert some == every
    else:
        assert set(some) <= set(every)
        assert some == sorted(set(some)), "none twice"
        assert np.mean(some) == pytest.approx(np.mean(every), rel=0.25)
