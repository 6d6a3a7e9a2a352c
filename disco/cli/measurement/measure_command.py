"""`disco measure`: make traces for `disco replay` from texts with known answers."""

from __future__ import annotations

import argparse
from typing import Any

from disco.cli.console import Screen
from disco.cli.measurement.answer_options import add_answers
from disco.cli.measurement.ladder_options import add_ladder
from disco.cli.measurement.quality.quality_options import add_quality
from disco.cli.measurement.refinement.refine_options import add_refine

__all__ = ["add_measure"]


def add_measure(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `disco measure` to the commands; return it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "measure", help="let models answer texts with known answers; keep numbers for `disco replay`"
    )
    subcommands = parser.add_subparsers(required=True, metavar="WHAT")
    add_answers(subcommands).set_defaults(run=_answers)
    add_ladder(subcommands).set_defaults(run=_ladder)
    add_refine(subcommands).set_defaults(run=_refine)
    add_quality(subcommands).set_defaults(run=_quality)
    return parser


async def _answers(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.measurement.answers import run_answers  # noqa: PLC0415 - `disco --help` needs no model

    return await run_answers(screen, arguments)


async def _ladder(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.measurement.ladder import run_ladder  # noqa: PLC0415 - as above

    return await run_ladder(screen, arguments)


async def _refine(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.measurement.refinement.refine_run import run_refine  # noqa: PLC0415 - as above

    return await run_refine(screen, arguments)


async def _quality(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.measurement.quality.quality_command import run_quality  # noqa: PLC0415 - as above

    return await run_quality(screen, arguments)
