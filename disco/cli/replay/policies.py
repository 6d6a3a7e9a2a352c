"""`disco replay FILE` and `disco replay synthetic`: policies and budgets, beside each other and the best possible.

Prints a table; writes JSON and a page of plots.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from disco.amounts import plural
from disco.cli.console import Screen
from disco.cli.output_files import check_output, require_plotly, screen_beside, write
from disco.cli.replay.situation import (
    add_endpoints,
    add_file,
    add_processes,
    add_synthetic,
    auto_policy,
    described,
    left_out,
    made_up,
    read,
    situation_of,
)
from disco.cli.shared_options import add_figures, check_least, option
from disco.dispatch import available_presets, load_preset
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.policies.policy import VectorPolicy
from disco.dispatch.policies.policy_registry import check_options, is_known_policy, known_policies
from disco.errors import ConfigurationError, nearest
from disco.replay.metrics.over_seeds import Cell
from disco.replay.pairs import load_pair
from disco.replay.report import Report, findings, terminal_tables, to_html, to_json
from disco.replay.report.advice import advice, came_to, too_little
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import open_executor
from disco.replay.sweeps.sweep import BUDGETLESS, EvaluatorName, Swept, is_budgetless, run_sweep
from disco.replay.vector.arm_delays import ORACLE, RECORDED
from disco.replay.workload.from_recording import is_recording, without_drafts
from disco.replay.workload.scenario import Arm, Scenario
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import Survey, survey

__all__ = ["add_of_file", "add_of_synthetic", "add_pair", "add_seeds", "parse_policies", "parse_shares"]

BUDGETS = "0.1:0.9:0.1"
EVENT_BUDGETS = "0.5"
DEFAULT_PACE = 4.8  # people read 4 to 5 tokens/s
# From this number of requests × arms × seeds × scenarios on, processes save more time than their start takes.
WORTH_PROCESSES = {"vectorised": 20_000_000, "events": 2_000}
TAIL = 0.05  # as that of `Arm`
ONLY_WITH_EVENTS = ("pace", "release", "device_slots", "idle_unload")
NO_SETTINGS = frozenset((RECORDED, ORACLE, "random"))  # nobody changes to one of these
UNDRAFTED = frozenset((ORACLE, "device_only"))  # no answer of the server is drafted
# The policies that an option has no effect on. For third-party policies this is not known.
UNHEEDING = {
    "budget": BUDGETLESS | {RECORDED},
    "tail": BUDGETLESS | {RECORDED, ORACLE, "random", "length_threshold"},
    "migrate": frozenset((ORACLE,)),  # it is a bound on TTFT and has no answers
    "pair": UNDRAFTED,
}
MOST_SHARES = 1000  # of budgets, each is a replay of the whole trace
ONLY_IN_REPLAY = (ORACLE, RECORDED)


def add_of_file(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay FILE`."""
    add_file(parser)
    _add_comparison(parser)
    parser.add_argument(
        "--chunk-rows",
        type=int,
        metavar="N",
        help="hold only N requests in memory at a time (long Parquet traces)",
    )
    parser.set_defaults(run=replay_file)


