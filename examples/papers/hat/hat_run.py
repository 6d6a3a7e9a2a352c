"""Run of the HAT paper's evaluation: `run_hat`."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final, NamedTuple

from disco.errors import ConfigurationError
from disco.replay import Progress, run_all
from disco.speculate import Reply
from papers.hat.hat_assumptions import ASSUMED
from papers.hat.hat_fleets import (
    BEHIND,
    COUNTED,
    DATA,
    MAKESPAN,
    SKIPPED,
    ablation_arm,
    paper_arm,
    paper_fleet,
    paper_requests,
)
from papers.hat.hat_printed import ABLATION, ARM_NAMES, CNN_DM, DATASETS, SLA, SPEC_BENCH
from papers.hat.split_figures import SplitFigures, split_figures
from papers.hat.split_fleet import SplitArm
from papers.hat.split_simulator import simulate_split

__all__ = ["ARMS", "OURS", "RATES", "REPLIES", "SHARES", "HatPoint", "HatResult", "run_hat"]

REPLIES: Final[tuple[Reply, ...]] = ("all", "last")
"""As in the paper, and with the last row of a prompt only."""
ARMS: Final = (*ARM_NAMES, MAKESPAN)
RATES: Final = {SPEC_BENCH: (4.0, 6.0, 9.0), CNN_DM: (1.0, 2.0, 3.0, 4.0)}
"""Requests/s of Figures 6 and 7; of Figure 7 the text names 4 only."""
OURS: Final = " (ours)"
"""Behind a column of Table V: with our chunks."""
SHARES: Final = (0.5, 0.9)
_ALONE_RATE: Final = 0.02
"""Requests/s of Table IV: one answer at a time."""
_ALONE_COUNT: Final = 40


class HatPoint(NamedTuple):
    """A simulated fleet, mean over runs; see `SplitFigures`.

    Attributes:
        met: share of requests within the prefill limit of the data set's Figure 9 or 10.
        ten_50_ms, ten_90_ms: per ten tokens, which 50 % and 90 % of all tens meet.
    """

    ttft_ms: float
    tbt_ms: float
    accept_length: float
    drafted: float
    hits: float
    chunk: float
    gpu_ms: float
    gpu_sd_ms: float
    met: float
    ten_50_ms: float
    ten_90_ms: float


@dataclass(frozen=True, slots=True)
class HatResult:
    """All results from which the tables are made.

    Attributes:
        runs: seeds of each point.
        counted: requests of each run that count.
        loads: Figures 6, 7, 8 and 12, by (data set, reply, arm, requests/s), with four GPUs.
        single: Figures 9 to 11, with one GPU, by (data set, reply, arm).
        ablation: Table V, by (data set, reply, column); with our chunks the column ends with `OURS`.
        alone: Table IV, by (data set, arm).
        took_s: duration of the whole run, s.
    """

    runs: int
    counted: int
    loads: dict[tuple[str, str, str, float], HatPoint]
    single: dict[tuple[str, str, str], HatPoint]
    ablation: dict[tuple[str, str, str], HatPoint]
    alone: dict[tuple[str, str], HatPoint]
    took_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        names = {
            "loads": ("dataset", "reply", "arm", "rate"),
            "single": ("dataset", "reply", "arm"),
            "ablation": ("dataset", "reply", "column"),
            "alone": ("dataset", "arm"),
        }
        return {
            "assumed": [one._asdict() for one in ASSUMED],
            "runs": self.runs,
            "counted": self.counted,
            **{
                part: [
                    {**dict(zip(keys, key, strict=True)), **point._asdict()}
                    for key, point in getattr(self, part).items()
                ]
                for part, keys in names.items()
            },
            "took_s": self.took_s,
        }


class _Task(NamedTuple):
    key: tuple[Any, ...]
    dataset: str
    arm: SplitArm
    rate: float
    pipeline: int = 4
    alone: bool = False


def run_hat(
    *,
    runs: int = 1,
    share: float = 1.0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> HatResult:
    """Compute all tables.

    Args:
        runs: seeds of each point. The calibration is of the first seed.
        share: of the requests that are simulated, at most 1.
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
    skipped, counted, behind = (max(1, round(share * part)) for part in (SKIPPED, COUNTED, BEHIND))
    tasks = [*_load_tasks(), *_single_tasks(), *_ablation_tasks(), *_alone_tasks()]
    work = [(task, (skipped, counted, behind), seed) for task in tasks for seed in range(1, runs + 1)]
    done = run_all(executor, _run, work, progress)
    points = {task.key: _mean(done[place * runs : (place + 1) * runs]) for place, task in enumerate(tasks)}

    def part(name: str) -> dict[Any, HatPoint]:
        return {key[1:]: point for key, point in points.items() if key[0] == name}

    return HatResult(
        runs=runs,
        counted=counted,
        loads=part("loads"),
        single=part("single"),
        ablation=part("ablation"),
        alone=part("alone"),
        took_s=time.monotonic() - began_at,
    )


def _load_tasks() -> list[_Task]:
    return [
        _Task(("loads", name, reply, arm, rate), name, paper_arm(arm, DATA[name], reply), rate)
        for name in DATASETS
        for reply in REPLIES
        for arm in ARMS
        for rate in RATES[name]
    ]


def _single_tasks() -> list[_Task]:
    return [
        _Task(("single", name, reply, arm), name, paper_arm(arm, DATA[name], reply), DATA[name].rate, 1)
        for name in DATASETS
        for reply in REPLIES
        for arm in ARMS
    ]


def _ablation_tasks() -> list[_Task]:
    return [
        _Task(
            ("ablation", name, reply, column.name + OURS * makespan),
            name,
            ablation_arm(column, reply, makespan=makespan),
            DATA[name].rate,
        )
        for name in DATASETS
        for reply in REPLIES
        for column in ABLATION
        for makespan in (False, True)
        if column.chunks or not makespan
    ]


def _alone_tasks() -> list[_Task]:
    """Return Table IV: one device, whose prompts do not matter."""
    return [
        _Task(("alone", name, arm), name, paper_arm(arm, DATA[name]), _ALONE_RATE, alone=True)
        for name in DATASETS
        for arm in ARM_NAMES
        if arm != "u_sarathi"
    ]


def _run(task: _Task, parts: tuple[int, int, int], seed: int) -> HatPoint:
    """Run one task with one seed; runs in a worker."""
    fleet = paper_fleet(DATA[task.dataset], task.arm, rate=task.rate, pipeline=task.pipeline, seed=seed)
    is_tree = task.arm.drafting == "tree"
    if task.alone:
        requests = paper_requests(task.dataset, tree=is_tree, seed=seed, parts=(_ALONE_COUNT,))
        fleet = replace(fleet, one_at_a_time=True)
        return _point(task.dataset, split_figures(simulate_split(fleet, requests)))
    skipped, counted, _ = parts
    requests = paper_requests(task.dataset, tree=is_tree, seed=seed, parts=parts)
    return _point(task.dataset, split_figures(simulate_split(fleet, requests), skipped, counted))


def _point(dataset: str, figures: SplitFigures) -> HatPoint:
    return HatPoint(
        figures.ttft_ms,
        figures.tbt_ms,
        figures.accept_length,
        figures.drafted,
        figures.hits,
        figures.chunk,
        figures.gpu_ms,
        figures.gpu_sd_ms,
        figures.share_within(SLA[dataset].limit_ms),
        *(figures.ten_met_by(share) for share in SHARES),
    )


def _mean(points: list[HatPoint]) -> HatPoint:
    return HatPoint(*map(fmean, zip(*points, strict=True)))
