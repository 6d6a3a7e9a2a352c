"""Output files of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from disco.cli.console import Screen
from disco.errors import ConfigurationError

__all__ = ["check_output", "require_plotly", "screen_beside", "write"]

STANDARD_OUTPUT = "-"
# Options that name files to read. A value that is not a file (a shipped profile's name, say) is ignored.
INPUTS = (
    *("trace", "lengths", "device", "server", "pair", "histories"),
    *("local", "preset", "key_file", "model", "shadow", "state", "config"),
)


def check_output(arguments: argparse.Namespace, **outputs: str | Path | None) -> None:
    """Check, before the work begins, that the output files can be written and are no input files.

    Args:
        arguments: the arguments of the command.
        outputs: the output file by the option's name; None: not given. Such a file may be read, too.

    Raises:
        ConfigurationError: a file cannot be written, or is read or written by another option.
    """
    files = {f"--{name}": Path(path) for name, path in outputs.items() if path not in (None, STANDARD_OUTPUT)}
    inputs = list(_inputs(arguments, [name for name in INPUTS if name not in outputs]))
    for option, path in files.items():
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: there is no folder {path.parent}. Make it first.")
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: this is a folder. Name a file in it.")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ConfigurationError(
                f"{option} {path}: there is no permission to write it. Name another file."
            )
        for read in inputs:
            if _same(path, read):
                raise ConfigurationError(
                    f"{option} {path}: the command reads this file and would overwrite it. Name another."
                )
    named = list(files.items())
    for number, (option, path) in enumerate(named):
        for other, taken in named[:number]:
            if _same(path, taken):
                raise ConfigurationError(f"{option} {path}: {other} writes this file too. Name another.")


def require_plotly(html: str | None) -> None:
    """Check that the page of a replay, if one is asked for, can be made.

    Raises:
        ConfigurationError: plotly is missing.
    """
    if html is not None and find_spec("plotly") is None:
        raise ConfigurationError('--html needs the package plotly: pip install "disco-llm[replay]"')


def screen_beside(screen: Screen, output: str | None) -> Screen:
    """Return the screen, or one on standard error where the output takes standard output."""
    return Screen(sys.stderr) if output == STANDARD_OUTPUT else screen


def _inputs(arguments: argparse.Namespace, names: Iterable[str]) -> Iterable[Path]:
    for name in names:
        given = getattr(arguments, name, None)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, str):
                with suppress(OSError, ValueError):  # a name that no file can have: who opens it says so
                    if Path(each).is_file():
                        yield Path(each)


def _same(one: Path, other: Path) -> bool:
    """Return whether both paths mean one file (also by a link or another spelling), now or once it is written."""
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


def write(screen: Screen, path: str, text: str, what: str) -> None:
    """Write a file and print its name; "-" is standard output.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if path == STANDARD_OUTPUT:
        print(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error
    screen.line(f"{what}: {path}")
