"""The fleet simulator beside queueing theory, the closed form of a round, and a twin in SimPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
import simpy
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_simulator import Finished, requests_of, simulate_fleet
from papers.fleet.fleet_toml import scenario_from

from disco.replay import DraftedRequest
from disco.speculate import Seen, VerifyCurve, token_s


def scenario(**changed: Any) -> FleetScenario:
    content = {
        "name": "theory",
        "targets": [{"name": "t", "count": 1, "steps_ms": [[1, 10]]}],
        "drafters": [{"name": "d", "count": 1, "steps_ms": [[1, 5]]}],
        "links": [{"rtt_ms": 0}],
        "requests": {
            "made_up": {"prompt_tokens": {"mean": 1}, "output_tokens": {"mean": 1}, "acceptance": 0.5}
        },
        "arrivals": {"kind": "poisson", "rate": 50, "requests": 100},
    }
    return scenario_from(content | changed)


def queue(load: float, requests: int, seed: int) -> FleetScenario:
    return scenario(
        seed=seed,
        mode="alone",
        batching={"max_batch": 1},
        arrivals={"kind": "poisson", "rate": load / SERVICE_S, "requests": requests},
    )


SERVICE_S = 0.01


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_a_server_with_single_jobs_of_one_length_keeps_them_waiting_as_lindley_says(load):
    answers = sorted(simulate_fleet(queue(load, 1500, seed=1)).answers, key=lambda one: one.number)
    wait_s = 0.0
    for before, answer in pairwise(answers):
        wait_s = max(0.0, wait_s + SERVICE_S - (answer.arrived_s - before.arrived_s))
        assert answer.wait_prompt_s == pytest.approx(wait_s, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_server_with_single_jobs_of_one_length_is_an_m_d_1_queue(load):
    """Mean wait of M/D/1: load / (2 (1 - load)) service times (Pollaczek and Khinchine)."""
    means = []
    for seed in (1, 2, 3):
        answers = simulate_fleet(queue(load, 400_000, seed)).answers
        means.append(fmean(answer.wait_prompt_s for answer in answers))
    assert fmean(means) == pytest.approx(load / (2 * (1 - load)) * SERVICE_S, rel=0.01)


@pytest.mark.parametrize(("parallel", "window"), [(1, 1), (1, 4), (1, 8), (2, 4), (4, 4), (2, 8)])
def test_one_pair_takes_the_time_per_token_of_the_closed_form(parallel, window):
    """Of independent acceptance and constant times, over long answers."""
    acceptance, draft_ms, rtt_ms = 0.9, 5.0, 20.0
    steps = [[1, 20], [16, 50]]
    run = simulate_fleet(
        scenario(
            parallel=parallel,
            window={"name": "static", "n": window},
            targets=[{"name": "t", "count": 1, "steps_ms": steps}],
            drafters=[{"name": "d", "count": 1, "steps_ms": [[1, draft_ms]]}],
            links=[{"rtt_ms": rtt_ms}],
            requests={
                "made_up": {
                    "count": 10,
                    "prompt_tokens": {"mean": 1},
                    "output_tokens": {"mean": 3000},
                    "acceptance": acceptance,
                }
            },
            arrivals={"kind": "closed_loop", "requests": 10},
        )
    )
    seen = Seen(
        acceptance=acceptance,
        draft_s=draft_ms / 1e3,
        round_trip_s=rtt_ms / 1e3,
        verify=VerifyCurve((rows, ms / 1e3) for rows, ms in steps),
    )
    took = fmean((one.done_s - one.first_s) / (one.output - 1) for one in run.answers)
    assert took == pytest.approx(token_s(window, seen, parallel), rel=0.02)


# The twin: the same fleet as a SimPy user would write it, from the same requests and arrivals.

WINDOW, MAX_BATCH, PROMPT_MS, ONE_WAY_S = 3, 4, 1.0, 0.007
BATCH_MS = [(1, 10.0), (8, 12.0), (64, 40.0)]
DRAFT_S = 0.004


def batch_s(rows: int) -> float:
    (x0, y0), (x1, y1) = next(
        (low, high) for low, high in pairwise(BATCH_MS) if rows <= high[0] or high is BATCH_MS[-1]
    )
    return (y0 + (rows - x0) * (y1 - y0) / (x1 - x0)) / 1e3


class Twin:
    """Two targets, twelve drafters in a closed loop, windows of three tokens."""

    def __init__(self, requests: list[DraftedRequest], total: int, drafters: int) -> None:
        self.env = simpy.Environment()
        self.queues = [simpy.Store(self.env) for _ in range(2)]
        self.requests, self.total, self.begun = requests, total, 0
        self.turn = 0
        self.times: list[tuple[float, float, int]] = []  # time to the first token, in all, tokens
        for queue in self.queues:
            self.env.process(self.target(queue))
        for _ in range(drafters):
            self.env.process(self.drafter())
        self.env.run()

    def target(self, queue: simpy.Store) -> Iterator[Any]:
        while True:
            batch = [(yield queue.get())]
            yield self.env.timeout(0)  # whoever comes at this moment comes in time
            while queue.items and len(batch) < MAX_BATCH:
                batch.append((yield queue.get()))
            yield self.env.timeout(batch_s(sum(rows for rows, _ in batch)))
            for _, done in batch:
                done.succeed()

    def drafter(self) -> Iterator[Any]:
        env = self.env
        while self.begun < self.total:
            request = self.requests[self.begun % len(self.requests)]
            self.begun += 1
            queue = self.queues[self.turn % 2]
            self.turn += 1
            came_s = env.now
            ready_s = env.now + DRAFT_S
            yield from self.asked(queue, request.prompt_tokens)
            first_s, length = env.now, 1
            while length < request.output_tokens:
                yield env.timeout(max(0.0, ready_s - env.now) + WINDOW * DRAFT_S)
                yield from self.asked(queue, WINDOW + 1)
                drafted = request.accepts[length : length + WINDOW]
                right = next((n for n, agrees in enumerate(drafted) if not agrees), len(drafted))
                length += min(right + 1, request.output_tokens - length)
            self.times.append((first_s - came_s, env.now - came_s, length))

    def asked(self, queue: simpy.Store, rows: int) -> Iterator[Any]:
        yield self.env.timeout(ONE_WAY_S)
        done = self.env.event()
        queue.put((rows, done))
        yield done
        yield self.env.timeout(ONE_WAY_S)


def test_a_twin_in_simpy_gives_the_same_times():
    total, drafters = 150, 12
    fleet = scenario(
        window={"name": "static", "n": WINDOW},
        targets=[{"name": "t", "count": 2, "steps_ms": BATCH_MS}],
        drafters=[{"name": "d", "count": drafters, "steps_ms": [[1, DRAFT_S * 1e3]]}],
        links=[{"rtt_ms": ONE_WAY_S * 1e3, "rtt_is": "one_way"}],
        routing={"policy": "round_robin"},
        batching={"max_batch": MAX_BATCH},
        requests={
            "made_up": {
                "count": 50,
                "prompt_tokens": {"mean": 20, "sd": 8},
                "output_tokens": {"mean": 60, "sd": 30},
                "acceptance": 0.7,
                "correlation": 0.3,
            }
        },
        arrivals={"kind": "closed_loop", "requests": total},
    )
    requests = requests_of(fleet)
    ours: Finished = simulate_fleet(fleet, requests)
    twin = Twin(requests, total, drafters)
    assert len(ours.answers) == len(twin.times) == total
    assert ours.ended_s == pytest.approx(twin.env.now, rel=0.01)
    assert fmean(one.first_s - one.arrived_s for one in ours.answers) == pytest.approx(
        fmean(first for first, _, _ in twin.times), rel=0.01
    )
    assert fmean(one.done_s - one.arrived_s for one in ours.answers) == pytest.approx(
        fmean(whole for _, whole, _ in twin.times), rel=0.01
    )
    assert sum(one.length for one in ours.answers) == sum(tokens for _, _, tokens in twin.times)
