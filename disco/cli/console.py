"""The output of the commands: text coloured by the endpoint that wrote it, steps that take a while, tables.

On a terminal, streamed text breaks between words at the edge of the window. If the output is not a terminal (a pipe, a
file, a CI log), the same text appears as it came, without colours, spinners or control codes.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console, RenderableType
from rich.control import Control
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import ControlType
from rich.text import Text

from disco._tables import print_table
from disco.cli.word_wrap import Line, WordWrap, cells, printable, wrapped

__all__ = ["Screen"]

# Distinct also for colour-blind readers, on dark and on light background.
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the error end the command, not rich the interpreter, which an event loop takes badly."""
        raise  # noqa: PLE0704 - rich calls this where it handles the error


class Screen:
    """Prints to a terminal or to a file.

    Args:
        file: the output file; standard output by default.
        width: in characters; the terminal's by default, 110 without a terminal.
    """

    # Mutable: the colour of each endpoint, whether the cursor is at the start of a line, the streamed text, and what of
    # its last line is printed.

    def __init__(self, file: IO[str] | None = None, *, width: int | None = None) -> None:
        if file is None and hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # an arrow, say, where its encoding has none
        self._console: Console = _Console(file=file, highlight=False, width=width)
        if width is None and not self._console.is_terminal:
            self._console.width = 110
        self._colours: dict[str, str] = {}
        self._at_line_start = True
        self._wrap = WordWrap()
        self._printed = ""

    @property
    def is_terminal(self) -> bool:
        """Whether colours and spinners can be shown."""
        return self._console.is_terminal

    def colour(self, endpoint: str) -> str:
        """Return the endpoint's colour. Colours are assigned in order of first use and then stay the same."""
        return self._colours.setdefault(endpoint, _COLOURS[len(self._colours) % len(_COLOURS)])

    def stream(self, text: str, endpoint: str) -> None:
        """Print a piece of an answer, without a line break; on a terminal, words stay whole."""
        text, colour = printable(text), self.colour(endpoint)
        if not text:
            return
        if not self._console.is_terminal:
            self._print(Text(text, style=colour), end="")
            self._at_line_start = text.endswith("\n")
            return
        for line in self._wrap.add(text, colour, self._columns):
            self._show(line, end="\n")
        current = self._wrap.current
        if (
            self._console.is_dumb_terminal
        ):  # it cannot take back the beginning of a word that then has no room
            current = Line(current.first(self._wrap.settled_chars))
        self._show(current, end="")

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a separate line, below any streamed text; on a terminal, it may become several lines."""
        self.flush_line()
        text = printable(text)
        if self._console.is_terminal:
            text = wrapped(text, self._columns)
        self._print(Text(text, style=style), end="\n")

    def legend(self, endpoints: Iterable[str]) -> None:
        """Print the colour of each endpoint; without colours, print nothing."""
        if self.is_terminal:
            marks = [Text(f"■ {name}", style=self.colour(name)) for name in endpoints]
            self._print(Text("   ").join(marks), end="\n")

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[float, str], None]]:
        """Show a step that takes a while: a spinner, then one line with the seconds it took.

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
    def waiting(self, what: str) -> Iterator[None]:
        """Show what is waited for, and how long, below what is printed meanwhile; off a terminal, nothing."""
        if not self.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=self._console, transient=True) as progress:
            progress.add_task(what, total=None)
            yield

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show the progress of a step: a progress bar, then one line with the seconds it took.

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
        """Print a table, as `disco._tables.print_table`."""
        self.flush_line()
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        print_table(self._console, printable(title), columns, cells)

    def show(self, picture: RenderableType) -> None:
        """Print what rich can draw, as wide as the output."""
        self.flush_line()
        self._console.print(picture)

    def flush_line(self) -> None:
        """End the line that is being streamed, if there is one."""
        if self._printed != self._wrap.current.text:
            self._show(self._wrap.current, end="")
        if not self._at_line_start:
            self._print(Text(), end="\n")
        self._wrap, self._printed, self._at_line_start = WordWrap(), "", True

    @property
    def _columns(self) -> int:
        # rich takes a dumb terminal to be 80 columns wide.
        dumb = self._console.is_dumb_terminal
        columns = shutil.get_terminal_size().columns if dumb else self._console.width
        return columns - 1  # in the last column, terminals differ in where the cursor stands

    def _show(self, line: Line, *, end: str) -> None:
        """Print what is not printed yet of the line that the cursor is in; take back what is not in it any more."""
        pieces = line.visible(self._columns)
        text = "".join(piece for piece, _ in pieces)
        printed = _common_chars(self._printed, text)
        surplus = self._printed[printed:]
        if surplus.strip():
            back = (ControlType.CURSOR_BACKWARD, cells(surplus))
            self._console.control(Control(back, (ControlType.ERASE_IN_LINE, 0)))
        elif surplus:
            printed = len(text)
        shown = Text.assemble(*pieces)[printed:]
        self._print(shown, end=end)
        self._printed, self._at_line_start = ("", True) if end else (text, not text)

    def _print(self, text: Text, *, end: str) -> None:
        self._console.print(text, end=end, soft_wrap=True)


def _common_chars(one: str, other: str) -> int:
    """Return how many characters both texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
