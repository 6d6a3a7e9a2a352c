"""The event-accurate evaluator beside SimPy: answers of some 200 tokens, played token by token, half of them moving.

*SimPy, by hand*: the system as a SimPy user would write it: no text, so no words and no cuts, no plans, no failures, no
ledger by phase and no readings: less work for the same tokens. That both do the same job is checked.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import simpy
from helpers.measuring import Columns, by_turns, options, ratio

from disco.cost import Rates
from disco.profiles import DeviceProfile, Empirical
from disco.replay.simulator.event_evaluator import answer_lengths, simulate
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve
from disco.replay.workload.trace import Trace
from disco.session.switching.migration_rule import MigrationVerdict, Snapshot, decide

SEED = 1
ARM = Arm("race", migrate=True, order="make_before_break")  # the order of the system by hand
SCENARIO = Scenario(
    name="bench",
    device=DeviceProfile(
        name="phone", source="made up for this benchmark", prefill_tps=300.0, decode_tps=25.0, c_s=0.1
    ),
    device_rates=Rates(1e-8, 1e-7, cached_share=0.0),
    server_rates=Rates(1e-6, 1e-5),
    ttft=Empirical.from_samples([0.2, 0.3, 0.5, 0.9]),
    max_tokens=256,
    pace_tps=4.8,
)


def workload(requests: int) -> Workload:
    rng = np.random.default_rng(SEED)
    trace = Trace.of(
        arrival_s=np.cumsum(rng.exponential(1.0, requests)),
        prompt_tokens=rng.integers(50, 400, requests),
        output_tokens=rng.integers(100, 400, requests),
    )
    return resolve(trace, SCENARIO, seed=SEED)


Process = Iterator[Any]


def chat(env: simpy.Environment, load: Workload, row: int, lengths: Any, done: list[Any]) -> Process:
    """One request as a SimPy user would write it."""
    yield env.timeout(float(load.arrival_s[row]))
    came_at, prompt, tokens = env.now, int(load.prompt_tokens[row]), int(load.answer_tokens[row])
    tpot_s = {"device": float(load.device_tpot_s[row]), "server": float(load.server_tpot_s[row])}
    device, server = SCENARIO.candidates()
    text, pace, released = simpy.Store(env), SCENARIO.pace_tps, list[float]()
    used = {"device": [0, 0], "server": [0, 0]}  # prompt and answer tokens
    now = SimpleNamespace(written=0, banking=False, considers=False, moving=False, moved=False, asked_at=-1.0)

    def prefill(name: str, tokens: int, takes_s: float) -> Process:
        used[name][0] += tokens
        try:
            yield env.timeout(takes_s)
        except simpy.Interrupt:
            return

    def write(name: str) -> Process:
        try:
            while now.written < tokens:
                used[name][1] += 1
                if not now.moving:
                    now.written += 1
                    text.put(now.written)
                    if now.considers and env.now >= now.asked_at + 0.01:
                        consider()
                elif now.written + 1 >= tokens:
                    return
                yield env.timeout(tpot_s[name])
        except simpy.Interrupt:
            return

    def slack_s() -> float:
        return (released[0] if released else env.now) + now.written / pace - env.now

    def consider() -> None:
        now.asked_at = env.now
        snapshot = Snapshot(
            source=server,
            target=device,
            prompt_tokens=prompt,
            written_tokens=now.written,
            max_tokens=load.max_tokens,
            target_has_prompt=True,
            slack_s=max(0.0, slack_s() - 2 / pace),
            pace_tps=pace,
            lengths=lengths,
            margin=1.25,
        )
        verdict = decide(snapshot).verdict
        now.banking = verdict in (MigrationVerdict.GO, MigrationVerdict.BANK)
        now.considers = verdict is not MigrationVerdict.NEVER
        if verdict is MigrationVerdict.GO and not racers["device"].is_alive:
            now.moving, now.considers = True, False
            env.process(hand_over())

    def hand_over() -> Process:
        takes_s = device.time_to_first_token_s(now.written)
        target = env.process(prefill("device", now.written, takes_s))
        yield simpy.AnyOf(env, [target, env.timeout(max(slack_s(), 0.0))])
        now.moving = False
        if not target.triggered:
            target.interrupt()
            return  # given up; the source writes on
        if source.is_alive:
            source.interrupt()
        now.moved, now.banking = True, False
        env.process(write("device"))

    def read() -> Process:
        due_at = env.now
        while len(released) < tokens:
            yield text.get()
            if now.banking and env.now < due_at:
                yield env.timeout(due_at - env.now)
            released.append(env.now)
            due_at = max(due_at, env.now) + 1 / pace if now.banking else env.now

    ttft_s = {"device": float(load.device_ttft_s[row]), "server": float(load.server_ttft_s[row])}
    racers = {name: env.process(prefill(name, prompt, takes_s)) for name, takes_s in ttft_s.items()}
    yield simpy.AnyOf(env, list(racers.values()))
    winner = "device" if racers["device"].triggered else "server"
    now.considers = winner == "server"  # the device's prefill is kept for a move that is likely
    if winner == "device" and racers["server"].is_alive:
        racers["server"].interrupt()
    reader = env.process(read())
    source = env.process(write(winner))
    yield reader
    if racers["device"].is_alive:
        racers["device"].interrupt()
    rates = {"device": SCENARIO.device_rates, "server": SCENARIO.server_rates}
    cost = sum(rates[name].cost(*tokens) for name, tokens in used.items())
    done.append((released[0] - came_at, now.moved, len(released), cost))


def by_hand(load: Workload) -> dict[str, float]:
    env, lengths, done = simpy.Environment(), answer_lengths(load), list[Any]()
    for row in range(len(load)):
        env.process(chat(env, load, row, lengths, done))
    env.run()
    ttft_s, moved, released, cost = zip(*done, strict=True)
    means = {"TTFT s": statistics.mean(ttft_s), "moved": statistics.mean(moved)}
    return {**means, "released": sum(released), "cost USD": sum(cost)}


def summary(load: Workload) -> dict[str, float]:
    outcome = simulate(load, SCENARIO, ARM, seed=SEED)
    reading = outcome.reading
    assert reading is not None
    return {
        "TTFT s": float(outcome.ttft_s.mean()),
        "moved": float(reading.moved.mean()),
        "released": float(reading.tbt_s.size + len(outcome)),
        "cost USD": float(outcome.cost_usd.sum()),
    }


def main() -> None:
    given = options(__doc__, requests=300, rounds=5)
    load = workload(given.requests)
    tokens = int(load.answer_tokens.sum())
    ours, other = summary(load), by_hand(load)

    def cpu_s(way: Callable[[Workload], object]) -> float:
        gc.collect()
        begun = time.process_time()
        way(load)
        return time.process_time() - begun

    ways = {"disco": partial(cpu_s, summary), "SimPy, by hand": partial(cpu_s, by_hand)}
    took_s = asyncio.run(by_turns(ways, given.rounds, 0))
    what = f"{given.requests} requests, {tokens} tokens, race with moves at {SCENARIO.pace_tps} tokens/s"
    print(f"{what}; {given.rounds} rounds")
    table = Columns(
        " 20 | req/s >8.0f | µs/token >10.2f | disco is >10 | TTFT s >9.4f | moved >7.2f | "
        "released >10.0f | cost USD >10.5f"
    )
    for (name, spans), found in zip(took_s.items(), (ours, other), strict=True):
        median_s = statistics.median(spans)
        faster = f"{ratio(spans, took_s['disco']):.2f}×"
        table.row(name, given.requests / median_s, median_s / tokens * 1e6, faster, *found.values())
    # It is the same job.
    assert ours["released"] == other["released"]
    assert abs(other["TTFT s"] - ours["TTFT s"]) < 1e-9
    assert abs(other["moved"] - ours["moved"]) < 0.1
    assert abs(other["cost USD"] / ours["cost USD"] - 1) < 0.1


if __name__ == "__main__":
    main()
