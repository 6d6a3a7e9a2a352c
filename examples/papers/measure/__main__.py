"""`python -m papers.measure`: let models answer texts with known answers, and keep numbers for the evaluations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import anyio

from papers.measure.answer_options import add_answers
from papers.measure.answers import run_answers
from papers.measure.ladder import run_ladder
from papers.measure.ladder_options import add_ladder
from papers.measure.quality_command import run_quality
from papers.measure.quality_options import add_quality
from papers.measure.refine_options import add_refine
from papers.measure.refine_run import run_refine
from papers.terminal import Screen, run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.measure",
        description="Lets models answer texts with known answers, and keeps numbers for the evaluations.",
    )
    subcommands = parser.add_subparsers(required=True)
    add_answers(subcommands).set_defaults(run=run_answers)
    add_ladder(subcommands).set_defaults(run=run_ladder)
    add_refine(subcommands).set_defaults(run=run_refine)
    add_quality(subcommands).set_defaults(run=run_quality)
    arguments = parser.parse_args(argv)
    return run_command(lambda: int(anyio.run(partial(arguments.run, Screen(), arguments))))


if __name__ == "__main__":
    sys.exit(main())
