"""The answer to "should I change something?": what was, beside what other settings would have come to, in words.

A setting is better if no figure is noticeably worse and one is noticeably better: the first word's P50 and P90 (with
enough requests P99, too) and what servers are paid. It is recommended only if the times behind it were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disco.amounts import money, plural
from disco.record.words import seconds
from disco.replay.metrics.over_seeds import Summary
from disco.replay.report.findings import number
from disco.replay.workload.trace import Trace

__all__ = [
    "ENOUGH_REQUESTS",
    "ENOUGH_STARTS",
    "NOTICED",
    "NOTICED_S",
    "Advice",
    "Came",
    "advice",
    "came_table",
    "came_to",
    "measured",
    "percent",
    "too_little",
]

ENOUGH_REQUESTS = 50
"""Requests from which on a change is recommended: of fewer, P90 is that of a handful."""

ENOUGH_FOR_P99 = 300
"""Requests from which on P99 counts: it is then that of three of them."""

ENOUGH_STARTS = 20
"""First tokens of a side from which on its times count as known."""

NOTICED = 0.05
"""Share by which a figure has to differ."""

NOTICED_S = 0.02
"""And by how much a first word has to differ, s."""

MORE_BY_DEVICE = 0.05  # share of answers from which on it is said that another model writes them


@dataclass(frozen=True, slots=True)
class Came:
    """What requests came to under some settings.

    Attributes:
        name: of the settings.
        requests: how many.
        ttft_p50_s, ttft_p90_s, ttft_p99_s: of the first word as generated, s; NaN where there was none.
        bill_usd: what servers were paid for all of them.
        by_device: share of answers that the device began; the server began the others.
    """

    name: str
    requests: int
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    bill_usd: float
    by_device: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in sentences, and the settings to change to; None: keep what you have, or nobody knows."""

    sentences: tuple[str, ...]
    change_to: Came | None = None


def came_to(name: str, summary: Summary) -> Came:
    """Return what a replay came to."""
    server_usd = math.fsum(usd for key, usd in summary.cost_by.items() if key.startswith("server/"))
    return Came(
        name,
        summary.requests,
        summary.ttft_p50_s.mean,
        summary.ttft_p90_s.mean,
        summary.ttft_p99_s.mean,
        server_usd * summary.requests,
        summary.device_won.mean,
    )


def measured(trace: Trace) -> Came:
    """Return what happened in a recording, as it was measured."""
    ttft_s = trace.features["ttft_recorded_s"]
    ttft_s = ttft_s[~np.isnan(ttft_s)]
    p50, p90, p99 = np.quantile(ttft_s, (0.5, 0.9, 0.99)).tolist() if ttft_s.size else [math.nan] * 3
    winner, device = trace.features["winner"], trace.features["device"]
    spoke = np.array([name not in ("", "nan") for name in winner.astype(str)], dtype=np.bool_)
    by_device = (winner.astype(str) == device.astype(str))[spoke]
    return Came(
        "what was, measured",
        len(trace),
        p50,
        p90,
        p99,
        float(np.nansum(trace.features["bill_usd"])),
        float(by_device.mean()) if by_device.size else 0.0,
    )


