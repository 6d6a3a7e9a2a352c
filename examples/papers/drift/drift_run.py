"""The comparison: every planner on every workload, with the device's work limited and with the server's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

from disco.errors import ConfigurationError
from disco.replay import Figure, Progress, figure, run_all
from papers.drift.drift_planners import PLANNERS, Planner
from papers.drift.drift_play import Setting, play, worst_window
from papers.drift.drift_workloads import Source, made_up, read_times, shipped_traces, users_days
from papers.drift.point_forecasts import FORECASTS, NEEDS_SKLEARN, errors, forecast, has_sklearn

__all__ = ["BUDGETS", "TEN_USERS", "DriftResult", "DriftRow", "ForecastRow", "run_drift"]

BUDGETS: Final = (0.1, 0.3)
TEN_USERS: Final = "ten users"
# The threshold of DiSCo-S looks at lengths only: all planners with a distribution decide alike there.
_SERVER_SIDE: Final = frozenset(("adaptive", *FORECASTS))


@dataclass(frozen=True, slots=True)
class DriftRow:
    """What a planner reached on a workload; tuples have one entry for each seed.

    Attributes:
        source, group: of the workload; see `Source`.
        limited: the side that the budget limits.
        budget: the share.
        planner: its name.
        governed: whether the budget's rule applied.
        mean_s, p99_s: of TTFT.
        used: share of the prompt tokens that the limited side was started on.
        worst_prompts: see `worst_window`.
        changes: how many the detector found.
    """

    source: str
    group: str
    limited: str
    budget: float
    planner: str
    governed: bool
    mean_s: tuple[float, ...]
    p99_s: tuple[float, ...]
    used: tuple[float, ...]
    worst_prompts: tuple[float, ...]
    changes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """Errors of a point forecast of the next TTFT, mean over seeds: percentage as a share, and absolute, s."""

    source: str
    forecast: str
    mape: float
    mae_s: float


@dataclass(frozen=True, slots=True)
class DriftResult:
    """All rows of a comparison.

    Attributes:
        runs: number of seeds.
        budgets: the shares compared.
        sources: name and description of each workload.
        rows: a row for each planner, workload and setting.
        forecasts: the errors of the point forecasts.
        notes: what was left out, and why.
        took_s: time that the run took.
    """

    runs: int
    budgets: tuple[float, ...]
    sources: dict[str, str]
    rows: tuple[DriftRow, ...]
    forecasts: tuple[ForecastRow, ...]
    notes: tuple[str, ...]
    took_s: float

    def find(self, source: str, limited: str, budget: float, planner: str) -> DriftRow | None:
        """Return a row, if there is one; of `TEN_USERS`, with the mean over all users for each seed."""
        named = [
            row
            for row in self.rows
            if (row.limited, row.budget, row.planner) == (limited, budget, planner)
            and (row.group == "user" if source == TEN_USERS else row.source == source)
        ]
        if source != TEN_USERS or not named:
            return named[0] if named else None
        columns: dict[str, Any] = {
            name: tuple(fmean(each) for each in zip(*(getattr(row, name) for row in named), strict=True))
            for name in ("mean_s", "p99_s", "used", "changes")
        }
        worst = tuple(max(each) for each in zip(*(row.worst_prompts for row in named), strict=True))
        first = named[0]
        return DriftRow(
            TEN_USERS, "user", limited, budget, planner, first.governed, worst_prompts=worst, **columns
        )

    def difference(self, row: DriftRow, other: DriftRow, what: str) -> Figure:
        """Return how much larger `what` ("mean_s", "p99_s") is in `row`, seed by seed, with its interval."""
        pairs = zip(getattr(row, what), getattr(other, what), strict=True)
        return figure([mine - theirs for mine, theirs in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and names, ready for JSON."""
        return asdict(self)


