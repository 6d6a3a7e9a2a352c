"""The command of one paper's evaluation: its options, and its tables, figures and page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from disco.replay import Table, open_executor
from papers.terminal import Screen, check_output, run_command, screen_beside, write

__all__ = ["UNKNOWN", "evaluate", "options", "print_tables"]

UNKNOWN: Final = "–"
"""A cell without a figure."""


def options(name: str, about: str, *, page: bool = True, processes: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that evaluations share.

    Args:
        name: of the package, as in `python -m papers.dsd`.
        about: what is computed, in a sentence.
        page: whether the evaluation can write a page of plots.
        processes: whether it can use several processes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m papers.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="less work: a preview, not a result")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the figures as JSON; - is standard output"
    )
    if page:
        parser.add_argument("--html", metavar="FILE", help="write one self-contained page with the plots")
    if processes:
        parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
        parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")
    return parser


def command(
    argv: Sequence[str] | None,
    name: str,
    about: str,
    run: Callable[..., Any],
    tables: Callable[[Any], Iterable[Table]],
    page: Callable[[Any], str],
    *,
    quick: Mapping[str, Any],
    runs: str | None = None,
) -> int:
    """Run an evaluation that takes no options of its own, and return the exit status.

    Args:
        argv: the arguments; None: those of the process.
        name: see `options`.
        about: see `options`.
        run: see `evaluate`.
        tables: see `evaluate`.
        page: see `evaluate`.
        quick: how much is run with --quick.
        runs: what --runs counts, in words; None: there is no such option.
    """
    parser = options(name, about)
    if runs is not None:
        parser.add_argument("--runs", type=int, metavar="N", help=runs)
    arguments = parser.parse_args(argv)
    amount = dict(quick) if arguments.quick else {}
    if runs is not None and arguments.runs is not None:
        amount["runs"] = arguments.runs
    return run_command(lambda: evaluate(arguments, run, tables, page, amount=amount))


def evaluate(
    arguments: argparse.Namespace,
    run: Callable[..., Any],
    tables: Callable[[Any], Iterable[Table]],
    page: Callable[[Any], str] | None = None,
    *,
    amount: Mapping[str, Any],
    before: Callable[[Screen, Any], None] | None = None,
) -> int:
    """Run an evaluation, print its tables and write what was asked for; return the exit status.

    Args:
        arguments: parsed by `options`.
        run: the evaluation: takes `executor` and `progress`, and what `amount` says.
        tables: its tables.
        page: its page of plots.
        amount: how much is run.
        before: prints what a reader must know before the tables.
    """
    html = getattr(arguments, "html", None)
    check_output(arguments, *(name for name in ("json", "html") if name in arguments))
    screen = screen_beside(arguments.json)
    executor: Executor | None
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run(executor=executor, progress=tell, **amount)
    if before is not None:
        before(screen, result)
    print_tables(screen, tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if html is not None:
        assert page is not None
        write(screen, html, page(result), "Page with the plots")
    return 0


def print_tables(screen: Screen, tables: Iterable[Table]) -> None:
    """Print tables, each with its notes."""
    for table in tables:
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
