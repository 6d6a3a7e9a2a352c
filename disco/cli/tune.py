"""`disco tune`: find the preset that serves an objective best on a trace."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from disco import amounts
from disco.amounts import money, plural
from disco.cli.command_parser import CommandParser, Form
from disco.cli.console import Screen
from disco.cli.output_files import check_output
from disco.cli.replay.situation import (
    SYNTHETIC,
    add_endpoints,
    add_file,
    add_processes,
    add_synthetic,
    made_up,
    read,
    situation_of,
)
from disco.cli.shared_options import check_least
from disco.errors import ConfigurationError
from disco.replay.report.advice import Came, advice, came_table, measured, too_little
from disco.replay.report.findings import SAME_S
from disco.replay.sweeps.executors import open_executor
from disco.replay.tuning import (
    OBJECTIVES,
    Trial,
    Tuned,
    TuningObjective,
    parse_max_cost,
    tune,
    write_preset,
)

__all__ = ["add", "run_tune"]

DEFAULT_OUT = "tuned.toml"


def add(parser: CommandParser) -> None:
    """Add the forms of `disco tune`."""
    parser.description = (
        "Searches policy, budget, tail, exchange rate and pace on a trace, verifies the best few with "
        "the real session, and writes a preset that AsyncDisco(preset=FILE) loads."
    )
    parser.add_forms(
        {
            "": Form("FILE", _add_of_file, "Tune on a trace, or on the routes that a client recorded"),
            SYNTHETIC: Form(SYNTHETIC, _add_of_synthetic, "Tune on requests that are drawn"),
        }
    )


def _add_of_file(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    _add_search(parser)


def _add_of_synthetic(parser: argparse.ArgumentParser) -> None:
    add_synthetic(parser)
    _add_search(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    add_endpoints(parser)
    search = parser.add_argument_group("the search")
    search.add_argument(
        "--objective", choices=OBJECTIVES, default="p99-ttft", help="what to optimise (default: %(default)s)"
    )
    search.add_argument(
        "--max-cost",
        metavar="C",
        help='limit on the policy cost per request, the bill plus energy at the exchange rate: "0.8x" of that of '
        "server_only, or USD (default: of a recording what it cost, else none)",
    )
    search.add_argument(
        "--max-p99", type=float, metavar="S", help="limit on the P99 of TTFT, s (default: none)"
    )
    search.add_argument(
        "--verify-requests",
        type=int,
        default=1000,
        metavar="N",
        help="requests that the best few run on, the last of the trace (default: %(default)s)",
    )
    add_processes(parser)
    parser.add_argument(
        "--out", metavar="FILE", help=f"the file to write the preset to, a new one (default: {DEFAULT_OUT})"
    )
    parser.set_defaults(run=run_tune)


def run_tune(screen: Screen, arguments: argparse.Namespace) -> int:
    """Search, show the trade-off and write the preset; return the exit status."""
    max_cost = None if arguments.max_cost is None else parse_max_cost(arguments.max_cost)
    out = _unused(Path(DEFAULT_OUT)) if arguments.out is None else Path(arguments.out)
    TuningObjective(arguments.objective, max_cost, arguments.max_p99)
    _check(arguments, out)
    situation = situation_of(arguments, None)  # reports mistakes before minutes of reading
    if arguments.trace == SYNTHETIC:
        made, notes = made_up(arguments)
        trace = made(0)
    else:
        trace, notes = read(screen, arguments)
        situation = situation_of(arguments, trace)
    (scenario,) = situation.scenarios
    for note in [*notes, *situation.notes]:
        screen.line(note, style="dim")
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.step("Tuning") as tell:
        tuned = tune(
            trace,
            scenario,
            objective=arguments.objective,
            exchange_rate=situation.exchange_rate,
            max_cost=max_cost,
            max_p99_s=arguments.max_p99,
            verify_requests=arguments.verify_requests,
            executor=executor,
            progress=lambda what, done, total: tell(done, f"{what}, {done} of {total}"),
        )
    _show(screen, tuned)
    write_preset(
        tuned.chosen.choice, out, summary=_summary(tuned), comment=_comment(tuned, trace.name, scenario.name)
    )
    screen.line(f'Preset: {out}. Use it with AsyncDisco(preset="{_as_preset(out)}", ...).')
    if tuned.recorded is not None:
        was = _came("what was, replayed", tuned.recorded)
        recent = trace.take(len(trace) - was.requests, len(trace))
        would = _came(str(out), tuned.chosen)
        rows = [measured(recent), was, would]
        screen.table(
            f"The last {plural(was.requests, 'request')} of the recording, each replayed on the same times",
            *came_table(rows),
        )
        lacks = too_little(was.requests, situation.assumed)
        how = {would.name: f' (preset="{_as_preset(out)}")'}
        for sentence in advice(was, [would], lacks=lacks, how=how).sentences:
            screen.line(sentence, style="bold")
    return 0


def _unused(path: Path) -> Path:
    """Return the path, with a number if there is such a file: a preset that may be in use is never overwritten."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())


