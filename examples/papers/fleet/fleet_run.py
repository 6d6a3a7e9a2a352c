"""`python -m papers.fleet run`: run scenarios, and print a line of figures for each; `python -m papers.fleet show`."""

from __future__ import annotations

import argparse
import json
import sys

from disco.errors import ConfigurationError
from disco.replay import open_executor
from papers.fleet.fleet_figures import answer_record, fleet_figures
from papers.fleet.fleet_report import HEADER, fleet_json, fleet_rows
from papers.fleet.fleet_simulator import simulate_fleet
from papers.fleet.fleet_sweep import FleetRun, Point, points_of, sweep_fleets
from papers.fleet.fleet_topology import Drafting, Serving, Topology, expand
from papers.fleet.shipped_fleets import fleet_path, shipped_fleets
from papers.terminal import Screen, check_output, write

__all__ = ["run_fleets", "show"]


def run_fleets(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run and report; return the exit status."""
    check_output(arguments, "json", "answers")
    if arguments.json == "-" or arguments.answers == "-":
        screen = Screen(sys.stderr)  # standard output is for the JSON only
    points = [
        point
        for name in arguments.scenario
        for point in points_of(fleet_path(name), arguments.set, arguments.vary)
    ]
    topologies = [expand(point.scenario) for point in points]
    for note in dict.fromkeys(note for topology in topologies for note in _notes(topology)):
        screen.line(note, style="dim")
    runs = _answers(screen, arguments, points) if arguments.answers else _sweep(screen, arguments, points)
    screen.table("Fleets", HEADER, fleet_rows(runs))
    if arguments.json is not None:
        write(screen, arguments.json, fleet_json(runs), "Figures")
    return 0


def show(screen: Screen, arguments: argparse.Namespace) -> int:
    """Print a shipped scenario, or the names of all."""
    if arguments.name is None:
        for name in shipped_fleets():
            first = fleet_path(name).read_text(encoding="utf-8").splitlines()[0]
            screen.line(f"{name}: {first.removeprefix('# ')}")
        return 0
    print(fleet_path(arguments.name).read_text(encoding="utf-8"), end="")
    return 0


def _sweep(screen: Screen, arguments: argparse.Namespace, points: list[Point]) -> list[FleetRun]:
    jobs = arguments.jobs
    if jobs is None and arguments.scheduler is None and len(points) * arguments.seeds == 1:
        jobs = 1
    if jobs == 1 and len(points) * arguments.seeds == 1:
        with screen.bar("Simulating") as tell:
            return [_one(points[0], tell)]
    with open_executor(jobs, arguments.scheduler) as executor, screen.bar("Simulating") as tell:
        return sweep_fleets(points, seeds=arguments.seeds, executor=executor, progress=tell)


def _one(point: Point, tell: object) -> FleetRun:
    """Run one point here, whose progress is told by answers."""
    assert callable(tell)
    finished = simulate_fleet(point.scenario, progress=tell)
    figures = fleet_figures(point.scenario, finished)
    return FleetRun(point.scenario.name, point.label, point.scenario.seed, figures)


def _answers(screen: Screen, arguments: argparse.Namespace, points: list[Point]) -> list[FleetRun]:
    """Run the only point, and write its answers."""
    if len(points) * arguments.seeds != 1:
        raise ConfigurationError("--answers is for one scenario and one seed; leave out --vary and --seeds")
    (point,) = points
    with screen.bar("Simulating") as tell:
        finished = simulate_fleet(point.scenario, progress=tell)
    lines = (json.dumps(answer_record(answer)) for answer in finished.answers)
    write(screen, arguments.answers, "\n".join(lines), "Answers")
    figures = fleet_figures(point.scenario, finished)
    return [FleetRun(point.scenario.name, point.label, point.scenario.seed, figures)]


def _notes(topology: Topology) -> list[str]:
    """Say which costs are not measured."""
    everyone: tuple[Serving | Drafting, ...] = (*topology.targets, *topology.drafters)
    members = [one for one in everyone if one.pool.hardware]
    if not members:
        return []
    scaled = {
        f"{one.pool.model} on {one.pool.hardware}": None for one in members if one.costs.basis != "measured"
    }
    layers = f", and the layers of {', '.join(scaled)}" if scaled else ""
    return [f"Estimated, not measured: attention and output head{layers}."]
