"""What planning costs: milliseconds to plan from raw samples, microseconds to decide on one request.

The paper's figures were taken on an Apple M1; the yardstick (numpy sorting the same times) is taken here, in the same
run. How fast numpy sorts differs tenfold with the vector instructions it may use, so planning from raw samples is timed
again with those taken from it (`NPY_DISABLE_CPU_FEATURES`, which numpy reads when it is imported: other processes).
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from helpers.measuring import Columns, met, options

from disco.dispatch import (
    Candidate,
    Dispatcher,
    Features,
    LengthThreshold,
    OptimalWait,
    Policy,
    Race,
    RandomSplit,
    WaitTime,
    features_of,
    load_preset,
    plan_optimal_waits,
    plan_threshold,
    plan_threshold_samples,
    plan_waits,
    plan_waits_samples,
)
from disco.profiles import Empirical, Lengths, Rolling
from disco.rates import Rates
from disco.replay.vector.arm_delays import delays
from disco.request import Request

PAPER_MS = {
    "length threshold": {1_000: 0.128, 10_000: 0.969, 100_000: 9.082},
    "wait time": {1_000: 0.486, 10_000: 1.741, 100_000: 14.856},
}
BUDGET = 0.5
DEVICE = Candidate("device", "device", rates=Rates(1e-9, 1e-9), prefill_tps=50.0, continues=True)
SERVER = Candidate("server", "any", rates=Rates(1e-7, 6e-7), continues=True)


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt lengths like a chat's (log-normal, median 55 tokens) and TTFTs with a heavy tail."""
    rng = np.random.default_rng(7)
    lengths = np.clip(rng.lognormal(4.0, 1.0, n), 1, 8_000).astype(np.int64)
    ttft_s = 0.25 + 0.15 * rng.pareto(2.2, n)
    return lengths, ttft_s


def times_ms(run: Callable[[], object], *, budget_s: float = 0.4) -> tuple[float, float]:
    """Median and best time of one call, ms, over as many calls as fit `budget_s` (at least 15)."""
    run()
    spans = []
    end = time.perf_counter() + budget_s
    while len(spans) < 15 or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        run()
        spans.append(time.perf_counter_ns() - begin)
    return statistics.median(spans) / 1e6, min(spans) / 1e6


def median_ms(run: Callable[[], object]) -> float:
    return times_ms(run)[0]


def per_decision_us(decide: Callable[[Features], object], features: list[Features]) -> float:
    """Median over rounds of the mean time of one decision, µs."""
    return median_ms(lambda: [decide(one) for one in features]) / len(features) * 1e3


def planning() -> None:
    print("Planning from raw samples, budget 0.5, tail 0.05; the median counts")
    table = Columns(
        "policy <18 | n >8 | ms >9.4f | best ms >9.4f | paper ms >10.3f | a tenth >9.4f | "
        "paper/ours >12 | goal >6 | sort ms >9.4f | ours/sort >11.2f"
    )
    for policy, paper in PAPER_MS.items():
        for n, paper_ms in paper.items():
            lengths, ttft_s = samples(n)
            plans = {
                "length threshold": partial(plan_threshold_samples, lengths, BUDGET),
                "wait time": partial(plan_waits_samples, lengths, ttft_s, BUDGET, 0.05),
            }
            ours, best = times_ms(plans[policy])
            yardstick = median_ms(partial(np.sort, ttft_s))
            goal = paper_ms / 10, f"{paper_ms / ours:.1f}x", met(ours, paper_ms / 10, "MISS")
            table.row(policy, n, ours, best, paper_ms, *goal, yardstick, ours / yardstick)


def planning_without_vectors() -> None:
    """The same in processes whose numpy sorts with fewer vector instructions, or with none."""
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    wide = [feature for feature in found if feature.startswith(("AVX512", "X86_V4"))]
    for label, features in (("without 512-bit vectors", wide), ("without vectors in sorts", found)):
        if features:
            print(f"\nThe same {label} ({', '.join(features)} taken from numpy)", flush=True)
            given = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(features)}
            subprocess.run([sys.executable, __file__, "--planning-only"], env=given, check=True)


