"""The `disco` command: parses the arguments and returns the exit status. Each command has its own module."""

from __future__ import annotations

import argparse
import io
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from inspect import iscoroutinefunction

import anyio
import openai
from openai import OpenAIError

from disco.cli.adapter.adapter_command import add_adapter
from disco.cli.chat.chat_command import add_chat
from disco.cli.console import Screen
from disco.cli.doctor.doctor_command import add_doctor
from disco.cli.output_files import check_output
from disco.cli.pictures.show_command import add_show
from disco.cli.plugins.plugins_command import add_plugins
from disco.cli.prices.prices_command import add_prices
from disco.cli.replay_options import add_replay, add_tune
from disco.cli.serving import add_serve
from disco.cli.shadow.shadow_command import add_shadow
from disco.cli.speculation.speculate_command import add_speculate
from disco.cli.split.split_command import add_split
from disco.cli.state.state_command import add_state
from disco.cli.word_wrap import printable

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (2 for a user's mistake, 130 after Ctrl-C)."""
    # A pipe on Windows takes few characters, and an answer may hold any: those that it does not take become "?".
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    arguments = _parser().parse_args(argv)
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
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed the pipe
        sys.stdout = None  # so that the interpreter does not try to flush it
        return 141
    except OpenAIError as error:
        print(f"disco: {printable(str(error))}", file=sys.stderr)  # it may quote a stranger's file
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="disco", description="One good answer out of two models: one on this machine, one behind an API."
    )
    parser.set_defaults(fast_loop=False)
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the versions of disco, Python and openai"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="watch two real models give one answer together",
        description="Starts a real OpenAI-compatible server, or uses your server if OPENAI_API_KEY "
        "(and OPENAI_BASE_URL, OPENAI_MODEL) is set.",
    )
    instead = demo.add_mutually_exclusive_group()
    instead.add_argument(
        "--chaos",
        action="store_true",
        help="instead, kill the server's and the model's process in mid-answer",
    )
    instead.add_argument(
        "--cascade",
        action="store_true",
        help="instead, show three tiers: what a tier is unsure of goes up to the next",
    )
    instead.add_argument(
        "--assist",
        action="store_true",
        help="instead, show a server that speaks while the device reads a long prompt",
    )
    instead.add_argument(
        "--speculate",
        action="store_true",
        help="instead, show drafts made here and the verdicts of a verify server",
    )
    demo.add_argument(
        "--record", metavar="FILE", help="append the route records of the answers shown, for `disco show`"
    )
    demo.add_argument("--svg", metavar="FILE", help="write what was shown as an SVG of the terminal")
    _add_runtime(demo)
    demo.add_argument("--began-at", type=float, metavar="S", help=argparse.SUPPRESS)  # given by `make quick`
    demo.set_defaults(run=_demo)

    _add_runtime(add_chat(commands))

    profile = commands.add_parser("profile", help="measure how fast this machine runs a model")
    profile.add_argument(
        "local", nargs="?", default="smollm2-135m", help="as for chat (default: smollm2-135m)"
    )
    profile.add_argument(
        "--threads", type=int, default=None, help="threads of llama.cpp (default: all cores but one)"
    )
    _add_runtime(profile)
    profile.add_argument("--no-save", action="store_true", help="show the figures, but do not save them")
    profile.set_defaults(run=_profile)

    add_doctor(commands)
    add_state(commands)
    add_prices(commands)
    add_serve(commands).set_defaults(run=_serve, fast_loop=True)
    add_speculate(commands)
    add_split(commands)
    add_replay(commands).set_defaults(run=_replay)
    add_tune(commands).set_defaults(run=_tune)
    add_shadow(commands)
    add_show(commands)
    add_adapter(commands)
    add_plugins(commands)
    return parser


class _Version(argparse.Action):
    """Prints what a report of a fault needs, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(
            f"disco {version('disco-llm')}, Python {platform.python_version()}, openai {openai.__version__}"
        )
        parser.exit()


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what runs a local model which is named by a name or a file."""
    parser.add_argument(
        "--runtime",
        choices=("auto", "compiled", "prebuilt"),
        default="auto",
        help="what runs the local model: llama-cpp-python, or a prebuilt llama-server (default: auto, the first of "
        "these that is installed)",
    )


async def _demo(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.demonstration.scene_sets import run_scenes  # noqa: PLC0415 - `disco --help` needs no model

    check_output(arguments, record=arguments.record, svg=arguments.svg)
    which = next((name for name in ("chaos", "cascade", "assist", "speculate") if vars(arguments)[name]), "")
    return await run_scenes(
        screen,
        which,
        record=arguments.record,
        svg=arguments.svg,
        runtime=arguments.runtime,
        began_at_s=arguments.began_at,
    )


async def _profile(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.profile import run_profile  # noqa: PLC0415 - as above

    return await run_profile(
        screen,
        arguments.local,
        runtime=arguments.runtime,
        threads=arguments.threads,
        save=not arguments.no_save,
    )


async def _serve(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.serving import run_serve  # noqa: PLC0415 - as above

    return await run_serve(screen, arguments)


def _replay(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.replay import run_replay  # noqa: PLC0415 - as above

    return run_replay(screen, arguments)


def _tune(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.tune import run_tune  # noqa: PLC0415 - as above

    return run_tune(screen, arguments)
