"""The result as plain tables, disco's figures beside the printed ones."""

from __future__ import annotations

from collections import Counter

from disco.dispatch import Regime
from disco.plan import Order
from disco.replay import Figure, Table
from papers.disco_paper.paper_result import PaperResult
from papers.disco_paper.printed_figures import (
    COST_CUT_PERCENT,
    MEAN_CUT_PERCENT,
    MIGRATION,
    PLANNING_MS,
)
from papers.evaluation import UNKNOWN

__all__ = ["paper_tables"]

_LETTER: dict[Regime, str] = {"server-constrained": "S", "device-constrained": "D"}
_ORDER: dict[Order, str] = {
    "auto": "auto",
    "make_before_break": "make first",
    "break_before_make": "break first",
}


def paper_tables(result: PaperResult) -> list[Table]:
    """Return the tables: set-up, Table 2, Figure 6, Table 3, Figure 7 and Figure 9."""
    return [
        _setup(result),
        _table_2(result),
        _figure_6(result),
        _table_3(result),
        _figure_7(result),
        _figure_9(result),
    ]


def _setup(result: PaperResult) -> Table:
    contradicting = [
        f"{one.pair.device} × {one.pair.server} is labelled {one.pair.regime} in the paper; at its prices and exchange "
        f"rate it is {one.pair.prices_say}. It runs as labelled."
        for one in result.curves
        if one.pair.regime != one.pair.prices_say
    ]
    return Table(
        "Set-up",
        ("server", "profile used"),
        tuple(result.servers.items()),
        (
            result.described(),
            "S: the server is constrained (DiSCo-S: length threshold), D: the device is (DiSCo-D: wait time).",
            *contradicting,
        ),
    )


def _table_2(result: PaperResult) -> Table:
    cuts = result.tail_cuts()
    rows = tuple(
        (
            cut.server,
            _LETTER[cut.regime],
            cut.device,
            f"{cut.printed:.2f}",
            _spread(cut.ours),
            f"{cut.ours.mean - cut.printed:+.1f}",
            _mean(cut.inner),
            _mean(cut.optimal_wait),
            f"{cut.oracle.mean:.1f}",
            cut.verdict,
        )
        for cut in cuts
    )
    counts = Counter(cut.verdict for cut in cuts)
    notes = [
        f"Of {len(cuts)} cells: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        + ". Out of reach: above the figure of an oracle that knows every TTFT on these servers and lengths.",
    ]
    notes += [
        f"{cut.device} × {cut.server} {_LETTER[cut.regime]}: {cut.verdict}; printed {cut.printed:.2f} %, ours "
        f"{cut.ours.mean:.1f} %, the oracle {cut.oracle.mean:.1f} %."
        for cut in cuts
        if cut.verdict != "ahead"
    ]
    inner = [cut.inner.mean - cut.ours.mean for cut in cuts if cut.inner is not None]
    if inner and (0.0 in result.budgets or 1.0 in result.budgets):
        notes.append(
            "At the budgets 0 and 1 stochastic dispatch decides as DiSCo does, except for the race at 1; without them "
            f"the cut is {min(inner):+.1f} to {max(inner):+.1f} points different."
        )
    return Table(
        "Table 2: P99 of TTFT below stochastic dispatch, mean over budgets, %",
        (
            "server",
            "",
            "device",
            "printed",
            "ours",
            "diff",
            "inner b",
            "opt. wait",
            "oracle",
            "where we stand",
        ),
        rows,
        tuple(notes),
    )


def _figure_6(result: PaperResult) -> Table:
    lines = ("disco", "stoch", "server_only", "device_only", "optimal_wait", "oracle")
    rows = []
    ranges = []
    for one in result.curves:
        cuts = one.mean_cuts("disco")
        if cuts.size:
            ranges.append((float(cuts.min()), float(cuts.max())))
        rows.append(
            (
                one.pair.server,
                _LETTER[one.pair.regime],
                one.pair.device,
                *(f"{one.mean_s[line].mean():.3f}" if line in one.mean_s else UNKNOWN for line in lines),
                f"{cuts.min():.0f} to {cuts.max():.0f}" if cuts.size else UNKNOWN,
            )
        )
    low, high = MEAN_CUT_PERCENT
    notes = ["Seconds; the curves over the budget are in the JSON and on the page."]
    if ranges:
        notes.append(
            f"Mean TTFT lies {min(a for a, _ in ranges):.0f} to {max(b for _, b in ranges):.0f} % below stochastic "
            f"dispatch over all pairs and budgets between 0 and 1; printed: {low:.0f} to {high:.0f} %."
        )
    return Table(
        "Figure 6: mean TTFT, s, mean over budgets",
        (
            "server",
            "",
            "device",
            "DiSCo",
            "Stoch",
            "server only",
            "device only",
            "opt. wait",
            "oracle",
            "cut %, b by b",
        ),
        tuple(rows),
        tuple(notes),
    )