def run_drift(
    *,
    runs: int = 10,
    budgets: Sequence[float] = BUDGETS,
    traces: Sequence[str | os.PathLike[str]] = (),
    planners: Sequence[Planner] = PLANNERS,
    sources: Sequence[Source] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> DriftResult:
    """Play every workload under every planner.

    Args:
        runs: number of seeds; each draws prompts, and times where the workload leaves them open.
        budgets: shares b of all prompt tokens that the limited side may process; above 0 and below 1.
        traces: CSV files with times of a real server (`read_times`), besides the workloads that the package carries.
        planners: those to compare.
        sources: workloads in place of the package's.
        executor: runs the units; None: in this process. Every executor gives the same figures.
        progress: called with the number of units done, and the total.
        seed: the first.

    Raises:
        ConfigurationError: a number out of range, or a trace that cannot be read.
    """
    began_at = time.monotonic()
    if runs < 1 or seed < 0:
        raise ConfigurationError(f"runs must be at least 1 and seed at least 0, not {runs} and {seed}")
    shares = tuple(sorted(set(budgets)))
    if not shares or not all(0.0 < share < 1.0 for share in shares):
        raise ConfigurationError(f"budgets are shares above 0 and below 1, not {list(budgets)}")
    given = [*shipped_traces(), *users_days(), *made_up()] if sources is None else list(sources)
    given = [*(read_times(path) for path in traces), *given]
    notes = []
    if not has_sklearn() and any(planner.knows in NEEDS_SKLEARN for planner in planners):
        planners = [planner for planner in planners if planner.knows not in NEEDS_SKLEARN]
        notes.append(
            "Random forest and boosted trees are left out: they need scikit-learn "
            '(pip install "disco-llm[forecast]").'
        )
    seeds = tuple(range(seed, seed + runs))
    units = [(source, planner, shares, seeds) for planner in reversed(planners) for source in given]
    found = run_all(executor, _unit, units, progress)
    order = {planner.name: at for at, planner in enumerate(planners)}
    rows = sorted((row for rows, _ in found for row in rows), key=lambda row: order[row.planner])
    return DriftResult(
        runs=runs,
        budgets=shares,
        sources={source.name: source.what for source in given},
        rows=tuple(rows),
        forecasts=tuple(error for _, error in found if error is not None),
        notes=tuple(notes),
        took_s=time.monotonic() - began_at,
    )


def _settings(source: Source, planner: Planner, budgets: Sequence[float]) -> Iterator[Setting]:
    for budget in budgets:
        yield Setting("device", budget)
    if planner.knows in _SERVER_SIDE and source.group != "user":
        for budget in budgets:
            yield Setting("server", budget)


def _unit(
    source: Source, planner: Planner, budgets: Sequence[float], seeds: Sequence[int]
) -> tuple[list[DriftRow], ForecastRow | None]:
    """Play one workload under one planner, in all settings and with all seeds."""
    settings = list(_settings(source, planner, budgets))
    played: list[list[tuple[float, float, float, float, int]]] = [[] for _ in settings]
    missed: list[tuple[float, float]] = []
    for seed in seeds:
        times = source(seed)
        predicted_s = None
        if planner.knows in FORECASTS:
            predicted_s = forecast(planner.knows, times.ttft_s, seed)
            missed.append(errors(predicted_s[1:], times.ttft_s[1:]))
        for setting, results in zip(settings, played, strict=True):
            one = play(times, planner, setting, seed, predicted_s=predicted_s)
            results.append(
                (
                    float(one.ttft_s.mean()),
                    float(np.quantile(one.ttft_s, 0.99)),
                    one.budget_used,
                    worst_window(one, setting.budget),
                    one.changes,
                )
            )
    rows = []
    for setting, results in zip(settings, played, strict=True):
        mean_s, p99_s, used, worst, changes = zip(*results, strict=True)
        where = source.name, source.group, setting.limited, setting.budget
        rows.append(DriftRow(*where, planner.name, planner.governed, mean_s, p99_s, used, worst, changes))
    if not missed:
        return rows, None
    mape, mae_s = (fmean(each) for each in zip(*missed, strict=True))
    return rows, ForecastRow(source.name, planner.name, mape, mae_s)
