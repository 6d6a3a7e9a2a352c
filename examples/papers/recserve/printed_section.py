"""Tables of what the paper prints: every row with its derived shares, readings of the formulas, claims."""

from __future__ import annotations

from disco.replay import Table
from papers.evaluation import UNKNOWN
from papers.recserve.printed_readings import claims, derived, readings
from papers.recserve.printed_tables import PrintedRow

__all__ = ["printed_section"]


def printed_section() -> list[Table]:
    """Return the tables that need no run."""
    return [_rows(), _readings(), _claims()]


def _rows() -> Table:
    rows = tuple(
        (
            one.row.dataset,
            one.row.label,
            UNKNOWN if one.row.thresholds is None else "{:g}, {:g}".format(*one.row.thresholds),
            f"{one.row.quality:.2f}",
            *(
                _bytes(one.row, amount)
                for amount in (one.row.device, one.row.edge, one.row.cloud, one.row.total)
            ),
            _figure(one.p1),
            _figure(one.p2),
            _figure(one.ratio),
            _figure(one.theory, 2),
            UNKNOWN if one.z is None else f"{one.z:+.1f}",
        )
        for one in derived()
    )
    wrong = sum(not one.sums_fit for one in derived())
    return Table(
        "Tables II and III as printed, and what follows from their bytes",
        (
            "dataset",
            "method",
            "thresholds",
            "% or BLEU",
            "device",
            "edge",
            "cloud",
            "total",
            "p1",
            "p2",
            "of cloud",
            "theory",
            "sigma",
        ),
        rows,
        (
            f"{wrong} rows break device + cloud = edge or sum = total beyond rounding.",
            (
                "p1, p2: shares of bytes that go up from device and edge. Of cloud: total bytes relative to "
                "CloudServe's. Theory: share + share squared (Eq. 36, n = 3)."
            ),
            (
                "Sigma: how far p1 is from the parameter, in standard deviations of as many equally long texts as the "
                "public split has; unequal lengths make the true distance smaller."
            ),
        ),
    )


def _readings() -> Table:
    return Table(
        "Which rows fit which reading",
        ("reading", "fit", "of", "not", "what follows"),
        tuple(
            (one.what, str(one.fits), str(one.rows), one.exceptions or UNKNOWN, one.verdict)
            for one in readings()
        ),
        (),
    )


def _claims() -> Table:
    return Table(
        "Claims of the text, checked on the tables",
        ("claim", "holds", "of", "but not"),
        tuple((one.claim, str(one.held), str(one.cases), ", ".join(one.but) or UNKNOWN) for one in claims()),
        ("A case is a dataset, or a row of RecServe.",),
    )


def _bytes(row: PrintedRow, amount: float | None) -> str:
    return UNKNOWN if amount is None else f"{amount:,.2f} {row.unit}"


def _figure(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
