"""The options of `disco replay` and `disco tune`. This module needs only argparse."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["DEFAULT_EXCHANGE_RATE", "add_replay", "add_tune", "fill_defaults", "option"]

DEFAULT_EXCHANGE_RATE: Final = (
    "4e-12"  # USD per 10⁶ FLOPs: a laptop on mains power, as in the preset "balanced"
)
OBJECTIVES: Final = ("p99-ttft", "mean-ttft", "cost", "qoe")
# Parsed as None if not given. Otherwise an option that does not apply could not be reported as an error.
DEFAULTS: Final[Mapping[str, Any]] = {
    "format": "auto",
    "tail": 0.05,
    "seeds": 1,
    "requests": 10_000,
    "arrivals": "poisson",
    "mean_interval": 30.0,
    "verify_requests": 1000,
}


def option(name: str) -> str:
    """Return an option as typed: "--max-tokens" for "max_tokens"."""
    return f"--{name.replace('_', '-')}"


def fill_defaults(arguments: argparse.Namespace) -> None:
    """Set options that were not given to the defaults that --help names."""
    if getattr(arguments, "as_recorded", None) and arguments.seeds is None:
        arguments.seeds = 10
    for name, value in DEFAULTS.items():
        if getattr(arguments, name, value) is None:
            setattr(arguments, name, value)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay`."""
    parser.description = (
        "Replays a trace (CSV, JSONL or Parquet; public workloads, benchmark output, recorded routes) "
        "under several policies and budgets, and compares them with each other and with the best possible result."
    )
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help="a file; `synthetic` for generated requests",
    )
    _add_situation(parser)
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="a policy, of a plug-in with options as P:KEY=VALUE,...; may be given several times; also `oracle` and, "
        "for recorded routes, `recorded` (default: what `auto` selects, optimal_wait if the device is the more "
        "expensive side, random, server_only, device_only, "
        "oracle)",
    )
    what.add_argument(
        "--preset",
        action="append",
        metavar="P",
        help="of recorded routes: follow a whole preset, shipped or a file, as a live client does; may be "
        "given several times",
    )
    what.add_argument(
        "--as-recorded",
        action="store_true",
        default=None,
        help="of recorded routes: follow the preset that they were recorded with, and print the errors beside what was "
        "lived; --preset adds the file of one that is not shipped",
    )
    what.add_argument(
        "--fit-on",
        metavar="S|FILE",
        help="with --as-recorded: copy no measured time; draw all from the first share S of the recording, which "
        "predicts the rest (0.5), or from another recording",
    )
    what.add_argument(
        "--budget",
        metavar="B",
        help="share of prompt tokens that the more expensive side may process: 0.5, 0.1,0.3 or 0:1:0.1 "
        "(default: 0.1:0.9:0.1; with --events 0.5)",
    )
    what.add_argument(
        "--tail", type=float, metavar="A", help="share reserved for slow servers (default: 0.05)"
    )
    what.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="draw random values N times where the trace leaves them open (default: 1; with --as-recorded 10)",
    )
    events = parser.add_argument_group("token by token")
    events.add_argument(
        "--events",
        action="store_true",
        default=None,
        help="run every answer through the real session (slower; includes the reader)",
    )
    events.add_argument(
        "--migrate",
        action="store_true",
        default=None,
        help="run each arm with migration, too, beside the run without; implies --events",
    )
    events.add_argument(
        "--pace", type=float, metavar="R", help="the reader's pace in tokens/s; 0: none (default: 4.8)"
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
    events.add_argument(
        "--pair",
        metavar="FILE",
        help="run each arm with the device drafting for the server, too, beside the run without; FILE has the times of "
        "drafter, network and server (docs/how-to/replay.md); implies --events",
    )
    synthetic = parser.add_argument_group("synthetic requests")
    synthetic.add_argument("--requests", type=int, metavar="N", help="number of requests (default: 10000)")
    synthetic.add_argument(
        "--arrivals", help="arrival process: `poisson`, `gamma` or `per-client` (default: poisson)"
    )
    synthetic.add_argument(
        "--mean-interval", type=float, metavar="S", help="mean seconds between arrivals (default: 30)"
    )
    synthetic.add_argument(
        "--lengths",
        metavar="FILE",
        help="prompt lengths to use instead of the shipped ones",
    )
    verdicts = parser.add_argument_group("recorded verdicts of a cascade")
    verdicts.add_argument(
        "--verdicts",
        action="store_true",
        default=None,
        help="give the verdicts of recorded routes again, and compare them with the recorded ones",
    )
    verdicts.add_argument(
        "--beta",
        metavar="B",
        help="shares to hand up that the recorded scores are judged by as well, as --budget (default: 0.1:0.6:0.1)",
    )
    verdicts.add_argument(
        "--histories",
        metavar="FILE",
        help="the histories of scores as they were before the recording, also for --preset (default: empty ones)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the figures as JSON; - is standard output"
    )
    output.add_argument("--html", metavar="FILE", help="write one self-contained page with the plots")
    output.add_argument(
        "--chunk-rows",
        type=int,
        metavar="N",
        help="hold only N requests in memory at a time (long Parquet traces)",
    )


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco tune`."""
    parser.description = (
        "Searches policy, budget, tail, exchange rate and pace on a trace, verifies the best few with "
        "the real session, and writes a preset that AsyncDisco(preset=FILE) loads."
    )
    parser.add_argument("trace", metavar="TRACE", help="a file, as for `disco replay`")
    _add_situation(parser)
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="p99-ttft", help="what to optimise (default: p99-ttft)"
    )
    parser.add_argument(
        "--max-cost",
        metavar="C",
        help='limit on the policy cost per request, the bill plus energy at the exchange rate: "0.8x" of that of '
        "server_only, or USD (default: of a recording what it cost, else none)",
    )
    parser.add_argument(
        "--max-p99", type=float, metavar="S", help="limit on the P99 of TTFT, s (default: none)"
    )
    parser.add_argument(
        "--verify-requests",
        type=int,
        metavar="N",
        help="requests that the best few run on, the last of the trace (default: 1000)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="the file to write the preset to, a new one (default: tuned.toml)"
    )


def _add_situation(parser: argparse.ArgumentParser) -> None:
    trace = parser.add_argument_group("the trace")
    trace.add_argument("--format", metavar="F", help="format of the file (default: by its columns)")
    trace.add_argument(
        "--skip-invalid",
        action="store_true",
        default=None,
        help="skip unusable rows, and report how many and why (of route records they always are, but for those of a "
        "newer disco)",
    )
    where = parser.add_argument_group("what it is replayed on")
    where.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="device profile, by name or path; may be given several times (default: the one that `disco profile` "
        "measured last, else a shipped one)",
    )
    where.add_argument(
        "--server",
        action="append",
        metavar="NAME",
        help="server profile, as --device (default: a shipped one)",
    )
    where.add_argument(
        "--price",
        metavar="IN,OUT",
        help="the server's price, USD per million tokens (default: the profile's)",
    )
    where.add_argument(
        "--exchange-rate",
        metavar="X",
        help="value of the device's work: USD per 10^6 FLOPs, or `device-constrained` or "
        "`server-constrained` for the paper's two (default: that of a recording, else "
        f"{DEFAULT_EXCHANGE_RATE}, a laptop on mains power)",
    )
    where.add_argument(
        "--max-tokens", type=int, metavar="N", help="limit of every answer, tokens (default: none)"
    )
    processes = parser.add_argument_group("processes")
    processes.add_argument(
        "--jobs", type=int, metavar="N", help="processes (default: one, or one per core if that saves time)"
    )
    processes.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")
