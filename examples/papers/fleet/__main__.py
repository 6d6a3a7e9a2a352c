"""`python -m papers.fleet`: simulated drafting devices and verify servers, and what that needs of real models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from papers.fleet.fleet_measure import run_measure
from papers.fleet.fleet_record import run_record
from papers.fleet.fleet_run import run_fleets, show
from papers.fleet.fleet_train import run_train
from papers.terminal import Screen, run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.fleet",
        description="Simulates drafting devices and verify servers, and records traces for that from two models.",
    )
    subcommands = parser.add_subparsers(required=True)
    _add_run(subcommands).set_defaults(run=run_fleets)
    _add_record(subcommands).set_defaults(run=run_record)
    _add_train(subcommands).set_defaults(run=run_train)
    _add_measure(subcommands).set_defaults(run=run_measure)
    shown = subcommands.add_parser(
        "show", help="print a shipped scenario, to copy from; without a name, list them"
    )
    shown.add_argument("name", nargs="?", metavar="NAME", help="its name (default: all names)")
    shown.set_defaults(run=show)
    arguments = parser.parse_args(argv)
    return run_command(lambda: int(arguments.run(Screen(), arguments)))


def _add_run(subcommands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "run",
        help="run scenarios, and print a line of figures for each",
        description="Runs fleets in virtual time. A scenario is a TOML file, or the name of a shipped one "
        "(`python -m papers.fleet show`). Requests come from a trace (JSON lines) or are made up.",
    )
    parser.add_argument("scenario", nargs="+", metavar="SCENARIO", help="a TOML file or a shipped name")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="in place of the file's value: batching.max_batch=8, window.name=dynamic, targets.0.count=3",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="run with each of these values; given several times, with each combination (mode=alone,distributed). "
        'A value may be a table: \'window={name="static", n=4};{name="dynamic"}\'',
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run with N seeds (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for standard output")
    parser.add_argument(
        "--answers", metavar="FILE", help="write a line of JSON for each answer; for one scenario and seed"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes (default: one per core, one for one run)"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")
    return parser


def _add_record(subcommands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "record",
        help="record at which tokens of a target's answers a draft model agrees",
        description="The target answers each prompt; the draft model then reads the answers, and each token that it "
        "would have chosen itself counts as 1. That is independent of any window. Written are numbers only.",
    )
    parser.add_argument("target", metavar="TARGET", help="a name, a GGUF file or hf:owner/repo/file")
    parser.add_argument("draft", metavar="DRAFT", help="a model with the same vocabulary")
    parser.add_argument("--texts", required=True, metavar="FILE", help="prompts, one in a line")
    parser.add_argument("--out", required=True, metavar="FILE", help="the trace, JSON lines")
    parser.add_argument("--prompts", type=int, metavar="N", help="the first N prompts only")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of an answer at most (64)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="of both models; 0: the best token (0)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the noise at temperatures above 0 (1)")
    parser.add_argument(
        "--drafters", type=int, default=1, metavar="N", help="drafters that take requests in turn (1)"
    )
    parser.add_argument(
        "--rate", type=float, default=1.0, metavar="R", help="Poisson arrivals: requests/s in all (1)"
    )
    parser.add_argument("--threads", type=int, default=None, help="of llama.cpp (all cores but one)")
    return parser


def _add_train(subcommands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "train",
        help="train the adaptive window's network, and compare windows on fleets it has not seen",
        description="Runs small random fleets with every static window and with the target alone, trains the network "
        "to name the best one from what a window sees, and compares windows on other fleets. With the defaults it "
        'makes the file that disco ships; use another one by window = {name = "adaptive", weights = "FILE"}.',
    )
    parser.add_argument("--fleets", type=int, default=800, metavar="N", help="to train on (800)")
    parser.add_argument("--held-out", type=int, default=200, metavar="N", help="to compare windows on (200)")
    parser.add_argument("--epochs", type=int, default=100, metavar="N", help="of the training (100)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of fleets and training (1)")
    parser.add_argument("--out", metavar="FILE", help="write the weights as JSON")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")
    return parser


def _add_measure(subcommands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "measure",
        help="measure what passes of a local model cost on this machine",
        description="Times passes of llama.cpp over 1 to 128 rows behind 0 or 300 cached tokens, predicts half "
        "of them and whole answers from the other half, and prints the errors. --costs writes what `costs` of a "
        "scenario's pool reads. Measure while the machine has nothing else to do.",
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="a name, a GGUF file or hf:owner/repo/file; @Q8_0 behind it: in that quantisation",
    )
    parser.add_argument("--out", metavar="FILE", help="all points, CSV")
    parser.add_argument("--costs", metavar="FILE", help="costs for scenarios, CSV")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="of each point; the best counts")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of llama.cpp (1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
