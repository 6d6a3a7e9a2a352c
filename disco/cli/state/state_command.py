"""`disco state`: its subcommands and their options."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen

__all__ = ["add"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco state`."""
    subcommands = parser.add_subparsers(required=True, metavar="WHAT")
    show = subcommands.add_parser("show", help="what is known of each endpoint and model, and since when")
    show.set_defaults(run=_show)
    export = subcommands.add_parser("export", help="everything that is learnt, as JSON")
    export.add_argument("out", nargs="?", default="-", metavar="FILE", help="default: standard output")
    export.set_defaults(run=_export)
    forget = subcommands.add_parser(
        "forget",
        help="delete what is learnt",
        description="Deletes what all of the given choices apply to, and says what that was. Programs may run "
        "meanwhile: they keep what they have in memory. What budgets have spent is only forgotten with --all.",
    )
    forget.add_argument(
        "--all", action="store_true", help="everything, spent budgets too; also a damaged file"
    )
    forget.add_argument("--endpoint", metavar="NAME", help="of this endpoint (server, device, a tier's name)")
    forget.add_argument("--model", metavar="NAME", help="of this model")
    forget.add_argument(
        "--kind", metavar="KIND", help="such as ttft_s, breaker, verdict or history; see show"
    )
    forget.add_argument("--older-than", type=float, metavar="DAYS", help="learnt before so many days")
    forget.set_defaults(run=_forget)
    prompts = subcommands.add_parser(
        "prompts", help="the saved prompts of local models (docs/how-to/warm-start.md)"
    )
    prompts.add_argument(
        "--folder", metavar="FOLDER", help="where they lie (default: the user's folder for caches)"
    )
    prompts.add_argument("--forget", action="store_true", help="delete them")
    prompts.set_defaults(run=_prompts)
    for one in (show, export, forget):
        one.add_argument(
            "--state", metavar="FILE", help="the state file (default: $DISCO_STATE, else the user's)"
        )


def _show(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.state.showing import run_show  # noqa: PLC0415 - `disco --help` needs no database

    return run_show(screen, arguments.state)


def _export(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.state.forgetting import run_export  # noqa: PLC0415 - as above

    return run_export(screen, arguments.state, arguments.out)


def _prompts(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.state.prompts import run_prompts  # noqa: PLC0415 - as above

    return run_prompts(screen, arguments.folder, forget=arguments.forget)


def _forget(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.state.forgetting import run_forget  # noqa: PLC0415 - as above

    return run_forget(screen, arguments)
