"""`disco demo`: its options."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen
from disco.cli.demonstration.demo import run_demo
from disco.cli.output_files import check_output
from disco.cli.shared_options import add_record, add_runtime

__all__ = ["add"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco demo`."""
    parser.description = (
        "Starts a real OpenAI-compatible server, or uses your server if OPENAI_API_KEY "
        "(and OPENAI_BASE_URL, OPENAI_MODEL) is set."
    )
    add_record(parser)
    parser.add_argument("--svg", metavar="FILE", help="write what was shown as an SVG of the terminal")
    add_runtime(parser)
    parser.add_argument(
        "--began-at", type=float, metavar="S", help=argparse.SUPPRESS
    )  # given by `make quick`
    parser.set_defaults(run=_run)


async def _run(screen: Screen, arguments: argparse.Namespace) -> int:
    check_output(arguments, record=arguments.record, svg=arguments.svg)
    return await run_demo(
        screen,
        record=arguments.record,
        svg=arguments.svg,
        runtime=arguments.runtime,
        began_at_s=arguments.began_at,
    )
