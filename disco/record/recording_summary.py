"""A recording in a few figures: who answered how many requests and how soon, what it cost, what failed, who was asked.

Only numbers are kept of each record, so that a long recording takes little memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disco.record.left_out import SkipLog, Skipped
from disco.record.reading import RecordLine, records_of
from disco.record.summary import writers
from disco.session.records.route_record import RouteRecord

__all__ = ["Answered", "EndpointUse", "Reason", "RecordingSummary", "quantile", "summarised"]

FAILED, CANCELLED, NOBODY = "nobody: it failed", "nobody: the reader left", "nobody: it was empty"


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
    """

    requests: int = 0
    values: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None

    def add(self, value: float | None, limit: float | None) -> None:
        """Count the reason of one plan, with its numbers."""
        self.requests += 1
        self.values = _widened(self.values, value)
        self.limits = _widened(self.limits, limit)


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
        left_out: lines that are no records.
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
    left_out: Skipped = Skipped()  # noqa: RUF009 - frozen


def summarised(path: Path, lines: Iterable[RecordLine] | None = None) -> RecordingSummary:
    """Return the figures of a recording. A line that is no record is left out and named.

    Args:
        path: of the recording.
        lines: of the recording, those that are summed up; None: all.

    Raises:
        ConfigurationError: the file cannot be read, or a record is one of a newer disco.
    """
    found, log = RecordingSummary(), SkipLog(path)
    for _, record in records_of(path, log, lines):
        _enter(found, record)
    found.answered = dict(sorted(found.answered.items(), key=lambda item: -item[1].requests))
    found.left_out = log.skipped
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


def _who(record: RouteRecord) -> str:
    """Return who wrote the answer, in order."""
    wrote = writers(record)
    if record.finish_reason is None:
        return " → ".join([*wrote, "failed"]) if wrote else FAILED
    if not wrote and record.winner:
        return record.winner  # a tool call has no text
    if not wrote:
        return CANCELLED if record.finish_reason == "cancelled" else NOBODY
    return " → ".join(wrote)


Numbers = tuple[float | None, float | None]


def _reasons(record: RouteRecord) -> dict[tuple[str, str, str], Numbers]:
    """Return what the plan says about each endpoint; older records only have who was put last, and who was cut.

    Both get the codes that newer records have: "low" alone is a battery in the one and a budget in the other.
    """
    found: dict[tuple[str, str, str], Numbers] = {
        (why.endpoint, why.does, why.code): (why.value, why.limit) for why in record.why
    }
    if not found:
        for rest in record.deprioritised:
            found[rest.endpoint, "rests", rest.reason] = None, None
        for cut in record.budget_cuts:
            if cut.what != "move":
                found[cut.endpoint, "stands_by", f"budget_{cut.why}"] = None, None
    return found


def _enter(found: RecordingSummary, record: RouteRecord) -> None:
    found.requests += 1
    if record.created_s is not None:
        found.since_s = min(record.created_s, found.since_s or math.inf)
        found.until_s = max(record.created_s, found.until_s or 0.0)
    found.presets[record.preset] += 1
    totals = record.ledger.totals()
    found.bill_usd += totals.bill_usd
    if totals.device_energy_j is not None:
        found.device_energy_j = (found.device_energy_j or 0.0) + totals.device_energy_j
    answered = found.answered.setdefault(_who(record), Answered())
    answered.requests += 1
    answered.bill_usd += totals.bill_usd
    shown_s = record.pace.ttft_released_s
    first_s = record.pace.ttft_raw_s if shown_s is None else shown_s
    if first_s is not None:
        answered.first_words_s.append(first_s)
    asked = {attempt.endpoint for attempt in record.attempts}
    for name in sorted({endpoint.name for endpoint in record.endpoints} | asked):
        use = found.endpoints.setdefault(name, EndpointUse())
        use.available += 1
        use.asked += name in asked
        use.first += name == record.winner
    for attempt in record.attempts:
        if attempt.failure is not None:
            found.endpoints[attempt.endpoint].failures[attempt.failure] += 1
    for key, numbers in _reasons(record).items():
        found.reasons.setdefault(key, Reason()).add(*numbers)


def _widened(bounds: tuple[float, float] | None, value: float | None) -> tuple[float, float] | None:
    if value is None:
        return bounds
    return (value, value) if bounds is None else (min(bounds[0], value), max(bounds[1], value))
