"""What a live client recorded replays: the real model here, a real server there, and both evaluators.

Compared is what was recorded with what is replayed, never a speed with a number; see docs/how-to/recording.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import numpy as np
import pytest

from disco import AsyncDisco, RouteLog
from disco.cost import Phase
from disco.dispatch import Preset
from disco.endpoints.llamacpp import EngineEndpoint
from disco.replay.formats import read_trace
from disco.replay.metrics.outcome import Outcome
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.vector.arm_delays import arm_delays
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import scenario_of_routes
from disco.replay.workload.scenario import Arm, Scenario, resolve
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord

pytestmark = pytest.mark.real

CANARY = "xylophone-4711"
TTFT_S = 10e-6  # per request: sums of times that records round to microseconds
COST_SHARE = 0.03  # of all recorded cost: what the device counted otherwise, or did not get to read
ANSWER_TOKENS = 6

# In this order; the server is asked alone, too, so that its TTFT is known however the races end.
RECORDED = {"device_only": 8, "race": 4, "server_only": 2, "wait_time": 3}


@dataclass(frozen=True)
class Recording:
    path: Path
    routes: list[RouteRecord]
    trace: Trace
    scenario: Scenario

    def under(self, policy: str) -> tuple[Trace, list[RouteRecord]]:
        """The part that was recorded under one policy."""
        before = list(RECORDED)[: list(RECORDED).index(policy)]
        start = sum(RECORDED[name] for name in before)
        stop = start + RECORDED[policy]
        assert {r.preset for r in self.routes[start:stop]} == {policy}
        return self.trace.take(start, stop), self.routes[start:stop]


@pytest.fixture(scope="module")
def recording(llama_server, tmp_path_factory) -> Recording:
    path = tmp_path_factory.mktemp("live") / "routes.jsonl"
    routes: list[RouteRecord] = []

    there = {"base_url": llama_server.base_url, "api_key": "test-key", "price": (0.15, 0.60)}
    common = {"cost": {"exchange_rate": 4e-12}, "migration": {"enabled": False}}

    async def ask(device, policy, answers, note) -> None:
        preset = Preset(name=policy, dispatch={"policy": policy}, **common)
        async with AsyncDisco(local=device, policy=preset, on_route=note, **there) as client:
            for i in range(answers):
                question = f"{i}: what is a {CANARY}?" + " Say it in a few plain words." * (i % 4)
                stream = await client.chat.completions.create(
                    model="m",  # this server answers to any name
                    messages=[{"role": "user", "content": question}],
                    stream=True,
                    max_tokens=ANSWER_TOKENS,
                    temperature=0,
                )
                async for _ in stream:
                    pass

    async def record() -> None:
        device = EngineEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)
        try:
            await device.warm_up()
            with RouteLog(path) as log:

                def note(route: RouteRecord) -> None:
                    routes.append(route)
                    log(route)

                for policy, answers in RECORDED.items():
                    await ask(device, policy, answers, note)
        finally:
            await device.aclose()

    anyio.run(record)
    trace, skipped = read_trace(path)
    assert not skipped
    return Recording(path, routes, trace, scenario_of_routes(trace))


@pytest.fixture(params=[evaluate, simulate], ids=["vectorised", "events"])
def replay(request):
    return request.param


def assert_first_tokens_match(outcome: Outcome, routes: list[RouteRecord]) -> None:
    assert not outcome.failed.any()
    assert outcome.device_won.tolist() == [r.winner == "device" for r in routes]
    assert outcome.ttft_s == pytest.approx([r.pace.ttft_raw_s for r in routes], abs=TTFT_S)
    assert outcome.ttft_s == pytest.approx([r.pace.ttft_released_s for r in routes], abs=0.02)


def test_the_trace_is_what_was_recorded(recording):
    trace, routes = recording.trace, recording.routes
    assert len(trace) == len(routes) == sum(RECORDED.values())
    assert trace.features["preset"].tolist() == [r.preset for r in routes]
    assert trace.features["winner"].tolist() == [r.winner for r in routes]
    assert trace.features["policy_cost"] == pytest.approx([r.policy_cost for r in routes], rel=1e-12)
    assert (trace.output_tokens == [r.answer_tokens for r in routes]).all()
    assert trace.arrival_s == pytest.approx([r.created_s - routes[0].created_s for r in routes], abs=1e-5)
    won_by_server = np.array([r.winner == "server" for r in routes])
    assert (~np.isnan(trace.ttft_s) == won_by_server).all()
    assert (~np.isnan(trace.device_ttft_s) == ~won_by_server).all()
    written = recording.path.read_text(encoding="utf-8")
    assert "xylophone" not in written.lower()
    assert "test-key" not in written
    rates = {e.name: e for e in routes[-1].endpoints}
    assert recording.scenario.device_rates.cost_in == rates["device"].cost_in
    assert recording.scenario.pace_tps == routes[-1].pace.pace_tps


def test_as_recorded_first_tokens_and_costs_come_back(recording, replay):
    trace, scenario = recording.trace, recording.scenario
    for seed in range(2):
        outcome = replay(resolve(trace, scenario, seed=seed), scenario, Arm("recorded"), seed=seed)
        assert_first_tokens_match(outcome, recording.routes)
        assert outcome.cost_usd == pytest.approx(trace.features["replay_policy_cost"], rel=1e-9)
        # A replay probes no server.
        charges = [c for r in recording.routes for c in r.ledger.charges if c.phase != Phase.PROBE]
        recorded = np.array([c.policy_cost for c in charges])
        # Exactly, but for what the device did not read; that is bounded, and only ever too much.
        assert outcome.cost_usd.sum() == pytest.approx(recorded.sum(), rel=COST_SHARE)


@pytest.mark.parametrize("policy", ["race", "server_only", "device_only"])
def test_a_policy_that_would_decide_the_same_gives_the_same(recording, replay, policy):
    trace, routes = recording.under(policy)
    scenario = recording.scenario
    outcome = replay(resolve(trace, scenario, seed=1), scenario, Arm(policy), seed=1)
    assert_first_tokens_match(outcome, routes)
    assert outcome.cost_usd == pytest.approx(trace.features["replay_policy_cost"], rel=1e-9)


def test_a_policy_that_learns_is_the_same_wherever_it_starts_the_same(recording, replay):
    """Replay plans on what was recorded, the client planned on what it knew then: some decisions differ."""
    trace, routes = recording.under("wait_time")
    scenario = recording.scenario
    workload = resolve(trace, scenario, seed=1)
    outcome = replay(workload, scenario, Arm("wait_time"), seed=1)
    planned = arm_delays(workload, scenario, Arm("wait_time"), seed=1)
    for row, route in enumerate(routes):
        mine = {"device": planned.device_s[row], "server": planned.server_s[row]}
        recorded = {"device": workload.starts.device_s[row], "server": workload.starts.server_s[row]}
        loser = "server" if route.winner == "device" else "device"
        same_winner = mine[route.winner] == pytest.approx(recorded[route.winner], abs=TTFT_S)
        if same_winner and mine[loser] >= recorded[loser]:
            assert outcome.ttft_s[row] == pytest.approx(route.pace.ttft_raw_s, abs=TTFT_S)


def test_token_by_token_the_server_writes_as_it_did(recording):
    trace, routes = recording.under("server_only")
    as_written = replace(recording.scenario, pace_tps=None)
    for row, route in enumerate(routes):
        one = trace.take(row, row + 1)
        outcome = simulate(resolve(one, as_written, seed=0), as_written, Arm("server_only"), seed=0)
        assert outcome.reading is not None
        recorded = np.diff([at for at, tokens in route.generated for _ in range(tokens)])
        assert recorded.size == ANSWER_TOKENS - 1
        assert outcome.reading.tbt_s == pytest.approx(recorded, abs=1.1e-4)  # timelines are rounded to 0.1 ms
