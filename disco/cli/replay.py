"""`disco replay`: replay a trace under several policies and budgets; print a table, write JSON and a page of plots."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from disco.amounts import plural
from disco.cli.console import Screen
from disco.cli.option_types import asked_one_by_one, parse_budgets, parse_policies
from disco.cli.output_files import check_output, require_plotly, write
from disco.cli.replay_options import add_replay, fill_defaults, option
from disco.cli.scenario_options import auto_policy, described, left_out, read, situation_of
from disco.dispatch import available_presets, load_preset
from disco.errors import ConfigurationError
from disco.profiles import LengthsProfile, load_lengths
from disco.replay.metrics.over_seeds import Cell
from disco.replay.report import Report, findings, terminal_tables, to_html, to_json
from disco.replay.report.advice import advice, came_to, too_little
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import open_executor
from disco.replay.sweeps.sweep import BUDGETLESS, EvaluatorName, Swept, is_budgetless, run_sweep
from disco.replay.vector.arm_delays import ORACLE, RECORDED
from disco.replay.workload.from_recording import is_recording, without_drafts
from disco.replay.workload.scenario import Arm, Scenario
from disco.replay.workload.synthetic import Arrivals, synthetic_trace
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import Survey, survey

__all__ = ["add", "run_replay"]

BUDGETS = "0.1:0.9:0.1"
EVENT_BUDGETS = "0.5"
DEFAULT_PACE = 4.8  # people read 4 to 5 tokens/s
LENGTHS = "lengths-azure-conv-2023"
# From this number of requests × arms × seeds × scenarios on, processes save more time than their start takes.
WORTH_PROCESSES = {"vectorised": 20_000_000, "events": 2_000}
SYNTHETIC, FILE, CHUNKS = "synthetic", "file", "chunks"
VERDICTS = "verdicts"
PRESETS = "presets"
AS_RECORDED = "as recorded"
KINDS = {
    FILE: "a trace file",
    CHUNKS: "a trace file in chunks (--chunk-rows)",
    SYNTHETIC: "`synthetic` requests",
    VERDICTS: "the verdicts of recorded routes (--verdicts)",
    PRESETS: "recorded routes under whole presets (--preset)",
    AS_RECORDED: "recorded routes as they were (--as-recorded)",
}
# The kinds of replay that each option applies to. Options not listed apply to all.
APPLIES = {
    **dict.fromkeys(("format", "skip_invalid"), (FILE, CHUNKS)),
    **dict.fromkeys(("requests", "arrivals", "mean_interval", "lengths"), (SYNTHETIC,)),
    **dict.fromkeys(("device", "server", "price"), (FILE, CHUNKS, SYNTHETIC)),
    "max_tokens": (FILE, CHUNKS, SYNTHETIC, PRESETS),
    "seeds": (FILE, CHUNKS, SYNTHETIC, PRESETS, AS_RECORDED),
    **dict.fromkeys(("policy", "tail", "exchange_rate", "budget"), (FILE, CHUNKS, SYNTHETIC)),
    **dict.fromkeys(("events", "migrate"), (FILE, SYNTHETIC)),
    "pair": (FILE, SYNTHETIC, PRESETS, AS_RECORDED),
    "preset": (PRESETS, AS_RECORDED),
    **dict.fromkeys(("as_recorded", "fit_on"), (AS_RECORDED,)),
    "chunk_rows": (FILE, CHUNKS),
    "html": (FILE, CHUNKS, SYNTHETIC),
    **dict.fromkeys(("jobs", "scheduler"), (FILE, CHUNKS, SYNTHETIC)),
    **dict.fromkeys(("verdicts", "beta"), (VERDICTS,)),
    "histories": (VERDICTS, PRESETS, AS_RECORDED),
}
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


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay`."""
    add_replay(parser)
    parser.set_defaults(run=run_replay)