def add_of_synthetic(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay synthetic`."""
    add_synthetic(parser)
    _add_comparison(parser)
    parser.set_defaults(run=replay_synthetic)


def add_seeds(parser: argparse._ActionsContainer, *, default: int = 1) -> None:
    """Add how often what is not known is drawn."""
    parser.add_argument(
        "--seeds",
        type=int,
        default=default,
        metavar="N",
        help="draw random values N times where the trace leaves them open (default: %(default)s)",
    )


def add_pair(parser: argparse._ActionsContainer, effect: str) -> None:
    """Add the file of a device that drafts for a server; `effect` says what it changes."""
    parser.add_argument(
        "--pair",
        metavar="FILE",
        help=f"{effect}; FILE has the times of drafter, network and server (docs/how-to/replay.md)",
    )


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    add_endpoints(parser)
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="a policy, of a plug-in with options as P:KEY=VALUE,...; may be given several times; also `oracle` and, "
        "for recorded routes, `recorded` (default: what `auto` selects, optimal_wait if the device is the more "
        "expensive side, random, server_only, device_only, oracle)",
    )
    what.add_argument(
        "--budget",
        metavar="B",
        help="share of prompt tokens that the more expensive side may process: 0.5, 0.1,0.3 or 0:1:0.1 "
        f"(default: {BUDGETS}; with --events {EVENT_BUDGETS})",
    )
    what.add_argument(
        "--tail", type=float, metavar="A", help=f"share reserved for slow servers (default: {TAIL})"
    )
    add_seeds(what)
    events = parser.add_argument_group("token by token")
    events.add_argument(
        "--events",
        action="store_true",
        help="run every answer through the real session (slower; includes the reader)",
    )
    events.add_argument(
        "--migrate",
        action="store_true",
        help="run each arm with migration, too, beside the run without; implies --events",
    )
    add_pair(
        events,
        "run each arm with the device drafting for the server, too, beside the run without; implies --events",
    )
    events.add_argument(
        "--pace",
        type=float,
        metavar="R",
        help=f"the reader's pace in tokens/s; 0: none (default: {DEFAULT_PACE})",
    )
    events.add_argument(
        "--release",
        choices=("word", "sentence"),
        help="what text leaves by: words, or sentences for a voice (default: word)",
    )
    events.add_argument(
        "--device-slots",
        type=int,
        metavar="N",
        help="answers that the device works on at the same time (default: no limit)",
    )
    events.add_argument(
        "--idle-unload", type=float, metavar="S", help="the device unloads its model after S idle seconds"
    )
    add_processes(parser)
    output = parser.add_argument_group("output")
    add_figures(output)
    output.add_argument("--html", metavar="FILE", help="write one self-contained page with the plots")


def replay_file(screen: Screen, arguments: argparse.Namespace) -> int:
    """Replay a trace file and report; return the exit status."""
    check_least(arguments, chunk_rows=1)
    for name in ("events", "migrate", "pair"):
        if arguments.chunk_rows is not None and getattr(arguments, name):
            raise ConfigurationError(
                f"{option(name)} does not apply to a trace file in chunks (--chunk-rows), which runs no session"
            )
    return _run(screen, arguments, _replay if arguments.chunk_rows is None else _replay_in_chunks)


def replay_synthetic(screen: Screen, arguments: argparse.Namespace) -> int:
    """Replay drawn requests and report; return the exit status."""
    return _run(screen, arguments, _replay_synthetic)


Replayed = tuple[Report, Sequence[str]]  # with what to do, in sentences; none but for a recording


def _run(
    screen: Screen, arguments: argparse.Namespace, replay: Callable[[Screen, argparse.Namespace], Replayed]
) -> int:
    _check(arguments)
    screen = screen_beside(screen, arguments.json)
    report, advised = replay(screen, arguments)
    for note in report.notes:
        screen.line(note, style="dim")
    for table in terminal_tables(report):
        screen.table(table.title, table.header, table.rows)
    for sentence in findings(report):
        screen.line(sentence, style="bold")
    if arguments.json is not None:
        write(screen, arguments.json, to_json(report), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, to_html(report), "Page with the plots")
    for sentence in advised:
        screen.line(sentence, style="bold")
    return 0


@dataclass(frozen=True, slots=True)
class _Task:
    """The arms to run, and the scenarios to run them on; `assumed`: see `ScenarioOptions`."""

    scenarios: list[Scenario]
    arms: list[Arm]
    evaluator: EvaluatorName
    notes: list[str]
    assumed: Mapping[str, int]


def _replay_synthetic(screen: Screen, arguments: argparse.Namespace) -> Replayed:
    made, notes = made_up(arguments)
    task = _task(arguments, None)
    swept = _sweep(screen, arguments, made, arguments.requests, task)
    return _report(arguments, [*notes, *task.notes], swept), ()


def _replay(screen: Screen, arguments: argparse.Namespace) -> Replayed:
    _task(arguments, None)  # reports mistakes in the options before minutes of reading
    trace, notes = read(screen, arguments)
    if arguments.pair is not None:
        trace, drafted = without_drafts(trace)
        if drafted:
            notes.append(
                f"{drafted:,} answers were drafted when they were recorded: their times per token are not used."
            )
    moved = int(trace.features["moved"].sum()) if is_recording(trace) else 0
    if moved and not arguments.migrate:
        notes.append(
            f"{plural(moved, 'recorded answer')} moved, and here all stay: --migrate lets them move, too."
        )
    task = _task(arguments, trace)
    swept = _sweep(screen, arguments, trace, len(trace), task)
    advised = _advised(swept.cells, task, Path(arguments.trace), _recorded_presets(trace))
    return _report(arguments, [*notes, *task.notes], swept), advised


def _recorded_presets(trace: Trace) -> set[str]:
    return set(trace.features["preset"].astype(str).tolist()) if is_recording(trace) else set()


def _sweep(
    screen: Screen,
    arguments: argparse.Namespace,
    source: Trace | partial[Trace],
    requests: int,
    task: _Task,
) -> Swept:
    work = requests * len(task.arms) * len(task.scenarios) * arguments.seeds
    jobs = arguments.jobs
    if jobs is None and arguments.scheduler is None and work < WORTH_PROCESSES[task.evaluator]:
        jobs = 1
    with open_executor(jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        return run_sweep(
            source,
            task.scenarios,
            task.arms,
            seeds=arguments.seeds,
            evaluator=task.evaluator,
            executor=executor,
            progress=tell,
        )


def _replay_in_chunks(screen: Screen, arguments: argparse.Namespace) -> Replayed:
    _task(arguments, None)
    path = Path(arguments.trace)
    how: dict[str, Any] = {
        "chunk_rows": arguments.chunk_rows,
        "format": arguments.format,
        "skip_invalid": arguments.skip_invalid,
    }
    with screen.step(f"Surveying {path.name}"):
        surveyed = survey(path, **how)
    task = _task(arguments, surveyed)
    notes = [
        described(surveyed),
        f"Replayed {arguments.chunk_rows:,} requests at a time, without the oracle, which needs all requests at once.",
    ]
    notes += left_out(surveyed.skipped)
    # Reading takes most of the time, and every process reads the whole file. So the default is one process.
    jobs = arguments.jobs or (None if arguments.scheduler else 1)
    with open_executor(jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        cells = sweep_chunks(
            path,
            task.scenarios,
            [arm for arm in task.arms if arm.policy != ORACLE],
            surveyed=surveyed,
            seeds=arguments.seeds,
            executor=executor,
            progress=tell,
            **how,
        )
    return _report(arguments, [*notes, *task.notes], Swept(cells)), ()


def _advised(cells: Sequence[Cell], task: _Task, path: Path, recorded: Collection[str]) -> Sequence[str]:
    """Return whether to change what was recorded, and to what, in sentences; nothing where that is not compared.

    The presets of the recording are not proposed: in what they would save, a replay differs from what was.
    """
    was = [
        cell for cell in cells if cell.arm.policy == RECORDED and not (cell.arm.migrate or cell.arm.drafts)
    ]
    others = [
        cell
        for cell in cells
        if cell.arm.policy not in NO_SETTINGS and _shipped_preset(cell.arm) not in recorded
    ]
    if len(was) != 1 or not others:
        return ()
    before = came_to("what was", was[0].summary)
    lacks = too_little(before.requests, task.assumed)
    came = [came_to(_setting(cell.arm), cell.summary) for cell in others]
    otherwise = f" (`disco tune {path}` writes a preset)"
    named = [_shipped_preset(cell.arm) for cell in others]
    how = {
        one.name: f' (preset="{name}")' if name else otherwise for one, name in zip(came, named, strict=True)
    }
    return advice(before, came, lacks=lacks, how=how).sentences


def _setting(arm: Arm) -> str:
    return arm.label if is_budgetless(arm.policy) else f"{arm.label} at a budget of {arm.budget:g}"


def _shipped_preset(arm: Arm) -> str:
    """Return the name of the shipped preset that has this policy and budget; empty where none has."""
    for name in available_presets():
        preset = load_preset(name)
        same = preset.dispatch.policy == arm.policy and (
            is_budgetless(arm.policy) or preset.dispatch.budget == arm.budget
        )
        if same and not preset.limits.local_only:
            return name
    return ""


def _report(arguments: argparse.Namespace, notes: Sequence[str], swept: Swept) -> Report:
    title = f"Replay of {Path(arguments.trace).name}"
    return Report(title=title, notes=tuple(notes), cells=tuple(swept.cells), example=swept.example)


def _task(arguments: argparse.Namespace, workload: Trace | Survey | None) -> _Task:
    """Return the task that the options describe.

    Raises:
        ConfigurationError: an option's value is invalid.
    """
    events = _asks_for_events(arguments)
    situation = situation_of(arguments, workload, pace_tps=DEFAULT_PACE)
    changes: dict[str, Any] = {
        "device_slots": arguments.device_slots,
        "idle_unload_s": arguments.idle_unload,
    }
    if arguments.pace is not None:
        changes["pace_tps"] = _pace(arguments.pace)
    if arguments.release is not None:
        changes["release"] = arguments.release
    scenarios = [replace(scenario, **changes) for scenario in situation.scenarios]
    notes = situation.notes
    if arguments.pair is not None:
        scenarios, about = _with_pair(scenarios, Path(arguments.pair))
        notes = [*notes, *about]
    recorded = [RECORDED] if isinstance(workload, Trace) and is_recording(workload) else []
    arms = _arms(arguments, scenarios, recorded)
    slow = [] if events else asked_one_by_one(dict.fromkeys(arm.policy for arm in arms))
    if slow:
        notes = [
            *notes,
            f"Asked request by request, which is slower (no method `delays`): {', '.join(slow)}.",
        ]
    return _Task(scenarios, arms, "events" if events else "vectorised", notes, situation.assumed)


def _arms(arguments: argparse.Namespace, scenarios: Sequence[Scenario], recorded: list[str]) -> list[Arm]:
    policies = arguments.policy or [
        *recorded,
        auto_policy(scenarios),
        # If the server is the more expensive side, there is no wait to choose.
        *(["optimal_wait"] if any(scenario.constrained == "device" for scenario in scenarios) else []),
        "random",
        "server_only",
        "device_only",
        ORACLE,
    ]
    budgets = parse_shares(arguments.budget or (EVENT_BUDGETS if _asks_for_events(arguments) else BUDGETS))
    tail = TAIL if arguments.tail is None else arguments.tail
    arms = []
    for policy in parse_policies(policies):
        mine = [_budget_of(policy, scenarios)] if policy == RECORDED or is_budgetless(policy) else budgets
        # The oracle is a bound on TTFT and has no answers to migrate.
        for migrate in (False, True) if arguments.migrate and policy != ORACLE else (False,):
            for drafts in (False, True) if arguments.pair and policy not in UNDRAFTED else (False,):
                arms += [Arm(policy, budget, tail, migrate, drafts=drafts) for budget in mine]
    return arms


def _budget_of(policy: str, scenarios: Sequence[Scenario]) -> float:
    """Return the budget that a policy without one uses at most. The oracle it is compared with gets the same."""
    constrained = {scenario.constrained for scenario in scenarios}
    spares = {"server_only": {"device"}, "device_only": {"server"}}
    return 0.0 if spares.get(policy) == constrained else 1.0


def _with_pair(scenarios: Sequence[Scenario], path: Path) -> tuple[list[Scenario], list[str]]:
    """Return the scenarios with the pair of a file, and what a reader must know about it.

    Raises:
        ConfigurationError: the file cannot be read, or is wrong.
    """
    pair = load_pair(path)
    paired = [scenario.with_pair(pair) for scenario in scenarios]
    notes = [
        f"Drafts: {path.name}. The server's time per token is that of the file, except where the trace has one."
    ]
    for scenario in paired:
        _, server = scenario.stations(drafts=True)
        token_s = 1.0 / server.candidate().decode_tps
        notes.append(
            f"{scenario.name}: {1e3 * pair.alone_s:.1f} ms per token without drafts, {1e3 * token_s:.1f} ms predicted "
            "with drafts once the device has read the prompt."
        )
    return paired, notes


def _asks_for_events(arguments: argparse.Namespace) -> bool:
    return bool(arguments.events or arguments.migrate or arguments.pair)


def _pace(pace_tps: float) -> float | None:
    if not 0 <= pace_tps < math.inf:
        raise ConfigurationError(f"--pace is tokens per second, 0 for none, not {pace_tps}")
    return pace_tps or None


def _check(arguments: argparse.Namespace) -> None:
    """Check the options before hours of work.

    Raises:
        ConfigurationError: an option has no effect, a number is out of range, or an output file cannot be written.
    """
    for name in ONLY_WITH_EVENTS:
        if getattr(arguments, name) is not None and not _asks_for_events(arguments):
            raise ConfigurationError(f"{option(name)} needs --events: it has no effect without it")
    check_least(arguments, seeds=1, device_slots=1, idle_unload=0)
    if arguments.policy is not None:
        _check_policies(arguments)
    check_output(arguments, json=arguments.json, html=arguments.html)
    require_plotly(arguments.html)


def _check_policies(arguments: argparse.Namespace) -> None:
    """Check that the named policies are known, and that the options about policies affect them.

    Raises:
        ConfigurationError: a policy is unknown, or an option has no effect on the named policies.
    """
    policies = set(parse_policies(arguments.policy))
    for name, unheeding in UNHEEDING.items():
        if getattr(arguments, name) not in (None, False) and policies <= unheeding:
            raise ConfigurationError(
                f"{option(name)} does not apply to {' and '.join(sorted(policies))}; name a policy that uses it"
            )


def parse_shares(text: str, what: str = "budget") -> list[float]:
    """Parse shares, which `what` names, from "0.5", "0.1,0.3" or "0:1:0.1" (from, to inclusive, step).

    Raises:
        ConfigurationError: the text has another form, has too many budgets, or a budget is outside [0, 1].
    """
    spaced = ":" in text
    try:
        numbers = [float(part) for part in text.split(":" if spaced else ",")]
        start, stop, step = numbers if spaced else (0.0, 0.0, 1.0)
        if not (step > 0 and stop >= start):
            raise ValueError
        steps = int((stop - start) / step + 1e-9)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"write {what}s as 0.5, as 0.1,0.3 or as 0:1:0.1 (from:to:step), not {text!r}"
        ) from error
    if steps > MOST_SHARES:
        raise ConfigurationError(f"{text!r} means more than {MOST_SHARES} {what}s; take a larger step")
    # Rounded, so that 0.1 + 0.2 equals a typed 0.3.
    budgets = [round(start + i * step, 9) for i in range(steps + 1)] if spaced else numbers
    for budget in budgets:
        if not 0.0 <= budget <= 1.0:
            raise ConfigurationError(f"a {what} is a share and must lie between 0 and 1, not {budget:g}")
    return budgets


def parse_policies(names: Sequence[str]) -> list[str]:
    """Check the names of policies, including those that only a replay knows, and return each once.

    A name may have options behind it: "NAME:KEY=VALUE,KEY=VALUE" (`policy_spec`).

    Raises:
        ConfigurationError: a policy is not known, or has no such option.
    """
    for text in names:
        name, options = policy_spec(text)
        if name not in ONLY_IN_REPLAY and not is_known_policy(name):
            known = [*known_policies(), *ONLY_IN_REPLAY]
            if name in available_presets():
                raise ConfigurationError(
                    f"{name!r} is a preset, not a policy. Recorded routes are replayed under it by --preset {name}"
                )
            raise ConfigurationError(f"no policy is called {name!r}. {nearest(name, known)}")
        check_options(name, options)
    return list(dict.fromkeys(names))


def asked_one_by_one(names: Iterable[str]) -> list[str]:
    """Return those of these policies that cannot decide for many requests at once, which makes a replay slower."""
    found = []
    for text in names:
        name, options = policy_spec(text)
        policy = None if name in ONLY_IN_REPLAY else check_options(name, options)
        if policy is not None and not isinstance(policy, VectorPolicy):
            found.append(text)
    return found
