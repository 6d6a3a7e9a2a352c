"""How a table is printed, on a terminal and into a file; the command line and `disco.replay.Table` share it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

__all__ = ["print_table"]


def print_table(console: Console, title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; a column whose cells are all numbers is right-aligned.

    Where a terminal is too narrow for it, it has no lines between its columns.
    """
    cells = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for index, column in enumerate(header):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    width = console.width
    wanted = console.measure(table, options=_endless(console)).maximum
    if console.is_terminal:
        if wanted > width:  # without its lines it may have room, and its figures stay whole
            table.box, table.padding, table.pad_edge = None, (0, 1, 0, 0), False
        console.print(table)
        return
    # A file has no width limit, and a table with truncated figures would be useless.
    console.width = max(width, wanted)
    console.print(table)
    console.width = width


def _endless(console: Console) -> ConsoleOptions:
    return console.options.update(max_width=10_000)


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[\d,.]*\d(±[\d,.]+)?\s*(%|×|s|ms|µs)?|–|-|", cell.strip()))