def came_table(rows: Sequence[Came]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a table."""
    header = ("", "first word P50 s", "P90 s", "P99 s", "to servers", "begun by server", "by device")
    return header, [
        (
            one.name,
            *(number(s) for s in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s)),
            money(one.bill_usd),
            percent(1.0 - one.by_device),
            percent(one.by_device),
        )
        for one in rows
    ]


def too_little(requests: int, assumed: Mapping[str, int]) -> list[str]:
    """Return what a recording does not say, and what would help; empty where it says enough.

    Args:
        requests: how many of its requests can be used.
        assumed: the sides of which it has too few first tokens ("device", "server"), and how many it has.
    """
    out = []
    if requests < ENOUGH_REQUESTS:
        out.append(
            f"{plural(requests, 'request')} {'says' if requests == 1 else 'say'} little: record at least "
            f"{ENOUGH_REQUESTS}, better some hundred."
        )
    for side, seen in assumed.items():
        ask = (
            'extra_body={"disco": {"local_only": True}}'
            if side == "device"
            else 'a client with a preset whose policy is "server_only"'
        )
        known = (
            f"They have only {plural(seen, 'first token')} of the {side}"
            if seen
            else f"They have no first token of the {side}, so its times are assumed"
        )
        out.append(f"{known}: ask it alone for some {ENOUGH_STARTS} requests ({ask}), and record these, too.")
    return out


def advice(was: Came, others: Sequence[Came], *, lacks: Sequence[str], how: Mapping[str, str]) -> Advice:
    """Say whether to change, and to what.

    Args:
        was: what was, as a replay has it, so that it is compared with its like.
        others: what other settings would have come to.
        lacks: what the recording does not say (`too_little`).
        how: by the name of settings, how to have them.
    """
    better = [one for one in others if _is_better(one, was)]
    best = min(better, key=lambda one: _rank(one, was), default=None)
    if lacks:
        guess = "" if best is None else f" As far as they go, {best.name} {_would(best, was)}."
        return Advice((f"These records do not say whether to change something.{guess}", *lacks))
    if best is None:
        return Advice((_keep(was, others),))
    sentences = [f"Change to {best.name}{how.get(best.name, '')}: it {_would(best, was)}."]
    if best.by_device > was.by_device + MORE_BY_DEVICE:
        sentences.append(
            f"The device's model would have begun {percent(best.by_device)} of the answers instead of "
            f"{percent(was.by_device)}. Whether they are good enough, a recording cannot know."
        )
        alike = [one for one in better if one.by_device <= was.by_device + MORE_BY_DEVICE]
        if alike:
            one = min(alike, key=lambda one: _rank(one, was))
            sentences.append(
                f"If the device is to begin no more answers than now: {one.name} {_would(one, was)}."
            )
    return Advice(tuple(sentences), best)


def percent(share: float) -> str:
    """Return a share in per cent, whole or with one decimal where it is small."""
    value = share * 100
    return f"{value:.0f} %" if value >= 1 or value < 0.05 else f"{value:.1f} %"


def _figures(one: Came, was: Came) -> Iterator[tuple[float, float, float]]:
    """Yield (figure, what it was, the least difference that is noticed) of all that is compared."""
    yield one.ttft_p50_s, was.ttft_p50_s, NOTICED_S
    yield one.ttft_p90_s, was.ttft_p90_s, NOTICED_S
    if was.requests >= ENOUGH_FOR_P99:
        yield one.ttft_p99_s, was.ttft_p99_s, NOTICED_S
    yield one.bill_usd, was.bill_usd, 0.0


def _changes(one: Came, was: Came) -> list[int]:
    """Return for each figure 1 where it is noticeably higher (worse), -1 where lower, 0 where it is the same."""
    found = []
    for now, before, least in _figures(one, was):
        differs = abs(now - before) > max(least, NOTICED * max(before, 1e-12))
        found.append((1 if now > before else -1) if differs else 0)
    return found


def _is_better(one: Came, was: Came) -> bool:
    changes = _changes(one, was)
    return -1 in changes and 1 not in changes


def _rank(one: Came, was: Came) -> float:
    """Return a sum in which each figure counts by how many times smaller it is, at most ten times."""
    return math.fsum(
        max(math.log10((now + 1e-12) / (before + 1e-12)), -1.0) for now, before, _ in _figures(one, was)
    )


def _would(one: Came, was: Came) -> str:
    bill = _changes(one, was)[-1]
    paid = (
        f"saved {money(was.bill_usd - one.bill_usd)} of {money(was.bill_usd)} paid to servers"
        if bill < 0
        else f"cost {money(one.bill_usd - was.bill_usd)} more at servers than {money(was.bill_usd)}"
        if bill > 0
        else f"cost the same at servers, {money(one.bill_usd)}"
    )
    first = f"P50 {seconds(one.ttft_p50_s)}, P90 {seconds(one.ttft_p90_s)}"
    before = f"P50 {seconds(was.ttft_p50_s)}, P90 {seconds(was.ttft_p90_s)}"
    changes = set(_changes(one, was)[:2]) - {0}
    how = {frozenset[int](): "no later than it came", frozenset({1}): "later", frozenset({-1}): "sooner"}
    when = how.get(frozenset(changes), "at other times")
    beside = f"{first} instead of {before}" if changes else first
    return f"would have {paid} over {plural(was.requests, 'request')}, with the first word {when} ({beside})"


def _keep(was: Came, others: Sequence[Came]) -> str:
    if len(others) == 1:
        return f"Keep what you have. {others[0].name} is not better: it {_would(others[0], was)}."
    head = (
        f"Keep what you have: of {len(others):,} other settings, none would have been noticeably faster or cheaper "
        f"over {was.requests:,} requests without being slower or dearer."
    )
    offers = []
    faster = [one for one in others if -1 in _changes(one, was)[:-1] and 1 not in _changes(one, was)[:-1]]
    cheaper = [one for one in others if _changes(one, was)[-1] < 0]
    for words, found, rank in (
        ("faster", faster, lambda one: one.ttft_p50_s),
        ("cheaper", cheaper, lambda one: one.ttft_p50_s),
    ):
        if found:
            one = min(found, key=rank)
            offers.append(f"The {words} {one.name} {_would(one, was)}.")
    return " ".join([head, *offers])