def _came(name: str, trial: Trial) -> Came:
    return Came(
        name,
        trial.requests,
        trial.ttft_p50_s,
        trial.ttft_p90_s,
        trial.ttft_p99_s,
        trial.server_usd * trial.requests,
        trial.by_device,
    )


def _check(arguments: argparse.Namespace, out: Path) -> None:
    for option in ("device", "server"):
        if len(getattr(arguments, option)) > 1:
            raise ConfigurationError(f"tune for one --{option} at a time: a preset is for one pair")
    if out.suffix != ".toml":
        raise ConfigurationError(f"--out {out}: a preset is a .toml file")
    check_output(arguments, out=out)
    if out.exists():
        raise ConfigurationError(
            f"--out {out}: there is such a file, and it may be in use. Name another, or remove it."
        )
    check_least(arguments, verify_requests=1)


def _show(screen: Screen, tuned: Tuned) -> None:
    """Print the trade-off, from cheap to expensive, and the chosen setting."""
    reference = tuned.reference
    rows = [_row("server_only, as it is", reference, reference)]
    rows += [
        _row(("▶ " if trial is tuned.chosen else "") + trial.choice.label, trial, reference)
        for trial in tuned.verified
    ]
    header = ("policy", "α", "λ", "pace", "mean s", "P99 s", "$/1000", "bill", "× server", "QoE", "late")
    requests = f"{plural(reference.requests, 'request')}, token by token"
    screen.table(f"The best of {tuned.searched} settings, {requests}", header, rows)
    screen.line(_summary(tuned), style="bold")
    later_s = tuned.chosen.ttft_p99_s - reference.ttft_p99_s
    if later_s > SAME_S:
        screen.line(
            f"It is slower than the server alone: its P99 of TTFT is {later_s:.2f} s longer.", style="bold"
        )


def _row(name: str, trial: Trial, reference: Trial) -> tuple[str, ...]:
    choice = trial.choice
    return (
        name,
        f"{choice.arm.tail:g}" if trial.verified else "–",
        f"{choice.exchange_rate:.2g}",
        "–" if choice.pace_tps is None or not trial.verified else f"{choice.pace_tps:g}",
        f"{trial.ttft_mean_s:.3f}",
        f"{trial.ttft_p99_s:.3f}",
        amounts.number(trial.cost_usd * 1000),
        amounts.number(trial.server_usd * 1000),
        f"{trial.cost_usd / reference.cost_usd:.2f}×" if reference.cost_usd else "–",
        "–" if trial.qoe is None else f"{trial.qoe:.3f}",
        "–" if trial.late_tokens is None else f"{trial.late_tokens:.2f}",
    )


def _summary(tuned: Tuned) -> str:
    chosen, reference = tuned.chosen, tuned.reference
    cost = f", {chosen.cost_usd / reference.cost_usd:.2f}x its policy cost" if reference.cost_usd else ""
    return (
        f"{chosen.choice.label}: P99 of TTFT {chosen.ttft_p99_s:.2f} s, mean {chosen.ttft_mean_s:.2f} s; "
        f"server_only: {reference.ttft_p99_s:.2f} s and {reference.ttft_mean_s:.2f} s{cost}."
    )


def _comment(tuned: Tuned, trace: str, scenario: str) -> str:
    limits = []
    if tuned.max_cost_usd is not None:
        limits.append(f"policy cost at most {money(tuned.max_cost_usd)} per request")
    if tuned.max_p99_s is not None:
        limits.append(f"P99 of TTFT at most {tuned.max_p99_s:g} s")
    kept = f", with {' and '.join(limits)}" if limits else ""
    return f"""Written by `disco tune`: objective {tuned.objective}{kept}.

Trace: {trace}. Endpoints: {scenario}. {tuned.chosen.requests} requests were run token by token.
This preset: {_figures(tuned.chosen)}
server_only: {_figures(tuned.reference)}
For other requests, another server or another price, tune again."""


def _figures(trial: Trial) -> str:
    return (
        f"TTFT mean {trial.ttft_mean_s:.3f} s, P99 {trial.ttft_p99_s:.3f} s; {money(trial.server_usd)} for the "
        f"server; energy here that policies count as {money(trial.device_usd)}."
    )


def _as_preset(path: Path) -> str:
    text = str(path)
    return text if path.is_absolute() or len(path.parts) > 1 else f"./{text}"
