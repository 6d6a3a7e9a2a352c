"""Sweeps over policies × budgets × seeds × scenarios on any executor; all executors give the same figures."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.policies.policy_registry import has_budget
from disco.errors import ConfigurationError, nearest
from disco.replay.metrics.outcome import Outcome
from disco.replay.metrics.over_seeds import Cell, Figure, SeedFigures, figures_of, regret, summarise
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.sweeps.executors import Progress, run_all, share, shared_value
from disco.replay.vector.arm_delays import ORACLE, RECORDED
from disco.replay.vector.evaluator import evaluate
from disco.replay.vector.oracle import Objective
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord

__all__ = [
    "BUDGETLESS",
    "EvaluatorName",
    "Source",
    "Swept",
    "cell",
    "check_names",
    "errors_named",
    "figures_key",
    "is_budgetless",
    "keeps_no_budget",
    "run_sweep",
    "seed_numbers",
    "sweep",
]

EvaluatorName = Literal["vectorised", "events"]
Source = Trace | Callable[[int], Trace]
"""One trace for every seed, or a function that returns the trace of a seed (it must be picklable)."""

BUDGETLESS: Final = frozenset(("device_only", "race", "server_only"))
"""Disco's policies without a budget: their results are the same at each budget."""


@functools.cache  # asked for each cell; what is installed does not change within a run
def is_budgetless(policy: str) -> bool:
    """Return whether a policy of an arm, with or without options behind its name, has no budget.

    Raises:
        ConfigurationError: the package that adds the policy is at fault.
    """
    return policy in BUDGETLESS or not has_budget(policy_spec(policy)[0])


