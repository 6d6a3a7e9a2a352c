"""A recording in a few figures: who answered how many requests and how soon, what it cost, what failed, who was asked.

Only numbers are kept of each record, so that a long recording takes little memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from disco.errors import ConfigurationError
from disco.session.records.record_lines import RecordLine, record_row

__all__ = ["Answered", "EndpointUse", "Reason", "RecordingSummary", "quantile", "summarised"]

FAILED, CANCELLED, NOBODY = "nobody: it failed", "nobody: the reader left", "nobody: it was empty"


_MOST = 1e15  # a larger number is damage


@dataclass(slots=True)
class Answered:
    """Answers by the same writers. Mutable: all."""

    requests: int = 0
    first_words_s: list[float] = field(default_factory=list)
    bill_usd: float = 0.0


@dataclass(slots=True)
class EndpointUse:
    """How often an endpoint could serve a request, was asked, wrote the first word, and failed. Mutable: all.

    Attributes:
        failures: by kind.
    """

    available: int = 0
    asked: int = 0
    first: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Reason:
    """What plans say about an endpoint, with the same code. Mutable: all.

    Attributes:
        requests: how many plans.
        values, limits: the least and the greatest number of each; None: the reason has none.
        sources: where the limits come from, such as "prior".
        last: the entry of the last of these plans.
    """

    requests: int = 0
    values: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None
    sources: Counter[str] = field(default_factory=Counter)
    last: Mapping[str, Any] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count the reason of one plan."""
        self.requests += 1
        self.values = _widened(self.values, entry.get("value"))
        self.limits = _widened(self.limits, entry.get("limit"))
        if entry.get("source"):
            self.sources[str(entry["source"])] += 1
        self.last = entry


@dataclass(slots=True)
class RecordingSummary:
    """The figures of a recording. Mutable: all.

    Attributes:
        requests: how many records.
        since_s, until_s: when the first and the last of these requests came, Unix time in seconds; None: not known.
        presets: requests by preset.
        answered: by who wrote, such as "server" or "server → device"; most requests first.
        endpoints: by name.
        reasons: by (endpoint, what it does, code).
        bill_usd: what servers were paid.
        device_energy_j: energy of the user's own machines, J; None where no record knows it.
        left_out: (line number, what is wrong) of lines that are no records.
    """

    requests: int = 0
    since_s: float | None = None
    until_s: float | None = None
    presets: Counter[str] = field(default_factory=Counter)
    answered: dict[str, Answered] = field(default_factory=dict)
    endpoints: dict[str, EndpointUse] = field(default_factory=dict)
    reasons: dict[tuple[str, str, str], Reason] = field(default_factory=dict)
    bill_usd: float = 0.0
    device_energy_j: float | None = None
    left_out: list[tuple[int, str]] = field(default_factory=list)


def summarised(lines: Iterable[RecordLine]) -> RecordingSummary:
    """Return the figures of these lines of a recording. A line that is no record is left out and named."""
    found = RecordingSummary()
    for line in lines:
        try:
            facts = _facts(record_row(line.text))
        except ConfigurationError as error:
            found.left_out.append((line.number, str(error)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            found.left_out.append((line.number, "a damaged record"))
        else:
            _enter(found, facts)
    found.answered = dict(sorted(found.answered.items(), key=lambda item: -item[1].requests))
    return found


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return a quantile, interpolated linearly between values; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is kept of one record; read as a whole before any of it is counted."""

    created_s: float | None
    preset: str
    who: str
    first_word_s: float | None
    bill_usd: float
    energy_j: float | None
    available: frozenset[str]
    asked: frozenset[str]
    first: str | None
    failures: tuple[tuple[str, str], ...]
    reasons: Mapping[tuple[str, str, str], Mapping[str, Any]]


def _facts(row: Mapping[str, Any]) -> _Facts:
    pace, attempts, ledger = row["pace"], row["attempts"], row["ledger"]
    shown_s = pace["ttft_released_s"]
    first_s = pace["ttft_raw_s"] if shown_s is None else shown_s
    energy_j = ledger["device_energy_j"]
    return _Facts(
        created_s=None if row.get("created_s") is None else _amount(row["created_s"]),
        preset=str(row["preset"]),
        who=_who(row),
        first_word_s=None if first_s is None else _amount(first_s),
        bill_usd=_amount(ledger["bill_usd"]),
        energy_j=None if energy_j is None else _amount(energy_j),
        available=frozenset(str(one["name"]) for one in row["endpoints"]),
        asked=frozenset(str(one["endpoint"]) for one in attempts),
        first=row.get("winner"),
        failures=tuple(
            (str(one["endpoint"]), str(one["failure"])) for one in attempts if one["failure"] is not None
        ),
        reasons=_reasons(row),
    )


def _who(row: Mapping[str, Any]) -> str:
    """Return who wrote the answer, in order."""
    wrote = [name for name, _ in groupby(str(one["endpoint"]) for one in row["segments"])]
    if row["finish_reason"] is None:
        return " → ".join([*wrote, "failed"]) if wrote else FAILED
    if not wrote and row.get("winner"):
        wrote = [str(row["winner"])]  # a tool call has no text
    if not wrote:
        return CANCELLED if row["finish_reason"] == "cancelled" else NOBODY
    return " → ".join(wrote)


def _reasons(row: Mapping[str, Any]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Return what the plan says about each endpoint; older records only have who was put last, and who was cut.

    Both get the codes that newer records have: "low" alone is a battery in the one and a budget in the other.
    """
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for entry in row.get("why") or ():
        found[str(entry["endpoint"]), str(entry["does"]), str(entry["code"])] = entry
    if not found:
        for entry in row.get("deprioritised") or ():
            found[str(entry["endpoint"]), "rests", str(entry["reason"])] = entry
        for entry in row.get("budget_cuts") or ():
            if entry["what"] != "move":
                found[str(entry["endpoint"]), "stands_by", f"budget_{entry['why']}"] = entry
    return found


def _enter(found: RecordingSummary, facts: _Facts) -> None:
    found.requests += 1
    if facts.created_s is not None:
        found.since_s = min(facts.created_s, found.since_s or math.inf)
        found.until_s = max(facts.created_s, found.until_s or 0.0)
    found.presets[facts.preset] += 1
    found.bill_usd += facts.bill_usd
    if facts.energy_j is not None:
        found.device_energy_j = (found.device_energy_j or 0.0) + facts.energy_j
    answered = found.answered.setdefault(facts.who, Answered())
    answered.requests += 1
    answered.bill_usd += facts.bill_usd
    if facts.first_word_s is not None:
        answered.first_words_s.append(facts.first_word_s)
    for name in sorted(facts.available | facts.asked):
        use = found.endpoints.setdefault(name, EndpointUse())
        use.available += 1
        use.asked += name in facts.asked
        use.first += name == facts.first
    for name, kind in facts.failures:
        found.endpoints[name].failures[kind] += 1
    for key, entry in facts.reasons.items():
        found.reasons.setdefault(key, Reason()).add(entry)


def _amount(value: Any) -> float:
    """Return an amount of money, energy or time.

    Raises:
        ValueError: it is none: a record from a damaged file.
    """
    amount = float(value)
    if not abs(amount) < _MOST:
        raise ValueError("an amount must be finite")
    return amount


def _widened(bounds: tuple[float, float] | None, value: Any) -> tuple[float, float] | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        return bounds
    return (value, value) if bounds is None else (min(bounds[0], value), max(bounds[1], value))
