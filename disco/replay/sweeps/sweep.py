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
from disco.replay.vector.arm_delays import ORACLE
from disco.replay.vector.evaluator import evaluate
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

    Args:
        source: the trace; see `Source`.
        scenarios: their names must differ.
        arms: the policies to compare.
        seeds: the number of seeds (0 to `seeds` - 1), or the seeds; each draws what the trace leaves open again.
        evaluator: "vectorised" (TTFT, budget and cost) or "events" (the reader's side too, and migration).
        executor: any executor; None: the work is done in this process.
        progress: called in this process.
        oracle: compute the oracle's TTFT at every budget, for the regrets; costs about as much as two arms a budget.

    Raises:
        ConfigurationError: no scenario, arm or seed, or a scenario and an arm that cannot be combined; the message
            names the scenario and the seed. Other errors of a worker are raised unchanged, with a note of them.
    """
    check_names(scenarios, arms)
    seeds = seed_numbers(seeds)
    units = _units(scenarios, arms, seeds, evaluator, oracle=oracle)
    # A large trace is sent to the workers once, not with every unit of work.
    sharing = (
        share(executor, source) if executor is not None and isinstance(source, Trace) else nullcontext(source)
    )
    with sharing as handle:
        done = run_all(executor, _evaluate, [(handle, unit) for unit in units], progress)
    return _reduce(units, done, scenarios, arms, seeds, evaluator)


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
    """A unit of work: some arms, and the oracles of some budgets, on one scenario and seed."""

    scenario: Scenario
    seed: int
    arms: tuple[Arm, ...]
    oracle_budgets: tuple[float, ...]
    evaluator: EvaluatorName


@dataclass(frozen=True, slots=True)
class _Done:
    figures: tuple[SeedFigures, ...]
    oracles: tuple[tuple[float, float], ...]
    example: RouteRecord | None = None


def _units(
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    evaluator: EvaluatorName,
    *,
    oracle: bool,
) -> list[_Unit]:
    if evaluator not in ("vectorised", "events"):
        raise ConfigurationError(
            f"no evaluator is called {evaluator!r}. {nearest(evaluator, ('events', 'vectorised'))}"
        )
    distinct = tuple(dict.fromkeys(figures_key(arm) for arm in arms))
    budgets = tuple(dict.fromkeys(arm.budget for arm in arms if arm.policy != ORACLE)) if oracle else ()
    units = []
    for scenario, seed in itertools.product(scenarios, seeds):
        if evaluator == "vectorised":
            units.append(_Unit(scenario, seed, distinct, budgets, evaluator))
            continue
        units += [_Unit(scenario, seed, (arm,), (), evaluator) for arm in distinct]
        if budgets:
            units.append(_Unit(scenario, seed, (), budgets, evaluator))
    return units


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


def _evaluate(handle: Any, unit: _Unit) -> _Done:
    """Run one unit of work; runs in a worker."""
    source: Source = shared_value(handle)
    scenario, seed = unit.scenario, unit.seed
    with errors_named(scenario, seed):
        trace = source if isinstance(source, Trace) else source(seed)
        workload = resolve(trace, scenario, seed=seed)
        outcomes = (_outcome(workload, unit, arm) for arm in unit.arms)
        figures = []
        example = None
        for outcome in outcomes:  # one at a time: columns of a long trace are large
            figures.append(figures_of(outcome, scenario.constrained))
            example = example or outcome.example
        oracles = tuple(_oracle(workload, scenario, budget, seed) for budget in unit.oracle_budgets)
        return _Done(tuple(figures), oracles, example)


def _outcome(workload: Workload, unit: _Unit, arm: Arm) -> Outcome:
    if unit.evaluator == "events":
        return simulate(workload, unit.scenario, arm, seed=unit.seed)
    return evaluate(workload, unit.scenario, arm, seed=unit.seed)


def _oracle(workload: Workload, scenario: Scenario, budget: float, seed: int) -> tuple[float, float]:
    """Return the least mean and the least P99 of TTFT at a budget, s."""
    arm = Arm(ORACLE, budget)
    least_mean = evaluate(workload, scenario, arm, seed=seed, objective="mean")
    least_p99 = evaluate(workload, scenario, arm, seed=seed, objective="p99")
    return (
        figures_of(least_mean, scenario.constrained).ttft_mean_s,
        figures_of(least_p99, scenario.constrained).ttft_p99_s,
    )


def _reduce(
    units: Sequence[_Unit],
    done: Sequence[_Done],
    scenarios: Sequence[Scenario],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    evaluator: EvaluatorName,
) -> Swept:
    figures: dict[tuple[str, int, Arm], SeedFigures] = {}
    oracles: dict[tuple[str, int, float], tuple[float, float]] = {}
    for unit, one in zip(units, done, strict=True):
        at = unit.scenario.name, unit.seed
        figures |= {(*at, arm): each for arm, each in zip(unit.arms, one.figures, strict=True)}
        oracles |= {(*at, b): each for b, each in zip(unit.oracle_budgets, one.oracles, strict=True)}
    cells = []
    for scenario, arm in itertools.product(scenarios, arms):
        keys = [(scenario.name, seed) for seed in seeds]
        mine = [figures[*key, figures_key(arm)] for key in keys]
        best = _best(oracles, keys, arm.budget)
        cells.append(cell(scenario, arm, evaluator, mine, best))
    return Swept(cells, next((one.example for one in done if one.example is not None), None))


def _best(
    oracles: Mapping[tuple[str, int, float], tuple[float, float]],
    keys: Sequence[tuple[str, int]],
    budget: float,
) -> list[tuple[float, float]] | None:
    found = [oracles[*key, budget] for key in keys if (*key, budget) in oracles]
    return found if len(found) == len(keys) else None
