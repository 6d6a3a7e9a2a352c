"""Removes from a plan the starts and migrations that an absolute budget does not cover.

As a budget runs low, the rest is kept for the uses that need it most. With less than `FOR_HEDGES` of a limit left, no
attempt starts on a limited endpoint in addition to another attempt (not because another one is silent, either), and no
answer moves there. With less than `FOR_ANSWERS` left, answers start there only where no other endpoint may serve them.
The rest is then for these answers, and for failover.

A plan does not decide whether an attempt may start; the reservation at the start does (`cost.budget_reservation`).
Other answers may have used up the budget between the plan and the start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from disco.candidate import Candidate
from disco.cost.budget_reservation import BudgetReservation
from disco.plan import BudgetCut, Migration, Plan, Start, Why
from disco.request import Prefix

__all__ = ["FOR_ANSWERS", "FOR_HEDGES", "within_budget"]

FOR_HEDGES = 0.25
FOR_ANSWERS = 0.05


def within_budget(
    plan: Plan,
    candidates: Mapping[str, Candidate],
    reservation: BudgetReservation,
    now: float,
    *,
    known: Collection[str],
    prompt_tokens: int,
    urgent: bool = False,
) -> Plan:
    """Remove from a plan the starts and migrations that its budget does not cover.

    Args:
        plan: the plan that dispatch made.
        candidates: by name, every endpoint that the plan names.
        reservation: the request's budget reservation.
        now: the time on the session's clock, s.
        known: names of endpoints whose TTFT is known. A limited endpoint that is not among them is not started as a
            hedge, unless another one is silent. Where it would have started in a race, it starts alone, and the
            others join once it is slow; so its TTFT becomes known.
        prompt_tokens: length of the prompt, estimated.
        urgent: use what is left of the budget without keeping a part of it; never more than that.

    Returns:
        The plan, with what was removed in `budget_cuts`; the same object where nothing was removed.

    Raises:
        BudgetExceededError: only limited endpoints may serve the request, and too little is left.
    """
    names = [
        *(s.endpoint for s in plan.starts),
        *plan.fallbacks,
        *(m.target for m in plan.migrations.values()),
        *plan.heirs,
    ]
    limited = {name for name in names if reservation.is_limited(name)}
    if not limited:
        return plan
    affordable = {name for name in names if reservation.allowance(name, Prefix(), now)}
    share = {name: 1.0 if urgent else reservation.left_share(name, now) for name in limited}
    deprioritised = {rest.endpoint for rest in plan.deprioritised}
    others = any(
        n not in limited and n not in deprioritised
        for n in (*(s.endpoint for s in plan.starts), *plan.fallbacks)
    )
    cuts: list[BudgetCut] = []
    starts: list[Start] = []
    # Of endpoints that start together, the limited one is the hedge.
    for start in sorted(plan.starts, key=lambda s: (s.after_s, s.endpoint in limited)):
        name, is_hedge = start.endpoint, bool(starts)
        if name not in limited:
            starts.append(start)
        elif name not in affordable:
            cuts.append(BudgetCut(name, "start", "spent"))
        elif is_hedge and share[name] < FOR_HEDGES:
            cuts.append(BudgetCut(name, "hedge", "low"))
        elif is_hedge and name not in known:
            cuts.append(BudgetCut(name, "hedge", "unknown"))
            if start.after_s <= starts[0].after_s:
                wait_s = candidates[name].time_to_first_token_s(prompt_tokens)
                starts = [
                    start,
                    *(replace(s, after_s=max(s.after_s, start.after_s + wait_s)) for s in starts),
                ]
        elif others and share[name] < FOR_ANSWERS:
            cuts.append(BudgetCut(name, "start", "low"))
        else:
            starts.append(start)
    if not starts:
        stand_in = _stand_in(plan, limited, affordable, deprioritised, reservation, now)
        left = max(reservation.left_share(name, now) for name in limited)
        code = "budget_low" if left < FOR_ANSWERS else "budget_short"
        starts = [Start(stand_in, 0.0, Why(code, left, FOR_ANSWERS))]
    early_s = min(s.after_s for s in starts)
    if early_s > min(s.after_s for s in plan.starts):  # the first start of the plan was removed
        starts = [replace(s, after_s=s.after_s - early_s) for s in starts]
    moves: dict[str, Migration] = {}
    for source, move in plan.migrations.items():
        if move.target not in limited or (move.target in affordable and share[move.target] >= FOR_HEDGES):
            moves[source] = move
        else:
            cuts.append(BudgetCut(move.target, "move", "low" if move.target in affordable else "spent"))
    # A silence is reason enough: that the other's time is not known yet says nothing against it.
    hedges = {n for n in limited & affordable if share[n] >= FOR_HEDGES}
    heirs = tuple([n for n in plan.heirs if n not in limited or n in hedges])
    if not cuts:
        return plan if heirs == plan.heirs else replace(plan, heirs=heirs)
    starting = {s.endpoint for s in starts}
    last = [n for n in plan.fallbacks if n in deprioritised]
    rest = [n for n in (*plan.fallbacks, *(s.endpoint for s in plan.starts)) if n not in deprioritised]
    divides = plan.assist is not None and {s.endpoint for s in plan.starts} <= starting
    return replace(
        plan,
        starts=tuple(starts),
        fallbacks=tuple(n for n in dict.fromkeys([*rest, *last]) if n not in starting),
        migrations=moves,
        heirs=heirs,
        budget_cuts=tuple(dict.fromkeys(cuts)),
        assist=plan.assist if divides else None,
        undivided=plan.undivided if divides or plan.assist is None else "budget",
    )


def _stand_in(
    plan: Plan,
    limited: set[str],
    affordable: set[str],
    deprioritised: set[str],
    reservation: BudgetReservation,
    now: float,
) -> str:
    """Return the endpoint to start in place of those that the plan would have started.

    Raises:
        BudgetExceededError: no endpoint is free of the budget, and none of the limited ones is affordable.
    """
    names = [*plan.fallbacks, *(s.endpoint for s in plan.starts)]
    free = [n for n in names if n not in limited]
    paid = [n for n in names if n in limited and n in affordable]
    ranked = [*(n for n in free if n not in deprioritised), *paid, *free]
    if ranked:
        return ranked[0]
    raise reservation.refusal(plan.starts[0].endpoint, now)
