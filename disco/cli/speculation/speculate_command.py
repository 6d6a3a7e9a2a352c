"""`disco speculate`: its subcommands and their options."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen
from disco.cli.serving.serve_setup import KEY_VARIABLE

__all__ = ["add"]

_TOKENS = 48


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco speculate`."""
    subcommands = parser.add_subparsers(required=True, metavar="WHAT")
    check = subcommands.add_parser(
        "check",
        help="prove what a server can verify, measure, and say whether drafting pays",
        description="Proves that the server's answers do not depend on drafts, measures drafter, network and server, "
        "predicts the time per token for each window and mode, and measures the best one from end to end. Exit status "
        "0 whether it pays or not; 1 where the server cannot verify; 2 for a mistake, such as a wrong key. A server "
        f"that asks for a key gets the one in {KEY_VARIABLE} or --key-file.",
    )
    check.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8642")
    check.add_argument(
        "--local",
        default="smollm2-135m",
        metavar="MODEL",
        help="the model that drafts: a name, a GGUF file, hf:owner/repo/file, or one of these with @TYPE (@Q8_0: "
        "requantised) (default: smollm2-135m)",
    )
    check.add_argument(
        "--threads", type=int, metavar="N", help="of the model that drafts (default: all cores but one)"
    )
    check.add_argument(
        "--drafter",
        choices=("local", "ngram"),
        default="local",
        help="what drafts: the local model, or copies from prompt and answer (default: local)",
    )
    check.add_argument("--key-file", metavar="FILE", help="a file that contains only the server's key")
    check.add_argument(
        "--prompts", metavar="FILE", help="sample prompts, one on each line (default: four shipped ones)"
    )
    check.add_argument(
        "--tokens", type=int, default=_TOKENS, metavar="N", help=f"tokens of each answer (default: {_TOKENS})"
    )
    check.add_argument(
        "--model", default="", help="name of the server's model in requests (default: its own)"
    )
    check.add_argument(
        "--json", action="store_true", help="print the results as JSON, and all else on standard error"
    )
    check.set_defaults(run=_check)


async def _check(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.speculation.check import run_check  # noqa: PLC0415 - `disco --help` needs no model

    return await run_check(screen, arguments)
