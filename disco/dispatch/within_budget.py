"""What is left of a plan where an absolute budget counts an endpoint: the one place where that is decided.

As a budget runs low, money is kept for what needs it most. With less than `FOR_HEDGES` of a limit left, no attempt
starts there in addition to another one, and no answer moves there to save anything. With less than `FOR_ANSWERS`,
answers start there only where no other endpoint may serve them. What is left then is for those, and for answers whose
writer died.

Whether an attempt may start is not decided here but when it does (`cost.budget_reservation`): a plan may come
too late, a reservation cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from disco.cost.budget_reservation import BudgetReservation
from disco.plan import BudgetCut, Candidate, Migration, Plan, Start
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
        plan: as dispatch made it.
        candidates: by name, all that the plan names.
        reservation: the request's.
        now: on the session's clock.
        known: names of endpoints whose TTFT is known: no hedge goes to a limited one that is not among them. A race
            with it becomes its own answer, which the others join once it is slow: so it gets known.
        prompt_tokens: of the request, estimated.
        urgent: spend what is there, down to the last of it; never more.

    Returns:
        The plan, with what was taken out in `budget_cuts`; the same object where nothing was.

    Raises:
        BudgetExceededError: only limited endpoints may serve the request, and too little is left.
    """
    names = [
        *(s.endpoint for s in plan.starts),
        *plan.fallbacks,
        *(m.target for m in plan.migrations.values()),
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
    # Of those that start together the limited one is the hedge.
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
        starts = [Start(_stand_in(plan, limited, affordable, deprioritised, reservation, now))]
    early_s = min(s.after_s for s in starts)
    if early_s > min(s.after_s for s in plan.starts):  # the start that it waited for was removed
        starts = [replace(s, after_s=s.after_s - early_s) for s in starts]
    moves: dict[str, Migration] = {}
    for source, move in plan.migrations.items():
        if move.target not in limited or (move.target in affordable and share[move.target] >= FOR_HEDGES):
            moves[source] = move
        else:
            cuts.append(BudgetCut(move.target, "move", "low" if move.target in affordable else "spent"))
    if not cuts:
        return plan
    starting = {s.endpoint for s in starts}
    last = [n for n in plan.fallbacks if n in deprioritised]
    rest = [n for n in (*plan.fallbacks, *(s.endpoint for s in plan.starts)) if n not in deprioritised]
    return replace(
        plan,
        starts=tuple(starts),
        fallbacks=tuple(n for n in dict.fromkeys([*rest, *last]) if n not in starting),
        migrations=moves,
        budget_cuts=tuple(dict.fromkeys(cuts)),
    )


def _stand_in(
    plan: Plan,
    limited: set[str],
    affordable: set[str],
    deprioritised: set[str],
    reservation: BudgetReservation,
    now: float,
) -> str:
    """The endpoint that answers instead of those that the plan would have started."""
    names = [*plan.fallbacks, *(s.endpoint for s in plan.starts)]
    free = [n for n in names if n not in limited]
    paid = [n for n in names if n in limited and n in affordable]
    ranked = [*(n for n in free if n not in deprioritised), *paid, *free]
    if ranked:
        return ranked[0]
    raise reservation.refusal(plan.starts[0].endpoint, now)