def _table_3(result: PaperResult) -> Table:
    rows = []
    for server, regime, order, reader in result.readers():
        printed = MIGRATION[server, regime]
        rows.append(
            (
                server,
                _LETTER[regime],
                _ORDER[order],
                f"{reader.answers:,}",
                f"{reader.moved:,}",
                f"{printed.delayed_tokens:.2f}",
                _number(reader.late_tokens, ".2f"),
                f"{printed.delayed_p99:.2f}",
                _number(reader.late_p99, ".2f"),
                f"{printed.tbt_p99_s:.3f}",
                _number(reader.tbt_p99_s, ".3f"),
            )
        )
    return Table(
        "Table 3: what a migration costs the reader",
        (
            "server",
            "",
            "order",
            "answers",
            "moved",
            "late, printed",
            "ours",
            "P99, printed",
            "ours",
            "TBT P99 s, printed",
            "ours",
        ),
        tuple(rows),
        (
            f"Token by token: the first {result.event_requests} requests of the first run, {_budgets(result)}.",
            "All devices together; read at 4.8 tokens/s.",
            "Auto (disco's): a device pauses at the cut, and goes on if the server is late; a server stops at the cut.",
            "Make first: the source writes until the target does.",
            "Break first (the paper's): the source stops before the target writes.",
            "Late: tokens behind the cut that are released after their deadline, per answer that migrated.",
        ),
    )


def _figure_7(result: PaperResult) -> Table:
    budgets = sorted({move.budget for move in result.migrations})
    rows = []
    best: dict[tuple[Regime, Order], tuple[float, str]] = {}
    for server, regime, order, mine in result.moves_by():
        saved = []
        for budget in budgets:
            here = [move for move in mine if move.budget == budget]
            cost = sum(move.cost_usd for move in here)
            saved.append(f"{100.0 * (1.0 - cost / sum(move.staying_usd for move in here)):.1f}")
        most = max(mine, key=lambda move: move.saved_percent)
        if most.saved_percent > best.get((regime, order), (float("-inf"), ""))[0]:
            best[regime, order] = (
                most.saved_percent,
                f"{most.pair.device} × {server} at budget {most.budget:g}",
            )
        without = sum(move.staying_usd for move in mine) / sum(move.answers for move in mine)
        rows.append(
            (
                server,
                _LETTER[regime],
                _ORDER[order],
                f"{without * 1e3:.4g}",
                *saved,
                f"{most.saved_percent:.1f}",
                f"{max(move.clairvoyant_percent for move in mine):.1f}",
                f"{max(move.bound_percent for move in mine):.1f}",
            )
        )
    return Table(
        "Figure 7: cost saved by migration, %, all devices together",
        (
            "server",
            "",
            "order",
            "$/1000 without",
            *(f"b={budget:g}" for budget in budgets),
            "best device",
            "clairvoyant",
            "bound",
        ),
        tuple(rows),
        (
            *(
                f"{_LETTER[regime]}, {_ORDER[order]}: at most {percent:.1f} % ({where}); printed: up to "
                f"{COST_CUT_PERCENT[regime]} %."
                for (regime, order), (percent, where) in sorted(best.items())
            ),
            "Unified cost; the same answers as for Table 3, each with and without migration.",
            "Clairvoyant: best device, if each answer moved when that costs least with no token late, all times known.",
            "Bound: best device, if each answer of the more expensive side moved after its first token at no cost.",
        ),
    )


def _figure_9(result: PaperResult) -> Table:
    rows = []
    for one in result.planning:
        printed = PLANNING_MS.get(one.policy, {}).get(one.samples)
        rows.append(
            (
                one.policy,
                f"{one.samples:,}",
                UNKNOWN if printed is None else f"{printed:.3f}",
                f"{one.ms:.3f}",
                UNKNOWN if printed is None else f"{printed / one.ms:.1f}×",
            )
        )
    return Table(
        "Figure 9: planning from raw samples, ms",
        ("policy", "samples", "printed (M1)", "ours (here)", "faster"),
        tuple(rows),
        ("Median of a few repeats on this machine.",),
    )


def _spread(figure: Figure) -> str:
    half = (figure.high - figure.low) / 2
    return f"{figure.mean:.1f}±{half:.1f}" if half > 0 else f"{figure.mean:.1f}"


def _mean(figure: Figure | None) -> str:
    return UNKNOWN if figure is None else f"{figure.mean:.1f}"


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _budgets(result: PaperResult) -> str:
    budgets = sorted({move.budget for move in result.migrations})
    return f"budgets {', '.join(f'{budget:g}' for budget in budgets)}"