def keeps_no_budget(policy: str) -> bool:
    """Return whether a policy keeps to no budget: one cell then stands for every budget."""
    return policy == RECORDED or is_budgetless(policy)


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep.

    Attributes:
        cells: scenario by scenario, arms in the order given.
        example: the record of the first answer that migrated; None when none did.
    """

    cells: list[Cell]
    example: RouteRecord | None = None


def sweep(
    source: Source,
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    *,
    seeds: int | Sequence[int] = 1,
    evaluator: EvaluatorName = "vectorised",
    executor: Executor | None = None,
    progress: Progress | None = None,
    oracle: bool = True,
) -> list[Cell]:
    """Run every arm on every scenario as `run_sweep`, and return only the cells."""
    return run_sweep(
        source,
        scenarios,
        arms,
        seeds=seeds,
        evaluator=evaluator,
        executor=executor,
        progress=progress,
        oracle=oracle,
    ).cells


def run_sweep(
    source: Source,
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    *,
    seeds: int | Sequence[int] = 1,
    evaluator: EvaluatorName = "vectorised",
    executor: Executor | None = None,
    progress: Progress | None = None,
    oracle: bool = True,
) -> Swept:
    """Run every arm on every scenario.

    One unit of work is one scenario and one seed (and one arm with the event-accurate evaluator). Results are combined
    in a fixed order, so every executor gives the same numbers to the last bit.

    The oracles are worked out last, by the vectorised evaluator whatever the arms' own is: they are bounds on the time
    to first token, and have no answers. Each budget has one oracle, with which its arms are compared, and which the arm
    "oracle" shows. No arm has a smaller figure than that, because it may take as many tokens as the arm of its budget
    that took most. An arm without a budget is compared with one that may take as many as it did. Each of TTFT's mean,
    P50, P90 and P99 in such a line is that of the oracle that minimises it; what else is in the line belongs to the
    oracle that minimises the mean.

    Args:
        source: the trace; see `Source`.
        scenarios: their names must differ.
        arms: the policies to compare.
        seeds: the number of seeds (0 to `seeds` - 1), or the seeds; each draws what the trace leaves open again.
        evaluator: "vectorised" (TTFT, budget and cost) or "events" (the reader's side too, and migration).
        executor: any executor; None: the work is done in this process.
        progress: called in this process.
        oracle: work out the regrets; this takes longer than the arms with the vectorised evaluator.

    Raises:
        ConfigurationError: no scenario, arm or seed, or a scenario and an arm that cannot be combined; the message
            names the scenario and the seed. Other errors of a worker are raised unchanged, with a note of them.
    """
    check_names(scenarios, arms)
    seeds = seed_numbers(seeds)
    units = _units(scenarios, arms, seeds, evaluator)
    # A large trace is sent to the workers once, not with every unit of work.
    sharing = (
        share(executor, source) if executor is not None and isinstance(source, Trace) else nullcontext(source)
    )
    bounded = oracle or any(arm.policy == ORACLE for arm in arms)
    total = len(units) + (len(scenarios) * len(seeds) if bounded else 0)
    with sharing as handle:
        done = run_all(executor, _evaluate, [(handle, unit) for unit in units], _ahead(progress, 0, total))
        figures = {
            (unit.scenario.name, unit.seed, arm): each
            for unit, (found, _) in zip(units, done, strict=True)
            for arm, each in zip(unit.arms, found, strict=True)
        }
        bounds = _bounds(scenarios, arms, seeds, figures, regrets=oracle) if bounded else []
        found = run_all(
            executor, _oracles, [(handle, bound) for bound in bounds], _ahead(progress, len(units), total)
        )
    best = {
        (bound.scenario.name, bound.seed, share): each
        for bound, oracles in zip(bounds, found, strict=True)
        for share, each in zip(bound.shares, oracles, strict=True)
    }
    cells = [
        _cell(scenario, arm, seeds, evaluator, arms, figures, best, regrets=oracle)
        for scenario, arm in itertools.product(scenarios, arms)
    ]
    return Swept(cells, next((example for _, example in done if example is not None), None))


def _ahead(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return the same progress for a part of the work that begins after `before` of `total` units."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def figures_key(arm: Arm) -> Arm:
    """Return the arm that represents all arms with the same outcome as this one."""
    return replace(arm, budget=1.0, tail=0.0) if is_budgetless(arm.policy) else arm


@contextmanager
def errors_named(scenario: Scenario, seed: int) -> Iterator[None]:
    """Name scenario and seed in errors of the block, and make the errors picklable."""
    where = f"{scenario.name}, seed {seed}"
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except Exception as error:
        error.add_note(f"while replaying {where}")
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in the same line
        except Exception:  # noqa: BLE001 - an error that cannot be pickled would break the worker's pool
            raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from None
        raise


def cell(
    scenario: Scenario,
    arm: Arm,
    evaluator: str,
    figures: Sequence[SeedFigures],
    oracles: Sequence[tuple[float, float]] | None,
) -> Cell:
    """Return one line of a result from its seeds.

    Args:
        scenario: the scenario of the line.
        arm: the arm of the line.
        evaluator: name of the evaluator.
        figures: one per seed.
        oracles: mean and P99 of the oracles' TTFT, one per seed; None if not known.
    """
    regrets: tuple[Figure | None, Figure | None] = (None, None)
    if oracles is not None and arm.policy != ORACLE:
        regrets = regret(figures, [mean_s for mean_s, _ in oracles], [p99_s for _, p99_s in oracles])
    return Cell(scenario.name, scenario.regime, arm, evaluator, summarise(figures), *regrets)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit of work: some arms on one scenario and seed."""

    scenario: Scenario
    seed: int
    arms: tuple[Arm, ...]
    evaluator: EvaluatorName


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A unit of work: the oracles of some budgets on one scenario and seed.

    Attributes:
        shares: the budgets.
        shown: those of which every figure is shown, and not only the mean and P99 that others are compared with.
    """

    scenario: Scenario
    seed: int
    shares: tuple[float, ...]
    shown: frozenset[float]


def _units(
    scenarios: Sequence[Scenario], arms: Sequence[Arm], seeds: Sequence[int], evaluator: EvaluatorName
) -> list[_Unit]:
    if evaluator not in ("vectorised", "events"):
        raise ConfigurationError(
            f"no evaluator is called {evaluator!r}. {nearest(evaluator, ('events', 'vectorised'))}"
        )
    distinct = tuple(dict.fromkeys(figures_key(arm) for arm in arms if arm.policy != ORACLE))
    together = [distinct] if evaluator == "vectorised" else [(arm,) for arm in distinct]
    return [
        _Unit(scenario, seed, some, evaluator)
        for scenario, seed in itertools.product(scenarios, seeds)
        for some in together
    ]


Figures = Mapping[tuple[str, int, Arm], SeedFigures]


def _bounds(
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    figures: Figures,
    *,
    regrets: bool,
) -> list[_Bounds]:
    found = []
    for scenario, seed in itertools.product(scenarios, seeds):
        shares = {arm: _share(arm, arms, figures, scenario.name, seed) for arm in arms}
        shown = frozenset(share for arm, share in shares.items() if arm.policy == ORACLE)
        needed = shares.values() if regrets else shown
        found.append(_Bounds(scenario, seed, tuple(dict.fromkeys(needed)), shown))
    return found


def _share(arm: Arm, arms: Sequence[Arm], figures: Figures, scenario: str, seed: int) -> float:
    """Return the budget of the oracle that an arm is compared with, or, for an oracle, that it shows.

    One oracle for each budget, which may take as many tokens as the arm of that budget that took most.
    """
    spenders = [arm]
    if not keeps_no_budget(arm.policy):
        spenders = [
            other
            for other in arms
            if other.budget == arm.budget and other.policy != ORACLE and not keeps_no_budget(other.policy)
        ]
    used = [figures[scenario, seed, figures_key(other)].budget_used for other in spenders]
    return min(max(arm.budget, *used, 0.0), 1.0)


def seed_numbers(seeds: int | Sequence[int]) -> Sequence[int]:
    """Return the numbers of the seeds.

    Raises:
        ConfigurationError: there is no seed, or one is below 0.
    """
    chosen = range(seeds) if isinstance(seeds, int) else tuple(seeds)
    if not chosen or min(chosen) < 0:
        raise ConfigurationError(f"seeds must be at least 1, or be numbers from 0 on, not {seeds}")
    return chosen


def check_names(scenarios: Sequence[Scenario], arms: Sequence[Arm]) -> None:
    """Check that there is a scenario and an arm, and that the names of the scenarios differ.

    Raises:
        ConfigurationError: there is none, or names are equal.
    """
    if not scenarios or not arms:
        raise ConfigurationError("a sweep needs at least one scenario and one arm")
    names = [scenario.name for scenario in scenarios]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"two scenarios are called {twice!r}; give them different names")


def _evaluate(handle: Any, unit: _Unit) -> tuple[list[SeedFigures], RouteRecord | None]:
    """Return the figures of each arm, and an answer that migrated; runs in a worker."""
    with errors_named(unit.scenario, unit.seed):
        workload = _workload(handle, unit.scenario, unit.seed)
        figures = []
        example = None
        for arm in unit.arms:  # one at a time: columns of a long trace are large
            outcome = _outcome(workload, unit, arm)
            figures.append(figures_of(outcome, unit.scenario.constrained))
            example = example or outcome.example
        return figures, example


def _workload(handle: Any, scenario: Scenario, seed: int) -> Workload:
    source: Source = shared_value(handle)
    return resolve(source if isinstance(source, Trace) else source(seed), scenario, seed=seed)


def _outcome(workload: Workload, unit: _Unit, arm: Arm) -> Outcome:
    if unit.evaluator == "events":
        return simulate(workload, unit.scenario, arm, seed=unit.seed)
    return evaluate(workload, unit.scenario, arm, seed=unit.seed)


def _oracles(handle: Any, bounds: _Bounds) -> list[SeedFigures]:
    """Return the figures of the oracles of each budget; runs in a worker."""
    scenario, seed = bounds.scenario, bounds.seed
    with errors_named(scenario, seed):
        workload = _workload(handle, scenario, seed)

        def figures(share: float, objective: Objective) -> SeedFigures:
            outcome = evaluate(workload, scenario, Arm(ORACLE, share), seed=seed, objective=objective)
            return figures_of(outcome, scenario.constrained)

        def best(share: float) -> SeedFigures:
            quantiles: tuple[Objective, ...] = ("p50", "p90", "p99") if share in bounds.shown else ("p99",)
            names = {objective: f"ttft_{objective}_s" for objective in quantiles}
            least = {name: getattr(figures(share, objective), name) for objective, name in names.items()}
            return replace(figures(share, "mean"), **least)

        return [best(share) for share in bounds.shares]


def _cell(
    scenario: Scenario,
    arm: Arm,
    seeds: Sequence[int],
    evaluator: EvaluatorName,
    arms: Sequence[Arm],
    figures: Figures,
    best: Mapping[tuple[str, int, float], SeedFigures],
    *,
    regrets: bool,
) -> Cell:
    def oracle(seed: int) -> SeedFigures:
        return best[scenario.name, seed, _share(arm, arms, figures, scenario.name, seed)]

    if arm.policy == ORACLE:
        return cell(scenario, arm, evaluator, [oracle(seed) for seed in seeds], None)
    mine = [figures[scenario.name, seed, figures_key(arm)] for seed in seeds]
    if not regrets or any(one.failed for one in mine):  # the oracle answers every request
        return cell(scenario, arm, evaluator, mine, None)
    oracles = [(one.ttft_mean_s, one.ttft_p99_s) for one in map(oracle, seeds)]
    return cell(scenario, arm, evaluator, mine, oracles)
