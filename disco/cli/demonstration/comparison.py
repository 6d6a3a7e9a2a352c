"""What an answer of a demonstration gave and took, and what one endpoint alone would have given and taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disco.amounts import joules, money
from disco.cli.console import Screen
from disco.cost.ledger import Totals
from disco.session.records.route_record import RouteRecord

__all__ = ["COLUMNS", "COMPLETE", "Row", "beside", "cells", "explain"]

COLUMNS = ("#", "answered by", "answer", "first word", "late", "server tok", "device tok", "paid", "device")
COMPLETE = "complete"

_SOONER_S = 0.05  # a reader notices no less
_LEAST_USD = 5e-7
_LEAST_J = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One answer in the final table.

    Attributes:
        scene: the scene's number.
        how: "disco", or "server" or "device" for one of them alone.
        record: the answer's.
        became: `COMPLETE`, or how it ended before its end, in words behind "it".
    """

    scene: int
    how: str
    record: RouteRecord
    became: str = COMPLETE

    @property
    def first_s(self) -> float | None:
        """Seconds to the first word that the reader saw."""
        return self.record.pace.ttft_released_s


def explain(screen: Screen, row: Row) -> None:
    """Print what the route record says, in words."""
    record, pace = row.record, row.record.pace
    parts = [f"{record.winner} wrote first after {pace.ttft_raw_s or 0.0:.2f} s"]
    parts += [
        f"{t.endpoint} began a second time, because its first word did not fit"
        for t in record.attempts
        if t.failure == "seam"
    ]
    parts += [f"{t.endpoint} lost the race" for t in record.attempts if t.outcome == "lost"]
    parts += [f"{t.endpoint} lost, and kept its prefill" for t in record.attempts if t.outcome == "parked"]
    parts += [
        f"moved from {t.source} to {t.target} at character {t.cut_char} (token {t.cut_tokens}) in {t.took_s:.2f} s, "
        f"{t.late_tokens} tokens late"
        for t in record.migrations
        if t.outcome == "switched" and t.took_s is not None
    ]
    parts += [
        f"a migration to {t.target} was given up ({t.outcome})" for t in record.migrations if t.took_s is None
    ]
    parts += [
        f"{t.endpoint} failed ({t.failure})" for t in record.attempts if t.failure not in (None, "seam")
    ]
    parts.append(
        f"{money(record.bill_usd)} to servers, {joules(record.device_energy_j or 0.0)} of the device"
    )
    screen.line("→ " + "; ".join(parts) + ".")
    segments = " + ".join(f"{s.endpoint} {s.start_char}…{s.end_char}" for s in record.segments)
    whole = "exactly what each wrote, nothing twice, nothing missing (checksums agree)"
    verdict = whole if record.seamless else "SEAM BROKEN: text may stand there twice or be missing"
    screen.line(f"  record: {segments}: {verdict}.", style="dim")


def beside(mine: Row, other: Row) -> str:
    """Return one line: what disco's answer gave more than the same question to one endpoint alone, and for what."""
    gains: list[str] = []
    prices: list[str] = []
    if other.became != COMPLETE:
        gains.append(f"a whole answer, where the {other.how} alone {other.became}")
    elif mine.first_s is not None and other.first_s is not None:
        sooner_s = other.first_s - mine.first_s
        if abs(sooner_s) >= _SOONER_S:
            where, word = (gains, "sooner") if sooner_s > 0 else (prices, "later")
            where.append(f"the first word {abs(sooner_s):.2f} s {word}")
    more_usd = mine.record.bill_usd - other.record.bill_usd
    more_j = (mine.record.device_energy_j or 0.0) - (other.record.device_energy_j or 0.0)
    for more, least, amount in ((more_usd, _LEAST_USD, money), (more_j, _LEAST_J, joules)):
        if abs(more) >= least:
            (prices if more > 0 else gains).append(f"{amount(abs(more))} {'more' if more > 0 else 'less'}")
    late = mine.record.pace.late_tokens - other.record.pace.late_tokens
    if late and other.became == COMPLETE:
        words = "1 token" if abs(late) == 1 else f"{abs(late)} tokens"
        (prices if late > 0 else gains).append(f"{words} {'more' if late > 0 else 'fewer'} late")
    got = f"got {_listed(gains)}" if gains else "got nothing more this time"
    paid = f"paid {_listed(prices)}" if prices else "paid nothing more"
    return f"Beside the {other.how} alone: {got}; {paid}."


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def cells(row: Row) -> tuple[object, ...]:
    """Return a row of the table with `COLUMNS`."""
    totals = row.record.ledger.by_endpoint()
    device = totals.pop("device", None)
    servers = list(totals.values())
    return (
        row.scene,
        row.how,
        row.became,
        "–" if row.first_s is None else f"{row.first_s:.2f} s",
        row.record.pace.late_tokens,
        "–" if not servers else _tokens(servers),
        "–" if device is None else _tokens([device]),
        money(row.record.bill_usd),
        joules(row.record.device_energy_j or 0.0),
    )


def _tokens(totals: Sequence[Totals]) -> str:
    read = sum(total.prompt_tokens - total.cached_tokens for total in totals)
    return f"{read}+{sum(total.completion_tokens for total in totals)}"
