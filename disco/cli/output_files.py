"""Where a result goes besides the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from disco.cli.console import Screen
from disco.errors import ConfigurationError

__all__ = ["check_output", "write"]

STANDARD_OUTPUT = "-"
# What a command reads; a name that is no file (of a shipped profile, say) is never written to.
INPUTS = ("trace", "lengths", "device", "server", "local", "preset", "key_file")


def check_output(arguments: argparse.Namespace, **outputs: str | Path | None) -> None:
    """What is asked for can be written, and writes over nothing that is read; said before the work, not after.

    Args:
        arguments: of the command.
        outputs: by the option's name, the file that it names; None: not given.

    Raises:
        ConfigurationError: it cannot.
    """
    files = {f"--{name}": Path(path) for name, path in outputs.items() if path not in (None, STANDARD_OUTPUT)}
    for option, path in files.items():
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: there is no folder {path.parent}; make it first")
        for read in _inputs(arguments):
            if _same(path, read):
                raise ConfigurationError(
                    f"{option} {path}: this file is read, and would be lost; name another"
                )
    named = list(files.items())
    for number, (option, path) in enumerate(named):
        for other, taken in named[:number]:
            if _same(path, taken):
                raise ConfigurationError(f"{option} {path}: {other} writes that file, too; name another")
    if "--html" in files and find_spec("plotly") is None:
        raise ConfigurationError('--html needs the package plotly: pip install "disco-llm[replay]"')


def _inputs(arguments: argparse.Namespace) -> Iterable[Path]:
    for name in INPUTS:
        given = getattr(arguments, name, None)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, str) and Path(each).is_file():
                yield Path(each)


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, by whatever way (a link, another spelling), or will be once it is written."""
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


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