def run_replay(screen: Screen, arguments: argparse.Namespace) -> int:
    """Replay and report; return the exit status."""
    _check(arguments)
    if arguments.json == "-":
        screen = Screen(sys.stderr)  # standard output is for the JSON only
    fill_defaults(arguments)
    if arguments.verdicts:
        from disco.cli.replay_verdicts import replay_recorded_verdicts  # noqa: PLC0415 - rarely needed

        return replay_recorded_verdicts(screen, arguments)
    if arguments.as_recorded:
        from disco.cli.replay_lived import replay_as_recorded  # noqa: PLC0415 - rarely needed

        return replay_as_recorded(screen, arguments)
    if arguments.preset:
        from disco.cli.replay_presets import replay_presets  # noqa: PLC0415 - rarely needed

        return replay_presets(screen, arguments)
    run = _replay if arguments.chunk_rows is None else _replay_in_chunks
    report, advised = run(screen, arguments)
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


Replayed = tuple[Report, Sequence[str]]  # with what to do, in sentences; none but for a recording


def _replay(screen: Screen, arguments: argparse.Namespace) -> Replayed:
    source: Trace | partial[Trace]
    if arguments.trace == SYNTHETIC:
        lengths = load_lengths(arguments.lengths or LENGTHS)
        source = partial(_made_up, arguments.requests, arguments.arrivals, arguments.mean_interval, lengths)
        notes = [f"{described(source(0))} Lengths: {lengths.name}."]
        task, requests = _task(arguments, None), arguments.requests
    else:
        _task(arguments, None)  # reports mistakes in the options before minutes of reading
        source, notes = read(screen, arguments)
        if arguments.pair is not None:
            source, drafted = without_drafts(source)
            if drafted:
                notes.append(
                    f"{drafted:,} answers were drafted when they were recorded: their times per token are not used."
                )
        moved = int(source.features["moved"].sum()) if is_recording(source) else 0
        if moved and not arguments.migrate:
            notes.append(
                f"{plural(moved, 'recorded answer')} moved, and here all stay: --migrate lets them move, too."
            )
        task, requests = _task(arguments, source), len(source)
    work = requests * len(task.arms) * len(task.scenarios) * arguments.seeds
    jobs = arguments.jobs
    if jobs is None and arguments.scheduler is None and work < WORTH_PROCESSES[task.evaluator]:
        jobs = 1
    with open_executor(jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        swept = run_sweep(
            source,
            task.scenarios,
            task.arms,
            seeds=arguments.seeds,
            evaluator=task.evaluator,
            executor=executor,
            progress=tell,
        )
    report = _report(arguments, [*notes, *task.notes], swept)
    return report, _advised(swept.cells, task, Path(arguments.trace))


def _replay_in_chunks(screen: Screen, arguments: argparse.Namespace) -> Replayed:
    _task(arguments, None)
    path = Path(arguments.trace)
    how: dict[str, Any] = {
        "chunk_rows": arguments.chunk_rows,
        "format": arguments.format,
        "skip_invalid": bool(arguments.skip_invalid),
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


def _advised(cells: Sequence[Cell], task: _Task, path: Path) -> Sequence[str]:
    """Return whether to change what was recorded, and to what, in sentences; nothing where that is not compared."""
    was = [
        cell for cell in cells if cell.arm.policy == RECORDED and not (cell.arm.migrate or cell.arm.drafts)
    ]
    others = [cell for cell in cells if cell.arm.policy not in NO_SETTINGS]
    if len(was) != 1 or not others:
        return ()
    before = came_to("what was", was[0].summary)
    lacks = too_little(before.requests, task.assumed)
    came = [came_to(_setting(cell.arm), cell.summary) for cell in others]
    otherwise = f" (`disco tune {path}` writes a preset)"
    how = {one.name: _preset_of(cell.arm) or otherwise for one, cell in zip(came, others, strict=True)}
    return advice(before, came, lacks=lacks, how=how).sentences


def _setting(arm: Arm) -> str:
    return arm.label if is_budgetless(arm.policy) else f"{arm.label} at a budget of {arm.budget:g}"


def _preset_of(arm: Arm) -> str:
    """Return the shipped preset that has this policy and budget, in words; empty where none has."""
    for name in available_presets():
        preset = load_preset(name)
        same = preset.dispatch.policy == arm.policy and (
            is_budgetless(arm.policy) or preset.dispatch.budget == arm.budget
        )
        if same and not preset.limits.local_only:
            return f' (preset="{name}")'
    return ""


def _report(arguments: argparse.Namespace, notes: Sequence[str], swept: Swept) -> Report:
    title = f"Replay of {Path(arguments.trace).name}"
    return Report(title=title, notes=tuple(notes), cells=tuple(swept.cells), example=swept.example)


def _made_up(
    requests: int, arrivals: Arrivals, mean_interval_s: float, lengths: LengthsProfile, seed: int
) -> Trace:
    return synthetic_trace(
        requests=requests, seed=seed, prompts=lengths, arrivals=arrivals, mean_interval_s=mean_interval_s
    )


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
        from disco.cli.replay_pair import with_pair  # noqa: PLC0415 - rarely needed

        scenarios, about = with_pair(scenarios, Path(arguments.pair))
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
    budgets = parse_budgets(arguments.budget or (EVENT_BUDGETS if _asks_for_events(arguments) else BUDGETS))
    arms = []
    for policy in parse_policies(policies):
        mine = [_budget_of(policy, scenarios)] if policy == RECORDED or is_budgetless(policy) else budgets
        # The oracle is a bound on TTFT and has no answers to migrate.
        for migrate in (False, True) if arguments.migrate and policy != ORACLE else (False,):
            for drafts in (False, True) if arguments.pair and policy not in UNDRAFTED else (False,):
                arms += [Arm(policy, budget, arguments.tail, migrate, drafts=drafts) for budget in mine]
    return arms


def _budget_of(policy: str, scenarios: Sequence[Scenario]) -> float:
    """Return the budget that a policy without one uses at most. The oracle it is compared with gets the same."""
    constrained = {scenario.constrained for scenario in scenarios}
    spares = {"server_only": {"device"}, "device_only": {"server"}}
    return 0.0 if spares.get(policy) == constrained else 1.0


def _asks_for_events(arguments: argparse.Namespace) -> bool:
    return bool(arguments.events or arguments.migrate or arguments.pair)


def _pace(pace_tps: float) -> float | None:
    if not 0 <= pace_tps < math.inf:
        raise ConfigurationError(f"--pace is tokens per second, 0 for none, not {pace_tps}")
    return pace_tps or None


def _kind(arguments: argparse.Namespace) -> str:
    """Return the kind of replay: one of the kinds in `APPLIES`."""
    if arguments.trace == SYNTHETIC:
        return SYNTHETIC
    if arguments.verdicts:
        return VERDICTS
    if arguments.as_recorded:
        return AS_RECORDED
    if arguments.preset:
        return PRESETS
    return FILE if arguments.chunk_rows is None else CHUNKS


def _check(arguments: argparse.Namespace) -> None:
    """Check the options before hours of work.

    Raises:
        ConfigurationError: an option does not apply, a number is out of range, or an output file cannot be
            written.
    """
    kind = _kind(arguments)
    for name, kinds in APPLIES.items():
        if getattr(arguments, name) is not None and kind not in kinds:
            *others, last = (KINDS[each] for each in kinds)
            places = f"{', '.join(others)} and {last}" if others else last
            raise ConfigurationError(f"{option(name)} does not apply to {KINDS[kind]}; it is for {places}")
    for name in ONLY_WITH_EVENTS:
        if getattr(arguments, name) is not None and not _asks_for_events(arguments):
            raise ConfigurationError(f"{option(name)} needs --events: it has no effect without it")
    for name, least in (
        ("seeds", 1),
        ("device_slots", 1),
        ("idle_unload", 0),
        ("chunk_rows", 1),
    ):
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise ConfigurationError(f"{option(name)} must be at least {least}, not {value}")
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
        if getattr(arguments, name) is not None and policies <= unheeding:
            raise ConfigurationError(
                f"{option(name)} does not apply to {' and '.join(sorted(policies))}; name a policy that uses it"
            )
