"""The result as plain tables, disco's figures beside the printed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from disco.replay import Table, claim_table
from papers.dsd.dsd_claims import claims, contradictions, crossover_ms
from papers.dsd.dsd_run import (
    ALONE,
    DISTRIBUTED,
    DRAFTERS,
    FUSED,
    LADDER,
    LOADS,
    ONE_WAY,
    OPTIMAL,
    ROUND_TRIPS_MS,
    DsdResult,
    Point,
)
from papers.dsd.fleet_assumptions import ASSUMED
from papers.dsd.printed_values import (
    CONFIGURATIONS,
    CROSSOVER_MS,
    DATASETS,
    FIGURE_5,
    JSQ_LOWER_MS,
    LAB_LOWER_MS,
    STATIC,
    WINDOWS,
    Cell,
    Configuration,
    printed,
)
from papers.evaluation import UNKNOWN

__all__ = ["dsd_tables", "figure_tables", "table2"]

_PARTS: Final = (("requests/s", 1), ("TTFT ms", 0), ("TPOT ms", 1))


def dsd_tables(result: DsdResult) -> list[Table]:
    """Return all tables: claims, Table 2, the figures, the cost predictor, contradictions, what is assumed."""
    return [*figure_tables(result), *(table2(result, name) for name in DATASETS), *_last(result)]


def figure_tables(result: DsdResult) -> list[Table]:
    """Return the tables of the claims and the figures."""
    return [
        claim_table("Claims of the paper", claims(result)),
        _figure5(result),
        _figure6(result),
        _routing(result),
        _batching(result),
    ]  # fmt: skip


def table2(result: DsdResult, dataset: str) -> Table:
    """Return a data set's part of Table 2: paper, ours and deviation in each cell."""
    rows: list[tuple[str, ...]] = []
    for number, column in CONFIGURATIONS.items():
        for window in WINDOWS:
            paper, ours = printed(dataset, number, window), result.table2[dataset, number, window]
            rows.append((_column(number, column), window, *_compared(paper, ours.cell), _how(ours)))
        for arm in (OPTIMAL, ALONE, ONE_WAY):
            point = result.table2.get((dataset, number, arm))
            if point is not None:
                cells = (
                    (f"{value:.{digits}f}" for value, (_, digits) in zip(point.cell, _PARTS, strict=True))
                    if arm != ONE_WAY
                    else _compared(printed(dataset, number, STATIC), point.cell)
                )
                rows.append((_column(number, column), arm, *cells, _how(point)))
    return Table(
        f"Table 2, {dataset}: paper, ours (deviation)",
        ("configuration", "window", *(name for name, _ in _PARTS), "drafts"),
        tuple(rows),
        (
            (
                "Calibrated on the first row alone; all others are predictions. Optimal and target "
                "alone are not in the paper. RTT one way: the paper's 30 ms as the delay in each direction, beside its "
                "static row. Drafts: mean window, and the share of tokens that the target wrote alone."
            ),
        ),
    )


def _column(number: int, column: Configuration) -> str:
    return f"{number}: {column.drafters}D, {column.rtt_ms:.0f} ms"


def _compared(paper: Cell, ours: Cell) -> list[str]:
    return [
        f"{was:.{digits}f}  {now:.{digits}f} ({100 * (now / was - 1):+.0f} %)"
        for was, now, (_, digits) in zip(paper, ours, _PARTS, strict=True)
    ]


def _how(point: Point) -> str:
    return f"{point.window:.1f}, {100 * point.alone:.0f} % alone"


def _figure5(result: DsdResult) -> Table:
    known = {LADDER[0][0]: FIGURE_5[0][1], LADDER[-1][0]: FIGURE_5[-1][1]}
    rows = []
    for step, point in result.ladder.items():
        cells: Sequence[str] = (
            _compared(known[step], point.cell)
            if step in known
            else [
                f"{UNKNOWN}  {value:.{digits}f}"
                for value, (_, digits) in zip(point.cell, _PARTS, strict=True)
            ]
        )
        rows.append((step, *cells, _how(point)))
    return Table(
        "Figure 5 (GSM8K, configuration 1): paper, ours (deviation)",
        ("policies", *(name for name, _ in _PARTS), "drafts"),
        tuple(rows),
        (
            "The text names the first and the last bar only. The last one's printed 37 ms are 36.2 in Table 2.",
        ),
    )


