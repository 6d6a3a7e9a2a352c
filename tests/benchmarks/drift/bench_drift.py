"""Drift: how soon a change is found and how often one is found that is none, and what following changes costs."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.measuring import Columns, options, percentile

from disco.dispatch import Candidate, Features, TwoSided
from disco.dispatch.presets import DispatchSection
from disco.profiles import AdaptiveRolling, Lengths, Rolling, load_server
from disco.rates import Rates

SERVERS = ("deepseek-v3-2025", "gpt-4.1-nano-2026", "llama-2-70b-replicate-2023")
BEFORE, AFTER = 300, 200
DEVICE = Candidate("device", "device", rates=Rates(1e-7, 1e-7), prefill_tps=50.0)
SERVER = Candidate("server", "any", rates=Rates(1e-7, 1e-7))


def changes_at(times: np.ndarray, rolling: AdaptiveRolling | None = None) -> list[int]:
    """After how many of the times changes were found."""
    rolling, found = rolling or AdaptiveRolling(), []
    for row, t in enumerate(times.tolist(), 1):
        known = rolling.changes
        rolling.observe(t)
        if rolling.changes > known:
            found.append(row)
    return found


def detection(streams: int) -> None:
    print(f"Observations until a change is found, median / 95th percentile of {streams} streams")
    table = Columns("server <28 | ×1.3 >10 | ×2 >10 | ×0.5 >10 | ×20 >10 | found at ×1.3 >15")
    for name in SERVERS:
        ttft = load_server(name).ttft()
        cells, share = [], 0.0
        for factor in (1.3, 2.0, 0.5, 20.0):
            after = []
            for seed in range(streams):
                rng = np.random.default_rng(seed)
                times = np.concatenate([ttft.sample(rng, BEFORE), factor * ttft.sample(rng, AFTER)])
                later = [row - BEFORE for row in changes_at(times) if row > BEFORE]
                after.append(later[0] if later else AFTER + 1)
            middle, high = percentile(after, 0.5), percentile(after, 0.95)
            cells.append(f"{middle:.0f} / {f'{high:.0f}' if high <= AFTER else '–'}")
            if factor == 1.3:
                share = float(np.mean(np.array(after) <= AFTER))
        table.row(name, *cells, f"{share:.0%}")


def false_alarms(streams: int) -> None:
    print("\nWithout any change: observations per change found (the end of a false one is counted, too)")
    table = Columns("server <28 | long streams >14 | first 150 >12 | first 150, with profile >25")
    for name in SERVERS:
        ttft = load_server(name).ttft()
        cells = []
        for n, prior in ((10_000, None), (150, None), (150, ttft)):
            runs = streams // 10 if n > 150 else 4 * streams
            found = sum(
                len(changes_at(ttft.sample(np.random.default_rng(seed), n), AdaptiveRolling(prior=prior)))
                for seed in range(runs)
            )
            cells.append(f"{runs * n / max(found, 1):,.0f}")
        table.row(name, *cells)


def best_us(run: Callable[[], int]) -> float:
    """Best of 200 short rounds, µs for one of the calls that `run` makes and counts: other processes disturb few."""
    rounds = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        calls = run()
        rounds.append((time.perf_counter_ns() - begin) / calls / 1e3)
    return min(rounds)


def costs() -> None:
    ttft = load_server(SERVERS[0]).ttft()
    times = ttft.sample(np.random.default_rng(1), 400).tolist()
    known, tokens = Lengths.from_samples([10, 20, 30, 200]), [10, 20, 30, 200] * 50
    print("\nCost, µs (best of 200 short rounds)")

    def observe(make: Callable[[], Rolling]) -> int:
        rolling = make()
        for t in times:
            rolling.observe(t)
        return len(times)

    def plan(two_sided: TwoSided) -> int:
        for length in tokens:
            arranged = two_sided.arrange(Features(length), (DEVICE, SERVER), "standard")
            if arranged.spend is not None:
                two_sided.settle(arranged.spend, used=length < 30)
        return len(tokens)

    def refit(two_sided: TwoSided) -> int:
        for _ in range(10):
            two_sided.refit(known, ttft)
        return 10

    def made(*, holds: bool) -> TwoSided:
        section = DispatchSection(policy="wait_time", budget=0.1)
        rng = np.random.default_rng(1)
        two_sided = TwoSided(section, lengths=known, ttft=ttft, rng=rng, holds_budget=holds)
        plan(two_sided)
        return two_sided

    table = Columns("what <44 | as before >10.1f | now >8.1f")
    table.row(
        "one observation of a TTFT",
        best_us(lambda: observe(Rolling)),
        best_us(lambda: observe(AdaptiveRolling)),
    )
    one, other = made(holds=False), made(holds=True)
    table.row("one decision, wait_time", best_us(lambda: plan(one)), best_us(lambda: plan(other)))
    table.row("one refit, wait_time", best_us(lambda: refit(one)), best_us(lambda: refit(other)))


if __name__ == "__main__":
    given = options(__doc__, streams=(100, "streams for each figure"), costs_only=False)
    if not given.costs_only:
        detection(given.streams)
        false_alarms(given.streams)
    gc.disable()
    costs()
