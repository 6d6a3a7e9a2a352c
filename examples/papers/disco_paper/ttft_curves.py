"""TTFT of every policy over the budget, run by run: the curves behind Table 2 and Figure 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from disco.replay import (
    Arm,
    Cell,
    Figure,
    Scenario,
    SeedFigures,
    Trace,
    evaluate,
    figure,
    figures_of,
    resolve,
    summarise,
)
from papers.disco_paper.paper_setup import Pair

__all__ = ["Curves", "curves_of"]

Floats = NDArray[np.float64]
Objective = Literal["mean", "p99"]

# Without a share for the tail, the optimal wait minimises the mean.
_FOR_THE_MEAN: Final = 0.0
_FOR_THE_TAIL: Final = 0.05


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one pair of endpoints, at every budget in every run.

    Attributes:
        pair: the endpoints.
        budgets: rising, b of them.
        mean_s, p99_s: TTFT by line, float64, shape (runs, b) each. The lines are "disco", "stoch", "server_only",
            "device_only", "oracle" and, if the device is constrained, "optimal_wait" (the other regime leaves nothing
            to optimise). "oracle" and "optimal_wait" minimise the mean in `mean_s` and P99 in `p99_s`.
        used: share of all prompt tokens that the constrained side processed; lines and shape as in `p99_s`.
        cells: the same as lines of a report.
    """

    pair: Pair
    budgets: tuple[float, ...]
    mean_s: Mapping[str, Floats]
    p99_s: Mapping[str, Floats]
    used: Mapping[str, Floats]
    cells: tuple[Cell, ...]

    def tail_cut(self, line: str, *, inner: bool = False) -> Figure:
        """Return how much lower P99 is than under stochastic dispatch, averaged over budgets, %; interval over runs.

        Args:
            line: name of the line.
            inner: leave out the budgets 0 and 1, at which every policy does the same.
        """
        return figure(self._cuts(self.p99_s, line, inner=inner).mean(axis=1).tolist())

    def mean_cuts(self, line: str) -> Floats:
        """Return how much lower the mean is than under stochastic dispatch, %, mean over runs; one per inner budget."""
        return np.asarray(self._cuts(self.mean_s, line, inner=True).mean(axis=0))

    def _cuts(self, values: Mapping[str, Floats], line: str, *, inner: bool) -> Floats:
        columns = [not inner or 0.0 < budget < 1.0 for budget in self.budgets]
        return 100.0 * (1.0 - values[line][:, columns] / values["stoch"][:, columns])


def curves_of(
    source: Callable[[int], Trace], pair: Pair, budgets: tuple[float, ...], seeds: Sequence[int]
) -> Curves:
    """Run every policy on a pair.

    Args:
        source: returns the requests of a run from its seed.
        pair: the endpoints.
        budgets: shares b.
        seeds: one per run.
    """
    scenario = pair.scenario
    arms: list[tuple[str, Arm, Objective | None]] = []
    for budget in budgets:
        arms += [
            ("disco", Arm(pair.policy, budget), None),
            ("stoch", Arm("random", budget), None),
            ("server_only", Arm("server_only", budget), None),
            ("device_only", Arm("device_only", budget), None),
            ("oracle", Arm("oracle", budget), "mean"),
            ("oracle", Arm("oracle", budget), "p99"),
        ]
        if scenario.constrained == "device":
            arms += [
                ("optimal_wait", Arm("optimal_wait", budget, tail=_FOR_THE_MEAN), "mean"),
                ("optimal_wait", Arm("optimal_wait", budget, tail=_FOR_THE_TAIL), "p99"),
            ]
    figures: list[list[SeedFigures]] = []
    for seed in seeds:
        workload = resolve(source(seed), scenario, seed=seed)
        figures.append(
            [
                figures_of(
                    evaluate(workload, scenario, arm, seed=seed, objective=objective or "mean"),
                    scenario.constrained,
                )
                for _, arm, objective in arms
            ]
        )

    def columns(objective: Objective, value: Callable[[SeedFigures], float]) -> dict[str, Floats]:
        found: dict[str, list[list[float]]] = {}
        for at, (line, _, asked) in enumerate(arms):
            if asked in (None, objective):
                found.setdefault(line, []).append([value(run[at]) for run in figures])
        return {line: np.array(values).T for line, values in found.items()}

    mean_s = columns("mean", lambda f: f.ttft_mean_s)
    p99_s = columns("p99", lambda f: f.ttft_p99_s)
    cells = []
    for at, (line, arm, _) in enumerate(arms):
        if line == "oracle" or (line in ("server_only", "device_only") and arm.budget != budgets[0]):
            continue
        column = budgets.index(arm.budget)
        cells.append(
            _cell(
                scenario,
                arm,
                [run[at] for run in figures],
                mean_s["oracle"][:, column],
                p99_s["oracle"][:, column],
            )
        )
    return Curves(
        pair=pair,
        budgets=budgets,
        mean_s=mean_s,
        p99_s=p99_s,
        used=columns("p99", lambda f: f.budget_used),
        cells=tuple(cells),
    )


def _cell(
    scenario: Scenario, arm: Arm, runs: Sequence[SeedFigures], best_mean_s: Floats, best_p99_s: Floats
) -> Cell:
    """Return a line of the report: an arm, and its distance to the oracles of the same runs."""
    return Cell(
        scenario.name,
        scenario.regime,
        arm,
        "vectorised",
        summarise(runs),
        figure([one.ttft_mean_s - best_s for one, best_s in zip(runs, best_mean_s.tolist(), strict=True)]),
        figure([one.ttft_p99_s - best_s for one, best_s in zip(runs, best_p99_s.tolist(), strict=True)]),
    )
