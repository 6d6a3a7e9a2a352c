"""What an absolute budget takes out of a plan, step by step as it runs low."""

from __future__ import annotations

import pytest

from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch.within_budget import within_budget
from disco.errors import BudgetExceededError
from disco.plan import BudgetCut, Candidate, CoolDown, Migration, Payer, Plan, Start
from disco.rates import Rates

LIMIT = Limit("server_tokens", "server", "tokens", 10_000, 60.0)
CANDIDATES = {
    "device": Candidate("device", "device"),
    "server": Candidate("server", "any", overhead_s=0.8),
    "backup": Candidate("backup", "any", overhead_s=0.8),
}
PAYERS = {c.name: (Payer(c.name, c.place, Rates(0.0, 0.0)),) for c in CANDIDATES.values()}
ALONE = Plan((Start("server"),))
ANSWER = Plan((Start("server"), Start("device", 1.5)))
HEDGE = Plan((Start("device"), Start("server", 0.7)))
RACE = Plan((Start("server"), Start("device")))
MOVING = Plan((Start("device"),), ("server",), {"device": Migration("server")})


def trimmed(plan: Plan, left: int, *, known=("server", "backup", "device"), urgent=False) -> Plan:
    limiter = BudgetLimiter()
    if left < LIMIT.amount:
        limiter.counter(LIMIT).reserve(int(LIMIT.amount) - left, 0.0)
    reservation = BudgetReservation(limiter, (LIMIT,), PAYERS, 100)
    return within_budget(plan, CANDIDATES, reservation, 0.0, known=known, prompt_tokens=50, urgent=urgent)


def starts(plan: Plan) -> dict[str, float]:
    return {s.endpoint: s.after_s for s in plan.starts}


@pytest.mark.parametrize("plan", [ALONE, ANSWER, HEDGE, RACE, MOVING])
def test_a_full_budget_changes_nothing(plan):
    assert trimmed(plan, 10_000) is plan


def test_without_a_limit_nothing_changes():
    assert trimmed(Plan((Start("device"),)), 0) == Plan((Start("device"),))


def test_hedges_go_first():
    """Below a quarter the server starts nothing that somebody else starts anyway; it is the last resort still."""
    for plan in (HEDGE, RACE):
        low = trimmed(plan, 2400)
        assert starts(low) == {"device": 0.0}
        assert low.fallbacks == ("server",)
        assert low.budget_cuts == (BudgetCut("server", "hedge", "low"),)
    assert trimmed(ANSWER, 2400) is ANSWER  # there the device is the hedge, and costs nothing


def test_moves_there_go_with_them():
    low = trimmed(MOVING, 2400)
    assert low.migrations == {}
    assert low.budget_cuts == (BudgetCut("server", "move", "low"),)
    away = Plan((Start("server"),), ("device",), {"server": Migration("device")})
    assert trimmed(away, 2400) is away


def test_then_new_answers_start_elsewhere():
    """And at once: nobody waits for a server that does not start."""
    low = trimmed(ANSWER, 400)
    assert starts(low) == {"device": 0.0}
    assert low.fallbacks == ("server",)
    assert starts(trimmed(Plan((Start("server"),), ("device",)), 400)) == {"device": 0.0}


def test_what_only_the_server_can_serve_is_served_to_the_end():
    assert trimmed(ALONE, 400) is ALONE
    assert trimmed(ALONE, 170) is ALONE
    with pytest.raises(BudgetExceededError, match="server_tokens"):
        trimmed(ALONE, 150)


def test_a_device_that_rests_is_no_alternative_until_nothing_is_left():
    plan = Plan((Start("server"),), ("device",), deprioritised=(CoolDown("device", "failures"),))
    assert trimmed(plan, 400) is plan
    spent = trimmed(plan, 100)
    assert starts(spent) == {"device": 0.0}
    assert spent.budget_cuts == (BudgetCut("server", "start", "spent"),)


def test_urgent_spends_what_is_there_and_no_more():
    assert trimmed(RACE, 400, urgent=True) is RACE
    assert starts(trimmed(RACE, 100, urgent=True)) == {"device": 0.0}


def test_no_hedge_before_there_is_data():
    """A race becomes the server's answer, which is how it gets known; the device joins once it is slow."""
    late = trimmed(HEDGE, 10_000, known=())
    assert starts(late) == {"device": 0.0}
    assert late.budget_cuts == (BudgetCut("server", "hedge", "unknown"),)
    race = trimmed(RACE, 10_000, known=())
    assert starts(race) == {"server": 0.0, "device": 0.8}
    assert trimmed(ALONE, 10_000, known=()) is ALONE
    assert trimmed(ANSWER, 10_000, known=()) is ANSWER


def test_of_two_limited_servers_one_still_starts():
    both = Plan((Start("server"), Start("backup", 0.5)))
    assert trimmed(both, 2400) == Plan(
        (Start("server"),), ("backup",), budget_cuts=(BudgetCut("backup", "hedge", "low"),)
    )
