"""What the commands print: text coloured by who wrote it, steps that take a while, tables.

On anything that is not a terminal (a pipe, a file, a CI log) the same text appears without colours,
spinners or control codes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Screen"]

# Told apart by colour-blind readers too, on dark and on light ground.
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue")

# A model's answer is not trusted: no escape sequence in it reaches the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """A place to print on.

    Args:
        file: where to; standard output by default.
        width: in characters; that of the terminal by default, 110 where there is none.
    """

    # Mutable: which colour each endpoint has, and whether the cursor stands at the start of a line.

    def __init__(self, file: IO[str] | None = None, *, width: int | None = None) -> None:
        self._console = Console(file=file, highlight=False, width=width)
        if width is None and not self._console.is_terminal:
            self._console.width = 110
        self._colours: dict[str, str] = {}
        self._at_line_start = True

    @property
    def is_terminal(self) -> bool:
        """Colours and spinners can be shown."""
        return self._console.is_terminal

    def colour(self, endpoint: str) -> str:
        """The endpoint's colour: the same one each time, given out in order of first use."""
        return self._colours.setdefault(endpoint, _COLOURS[len(self._colours) % len(_COLOURS)])

    def stream(self, text: str, endpoint: str) -> None:
        """Print a piece of an answer, without a line break of its own."""
        text = _CONTROL.sub("", text)
        if text:
            self._print(Text(text, style=self.colour(endpoint)), end="")
            self._at_line_start = text.endswith("\n")

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line of its own, below whatever was streamed."""
        if not self._at_line_start:
            self._print(Text(), end="\n")
        self._print(Text(_CONTROL.sub("", text), style=style), end="\n")
        self._at_line_start = True

    def legend(self, endpoints: Iterable[str]) -> None:
        """Say which colour is whose; on a plain screen colours say nothing, so nothing is printed."""
        if self.is_terminal:
            marks = [Text(f"■ {name}", style=self.colour(name)) for name in endpoints]
            self._print(Text("   ").join(marks), end="\n")

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[float, str], None]]:
        """Show that something takes a while: a spinner, then one line with the seconds it took.

        Yields:
            A progress callback `(seconds so far, phrase)`; calling it is optional.
        """
        started_at = time.monotonic()
        if self.is_terminal:
            with self._console.status(Text(what)) as status:

                def show(seconds: float, phrase: str) -> None:
                    status.update(Text(f"{what}: {phrase} ({seconds:.0f} s)"))

                yield show
        else:
            yield lambda _seconds, _phrase: None
        self.line(f"{what}: {time.monotonic() - started_at:.1f} s", style="dim")

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show how far something is: a progress bar, then one line with the seconds it took.

        Yields:
            A progress callback `(done, total)`.
        """
        started_at = time.monotonic()
        if self.is_terminal:
            with Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            ) as progress:
                task = progress.add_task(what, total=None)
                yield lambda done, total: progress.update(task, completed=done, total=total)
        else:
            yield lambda _done, _total: None
        self.line(f"{what}: {time.monotonic() - started_at:.1f} s", style="dim")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; a column whose cells are all numbers is set to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        table = Table(title=title or None, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
            table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self.flush_line()
        if self.is_terminal:
            self._console.print(table)
            return
        # A file has no edge, and figures that are cut off would be worth nothing there.
        width = self._console.width
        self._console.width = max(
            width, self._console.measure(table, options=_endless(self._console)).maximum
        )
        self._console.print(table)
        self._console.width = width

    def flush_line(self) -> None:
        """End the line that is being streamed, if there is one."""
        if not self._at_line_start:
            self._print(Text(), end="\n")
            self._at_line_start = True

    def _print(self, text: Text, *, end: str) -> None:
        self._console.print(text, end=end, soft_wrap=True)


def _endless(console: Console) -> ConsoleOptions:
    return console.options.update(max_width=10_000)


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[\d,.]*\d(±[\d,.]+)?\s*(%|×|s|ms|µs)?|–|-|", cell.strip()))