def replanning() -> None:
    print("\nPlanning from what profiles keep (ms, median); independent of how much was seen")
    table = Columns(
        "n seen >8 | threshold >12.4f | waits >9.4f | waits, slope >14.4f | histogram to distribution >27.4f"
    )
    for n in (1_000, 10_000, 100_000):
        lengths, ttft_s = samples(n)
        kept = Lengths.from_samples(lengths)
        rolling = Rolling(half_life=None)
        for value in ttft_s.tolist():
            rolling.observe(value)
        ttft = rolling.snapshot()
        waits = partial(plan_waits, kept, ttft, BUDGET, 0.05)
        ways = (partial(plan_threshold, kept, BUDGET), waits, partial(waits, form="slope"))
        table.row(n, *map(median_ms, (*ways, lambda r=rolling: (r.observe(0.5), r.snapshot()))))


def optimal() -> None:
    print("\nOptimal wait, from raw samples (ms, median; goal 50 at 10,000), budget 0.1")
    table = Columns("n >8 | lengths >9 | mean >9.2f | mean, P99 >11.2f | sort ms >9.4f")
    for n in (1_000, 10_000, 100_000):
        lengths, ttft_s = samples(n)

        def plan(tail: float, lengths: np.ndarray = lengths, ttft_s: np.ndarray = ttft_s) -> None:
            kept, ttft = Lengths.from_samples(lengths), Empirical.from_samples(ttft_s)
            plan_optimal_waits(kept, ttft, DEVICE, 0.1, tail)

        ways = (partial(plan, 0.0), partial(plan, 0.05), partial(np.sort, ttft_s))
        table.row(n, np.unique(lengths).size, *map(median_ms, ways))


def line(name: str, figure: str) -> None:
    print(f"  {name:<42}{figure:>7}")


def fitted(n: int) -> tuple[np.ndarray, Lengths, Empirical, dict[str, Policy]]:
    lengths, ttft_s = samples(n)
    kept, ttft = Lengths.from_samples(lengths), Empirical.from_samples(ttft_s[:10_000])
    rng = np.random.default_rng(1)
    policies: dict[str, Policy] = {
        "race": Race(),
        "random": RandomSplit(budget=BUDGET, constrained="device", rng=rng),
        "length_threshold": LengthThreshold.fitted(kept, budget=BUDGET, rng=rng),
        "wait_time": WaitTime.fitted(kept, ttft, budget=BUDGET, rng=rng),
        "wait_time, slope": WaitTime.fitted(kept, ttft, budget=BUDGET, rng=rng, form="slope"),
        "optimal_wait": OptimalWait(kept, ttft, DEVICE, budget=BUDGET, rng=rng),
    }
    return lengths, kept, ttft, policies


def many() -> None:
    lengths, _, _, policies = fitted(1_000_000)
    print("\nA million decisions at once (million requests/s; goal 20)")
    for name, policy in policies.items():
        line(name, f"{1e3 / median_ms(lambda p=policy: delays(p, lengths)):.0f}")


def decisions() -> None:
    lengths, kept, ttft, policies = fitted(10_000)
    features = [Features(prompt_tokens=tokens) for tokens in lengths[:2_000].tolist()]
    print("\nOne decision (µs; goal 5)")
    for name in ("length_threshold", "wait_time", "optimal_wait"):
        decide = policies[name].starts
        line(name, f"{per_decision_us(lambda f, decide=decide: decide(f, DEVICE, SERVER), features):.2f}")
    for name in ("balanced", "server-first"):
        dispatcher = Dispatcher(load_preset(name), lengths=kept, ttft=ttft, rng=np.random.default_rng(1))
        served = {"device": frozenset[str](), "server": None}
        cost = per_decision_us(lambda f, d=dispatcher, s=served: d.plan(f, (DEVICE, SERVER), s), features)
        line("whole plan, preset " + name, f"{cost:.2f}")
    for label, text in (("Latin, 200 characters", "abcd " * 40), ("Chinese, 200 characters", "模型" * 100)):
        request = Request(messages=({"role": "user", "content": text},), model="m", params={"temperature": 0})
        cost = median_ms(lambda r=request: features_of(r, stream=True, local_only=False)) * 1e3
        line("features, " + label, f"{cost:.2f}")
    line("yardstick: measuring nothing", f"{median_ms(lambda: None) * 1e3:.2f}")


if __name__ == "__main__":
    only_planning = options(
        __doc__, planning_only=(False, "planning from raw samples, nothing else")
    ).planning_only
    gc.disable()  # a collection is not part of any of these
    planning()
    if not only_planning:
        planning_without_vectors()
        replanning()
        optimal()
        decisions()
        many()
