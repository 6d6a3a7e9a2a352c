"""Where a result goes besides the terminal."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from disco.cli.console import Screen
from disco.errors import ConfigurationError

__all__ = ["check_output", "write"]

STANDARD_OUTPUT = "-"


def check_output(arguments: argparse.Namespace) -> None:
    """What `--json` and `--html` ask for can be written; said before hours of work rather than after.

    Raises:
        ConfigurationError: it cannot.
    """
    for option, path in (("--json", arguments.json), ("--html", arguments.html)):
        if path not in (None, STANDARD_OUTPUT) and not Path(path).absolute().parent.is_dir():
            raise ConfigurationError(
                f"{option} {path}: there is no folder {Path(path).parent}; make it first"
            )
    if arguments.html is not None and find_spec("plotly") is None:
        raise ConfigurationError('--html needs the package plotly: pip install "disco-llm[replay]"')


def write(screen: Screen, path: str, text: str, what: str) -> None:
    """Write a file and say so; "-" is standard output.

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
