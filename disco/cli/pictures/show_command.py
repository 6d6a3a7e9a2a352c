"""`disco show FILE`: recorded answers as a list, and one of them as a time line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from disco.cli.console import Screen
from disco.cli.output_files import check_output, write
from disco.errors import ConfigurationError

__all__ = ["add_show"]

LISTED = 20

Commands = Any  # argparse's own type for what `add_subparsers` returns is private


def add_show(commands: Commands) -> None:
    """Add the command `disco show`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="show recorded answers as time lines: who wrote what when, and why",
        description="Lists the answers of a file of route records, sums them up, or draws one of them: a lane for each "
        "endpoint, what the reader had, and what happened when. Records hold numbers and names only, never text.",
    )
    parser.add_argument(
        "trace", metavar="FILE", help="route records, as disco.RouteLog writes them (JSON lines)"
    )
    parser.add_argument(
        "--answer",
        metavar="WHICH",
        help="the answer to draw: its number in the list, last, or its created_s",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="sum the answers up: who answered how many and how soon, what was paid, what failed, who was asked",
    )
    parser.add_argument("--html", metavar="OUT", help="write it as a page of its own, - is standard output")
    parser.add_argument("--svg", metavar="OUT", help="write it as a picture (SVG), - is standard output")
    parser.add_argument("--title", metavar="TEXT", help="what stands above the page or the picture")
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help=f"how many answers are listed or summed up, the newest (default: {LISTED} are listed, all summed up)",
    )
    parser.set_defaults(run=_run)


def _run(screen: Screen, arguments: argparse.Namespace) -> int:
    if arguments.last is not None and arguments.last < 1:
        raise ConfigurationError(f"--last must be at least 1, not {arguments.last}")
    check_output(arguments, html=arguments.html, svg=arguments.svg)
    path = Path(arguments.trace)
    if arguments.summary:
        if arguments.answer is not None or arguments.html is not None or arguments.svg is not None:
            raise ConfigurationError("--summary is of all answers: leave out --answer, --html and --svg")
        return _sum_up(screen, path, arguments.last)
    if arguments.answer is not None or arguments.html is not None or arguments.svg is not None:
        return _show_one(screen, path, arguments)
    return _list(screen, path, arguments.last or LISTED)


def _sum_up(screen: Screen, path: Path, count: int | None) -> int:
    from disco.cli.pictures.recording_lines import newest  # noqa: PLC0415 - `disco --help` stays light
    from disco.cli.pictures.summary_view import show_summary  # noqa: PLC0415 - as above
    from disco.record.recording_summary import summarised  # noqa: PLC0415 - as above

    summary = summarised(path, None if count is None else newest(path, count)[0])
    if not summary.requests and not summary.left_out:
        raise ConfigurationError(f"{path} has no answers yet")
    show_summary(screen, summary, path)
    return 0 if summary.requests else 1


def _show_one(screen: Screen, path: Path, arguments: argparse.Namespace) -> int:
    from disco.cli.pictures.recording_lines import answer_at, newest  # noqa: PLC0415 - `disco --help` stays light
    from disco.record import timeline_html, timeline_lines, timeline_svg  # noqa: PLC0415 - as above
    from disco.record.reading import record_in  # noqa: PLC0415 - as above

    which = arguments.answer
    if which is None:
        _, total = newest(path, 1)
        if total > 1:
            raise ConfigurationError(
                f"{path} has {total:,} answers: say which one with --answer (a number, or last)"
            )
        which = "last"
    record = record_in(answer_at(path, which), path)
    if arguments.svg is not None:
        write(screen, arguments.svg, timeline_svg(record, title=arguments.title), "Picture")
    if arguments.html is not None:
        write(screen, arguments.html, timeline_html(record, title=arguments.title), "Page")
    if arguments.svg is None and arguments.html is None:
        screen.show(timeline_lines(record))
    return 0


def _list(screen: Screen, path: Path, count: int) -> int:
    from disco.amounts import joules, money  # noqa: PLC0415 - as above
    from disco.cli.pictures.recording_lines import newest  # noqa: PLC0415 - as above
    from disco.cli.pictures.summary_view import when  # noqa: PLC0415 - as above
    from disco.record.left_out import SkipLog  # noqa: PLC0415 - as above
    from disco.record.reading import records_of  # noqa: PLC0415 - as above
    from disco.record.summary import happenings, writers  # noqa: PLC0415 - as above
    from disco.record.words import printable, seconds  # noqa: PLC0415 - as above

    lines, total = newest(path, count)
    rows, log = [], SkipLog(path)
    for number, record in records_of(path, log, lines):
        first_s = record.pace.ttft_released_s
        rows.append(
            (
                str(number),
                when(record.created_s),
                printable(record.preset),
                printable(" → ".join(writers(record))) or "–",
                f"{record.answer_tokens:,}",
                "–" if first_s is None else seconds(first_s),
                seconds(record.duration_s),
                money(record.bill_usd),
                "–" if record.device_energy_j is None else joules(record.device_energy_j),
                ", ".join(happenings(record)),
            )
        )
    if not total:
        raise ConfigurationError(f"{path} has no answers yet")
    if rows:
        columns = (
            "#",
            "when",
            "preset",
            "written by",
            "tokens",
            "first text",
            "in all",
            "bill",
            "energy",
            "what happened",
        )
        screen.table("", columns, rows)
    for told in log.skipped.named():
        screen.line(f"Left out: {told}", style="red")
    if total > len(lines):
        screen.line(f"The newest {len(lines):,} of {total:,} answers; --last N lists more.", style="dim")
    if rows:
        if total > len(lines):
            screen.line(f"All of them in a few figures: disco show {path} --summary", style="dim")
        screen.line(f"One of them as a time line: disco show {path} --answer {rows[-1][0]}", style="dim")
    return 0 if rows else 1
