"""Result of a run of the paper's evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from disco.dispatch import Regime
from disco.plan import Order
from disco.replay import Figure
from disco.replay.report import Report
from papers.disco_paper.migration_runs import ORDERS, MigrationRuns, Reader, reader_of
from papers.disco_paper.paper_setup import REGIMES, SERVERS
from papers.disco_paper.planning_times import PlanningTime
from papers.disco_paper.printed_figures import (
    COST_CUT_PERCENT,
    MIGRATION,
    PLANNING_MS,
    TAIL_CUT_PERCENT,
)
from papers.disco_paper.ttft_curves import Curves

__all__ = ["PaperResult", "TailCut"]


@dataclass(frozen=True, slots=True)
class TailCut:
    """A cell of Table 2: how much lower P99 of TTFT is than under stochastic dispatch, in %.

    Attributes:
        server, regime, device: names of the cell.
        printed: the paper's figure.
        ours: DiSCo's policy in disco, over all budgets.
        inner: the same without the budgets 0 and 1; None if there are no others.
        optimal_wait: disco's own policy, optimised for the tail; None if the server is constrained (see `Curves`).
        oracle: knows every TTFT in advance; the bound of all policies on these requests.
    """

    server: str
    regime: Regime
    device: str
    printed: float
    ours: Figure
    inner: Figure | None
    optimal_wait: Figure | None
    oracle: Figure

    @property
    def verdict(self) -> str:
        """How our figure compares with the printed one.

        "ahead"; else "optimal wait ahead"; else "out of reach", even for the oracle; else "behind".
        """
        if self.ours.mean >= self.printed:
            return "ahead"
        if self.optimal_wait is not None and self.optimal_wait.mean >= self.printed:
            return "optimal wait ahead"
        return "out of reach" if self.oracle.mean < self.printed else "behind"


@dataclass(frozen=True, slots=True)
class PaperResult:
    """All results from which the tables are made.

    Attributes:
        runs, requests: number of runs, and of requests in each.
        event_requests: number of requests of the first run that ran through the event-accurate evaluator.
        budgets: rising.
        seed: seed of the first run.
        lengths: origin of prompt and answer lengths, in words.
        servers: the profile used for each server, in words, by the paper's name.
        curves: TTFT over the budget, one per pair.
        migrations: runs with and without migration, by pair and budget.
        planning: planning times; the only figures that depend on the machine.
        took_s: duration of the whole run, s.
    """

    runs: int
    requests: int
    event_requests: int
    budgets: tuple[float, ...]
    seed: int
    lengths: str
    servers: Mapping[str, str]
    curves: tuple[Curves, ...]
    migrations: tuple[MigrationRuns, ...]
    planning: tuple[PlanningTime, ...]
    took_s: float

    def tail_cuts(self) -> list[TailCut]:
        """Return the cells of Table 2."""
        inner = any(0.0 < budget < 1.0 for budget in self.budgets)
        return [
            TailCut(
                server=one.pair.server,
                regime=one.pair.regime,
                device=one.pair.device,
                printed=TAIL_CUT_PERCENT[one.pair.server, one.pair.regime][one.pair.device],
                ours=one.tail_cut("disco"),
                inner=one.tail_cut("disco", inner=True) if inner else None,
                optimal_wait=one.tail_cut("optimal_wait") if "optimal_wait" in one.p99_s else None,
                oracle=one.tail_cut("oracle"),
            )
            for one in self.curves
        ]

    def moves_by(self) -> Iterator[tuple[str, Regime, Order, list[MigrationRuns]]]:
        """Yield the migration runs by server, regime and order."""
        for server, regime, order in product(SERVERS, REGIMES, ORDERS):
            key = server.key, regime, order
            mine = [m for m in self.migrations if (m.pair.server, m.pair.regime, m.order) == key]
            yield *key, mine

    def readers(self) -> Iterator[tuple[str, Regime, Order, Reader]]:
        """Yield the rows of Table 3, by server, regime and order."""
        for server, regime, order, mine in self.moves_by():
            yield server, regime, order, reader_of(mine)

    def report(self) -> Report:
        """Return all curves and the timeline of one answer that migrated, for an HTML page with plots."""
        return Report(
            title="The DiSCo paper's evaluation",
            notes=(self.described(), *(f"{key}: {what}." for key, what in self.servers.items())),
            cells=tuple(cell for one in self.curves for cell in one.cells),
            example=next((m.example for m in self.migrations if m.example is not None), None),
        )

    def described(self) -> str:
        """Return the set-up in one sentence."""
        return (
            f"{self.runs} runs of {self.requests:,} requests, {len(self.budgets)} budgets from {self.budgets[0]:g} to "
            f"{self.budgets[-1]:g}, Poisson arrivals every 30 s, at most 128 tokens an answer; {self.lengths}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON: disco's figures beside the printed ones."""
        return {
            "setup": {
                "runs": self.runs,
                "requests": self.requests,
                "event_requests": self.event_requests,
                "budgets": list(self.budgets),
                "seed": self.seed,
                "lengths": self.lengths,
                "servers": dict(self.servers),
                "mislabelled": [
                    {"device": p.device, "server": p.server, "label": p.regime, "prices_say": p.prices_say}
                    for p in (one.pair for one in self.curves)
                    if p.regime != p.prices_say
                ],
            },
            "table_2": [
                {
                    **_where(cut.server, cut.regime, cut.device),
                    "printed_percent": cut.printed,
                    "ours_percent": _interval(cut.ours),
                    "inner_budgets_percent": _interval(cut.inner),
                    "optimal_wait_percent": _interval(cut.optimal_wait),
                    "oracle_percent": _interval(cut.oracle),
                    "verdict": cut.verdict,
                }
                for cut in self.tail_cuts()
            ],
            "figure_6": [
                {
                    **_where(one.pair.server, one.pair.regime, one.pair.device),
                    "mean_ttft_s": {line: v.mean(axis=0).tolist() for line, v in one.mean_s.items()},
                    "p99_ttft_s": {line: v.mean(axis=0).tolist() for line, v in one.p99_s.items()},
                    "budget_used": {line: v.mean(axis=0).tolist() for line, v in one.used.items()},
                }
                for one in self.curves
            ],
            "table_3": [
                {
                    **_where(server, regime),
                    "order": order,
                    "answers": reader.answers,
                    "moved": reader.moved,
                    "delayed_tokens": {
                        "printed": MIGRATION[server, regime].delayed_tokens,
                        "ours": reader.late_tokens,
                    },
                    "delayed_p99": {
                        "printed": MIGRATION[server, regime].delayed_p99,
                        "ours": reader.late_p99,
                    },
                    "tbt_p99_s": {"printed": MIGRATION[server, regime].tbt_p99_s, "ours": reader.tbt_p99_s},
                }
                for server, regime, order, reader in self.readers()
            ],
            "figure_7": {
                "printed_at_most_percent": dict(COST_CUT_PERCENT),
                "cells": [
                    {
                        **_where(m.pair.server, m.pair.regime, m.pair.device),
                        "budget": m.budget,
                        "order": m.order,
                        "answers": m.answers,
                        "cost_usd": m.cost_usd,
                        "without_migration_usd": m.staying_usd,
                        "saved_percent": m.saved_percent,
                        "clairvoyant_percent": m.clairvoyant_percent,
                        "bound_percent": m.bound_percent,
                    }
                    for m in self.migrations
                ],
            },
            "figure_9": [
                {
                    "policy": one.policy,
                    "samples": one.samples,
                    "ours_ms": one.ms,
                    "printed_ms": PLANNING_MS.get(one.policy, {}).get(one.samples),
                }
                for one in self.planning
            ],
            "took_s": self.took_s,
        }


def _where(server: str, regime: Regime, device: str | None = None) -> dict[str, str]:
    return {"server": server, "regime": regime} | ({} if device is None else {"device": device})


def _interval(figure: Figure | None) -> dict[str, float] | None:
    return None if figure is None else {"mean": figure.mean, "low": figure.low, "high": figure.high}
