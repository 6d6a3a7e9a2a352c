"""Run of the DSD paper's evaluation: `run_dsd`."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any, Final, NamedTuple

from disco.errors import ConfigurationError
from disco.replay import Progress, run_all
from papers.dsd.calibrated import DATA
from papers.dsd.fleet_assumptions import ASSUMED
from papers.dsd.printed_values import (
    ADAPTIVE,
    CONFIGURATIONS,
    DATASETS,
    DYNAMIC,
    STATIC,
    Cell,
)
from papers.dsd.steady_state import SPAN, Point, Span, steady_point
from papers.fleet.predictor_errors import Errors, load_profile, predictor_errors

__all__ = [
    "ALONE",
    "DISTRIBUTED",
    "DRAFTERS",
    "FUSED",
    "LADDER",
    "LOADS",
    "ONE_WAY",
    "OPTIMAL",
    "ROUND_TRIPS_MS",
    "DsdResult",
    "Point",
    "run_dsd",
]

OPTIMAL, ALONE, DISTRIBUTED, FUSED = "optimal", "target alone", "distributed", "fused"
ONE_WAY: Final = "static, RTT one way"
ROUND_TRIPS_MS: Final = (0, 20, 40, 60, 80, 100)
LOADS: Final = (200, 600, 2000)
"""Drafters of Figure 6; the paper does not say how many there were."""
DRAFTERS: Final = (400, 700, 1000, 1400, 2000)
"""Drafters of Figures 7 to 10."""
LADDER: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("random, FIFO, static", {"routing": {"policy": "random"}}),
    ("JSQ, FIFO, static", {}),
    ("JSQ, LAB, static", {"batching": {"order": "length_aware"}}),
    ("JSQ, LAB, dynamic", {"batching": {"order": "length_aware"}, "window": {"name": "dynamic"}}),
    ("JSQ, LAB, AWC", {"batching": {"order": "length_aware"}, "window": {"name": "adaptive"}}),
)
"""The steps of Figure 5."""

_LONG: Final = Span(15.0, 5.0)
"""For routing: it takes many answers until those have gathered at slow servers that a blind rule sends there."""
_LONG_SHARE: Final = 0.3
"""And since that is long, of shorter answers."""
_ARMS: Final[dict[str, dict[str, Any]]] = {
    STATIC: {},
    DYNAMIC: {"window": {"name": "dynamic"}},
    ADAPTIVE: {"window": {"name": "adaptive"}},
    OPTIMAL: {"window": {"name": "optimal"}},
    ALONE: {"mode": "alone"},
    ONE_WAY: {"link": {"rtt_is": "one_way"}},
}
_POLICIES: Final[dict[str, dict[str, Any]]] = {
    "JSQ": {},
    "round-robin": {"routing": {"policy": "round_robin"}},
    "JSQ, LAB": {"batching": {"order": "length_aware"}},
}


@dataclass(frozen=True, slots=True)
class DsdResult:
    """All results from which the tables are made.

    Attributes:
        runs: seeds of each point.
        share: of each answer's tokens that was simulated.
        table2: by (data set, configuration, arm).
        ladder: Figure 5, by step.
        modes: Figure 6, by (mode, drafters, round trip in ms); modes without a network between rounds have 0.
        policies: Figures 7 to 10, by (policy, drafters).
        predictor: errors of the cost predictor on our own measurements.
        measured: where those are from.
        took_s: duration of the whole run, s.
    """

    runs: int
    share: float
    table2: dict[tuple[str, int, str], Point]
    ladder: dict[str, Point]
    modes: dict[tuple[str, int, int], Point]
    policies: dict[tuple[str, int], Point]
    predictor: tuple[Errors, ...]
    measured: str
    took_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return {
            "assumed": [one._asdict() for one in ASSUMED],
            "runs": self.runs,
            "share": self.share,
            "table2": [
                {"data": data, "configuration": column, "arm": arm, **_plain(point)}
                for (data, column, arm), point in self.table2.items()
            ],
            "figure5": [{"step": step, **_plain(point)} for step, point in self.ladder.items()],
            "figure6": [
                {"mode": mode, "drafters": drafters, "rtt_ms": rtt_ms, **_plain(point)}
                for (mode, drafters, rtt_ms), point in self.modes.items()
            ],
            "figures7to10": [
                {"policy": policy, "drafters": drafters, **_plain(point)}
                for (policy, drafters), point in self.policies.items()
            ],
            "predictor": [asdict(one) for one in self.predictor],
            "measured": self.measured,
            "took_s": self.took_s,
        }


def _plain(point: Point) -> dict[str, float]:
    return {**point.cell._asdict(), "alone": point.alone, "window": point.window, "busy": point.busy}


def run_dsd(
    *,
    runs: int = 1,
    share: float = 1.0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> DsdResult:
    """Compute all tables.

    Args:
        runs: seeds of each point; the paper's Table 2 has means of three.
        share: of each answer's tokens that is simulated, at most 1; requests/s are those of whole answers.
        executor: runs the points; None: in this process. Every executor gives the same figures.
        progress: called with the number of runs done, and the total.

    Raises:
        ConfigurationError: a number out of range.
    """
    began_at = time.monotonic()
    if runs < 1 or not 0 < share <= 1:
        raise ConfigurationError(
            f"runs must be at least 1 and share above 0 and at most 1, not {runs} and {share}"
        )
    tasks = [*_table2_tasks(), *_ladder_tasks(), *_mode_tasks(), *_policy_tasks()]
    work = [(task, share, seed) for task in tasks for seed in range(1, runs + 1)]
    # The longest first, so that no process is left with one of them at the end.
    order = sorted(range(len(work)), key=lambda place: -_effort(work[place][0]))
    done = dict(zip(order, run_all(executor, _run, [work[place] for place in order], progress), strict=True))
    points = {
        task.key: _mean([done[place * runs + seed] for seed in range(runs)])
        for place, task in enumerate(tasks)
    }

    def part(name: str) -> dict[Any, Point]:
        return {key[1:] if len(key) > 2 else key[1]: p for key, p in points.items() if key[0] == name}

    measured, profiles = load_profile(str(files("papers.dsd") / "data" / "cpu_passes.csv"))
    return DsdResult(
        runs=runs,
        share=share,
        table2=part("table2"),
        ladder=part("ladder"),
        modes=part("modes"),
        policies=part("policies"),
        predictor=tuple(predictor_errors(profile) for profile in profiles),
        measured=measured,
        took_s=time.monotonic() - began_at,
    )


class _Task(NamedTuple):
    key: tuple[Any, ...]
    data: str
    drafters: int
    rtt_ms: float
    changed: dict[str, Any]
    span: Span = SPAN
    share: float = 1.0


def _table2_tasks() -> list[_Task]:
    tasks = []
    for name in DATASETS:
        for number, column in CONFIGURATIONS.items():
            for arm, changed in _ARMS.items():
                # The round trip of configuration 1 is calibrated as it is; the optimal window is slow to simulate.
                if (arm == ONE_WAY and number <= 2) or (arm == OPTIMAL and number != 1):
                    continue
                tasks.append(
                    _Task(("table2", name, number, arm), name, column.drafters, column.rtt_ms, changed)
                )
    return tasks


def _ladder_tasks() -> list[_Task]:
    column = CONFIGURATIONS[1]
    return [
        _Task(("ladder", step), DATASETS[0], column.drafters, column.rtt_ms, changed, _LONG, _LONG_SHARE)
        for step, changed in LADDER
    ]


def _mode_tasks() -> list[_Task]:
    tasks = []
    for drafters in LOADS:
        tasks += [
            _Task(("modes", DISTRIBUTED, drafters, rtt_ms), DATASETS[0], drafters, rtt_ms, {})
            for rtt_ms in ROUND_TRIPS_MS
        ]
        for name, mode in ((FUSED, "fused"), (ALONE, "alone")):
            tasks.append(_Task(("modes", name, drafters, 0), DATASETS[0], drafters, 0.0, {"mode": mode}))
    return tasks


def _policy_tasks() -> list[_Task]:
    return [
        _Task(
            ("policies", name, drafters),
            DATASETS[0],
            drafters,
            CONFIGURATIONS[1].rtt_ms,
            changed,
            _LONG,
            _LONG_SHARE,
        )
        for name, changed in _POLICIES.items()
        for drafters in DRAFTERS
    ]


def _effort(task: _Task) -> float:
    """Return about how long a task takes, in any unit."""
    adapts = task.changed.get("window", {}).get("name") in ("adaptive", "optimal")
    tokens = DATA[task.data].output_tokens * task.share * sum(task.span)
    return task.drafters * tokens * (4 if adapts else 1)


def _run(task: _Task, share: float, seed: int) -> Point:
    """Run one task with one seed; runs in a worker."""
    return steady_point(
        DATA[task.data],
        task.span,
        drafters=task.drafters,
        rtt_ms=task.rtt_ms,
        seed=seed,
        share=share * task.share,
        **task.changed,
    )


def _mean(points: list[Point]) -> Point:
    cell = Cell(*(fmean(values) for values in zip(*(point.cell for point in points), strict=True)))
    return Point(
        cell, *(fmean(getattr(point, name) for point in points) for name in ("alone", "window", "busy"))
    )
