"""The summary of a recording as `disco show FILE --summary` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from disco.amounts import joules, money, plural
from disco.cli.console import Screen
from disco.reasons import rule_words
from disco.record.recording_summary import (
    Answered,
    EndpointUse,
    Reason,
    RecordingSummary,
    quantile,
)
from disco.record.words import printable, seconds

__all__ = ["show_summary", "when"]

_WHOLE = 10  # from there on a number of a reason needs no decimals


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
