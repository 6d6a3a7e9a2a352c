"""What is reserved for a pair of a drafter and a verify server, and what drafts may spend of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.candidate import Payer
from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.errors import BudgetExceededError
from disco.events import Usage
from disco.rates import Rates
from disco.request import Prefix

PAIR = (
    Payer("server", "server", Rates(1e-6, 2e-6)),
    Payer("device", "device", Rates(1e-8, 1e-8), drafts=True),
)
SERVER = Limit("server_tokens", "server", "tokens", 1000, 60.0)
DEVICE = Limit("device_tokens", "device", "tokens", 1000, 60.0)


def reservation(*limits: Limit, prompt_tokens: int = 50, max_tokens: int | None = 100) -> BudgetReservation:
    return BudgetReservation(BudgetLimiter(), limits, {"server": PAIR}, prompt_tokens, max_tokens=max_tokens)


@given(
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(1, 400),
    st.one_of(st.none(), st.integers(1, 500)),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_drafts_take_what_the_answer_leaves_and_never_more(server, device, prompt, most, written, drafted):
    limits = [Limit("server_tokens", "server", "tokens", server, 60.0)] if server else []
    limits += [Limit("device_tokens", "device", "tokens", device, 60.0)] if device else []
    held = reservation(*limits, prompt_tokens=prompt, max_tokens=most)
    try:
        allowed = held.open(0, "server", Prefix(), 0.0)
    except BudgetExceededError:
        assert server  # a limit on the drafter never refuses an answer
        return
    drafts = held.drafts(0)
    assert (drafts is None) == (not limits)
    if drafts is None:
        return
    # The answer gets what it would get without a drafter.
    assert allowed == (
        BudgetReservation(BudgetLimiter(), limits, {"server": PAIR[:1]}, prompt, max_tokens=most).open(
            0, "server", Prefix(), 0.0
        )
        if server
        else None
    )
    answer = round(written * (allowed or 50))
    spent = round(drafted * drafts)
    guessed = Usage(prompt, spent) if drafts else Usage()
    shares = (("server", Usage(prompt, answer + spent)), ("device", guessed))
    held.settle(0, Usage(prompt, answer, shares=shares), reported=True, now=1.0)
    for name, facts in held.report(1.0).items():
        assert facts["spent"] <= facts["reserved"] <= facts["amount"]
        if name == "device_tokens":
            assert facts["spent"] == (prompt + spent if drafts else 0)
        else:
            assert facts["spent"] == prompt + answer + spent


def test_a_drafter_without_room_for_its_prompt_does_not_begin():
    held = reservation(Limit("device_tokens", "device", "tokens", 60, 60.0))
    assert held.open(0, "server", Prefix(), 0.0) is None
    assert held.drafts(0) == 0
    assert held.report(0.0)["device_tokens"]["reserved"] == 0


@pytest.mark.parametrize(("limits", "drafts"), [((SERVER,), 400), ((DEVICE,), 400), ((SERVER, DEVICE), 400)])
def test_drafts_are_four_for_each_token_where_there_is_room(limits, drafts):
    held = reservation(*limits)
    held.open(0, "server", Prefix(), 0.0)
    assert held.drafts(0) == drafts
