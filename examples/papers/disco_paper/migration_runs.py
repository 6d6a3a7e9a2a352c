"""Cost of migrations to the reader, and the money that they save: the runs behind Table 3 and Figure 7.

Answers run token by token, through the real session, playback and ledger in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.plan import Order
from disco.replay import Arm, Trace, evaluate, resolve, simulate
from disco.session.records.route_record import RouteRecord
from papers.disco_paper.handover_bound import clairvoyant_saving_usd
from papers.disco_paper.paper_setup import Pair

__all__ = ["ORDERS", "MigrationRuns", "Reader", "migration_runs_of", "reader_of"]

Floats = NDArray[np.float64]

ORDERS: Final[tuple[Order, ...]] = ("auto", "make_before_break", "break_before_make")
"""disco's order, the safest one, and the paper's: there the source stops once enough is buffered."""


@dataclass(frozen=True, slots=True)
class MigrationRuns:
    """DiSCo with and without migration, on the same requests.

    Attributes:
        pair: the endpoints.
        budget: share b.
        order: see `ORDERS`.
        answers: number of answers.
        late_tokens: late tokens behind the cut, of each answer that migrated; shape (moved,).
        tbt_s: times between tokens as read, concatenated over the answers that migrated; shape (m,).
        cost_usd: unified cost of all answers.
        staying_usd: the same without migration.
        bound_usd: the same if every answer of the more expensive side moved after its first token, and moving cost
            nothing.
        clairvoyant_usd: the same if every answer moved at the moment that costs least and makes no token late; see
            `handover_bound`.
        example: the record of the first answer that migrated; None when none did.
    """

    pair: Pair
    budget: float
    order: Order
    answers: int
    late_tokens: Floats
    tbt_s: Floats
    cost_usd: float
    staying_usd: float
    bound_usd: float
    clairvoyant_usd: float
    example: RouteRecord | None

    @property
    def saved_percent(self) -> float:
        """The share of the cost that migration saves, in %."""
        return 100.0 * (1.0 - self.cost_usd / self.staying_usd)

    @property
    def bound_percent(self) -> float:
        """What migration would save if it cost nothing, in % of the cost."""
        return 100.0 * (1.0 - self.bound_usd / self.staying_usd)

    @property
    def clairvoyant_percent(self) -> float:
        """The most that any migration could save, in % of the cost."""
        return 100.0 * (1.0 - self.clairvoyant_usd / self.staying_usd)


@dataclass(frozen=True, slots=True)
class Reader:
    """What readers notice of migrations, over devices and budgets.

    Attributes:
        answers, moved: number of answers, and of those that migrated.
        late_tokens, late_p99: mean and P99 over answers that migrated; None when none did.
        tbt_p99_s: of the answers that migrated; None when none did.
    """

    answers: int
    moved: int
    late_tokens: float | None
    late_p99: float | None
    tbt_p99_s: float | None


def migration_runs_of(
    source: Callable[[int], Trace], pair: Pair, budget: float, order: Order, seed: int, requests: int
) -> MigrationRuns:
    """Run the first requests of a run with migration and without.

    Without migration both evaluators give the same cost to the last digit (a test checks that), so the fast one runs.
    """
    scenario = pair.scenario
    workload = resolve(source(seed), scenario, seed=seed).take(0, requests)
    arm = Arm(pair.policy, budget, migrate=True, order=order)
    moving = simulate(workload, scenario, arm, seed=seed)
    staying = evaluate(workload, scenario, Arm(pair.policy, budget), seed=seed)
    extra_usd = scenario.device_rates.cost_out - scenario.server_rates.cost_out
    expensive = staying.device_won if extra_usd > 0.0 else ~staying.device_won
    could_move = int((workload.answer_tokens[expensive] - 1).sum())
    staying_usd = float(staying.cost_usd.sum())
    reading = moving.reading
    assert reading is not None  # the event-accurate evaluator always measures the reading
    return MigrationRuns(
        pair=pair,
        budget=budget,
        order=order,
        answers=len(workload),
        late_tokens=reading.handover_late_tokens[reading.moved],
        tbt_s=reading.moved_tbt_s,
        cost_usd=float(moving.cost_usd.sum()),
        staying_usd=staying_usd,
        bound_usd=staying_usd - could_move * abs(extra_usd),
        clairvoyant_usd=staying_usd - clairvoyant_saving_usd(workload, scenario, staying, seed=seed),
        example=moving.example,
    )


def reader_of(moves: Sequence[MigrationRuns]) -> Reader:
    """Pool the answers of at least one run."""
    late = np.concatenate([each.late_tokens for each in moves])
    tbt_s = np.concatenate([each.tbt_s for each in moves])
    return Reader(
        answers=sum(each.answers for each in moves),
        moved=late.size,
        late_tokens=float(late.mean()) if late.size else None,
        late_p99=float(np.quantile(late, 0.99)) if late.size else None,
        tbt_p99_s=float(np.quantile(tbt_s, 0.99)) if tbt_s.size else None,
    )
