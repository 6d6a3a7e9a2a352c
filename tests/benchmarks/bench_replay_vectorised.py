"""How many requests a second the vectorised evaluator replays on one core.

Included: planning on the trace's own prompt lengths, every request's delays, race, budget and cost by endpoint and
phase, then mean, P50, P90, P99 and 202 quantiles of TTFT. Not included: reading the trace and drawing what it leaves
open. CPU: the processor time of all threads over the time on the clock; spread: the slowest round over the fastest.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
from helpers.measuring import Columns, met, options

from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED
from disco.dispatch import Features, build_policy
from disco.playback.reader_metrics import quantile
from disco.profiles import load_device, load_server
from disco.replay.metrics.per_seed import SeedFigures, Tally, figures_of
from disco.replay.vector.arm_delays import policy_name
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.scenario import DEVICE, Arm, Scenario, Workload, resolve, scenario_for
from disco.replay.workload.trace import Trace

LOOP_REQUESTS = 100_000
GOAL = 5e6
ARMS = (
    *(("server", Arm("length_threshold", 0.5)), ("device", Arm("wait_time", 0.5))),
    *(("device", Arm("optimal_wait", 0.5)), ("server", Arm("random", 0.5)), ("server", Arm("race"))),
    *(("server", Arm("server_only")), ("device", Arm("oracle", 0.5))),
)


def scenarios() -> dict[str, Scenario]:
    """By the side that the budget limits."""
    device, server = load_device("pixel7pro-bloom-1.1b"), load_server("deepseek-v3-2025")
    return {
        "server": scenario_for(device, server, exchange_rate=PAPER_SERVER_CONSTRAINED),
        "device": scenario_for(device, server, exchange_rate=PAPER_DEVICE_CONSTRAINED),
    }


def trace(n: int) -> Trace:
    """Prompt lengths like a chat's (log-normal, median 55 tokens)."""
    rng = np.random.default_rng(7)
    return Trace.of(
        arrival_s=np.arange(n) * 0.1,
        prompt_tokens=np.clip(rng.lognormal(4.0, 1.0, n), 1, 8_000).astype(np.int64),
        output_tokens=rng.integers(1, 400, n),
    )


def vectorised(workload: Workload, scenario: Scenario, arm: Arm) -> SeedFigures:
    return figures_of(evaluate(workload, scenario, arm, seed=0), scenario.constrained)


def plain_loop(workload: Workload, scenario: Scenario, arm: Arm) -> dict[str, float]:
    """The same rule, request by request."""
    device, server = scenario.candidates()
    policy = build_policy(
        policy_name(scenario, arm),
        lengths=scenario.planning_lengths(workload.prompt_tokens),
        ttft=scenario.ttft,
        device=device,
        budget=arm.budget,
        tail=arm.tail,
        rng=np.random.default_rng([0, 7]),
        server_constrained=scenario.constrained == "server",
    )
    times, cost, won, used = [], 0.0, 0, Counter[str]()
    rates = {DEVICE: scenario.device_rates, "server": scenario.server_rates}
    columns = (workload.prompt_tokens, workload.answer_tokens, workload.device_ttft_s, workload.server_ttft_s)
    for prompt, answer, device_ttft_s, server_ttft_s in zip(*(c.tolist() for c in columns), strict=True):
        delays = {
            s.endpoint: s.after_s for s in policy.starts(Features(prompt_tokens=prompt), device, server)
        }
        device_s, server_s = delays.get(DEVICE, math.inf), delays.get("server", math.inf)
        device_at, server_at = device_s + device_ttft_s, server_s + server_ttft_s
        if device_s < server_at:
            used[DEVICE] += prompt
            cost += prompt * rates[DEVICE].cost_in
        if server_s < device_at:
            used["server"] += prompt
            cost += prompt * rates["server"].cost_in
        won += device_at < server_at
        cost += answer * rates[DEVICE if device_at < server_at else "server"].cost_out
        times.append(min(device_at, server_at))
    times.sort()
    quantiles = {f"ttft_p{percent}_s": quantile(times, percent / 100) for percent in (50, 90, 99)}
    means = {"ttft_mean_s": sum(times), "cost_usd": cost, "device_won": won}
    share = used[scenario.constrained] / int(workload.prompt_tokens.sum())
    return {name: whole / len(times) for name, whole in means.items()} | quantiles | {"budget_used": share}


def rounds_s(run: Callable[[], object], rounds: int) -> tuple[list[float], float]:
    """Seconds of each call, after one that does not count; and processor time over time."""
    run()
    spans = []
    processor_s = time.process_time()
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        spans.append(time.perf_counter() - begin)
    return spans, (time.process_time() - processor_s) / sum(spans)


def compare(n: int) -> None:
    whole = trace(n)
    print(f"{n:,} requests, one core; medians of 7 rounds; the loop: {LOOP_REQUESTS:,} requests, once")
    table = Columns(
        "policy <18 | constrained <13 | ms >8.1f | ns/req >8.1f | Mreq/s >8.1f | goal 5 >8 | CPU >6.2f | "
        "spread >8.2f | of it figures >15.0% | loop req/s >13 | ratio >8"
    )
    for constrained, arm in ARMS:
        scenario = scenarios()[constrained]
        workload = resolve(whole, scenario, seed=0)
        spans, cpu = rounds_s(partial(vectorised, workload, scenario, arm), 7)
        seconds = statistics.median(spans)
        outcome = evaluate(workload, scenario, arm, seed=0)
        figures_s = statistics.median(rounds_s(partial(figures_of, outcome, scenario.constrained), 5)[0])
        loop, ratio = "–", "–"
        if arm.policy != "oracle":
            few = workload.take(0, LOOP_REQUESTS)
            begin = time.perf_counter()
            plain = plain_loop(few, scenario, arm)
            loop_s = (time.perf_counter() - begin) / len(few)
            loop, ratio = f"{1 / loop_s:,.0f}", f"{loop_s / (seconds / n):.0f}x"
            found = vectorised(few, scenario, arm)
            for name, value in plain.items():  # both computed the same, or their speeds mean nothing
                assert math.isclose(getattr(found, name), value, rel_tol=1e-9), (name, value)
        speed = (seconds * 1e3, 1e9 * seconds / n, n / seconds / 1e6, met(-n / seconds, -GOAL, "MISS"), cpu)
        spread = max(spans) / min(spans)
        table.row(arm.policy, constrained, *speed, spread, figures_s / seconds, loop, ratio)


def chunks(n: int) -> None:
    scenario = scenarios()["server"]
    workload = resolve(trace(n), scenario, seed=0)
    size = 100_000

    def by_chunks() -> SeedFigures:
        tally = Tally(scenario.constrained)
        for start in range(0, n, size):
            tally.add(evaluate(workload.take(start, start + size), scenario, Arm("race"), seed=0))
        return tally.figures()

    ways = (by_chunks, partial(vectorised, workload, scenario, Arm("race")))
    tally, whole = (n / statistics.median(rounds_s(way, 5)[0]) / 1e6 for way in ways)
    print(f"\nrace, in chunks of {size:,} into a Tally: {tally:.1f} Mreq/s; whole: {whole:.1f}")


def main() -> None:
    requests = options(__doc__, requests=1_000_000).requests
    gc.disable()  # a collection is not part of any of these
    compare(requests)
    chunks(requests)


if __name__ == "__main__":
    main()
