"""`disco prices`: its subcommands and their options."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen

__all__ = ["add"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco prices`."""
    parser.description = "The shipped prices, and yours in front of them (docs/how-to/prices.md)."
    parser.set_defaults(run=_list, words=[], tokens=(500, 300))
    subcommands = parser.add_subparsers(metavar="WHAT")
    listed = subcommands.add_parser("list", help="all prices, or those with a word in their name")
    listed.add_argument(
        "words", nargs="*", metavar="WORD", help="parts of the model's or the provider's name"
    )
    listed.set_defaults(run=_list)
    check = subcommands.add_parser(
        "check",
        help="what a client would count for a model",
        description="Exit status 1 where the price is stale or not known.",
    )
    check.add_argument("model", metavar="MODEL", help="the name that your requests use")
    check.add_argument(
        "--base-url", metavar="URL", help="the server's (default: any provider that has the model)"
    )
    check.set_defaults(run=_check)
    for one in (listed, check):
        one.add_argument(
            "--tokens",
            type=_tokens,
            default=(500, 300),
            metavar="IN,OUT",
            help="tokens of prompt and answer, for the cost of 1,000 answers (default: 500,300)",
        )


def _tokens(text: str) -> tuple[int, int]:
    try:
        prompt, answer = (int(part) for part in text.split(","))
    except ValueError:
        prompt = answer = -1
    if min(prompt, answer) < 0:
        raise argparse.ArgumentTypeError(
            f"give the tokens of prompt and answer, such as 500,300, not {text!r}"
        )
    return prompt, answer


def _list(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.prices.price_lists import run_list  # noqa: PLC0415 - `disco --help` needs no numpy

    return run_list(screen, arguments.words, arguments.tokens)


def _check(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.prices.price_lists import run_check  # noqa: PLC0415 - as above

    return run_check(screen, arguments.model, arguments.base_url, arguments.tokens)
