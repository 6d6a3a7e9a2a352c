"""When a budget runs low, new answers start elsewhere, where there is an elsewhere."""

import pytest

from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch.within_budget import within_budget
from disco.errors import BudgetExceededError
from disco.plan import BudgetCut, Candidate, CoolDown, Payer, Plan, Start
from disco.rates import Rates

LIMIT = Limit("server_tokens", "server", "tokens", 10_000, 60.0)
CANDIDATES = {"device": Candidate("device", "device"), "server": Candidate("server", "any", overhead_s=0.8)}
PAYERS = {c.name: (Payer(c.name, c.place, Rates(0.0, 0.0)),) for c in CANDIDATES.values()}
SERVER = (Start("server"),)
RESTING = Plan(SERVER, ("device",), deprioritised=(CoolDown("device", "failures"),))


def trimmed(plan, left):
    limiter = BudgetLimiter()
    limiter.counter(LIMIT).reserve(10_000 - left, 0.0)
    reservation = BudgetReservation(limiter, (LIMIT,), PAYERS, 100)
    return within_budget(
        plan, CANDIDATES, reservation, 0.0, known=list(CANDIDATES), prompt_tokens=50, urgent=False
    )


def test_a_low_budget_starts_nothing_that_another_can_start_and_serves_the_rest_to_the_end():
    for plan, left in [(Plan(SERVER), 400), (Plan(SERVER), 170), (RESTING, 400)]:
        assert trimmed(plan, left) is plan
    for plan, left, why in [(Plan(SERVER, ("device",)), 400, "low"), (RESTING, 100, "spent")]:
        low = trimmed(plan, left)
        assert (low.starts, low.fallbacks) == ((Start("device"),), ("server",))
        assert low.budget_cuts == (BudgetCut("server", "start", why),)
    with pytest.raises(BudgetExceededError, match="server_tokens"):
        trimmed(Plan(SERVER), 150)
