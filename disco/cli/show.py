"""`disco show FILE`: recorded answers as a list, summed up, and one of them as a time line."""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from disco.amounts import joules, money, plural
from disco.cli.console import Screen
from disco.cli.output_files import check_output, write
from disco.cli.shared_options import add_recording
from disco.errors import ConfigurationError
from disco.reasons import rule_words
from disco.record import timeline_html, timeline_lines, timeline_svg
from disco.record.left_out import SkipLog
from disco.record.reading import RecordLine, lines_of, record_in, records_of
from disco.record.recording_summary import (
    Answered,
    EndpointUse,
    Reason,
    RecordingSummary,
    quantile,
    summarised,
)
from disco.record.summary import happenings, writers
from disco.record.words import printable, seconds

__all__ = ["add", "newest"]

LAST = "last"
_WHOLE = 10  # from there on a number of a reason needs no decimals


LISTED = 20


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco show`."""
    parser.description = (
        "Lists the answers of a file of route records, sums them up, or draws one of them: a lane for each "
        "endpoint, what the reader had, and what happened when. Records hold numbers and names only, never text."
    )
    add_recording(parser)
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
    summary = summarised(path, None if count is None else newest(path, count)[0])
    if not summary.requests and not summary.left_out:
        raise ConfigurationError(f"{path} has no answers yet")
    show_summary(screen, summary, path)
    return 0 if summary.requests else 1


def _show_one(screen: Screen, path: Path, arguments: argparse.Namespace) -> int:
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


def newest(path: Path, count: int) -> tuple[list[RecordLine], int]:
    """Return the last lines, at most `count`, and how many there are in all. Only these are kept and none is parsed."""
    kept: deque[RecordLine] = deque(maxlen=count)
    total = 0
    for line in lines_of(path):
        kept.append(line)
        total += 1
    return list(kept), total


def answer_at(path: Path, which: str) -> RecordLine:
    """Return the line of one answer.

    Args:
        path: the recording.
        which: "last"; the number of a line; or when the request came (`created_s`, Unix time in seconds, with a decimal
            point).

    Raises:
        ConfigurationError: there is no such answer, or it is not told what answer.
    """
    if which == LAST:
        found, _ = newest(path, 1)
        if not found:
            raise _no_answers(path)
        return found[0]
    if which.isdecimal():
        return _line(path, int(which))
    if which.replace(".", "", 1).isdecimal():
        return _created(path, which)
    raise ConfigurationError(
        f"--answer {which}: name the number of a line, as `disco show {path}` lists them, the time of the request "
        "(created_s of its record), or last"
    )


def _no_answers(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} has no answers yet")


def _line(path: Path, number: int) -> RecordLine:
    last = 0
    for line in lines_of(path):
        if line.number == number:
            return line
        last = line.number
    if not last:
        raise _no_answers(path)
    raise ConfigurationError(f"{path} has no answer in line {number}; its last one is in line {last}")


def _created(path: Path, which: str) -> RecordLine:
    for line in lines_of(path):
        if which.encode() in line.text and record_in(line, path).created_s == float(which):
            return line
    raise ConfigurationError(f"{path} has no answer whose created_s is {which}")


def show_summary(screen: Screen, summary: RecordingSummary, path: Path) -> None:
    """Print who answered, what it cost, what failed, and how often each endpoint was asked."""
    screen.line(_head(summary, path), style="bold")
    for told in summary.left_out.named():
        screen.line(f"Left out: {told}", style="red")
    if not summary.requests:
        return
    screen.table(
        "",
        ("answered by", "requests", "share", "first word P50", "P90", "P99", "to servers"),
        [_answered(who, one, summary.requests) for who, one in summary.answered.items()],
    )
    screen.table(
        "",
        ("endpoint", "asked in", "of", "wrote first", "failed"),
        [_used(name, use) for name, use in summary.endpoints.items()],
    )
    for line in _reasons(summary):
        screen.line(line)
    each = f", {money(summary.bill_usd / summary.requests)} per request" if summary.requests > 1 else ""
    screen.line(f"Paid to servers: {money(summary.bill_usd)}{each}.")
    if summary.device_energy_j is not None:
        screen.line(f"Energy of this machine: {joules(summary.device_energy_j)}.")
    screen.line(f"Should something change? disco tune {path}", style="dim")


def when(created_s: float | None) -> str:
    """Return a moment in local time; a dash where it is none that a calendar has."""
    try:
        return "–" if created_s is None else f"{datetime.fromtimestamp(created_s):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "–"


def _head(summary: RecordingSummary, path: Path) -> str:
    head = f"{path}: {plural(summary.requests, 'request')}"
    if summary.since_s is not None:
        head += f", {when(summary.since_s)} to {when(summary.until_s)}"
    if summary.presets:
        head += f"; preset {_counted(summary.presets)}"
    return f"{head}."


def _counted(counts: Counter[str]) -> str:
    """Return what was counted, the most first; a single one without its number."""
    if len(counts) == 1:
        return printable(next(iter(counts)))
    return ", ".join(f"{printable(name)} ({count:,})" for name, count in counts.most_common())


def _answered(who: str, one: Answered, requests: int) -> tuple[str, ...]:
    times = [quantile(one.first_words_s, q) for q in (0.5, 0.9, 0.99)]
    return (
        printable(who),
        f"{one.requests:,}",
        f"{one.requests / requests * 100:.0f} %",
        *("–" if at_s is None else seconds(at_s) for at_s in times),
        money(one.bill_usd),
    )


def _used(name: str, use: EndpointUse) -> tuple[str, ...]:
    failed = ", ".join(f"{count:,} {printable(kind)}" for kind, count in use.failures.most_common())
    return printable(name), f"{use.asked:,}", f"{use.available:,}", f"{use.first:,}", failed or "0"


def _reasons(summary: RecordingSummary) -> Iterable[str]:
    """Yield for each endpoint how often it was asked, and what its plans say, the most frequent reason first."""
    for name, use in summary.endpoints.items():
        found = [(key, one) for key, one in summary.reasons.items() if key[0] == name]
        if found:
            found.sort(key=lambda item: -item[1].requests)
            told = "; ".join(f"{_told(key[1], key[2], one)} ({one.requests:,})" for key, one in found)
            yield f"{printable(name)} was asked in {use.asked:,} of {use.available:,}: {told}"


def _told(does: str, code: str, reason: Reason) -> str:
    """Return a reason in words: what the endpoint does, the code, and its numbers."""
    value, limit = ("" if bounds is None else _bounds(bounds) for bounds in (reason.values, reason.limits))
    said = rule_words(printable(code), value, limit)
    return f"not asked, {said}" if does == "stands_by" and code != "reserve" else said


def _bounds(bounds: Sequence[float]) -> str:
    low, high = (f"{one:,.0f}" if abs(one) >= _WHOLE else f"{one:.3g}" for one in bounds)
    return low if low == high else f"{low} to {high}"
