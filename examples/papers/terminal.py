"""What the commands of the evaluations print and write: lines, tables, the progress of long work, files."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from openai import OpenAIError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from disco import ConfigurationError

__all__ = ["Screen", "check_output", "run_command", "screen_beside", "write"]

STANDARD_OUTPUT = "-"


class Screen:
    """Prints on a terminal, or plainly into a file; without a terminal, a table is as wide as it must be."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._console = Console(file=file, highlight=False, markup=False, soft_wrap=True)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line."""
        self._console.print(text, style=style)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; a column whose cells all begin with a digit is right-aligned."""
        cells = [[str(cell) for cell in row] for row in rows]
        table = Table(title=title or None, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            numbers = bool(cells) and all(row[index][:1].isdigit() for row in cells)
            table.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        width = self._console.width
        if not self._console.is_terminal:  # a file has no width, and a cut figure would be useless
            wide = self._console.options.update(max_width=10_000)
            self._console.width = max(width, self._console.measure(table, options=wide).maximum)
        self._console.print(table, soft_wrap=False)
        self._console.width = width

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say how long a step took."""
        began_at = time.monotonic()
        yield
        self.line(f"{what}: {time.monotonic() - began_at:.1f} s", style="dim")

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show the progress of a step on a terminal, and at its end how long it took.

        Yields:
            A progress callback `(done, total)`.
        """
        with (
            self.step(what),
            Progress(
                console=self._console, transient=True, disable=not self._console.is_terminal
            ) as progress,
        ):
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit status: 2 for a user's mistake, 130 after Ctrl-C."""
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except OpenAIError as error:  # disco's errors are such, too
        print(error, file=sys.stderr)
        return 2


def screen_beside(*outputs: str | None) -> Screen:
    """Return the screen of a command with these output files: standard error if one is standard output."""
    return Screen(sys.stderr if STANDARD_OUTPUT in outputs else None)


def check_output(arguments: Namespace, *names: str) -> None:
    """Check, before the work begins, that the output files can be written and that nothing else names them.

    Args:
        arguments: of the command.
        names: of the options that name output files.

    Raises:
        ConfigurationError: the folder of an output file is missing, or another option names the same file.
    """
    taken = {
        Path(path).resolve()
        for name in vars(arguments)
        if name not in names
        for path in _files(arguments, name)
    }
    for name in names:
        path = getattr(arguments, name)
        if path is None or path == STANDARD_OUTPUT:
            continue
        file = Path(path).resolve()
        if not file.parent.is_dir():
            raise ConfigurationError(f"--{name} {path}: there is no folder {file.parent}. Make it first.")
        if file.is_dir():
            raise ConfigurationError(f"--{name} {path}: this is a folder. Name a file in it.")
        if file in taken:
            raise ConfigurationError(
                f"--{name} {path}: another option names this file, and it would overwrite it. Name another."
            )
        taken.add(file)


def _files(arguments: Namespace, name: str) -> Iterator[str]:
    given = getattr(arguments, name)
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, str):
            with suppress(OSError, ValueError):  # a text that no file can have as its name
                if Path(each).is_file():
                    yield each


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