def _figure6(result: DsdResult) -> Table:
    rows = []
    for drafters in LOADS:
        flat = [result.modes[mode, drafters, 0].cell.tpot_ms for mode in (FUSED, ALONE)]
        near = [result.modes[DISTRIBUTED, drafters, rtt].cell.tpot_ms for rtt in ROUND_TRIPS_MS]
        crossings = [_crossing(crossover_ms(result, drafters, mode)) for mode in (FUSED, ALONE)]
        rows.append((f"{drafters:,}", *(f"{value:.1f}" for value in (*near, *flat)), *crossings))
    low, high = CROSSOVER_MS
    return Table(
        "Figure 6: TPOT in ms by round trip",
        (
            "drafters",
            *(f"{rtt} ms" for rtt in ROUND_TRIPS_MS),
            FUSED,
            ALONE,
            f"crosses fused (paper: {low:.0f}-{high:.0f})",
            "crosses alone",
        ),
        tuple(rows),
        ("Distributed, static window of 4, GSM8K. Fused and target alone have no network between rounds.",),
    )


def _crossing(found_ms: float | None) -> str:
    if found_ms is None:
        return f"> {ROUND_TRIPS_MS[-1]} ms"
    return "never faster" if found_ms < 0 else f"{found_ms:.0f} ms"


def _routing(result: DsdResult) -> Table:
    rows = []
    for drafters in DRAFTERS:
        jsq, turns = (result.policies[name, drafters] for name in ("JSQ", "round-robin"))
        rows.append(
            (
                f"{drafters:,}",
                *(f"{point.cell.tpot_ms:.1f}" for point in (jsq, turns)),
                f"{jsq.cell.tpot_ms - turns.cell.tpot_ms:+.1f}",
                *(f"{point.cell.requests_per_s:.1f}" for point in (jsq, turns)),
                f"{100 * jsq.busy:.0f} / {100 * turns.busy:.0f} %",
            )
        )
    low, high = JSQ_LOWER_MS
    return Table(
        "Figures 7 and 8: join the shortest queue (JSQ) against round-robin (RR), by drafters",
        (
            "drafters",
            "TPOT JSQ",
            "TPOT RR",
            f"difference (paper: -{low:.0f} to -{high:.0f} to 1k)",
            "requests/s JSQ",
            "requests/s RR",
            "servers busy",
        ),
        tuple(rows),
        ("ms; static window, FIFO, GSM8K, 10 ms.",),
    )


def _batching(result: DsdResult) -> Table:
    rows = []
    for drafters in DRAFTERS:
        fifo, aware = (result.policies[name, drafters].cell for name in ("JSQ", "JSQ, LAB"))
        rows.append(
            (
                f"{drafters:,}",
                f"{fifo.tpot_ms:.1f}",
                f"{aware.tpot_ms:.1f}",
                f"{aware.tpot_ms - fifo.tpot_ms:+.1f}",
                f"{fifo.requests_per_s:.1f}",
                f"{aware.requests_per_s:.1f}",
            )
        )
    low, high = LAB_LOWER_MS
    return Table(
        "Figures 9 and 10: FIFO against length-aware batches (LAB), by drafters",
        (
            "drafters",
            "TPOT FIFO",
            "TPOT LAB",
            f"difference (paper: -{low:.0f} to -{high:.0f})",
            "requests/s FIFO",
            "requests/s LAB",
        ),
        tuple(rows),
        ("ms; static window, JSQ, GSM8K, 10 ms.",),
    )


def _last(result: DsdResult) -> list[Table]:
    rows = tuple(
        (
            one.model,
            *(
                f"{100 * size:.1f} ({100 * signed:+.1f})"
                for size, signed in (one.prompt, one.decode, one.answers)
            ),
            str(one.points),
        )
        for one in result.predictor
    )
    return [
        Table(
            "Errors of the cost predictor on our own measurements, %: mean size (mean with sign)",
            ("model", "prefill (paper: 7.4)", "decode (paper: 5.2)", "whole answers", "predicted"),
            rows,
            (
                (
                    f"From {result.measured}. Fitted to half of the row counts, predicting the other half and whole "
                    "answers. The paper's are of 7B to 72B models on GPUs."
                ),
            ),
        ),
        claim_table("Contradictions of the paper", contradictions(result)),
        Table("Calibrated and assumed constants", ("constant", "value", "source"), ASSUMED, ()),
    ]
