"""Sweeps over scenarios, settings and seeds, on any executor; all executors give the same figures to the last bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest, Progress, read_drafts, run_all, share, shared_value
from papers.fleet.fleet_figures import FleetFigures, fleet_figures
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_simulator import requests_of, simulate_fleet
from papers.fleet.fleet_toml import load_scenario
from papers.fleet.fleet_topology import expand

__all__ = ["FleetRun", "Point", "points_of", "sweep_fleets"]


@dataclass(frozen=True, slots=True)
class Point:
    """A scenario of a sweep; `label`: the settings in which it differs from its file."""

    scenario: FleetScenario
    label: str = ""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """The figures of one point and one seed."""

    scenario: str
    label: str
    seed: int
    figures: FleetFigures


def points_of(path: Path, settings: Sequence[str], vary: Iterable[str]) -> list[Point]:
    """Return the points of one scenario's file.

    Args:
        path: of the TOML file.
        settings: "KEY=VALUE", for every point; see `load_scenario`.
        vary: "KEY=VALUE,VALUE,...": each combination of the values is a point. Values with commas of their own are
            separated by ";".

    Raises:
        ConfigurationError: as `load_scenario`, or nothing to vary.
    """
    choices: list[list[str]] = []
    for text in vary:
        key, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
        if not equals or not all(parts):
            raise ConfigurationError(f"what varies is KEY=VALUE,VALUE, such as window.n=2,4,8, not {text!r}")
        choices.append([f"{key}={part}" for part in parts])
    return [
        Point(load_scenario(path, [*settings, *chosen]), " ".join(map(_short, chosen)))
        for chosen in product(*choices)
    ]


def _short(setting: str) -> str:
    """Return a setting with the last two parts of its key: tables have little room."""
    key, equals, value = setting.partition("=")
    return ".".join(key.split(".")[-2:]) + equals + value


def sweep_fleets(
    points: Sequence[Point],
    *,
    seeds: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[FleetRun]:
    """Run every point with every seed.

    Args:
        points: what to run.
        seeds: how many; the scenario's own and those after it. A seed draws arrivals, made-up requests, routing and
            jitter; a trace stays what it is.
        executor: any; None: the work is done in this process.
        progress: called after each run.

    Returns:
        Point by point, seeds in order.

    Raises:
        ConfigurationError: parts of a scenario that do not fit together; the message names it.
    """
    if seeds < 1:
        raise ConfigurationError(f"seeds must be at least 1, not {seeds}")
    for point in points:  # mistakes are told before the first run
        expand(point.scenario)
    # Traces are read here, so that a worker elsewhere needs no file of this machine.
    paths = {point.scenario.requests.trace for point in points} - {""}
    traces = {path: read_drafts(path) for path in sorted(paths)}
    work = [(point, point.scenario.seed + number) for point in points for number in range(seeds)]
    with share(executor, traces) if executor is not None else nullcontext(traces) as handle:
        return run_all(executor, _run, [(handle, point, seed) for point, seed in work], progress)


def _run(handle: Any, point: Point, seed: int) -> FleetRun:
    """Run one point with one seed; runs in a worker."""
    traces: dict[str, list[DraftedRequest]] = shared_value(handle)
    scenario = point.scenario.model_copy(update={"seed": seed})
    requests = traces.get(scenario.requests.trace) or requests_of(scenario)
    try:
        finished = simulate_fleet(scenario, requests)
    except ConfigurationError as error:
        raise ConfigurationError(f"{scenario.name} {point.label}: {error}") from None
    return FleetRun(scenario.name, point.label, seed, fleet_figures(scenario, finished))
