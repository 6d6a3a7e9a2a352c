"""The event-accurate evaluator beside SimPy: answers of some 200 tokens, played token by token, half of them moving.

Run `python tests/benchmarks/bench_replay_events.py [--requests 300] [--rounds 5]`. Two ways to the same figures:

- *disco*: `disco.replay.simulate`, the dispatcher, session, playback and ledger that run live.
- *SimPy, by hand*: the system as a SimPy user would write it: a process per endpoint that generates into a store, a
  race by `AnyOf` and `interrupt`, a process that reads at a pace, and a hand-over by `migration.decide`. It has no
  text, so no words and no cuts, no plans, no failures, no ledger by phase and no readings: less work for the same
  tokens. That both do the same job is checked: mean TTFT, share of moved answers, tokens released.

Rounds are interleaved in one process; medians. Then what disco's time goes into. Nothing here decides by time.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
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
ARM = Arm("race", migrate=True)
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


# ---------------------------------------------------------------- by hand


class Chat:
    """One request as a SimPy user would write it."""

    def __init__(self, env: simpy.Environment, load: Workload, row: int, lengths: Any) -> None:
        self.env = env
        self.came_at = float(load.arrival_s[row])
        self.prompt = int(load.prompt_tokens[row])
        self.tokens = int(load.answer_tokens[row])
        self.ttft_s = {"device": float(load.device_ttft_s[row]), "server": float(load.server_ttft_s[row])}
        self.tpot_s = {"device": float(load.device_tpot_s[row]), "server": float(load.server_tpot_s[row])}
        self.lengths = lengths
        self.max_tokens = load.max_tokens
        self.pace = SCENARIO.pace_tps
        self.text = simpy.Store(env)
        self.candidates = dict(zip(("device", "server"), SCENARIO.candidates(), strict=True))
        self.released: list[float] = []
        self.written = 0
        self.banking = False
        self.considers = False
        self.moving = False
        self.moved = False
        self.margin = 1.25
        self.asked_at = -1.0
        self.device_ready: simpy.Process | None = None
        self.used = {"device": [0, 0], "server": [0, 0]}  # prompt and answer tokens
        self.cost = 0.0

    def run(self) -> Iterator[Any]:
        env = self.env
        yield env.timeout(self.came_at)
        self.came_at = env.now
        racers = {
            name: env.process(self.prefill(name, self.prompt, self.ttft_s[name])) for name in self.ttft_s
        }
        yield simpy.AnyOf(env, list(racers.values()))
        winner = "device" if racers["device"].triggered else "server"
        if winner == "server":
            # Its prefill is kept for a move that is likely.
            self.considers = True
            self.device_ready = racers["device"]
        elif racers["server"].is_alive:
            racers["server"].interrupt()
        reader = env.process(self.read())
        self.source = env.process(self.write(winner))
        yield reader
        if self.device_ready is not None and self.device_ready.is_alive:
            self.device_ready.interrupt()
        rates = {"device": SCENARIO.device_rates, "server": SCENARIO.server_rates}
        self.cost = sum(rates[name].cost(*used) for name, used in self.used.items())

    def prefill(self, name: str, tokens: int, takes_s: float) -> Iterator[Any]:
        self.used[name][0] += tokens
        try:
            yield self.env.timeout(takes_s)
        except simpy.Interrupt:
            return

    def write(self, name: str) -> Iterator[Any]:
        env = self.env
        try:
            while self.written < self.tokens:
                self.used[name][1] += 1
                if not self.moving:
                    self.written += 1
                    self.text.put(self.written)
                    if self.considers:
                        self.consider()
                elif self.written + 1 >= self.tokens:
                    return
                yield env.timeout(self.tpot_s[name])
        except simpy.Interrupt:
            return

    def slack_s(self) -> float:
        begun = self.released[0] if self.released else self.env.now
        return begun + self.written / self.pace - self.env.now

    def consider(self) -> None:
        if self.env.now < self.asked_at + 0.01:
            return
        self.asked_at = self.env.now
        decision = decide(
            Snapshot(
                source=self.candidates["server"],
                target=self.candidates["device"],
                prompt_tokens=self.prompt,
                written_tokens=self.written,
                max_tokens=self.max_tokens,
                target_has_prompt=True,
                slack_s=max(0.0, self.slack_s() - 2 / self.pace),
                pace_tps=self.pace,
                lengths=self.lengths,
                margin=self.margin,
            )
        )
        self.banking = decision.verdict in (MigrationVerdict.GO, MigrationVerdict.BANK)
        self.considers = decision.verdict is not MigrationVerdict.NEVER
        if decision.verdict is MigrationVerdict.GO and not self.device_ready.is_alive:
            self.moving = True
            self.considers = False
            self.env.process(self.hand_over(self.source))

    def hand_over(self, source: simpy.Process) -> Iterator[Any]:
        env = self.env
        takes_s = self.candidates["device"].time_to_first_token_s(self.written)
        target = env.process(self.prefill("device", self.written, takes_s))
        yield simpy.AnyOf(env, [target, env.timeout(max(self.slack_s(), 0.0))])
        self.moving = False
        if not target.triggered:
            target.interrupt()
            return  # given up; the source writes on
        if source.is_alive:
            source.interrupt()
        self.moved = True
        self.banking = False
        env.process(self.write("device"))

    def read(self) -> Iterator[Any]:
        env = self.env
        due_at = env.now
        while len(self.released) < self.tokens:
            yield self.text.get()
            if self.banking and env.now < due_at:
                yield env.timeout(due_at - env.now)
            self.released.append(env.now)
            due_at = max(due_at, env.now) + 1 / self.pace if self.banking else env.now


def by_hand(load: Workload) -> dict[str, float]:
    env = simpy.Environment()
    lengths = answer_lengths(load)
    chats = [Chat(env, load, row, lengths) for row in range(len(load))]
    for chat in chats:
        env.process(chat.run())
    env.run()
    return {
        "TTFT s": statistics.mean(chat.released[0] - chat.came_at for chat in chats),
        "moved": statistics.mean(chat.moved for chat in chats),
        "released": sum(len(chat.released) for chat in chats),
        "cost USD": sum(chat.cost for chat in chats),
    }


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


# ---------------------------------------------------------------- measuring


def main() -> None:
    given = options(__doc__, requests=300, rounds=5, no_profile=False)
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
    if not given.no_profile:
        profiler = cProfile.Profile()
        profiler.runcall(summary, load)
        print("\nWhere disco's time goes (cProfile, which weighs calls more than they cost):")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
