"""Figure 9: planning times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.dispatch import Candidate, plan_optimal_waits, plan_threshold_samples, plan_waits_samples
from disco.profiles import Empirical, Lengths

__all__ = ["SAMPLES", "PlanningTime", "planning_times"]

SAMPLES: Final = (1_000, 10_000, 100_000)
BUDGET: Final = 0.5
_TAIL: Final = 0.05
_REPEATS: Final = 7
_DEVICE: Final = Candidate("device", "device", prefill_tps=50.0)  # about the rate of the paper's phones


@dataclass(frozen=True, slots=True)
class PlanningTime:
    """Planning time of one policy, ms: the median of a few repeats.

    Attributes:
        policy: name of the policy.
        samples: number of prompt lengths and of times to first token that the plan is made from.
        ms: the time on this machine, ms.
    """

    policy: str
    samples: int
    ms: float


def planning_times(samples: tuple[int, ...] = SAMPLES) -> tuple[PlanningTime, ...]:
    """Time every plan from raw samples: log-normal lengths, times to first token with a heavy tail."""
    found = []
    for n in samples:
        rng = np.random.default_rng(7)
        lengths = np.clip(rng.lognormal(4.0, 1.0, n), 1, 8_000).astype(np.int64)
        ttft_s = 0.25 + 0.15 * rng.pareto(2.2, n)
        plans: dict[str, Callable[[], object]] = {
            "length_threshold": partial(plan_threshold_samples, lengths, BUDGET),
            "wait_time": partial(plan_waits_samples, lengths, ttft_s, BUDGET, _TAIL),
            "optimal_wait": partial(_plan_optimal, lengths, ttft_s),
        }
        found += [PlanningTime(policy, n, _median_ms(plan)) for policy, plan in plans.items()]
    return tuple(sorted(found, key=lambda one: one.policy))


def _plan_optimal(lengths: NDArray[np.int64], ttft_s: NDArray[np.float64]) -> None:
    plan_optimal_waits(
        Lengths.from_samples(lengths), Empirical.from_samples(ttft_s), _DEVICE, BUDGET, tail=_TAIL
    )


def _median_ms(run: Callable[[], object]) -> float:
    run()  # the first call also fills caches
    spans = []
    for _ in range(_REPEATS):
        begin_ns = time.perf_counter_ns()
        run()
        spans.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(spans) / 1e6
