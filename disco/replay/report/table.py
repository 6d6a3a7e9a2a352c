"""A table of strings, for a terminal, a file or a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from disco.record.words import printable

__all__ = ["Table"]

_FILE_COLUMNS = 110  # at least as wide is a table in a file


@dataclass(frozen=True, slots=True)
class Table:
    """A table of strings.

    Attributes:
        title: what the table shows.
        header: one name per column.
        rows: cells in the order of the header.
        notes: sentences below the table.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def print(self, file: IO[str] | None = None) -> None:
        """Print title, cells and notes, and an empty line, as the commands print tables.

        A column of numbers is right-aligned. A terminal that is too narrow gets no lines between the columns; a file
        gets all columns, as wide as they are.

        Args:
            file: standard output by default.
        """
        from rich.console import Console  # noqa: PLC0415 - most tables of a program are not printed
        from rich.text import Text  # noqa: PLC0415 - as above

        from disco._tables import print_table  # noqa: PLC0415 - as above

        console = Console(file=file, highlight=False)
        if not console.is_terminal:
            console.width = _FILE_COLUMNS
        rows = [[printable(cell) for cell in row] for row in self.rows]
        print_table(console, printable(self.title), self.header, rows)
        for note in self.notes:
            console.print(Text(printable(note), style="dim"), soft_wrap=not console.is_terminal)
        console.print()
