"""What an answer of a demonstration gave and took, and what one endpoint alone would have given and taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disco.cli.console import Screen
from disco.cost.ledger import Totals
from disco.cost.model_flops import FLOPS_PER_JOULE
from disco.session.records.route_record import RouteRecord

__all__ = ["COLUMNS", "Row", "Spent", "beside", "cells", "explain", "joules", "spent"]

COLUMNS = ("#", "answered by", "answer", "first word", "late", "server tok", "device tok", "paid", "device")
COMPLETE = "complete"

_SOONER_S = 0.05  # a reader notices no less
_LEAST_CT = 5e-5  # half of the last digit that is shown
_LEAST_J = 0.05


@dataclass(frozen=True, slots=True)
class Spent:
    """What an answer took.

    Attributes:
        ct: money paid to servers, US cents.
        joules: energy of the device, J.
    """

    ct: float
    joules: float

    def __str__(self) -> str:
        return f"{self.ct:.4f} ct to servers, {self.joules:.1f} J of the device"


def spent(record: RouteRecord, exchange_rate: float, *, device: str = "device") -> Spent:
    """Return what an answer took, losers and what failed included.

    Args:
        record: the answer's.
        exchange_rate: the preset's, USD per 10⁶ FLOPs, by which the ledger counts the device's work.
        device: the name of the endpoint that takes energy of this machine, and no money.
    """
    totals = {name: total.cost for name, total in record.ledger.by_endpoint().items()}
    work = totals.pop(device, 0.0)
    return Spent(1e2 * sum(totals.values()), joules(work, exchange_rate))


def joules(cost: float, exchange_rate: float) -> float:
    """Return the energy, J, that the ledger counts as a cost, USD, at an exchange rate, USD per 10⁶ FLOPs."""
    return cost / exchange_rate * 1e6 / FLOPS_PER_JOULE


@dataclass(frozen=True, slots=True)
class Row:
    """One answer in the final table.

    Attributes:
        scene: the scene's number.
        how: "disco", or "server" or "device" for one of them alone.
        record: the answer's.
        spent: what it took.
        became: `COMPLETE`, or how it ended before its end, in words behind "it".
    """

    scene: int
    how: str
    record: RouteRecord
    spent: Spent
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
    parts.append(str(row.spent))
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
    more_ct, more_j = mine.spent.ct - other.spent.ct, mine.spent.joules - other.spent.joules
    if abs(more_ct) >= _LEAST_CT:
        (prices if more_ct > 0 else gains).append(
            f"{abs(more_ct):.4f} ct {'more' if more_ct > 0 else 'less'}"
        )
    if abs(more_j) >= _LEAST_J:
        (prices if more_j > 0 else gains).append(f"{abs(more_j):.1f} J {'more' if more_j > 0 else 'less'}")
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
        f"{row.spent.ct:.4f} ct",
        f"{row.spent.joules:.1f} J",
    )


def _tokens(totals: Sequence[Totals]) -> str:
    read = sum(total.prompt_tokens - total.cached_tokens for total in totals)
    return f"{read}+{sum(total.completion_tokens for total in totals)}"
