"""Windows on fleets that no network was trained on, with intervals: a bootstrap over fleets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from disco.replay import Figure, bootstrap_mean
from papers.fleet.fleet_trials import ALONE, STATIC, Outcome, Trial, objective

__all__ = ["ORACLE", "Line", "compare", "compare_with"]

ORACLE: Final = "oracle static"


class Line(NamedTuple):
    """One window over all fleets. Ratios are geometric means.

    Attributes:
        window: its name.
        tpot, ttft, throughput: against the oracle's.
        cost: the objective against the oracle's; less 1 it is the regret.
        worst: the cost that 90 % of the fleets stay below.
    """

    window: str
    tpot: Figure
    ttft: Figure
    throughput: Figure
    cost: Figure
    worst: float


def compare(trials: Sequence[Trial], tried: Sequence[Mapping[str, Outcome]]) -> list[Line]:
    """Return a line for each window, the oracle's being the best static one of each fleet, the target alone included.

    Args:
        trials: sweeps of the fleets.
        tried: the windows that adapt, on the same fleets in the same order.
    """
    outcomes = _by_window(trials, tried)
    best = outcomes[ORACLE]
    lines = []
    for window, own in outcomes.items():
        parts = [
            _interval(_logs(own, best, part))
            for part in (
                lambda one, _: one.tpot_ms,
                lambda one, _: one.ttft_ms,
                lambda one, _: one.tokens_per_s,
                objective,
            )
        ]
        worst = float(np.exp(np.quantile(_logs(own, best, objective), 0.9)))
        lines.append(Line(window, parts[0], parts[1], parts[2], parts[3], worst))
    return lines


def compare_with(
    trials: Sequence[Trial], tried: Sequence[Mapping[str, Outcome]], window: str, other: str
) -> Figure:
    """Return the cost of a window against another one, fleet by fleet: below 1 it is better."""
    outcomes = _by_window(trials, tried)
    return _interval(_logs(outcomes[window], outcomes[other], objective))


def _by_window(trials: Sequence[Trial], tried: Sequence[Mapping[str, Outcome]]) -> dict[str, list[Outcome]]:
    fixed = int(np.argmin([_mean_cost(trials, tokens) for tokens in STATIC])) + STATIC[0]
    return {
        ORACLE: [trial.outcomes[trial.label] for trial in trials],
        "static 4": [trial.outcomes[4] for trial in trials],
        f"static {fixed} (the best one for all)": [trial.outcomes[fixed] for trial in trials],
        "target alone": [trial.outcomes[ALONE] for trial in trials],
        **{name: [one[name] for one in tried] for name in (tried[0] if tried else ())},
    }


def _mean_cost(trials: Sequence[Trial], tokens: int) -> float:
    return float(np.mean([np.log(objective(trial.outcomes[tokens], trial.outcomes[4])) for trial in trials]))


def _logs(
    own: Sequence[Outcome], other: Sequence[Outcome], part: Callable[[Outcome, Outcome], float]
) -> npt.NDArray[np.float64]:
    return np.array(
        [np.log(part(one, base) / part(base, base)) for one, base in zip(own, other, strict=True)]
    )


def _interval(logs: npt.NDArray[np.float64]) -> Figure:
    """Return a geometric mean of ratios and its interval, from the ratios' logarithms."""
    found = bootstrap_mean(logs)
    return Figure(*(float(np.exp(value)) for value in (found.mean, found.low, found.high)))
