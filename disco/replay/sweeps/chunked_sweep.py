"""Sweeps over traces too long to hold in memory: memory depends on the chunk, not on the trace.

Policies plan on the lengths and times of the whole trace, which a first pass collects. A policy's rounding errors and
the random draws continue from chunk to chunk. So means, shares, budget and cost are the same as for the whole trace at
once; quantiles are exact to `per_seed.RELATIVE_ERROR`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from disco.dispatch import Policy
from disco.errors import ConfigurationError
from disco.replay.formats import read_chunks
from disco.replay.metrics.over_seeds import Cell
from disco.replay.metrics.per_seed import SeedFigures, Tally
from disco.replay.sweeps.executors import Progress, run_all
from disco.replay.sweeps.sweep import cell, check_names, errors_named, figures_key, seed_numbers
from disco.replay.vector.arm_delays import ORACLE, arm_policy, policy_delays, server_leads
from disco.replay.vector.evaluator import check_evaluable, race
from disco.replay.workload.scenario import Arm, Scenario, Workload, draws, resolve
from disco.replay.workload.trace_survey import Survey, survey

__all__ = ["sweep_chunks"]


def sweep_chunks(
    path: str | os.PathLike[str],
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    *,
    chunk_rows: int,
    format: str = "auto",  # noqa: A002 (the users' word)
    skip_invalid: bool = False,
    surveyed: Survey | None = None,
    seeds: int | Sequence[int] = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Cell]:
    """Run every arm on every scenario with the vectorised evaluator, `chunk_rows` requests at a time.

    One unit of work is one scenario and one seed. Every unit reads the file itself.

    Args:
        path: the trace; workers on other machines must see it under the same path.
        scenarios: their names must differ. Those without `lengths` get the whole trace's.
        arms: the policies to compare; not the oracle, which must see all requests at once. So there are no regrets.
        chunk_rows: requests in memory at a time, at least 1.
        format: as for `formats.read_chunks`.
        skip_invalid: leave out rows that are not valid; `survey` counts them.
        surveyed: the file's survey; None: made here, by one more pass.
        seeds: as for `sweep`.
        executor: any executor; None: the work is done in this process.
        progress: called in this process: after every chunk if the work is done here, else after every unit.

    Raises:
        ConfigurationError: as for `sweep` and `formats.read_chunks`.
    """
    check_names(scenarios, arms)
    if any(arm.policy == ORACLE for arm in arms):
        raise ConfigurationError(
            "the oracle must see all requests at once: leave out the oracle, or chunk_rows"
        )
    file = _File(os.fspath(path), chunk_rows, format, skip_invalid)
    if surveyed is None:
        surveyed = survey(path, chunk_rows=chunk_rows, format=format, skip_invalid=skip_invalid)
    lengths = surveyed.lengths
    scenarios = [s if s.lengths is not None else replace(s, lengths=lengths) for s in scenarios]
    distinct = tuple(dict.fromkeys(figures_key(arm) for arm in arms))
    numbers = seed_numbers(seeds)
    work = [(file, scenario, distinct, seed) for scenario in scenarios for seed in numbers]
    if executor is None:
        tick = _Ticks(progress, len(work) * -(-surveyed.requests // chunk_rows))
        done = iter([_evaluate(*each, tick) for each in work])
    else:
        done = iter(run_all(executor, _evaluate, work, progress))
    cells = []
    for scenario in scenarios:
        by_seed = [dict(zip(distinct, next(done), strict=True)) for _ in numbers]
        cells += [
            cell(scenario, arm, "vectorised", [figures[figures_key(arm)] for figures in by_seed], None)
            for arm in arms
        ]
    return cells


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    chunk_rows: int
    format: str
    skip_invalid: bool

    def workloads(self, scenario: Scenario, seed: int) -> Iterator[Workload]:
        """Yield the requests with all draws made, chunk by chunk."""
        rngs = draws(seed)
        with read_chunks(
            self.path, chunk_rows=self.chunk_rows, format=self.format, skip_invalid=self.skip_invalid
        ) as chunks:
            for chunk in chunks:
                yield resolve(chunk, scenario, seed=seed, rngs=rngs)


class _Ticks:
    """Counter of chunks that reports progress. Mutable: `done`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress = progress
        self.total = total
        self.done = 0

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(slots=True)
class _Run:
    """One arm while it runs over the trace. Mutable: policy and tally, by every chunk."""

    arm: Arm
    policy: Policy
    tally: Tally


def _evaluate(
    file: _File, scenario: Scenario, arms: tuple[Arm, ...], seed: int, tick: Callable[[], None] | None = None
) -> list[SeedFigures]:
    """Run all arms on one scenario and seed; runs in a worker."""
    with errors_named(scenario, seed):
        runs: list[_Run] = []
        for workload in file.workloads(scenario, seed):
            runs = runs or [_begin(scenario, arm, workload, seed) for arm in arms]
            for run in runs:
                delays = policy_delays(run.policy, scenario, run.arm, workload.prompt_tokens)
                run.tally.add(race(workload, scenario, delays, server_first=server_leads(scenario, run.arm)))
            if tick is not None:
                tick()
        return [run.tally.figures() for run in runs]


def _begin(scenario: Scenario, arm: Arm, first: Workload, seed: int) -> _Run:
    check_evaluable(scenario, arm)
    return _Run(arm, arm_policy(scenario, arm, first.prompt_tokens, seed=seed), Tally(scenario.constrained))
