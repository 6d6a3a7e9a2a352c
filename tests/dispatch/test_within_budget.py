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
DEVICE, SERVER, BACKUP = Start("device"), Start("server"), Start("backup", 0.5)
ALONE, HELD, RACE = Plan((SERVER,)), Plan((SERVER,), ("device",)), Plan((SERVER, DEVICE))
ANSWER = Plan((SERVER, Start("device", 1.5)))
HEDGE = Plan((DEVICE, Start("server", 0.7)))
MOVING = Plan((DEVICE,), ("server",), {"device": Migration("server")})
AWAY = Plan((SERVER,), ("device",), {"server": Migration("device")})
RESTING = Plan((SERVER,), ("device",), deprioritised=(CoolDown("device", "failures"),))
TWO = Plan((SERVER, BACKUP))
UNKNOWN, URGENT = {"known": ()}, {"urgent": True}


def trimmed(plan: Plan, left: int, *, known=("server", "backup", "device"), urgent=False) -> Plan:
    limiter = BudgetLimiter()
    if left < LIMIT.amount:
        limiter.counter(LIMIT).reserve(int(LIMIT.amount) - left, 0.0)
    reservation = BudgetReservation(limiter, (LIMIT,), PAYERS, 100)
    return within_budget(plan, CANDIDATES, reservation, 0.0, known=known, prompt_tokens=50, urgent=urgent)


UNTOUCHED = [
    *((plan, 10_000, {}) for plan in (ALONE, ANSWER, HEDGE, RACE, MOVING)),
    (Plan((DEVICE,)), 0, {}),  # without a limit
    *[(ANSWER, 2400, {}), (AWAY, 2400, {})],  # there the device is the hedge or the target, and costs nothing
    *[(ALONE, 400, {}), (ALONE, 170, {})],  # what only the server can serve is served to the end
    (RESTING, 400, {}),  # a device that rests is no alternative until nothing is left
    (RACE, 400, URGENT),
    *[(ALONE, 10_000, UNKNOWN), (ANSWER, 10_000, UNKNOWN)],
]


@pytest.mark.parametrize(("plan", "left", "how"), UNTOUCHED)
def test_what_a_budget_leaves_as_it_is(plan, left, how):
    assert trimmed(plan, left, **how) == plan


@pytest.mark.parametrize(
    ("plan", "left", "how", "starts", "fallbacks", "cut"),
    [
        # Below a quarter the server starts nothing that somebody else starts anyway; it is the last resort still.
        (HEDGE, 2400, {}, (DEVICE,), ("server",), ("server", "hedge", "low")),
        (RACE, 2400, {}, (DEVICE,), ("server",), ("server", "hedge", "low")),
        (MOVING, 2400, {}, (DEVICE,), ("server",), ("server", "move", "low")),
        (TWO, 2400, {}, (SERVER,), ("backup",), ("backup", "hedge", "low")),  # one still starts
        # Then new answers start elsewhere, and at once: nobody waits for a server that does not start.
        (ANSWER, 400, {}, (DEVICE,), ("server",), ("server", "start", "low")),
        (HELD, 400, {}, (DEVICE,), ("server",), ("server", "start", "low")),
        (RESTING, 100, {}, (DEVICE,), ("server",), ("server", "start", "spent")),
        (RACE, 100, URGENT, (DEVICE,), ("server",), ("server", "start", "spent")),
        # No hedge before there is data; a race becomes the server's answer, which is how it gets known.
        (HEDGE, 10_000, UNKNOWN, (DEVICE,), ("server",), ("server", "hedge", "unknown")),
        (RACE, 10_000, UNKNOWN, (SERVER, Start("device", 0.8)), (), ("server", "hedge", "unknown")),
    ],
)
def test_what_a_budget_takes_out(plan, left, how, starts, fallbacks, cut):
    low = trimmed(plan, left, **how)
    assert (low.starts, low.fallbacks, low.migrations) == (starts, fallbacks, {})
    assert low.budget_cuts == (BudgetCut(*cut),)


def test_what_no_endpoint_may_serve_is_refused():
    with pytest.raises(BudgetExceededError, match="server_tokens"):
        trimmed(ALONE, 150)
