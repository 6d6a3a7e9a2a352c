"""The `disco` command: parses the arguments and returns the exit status.

Each command has its own module, which is loaded when the command is chosen, and for `disco COMMAND --help`.
"""

from __future__ import annotations

import argparse
import errno
import io
import platform
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Final

from disco.cli.command_parser import CommandParser

__all__ = ["main"]

COMMANDS: Final = {
    "demo": ("demonstration.demo_command", "watch two real models give one answer together"),
    "chat": ("chat.chat_setup", "ask both models in the terminal"),
    "profile": ("profile", "measure how fast this machine runs a model"),
    "doctor": ("doctor.doctor_command", "say what works here, what does not, and what to type"),
    "state": ("state", "show, export or forget what clients have learnt and spent"),
    "prices": ("prices", "what models cost, of which day that is, and what is not known"),
    "serve": ("serving.serve_command", "run an OpenAI-compatible HTTP server for apps in any language"),
    "speculate": (
        "speculation.check",
        "find out whether drafting for a server pays on this machine",
    ),
    "split": ("split.split_command", "cut a model in two: first layers here, the others on a server"),
    "replay": (
        "replay.replay_command",
        "show what policies and budgets would have done with a trace of requests",
    ),
    "tune": ("tune", "find the preset that serves an objective best on a trace"),
    "shadow": ("shadow", "show what another preset would have done with recorded answers"),
    "show": (
        "show",
        "show recorded answers as time lines: who wrote what when, and why",
    ),
    "adapter": ("adapter", "train the layer that drafts on the device of a model cut in two"),
    "plugins": ("plugins", "list the policies and endpoints that installed packages add"),
}
"""Command -> its module below `disco.cli`, and what it is for.

Of the module, `add(parser)` adds the options, with `run(screen, arguments)` as the default of `run`.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (2 for a user's mistake, 130 after Ctrl-C)."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed the pipe
        sys.stdout = None  # so that the interpreter does not try to flush it
        return 141
    except MemoryError as error:
        return _refused(f"this takes more memory than there is ({error}). Ask for less.")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _refused(f"the disk is full ({error.strerror}). Make room, or write elsewhere.")


def _run(argv: Sequence[str]) -> int:
    # A pipe on Windows takes few characters, and an answer may hold any: those that it does not take become "?".
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    arguments = _parser(argv[:1]).parse_args(argv)

    import anyio  # noqa: PLC0415 - `disco --help` is quick without these
    from openai import OpenAIError  # noqa: PLC0415

    from disco.cli.console import Screen  # noqa: PLC0415
    from disco.cli.word_wrap import printable  # noqa: PLC0415

    screen = Screen()
    try:
        # A command that only computes runs without an event loop, so that Ctrl-C ends it at once.
        run = arguments.run
        # A server spends much of its time in the event loop. The extra installs uvloop where it exists.
        loop = {"use_uvloop": arguments.fast_loop and find_spec("uvloop") is not None}
        status: int = (
            anyio.run(run, screen, arguments, backend_options=loop)
            if iscoroutinefunction(run)
            else run(screen, arguments)
        )
        return status
    except OpenAIError as error:
        return _refused(printable(str(error)))  # it may quote a stranger's file


def _refused(why: str) -> int:
    print(f"disco: {why}", file=sys.stderr)
    return 2


def _parser(loaded: Collection[str] = tuple(COMMANDS)) -> CommandParser:
    """Return the parser of all commands; those that are not to be loaded are without their options."""
    parser = CommandParser(
        prog="disco", description="One good answer out of two models: one on this machine, one behind an API."
    )
    parser.set_defaults(fast_loop=False)
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the versions of disco, Python and openai"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name in loaded:
            import_module(f"disco.cli.{module}").add(command)
    return parser


class _Version(argparse.Action):
    """Prints what a report of a fault needs, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"disco {version('disco-llm')}, Python {platform.python_version()}, openai {version('openai')}")
        parser.exit()
