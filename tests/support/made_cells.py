"""Cells of a result written down by hand, for what reports make of them."""

from __future__ import annotations

import numpy as np

from disco.replay.metrics.over_seeds import CDF_LEVELS, Cell, Figure, Summary
from disco.replay.report import Report
from disco.replay.workload.scenario import Arm


def one(value: float, half: float = 0.0) -> Figure:
    """A figure whose interval reaches `half` to both sides."""
    return Figure(value, value - half, value + half)


def cell(
    policy: str,
    *,
    p99: float,
    cost: float,
    budget: float = 0.5,
    used: float | None = None,
    failed: float = 0.0,
    regret: float | None = None,
    scenario: str = "phone × server",
    half: float = 0.0,
    evaluator: str = "vectorised",
    **arm,
) -> Cell:
    """A cell; times in s, cost in USD per 1000 requests."""
    quantiles = tuple(np.quantile([p99 / 4, p99 / 2, p99], CDF_LEVELS).tolist())
    times = {"ttft_mean_s": one(p99 / 3, half), "ttft_p99_s": one(p99, half)}
    times |= {"ttft_p50_s": one(p99 / 2), "ttft_p90_s": one(p99 * 0.9), "ttft_quantiles_s": quantiles}
    costs = {"cost_usd": one(cost / 1000), "cost_by": {"server/answer": cost / 1000}}
    shares = {
        "budget_used": one(budget if used is None else used),
        "device_won": one(0.25),
        "failed": one(failed),
    }
    summary = Summary(requests=1000, seeds=3 if half else 1, **times, **costs, **shares)
    distance = None if regret is None else one(regret)
    asked = Arm(policy, budget, **arm)
    return Cell(scenario, "server-constrained", asked, evaluator, summary, distance, distance)


def report(*cells: Cell) -> Report:
    return Report("A report", (), cells)


BASELINES = (cell("server_only", p99=2.0, cost=10.0), cell("device_only", p99=4.0, cost=1.0))
