"""Who may start because another endpoint is silent, and how a policy's budget pays for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.candidate import Candidate, Payer
from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch import Dispatcher, Features, Preset
from disco.dispatch.within_budget import within_budget
from disco.events import Usage
from disco.plan import CoolDown, Plan, Start
from disco.profiles import Empirical, Lengths
from disco.rates import Rates
from disco.request import Prefix

LEARNT = {"silence_s": 0.3, "slow_start": 2.0}
DEVICE = Candidate("device", "device", Rates(0.0, 1e-8), overhead_s=0.2, prefill_tps=500.0, **LEARNT)
SERVER = Candidate("server", "any", Rates(1e-6, 4e-6), overhead_s=0.4, **LEARNT)
BACKUP = replace(SERVER, name="backup", standby=True)
ALL = (DEVICE, SERVER, BACKUP)
# Only an endpoint that the policy does not choose is known: it may write after a failure, and then be silent.
BACKUP_KNOWN = (*(replace(c, silence_s=None, slow_start=None) for c in (DEVICE, SERVER)), BACKUP)
PROMPTS = (20, 60, 150, 400)


def dispatcher(policy: str, budget: float | None = None, *, holds_budget: bool = False) -> Dispatcher:
    preset = Preset(dispatch={"policy": policy, **({} if budget is None else {"budget": budget})})
    lengths = Lengths.from_samples(PROMPTS)
    ttft = Empirical.from_samples([0.2, 0.3, 0.4, 2.0])
    return Dispatcher(
        preset, lengths=lengths, ttft=ttft, rng=np.random.default_rng(3), holds_budget=holds_budget
    )


def plan_of(of: Dispatcher, tokens: int = 100, candidates=ALL, **how) -> Plan:
    return of.plan(Features(prompt_tokens=tokens), candidates, {}, **how)


def test_every_endpoint_that_may_serve_is_an_heir_in_order_of_preference():
    assert plan_of(dispatcher("server_only")).heirs == ("server", "backup", "device")


def test_an_heir_needs_no_data():
    unknown = tuple(replace(c, silence_s=None, slow_start=None) for c in ALL)
    assert plan_of(dispatcher("server_only"), candidates=unknown).heirs == ("server", "backup", "device")


def test_an_endpoint_that_cools_down_is_probed_or_is_spared_is_no_heir():
    resting = {"server": CoolDown("server", "failures")}
    assert plan_of(dispatcher("server_only"), resting=resting).heirs == ("backup", "device")
    assert plan_of(dispatcher("server_only"), probing={"device"}).heirs == ("server", "backup")
    spared = plan_of(dispatcher("length_threshold", 0.5), budget_class="background")
    assert spared.heirs == ("device",)


def test_what_may_only_run_on_this_device_has_no_heir_elsewhere():
    local = Features(prompt_tokens=100, reach="device")
    assert dispatcher("server_only").plan(local, ALL, {}).heirs == ("device",)


def test_in_a_cascade_only_the_same_tier_is_an_heir():
    tiers = (DEVICE, replace(SERVER, rank=1), replace(BACKUP, rank=1))
    assert plan_of(dispatcher("cascade"), candidates=tiers).heirs == ("device",)


@pytest.mark.parametrize(
    ("left", "known", "heirs"),
    [
        (1.0, ("server",), ("device", "server")),
        (0.2, ("server",), ("device",)),
        (1.0, (), ("device", "server")),
    ],
)
def test_where_an_absolute_budget_is_low_nothing_that_it_counts_is_an_heir_whatever_is_known_of_it(
    left, known, heirs
):
    limiter, limit = BudgetLimiter(), Limit("server_tokens", "server", "tokens", 10_000, 60.0)
    payers = {c.name: (Payer(c.name, c.place, c.rates),) for c in (DEVICE, SERVER)}
    reservation = BudgetReservation(limiter, (limit,), payers, 100, max_tokens=20)
    if left < 1:
        reservation.open(0, "server", Prefix(), 0.0)
        used = Usage(int((1 - left) * 10_000))
        reservation.settle(0, used, reported=True, now=0.0)
    plan = Plan((Start("device"),), ("server",), heirs=("device", "server"))
    by_name = {c.name: c for c in ALL}
    cut = within_budget(plan, by_name, reservation, 1.0, known=known, prompt_tokens=100)
    assert cut.heirs == heirs


@settings(max_examples=20)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.3, 0.6]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([ALL, BACKUP_KNOWN]),
    st.sampled_from([0, 1, 30]),
)
def test_whatever_is_hedged_every_window_keeps_the_policys_budget_plus_one_prompt(
    seed, budget, unlucky, candidates, at_once
):
    """A hedge is made wherever the plan allows it and the request is unlucky; so many answers run at the same time."""
    rng = np.random.default_rng(seed)
    prompts = rng.choice(PROMPTS, 500)
    of, used, running = dispatcher("length_threshold", budget, holds_budget=True), [], []
    for tokens, late in zip(prompts.tolist(), rng.random(500) < unlucky, strict=True):
        plan = plan_of(of, tokens, candidates)
        started = {s.endpoint for s in plan.starts} | (set(plan.heirs) if late else set())
        running.append((plan.spend, {"device" if name == "device" else "server" for name in started}))
        if len(running) > at_once:
            of.settle(*running.pop(int(rng.integers(len(running)))))
        used.append(tokens * bool(started - {"device"}))
    for end in range(200, 501):
        asked = prompts[end - 200 : end]
        assert sum(used[end - 200 : end]) <= budget * asked.sum() + asked.max()


def test_of_answers_at_the_same_time_one_may_have_an_heir_that_the_policy_did_not_start():
    of = dispatcher("length_threshold", 0.3, holds_budget=True)
    first, *others = [plan_of(of, 20) for _ in range(4)]
    assert all([s.endpoint for s in plan.starts] == ["device"] for plan in (first, *others))
    assert [p.heirs for p in (first, *others)] == [("device", "server", "backup"), *[("device",)] * 3]
    of.settle(others[0].spend, {"device"})
    assert plan_of(of, 20).heirs == ("device",)
    of.settle(first.spend, {"device"})
    assert plan_of(of, 20).heirs == ("device", "server", "backup")
    # An answer whose end is never told does not keep it from others for ever.
    assert any("server" in plan_of(of, 20).heirs for _ in range(201))


@pytest.mark.parametrize("at_once", [0, 5, 50])
def test_what_silences_may_start_leaves_the_policy_its_budget(at_once):
    """The share of prompt tokens that the server reads, without any silence."""
    of, running, tokens, used = dispatcher("length_threshold", 0.3, holds_budget=True), [], 0, 0
    for prompt in np.random.default_rng(1).choice(PROMPTS, 600).tolist():
        plan = plan_of(of, prompt)
        places = {"device" if s.endpoint == "device" else "server" for s in plan.starts}
        running.append((plan.spend, places))
        if len(running) > at_once:
            of.settle(*running.pop(0))
        tokens, used = tokens + prompt, used + prompt * ("server" in places)
    assert used / tokens == pytest.approx(0.28, abs=0.03)


def test_what_has_used_up_its_budget_is_no_heir_until_there_is_room_again():
    of = dispatcher("length_threshold", 0.3, holds_budget=True)
    plans = []
    for _ in range(30):
        plans.append(plan_of(of, 100))
        of.settle(plans[-1].spend, {"device", "server"} if "server" in plans[-1].heirs else {"device"})
    heirs = {plan.heirs for plan in plans}
    assert heirs == {("device", "server", "backup"), ("device",)}
    assert plans[0].heirs == ("device", "server", "backup")


def test_what_a_budget_does_not_limit_may_always_be_an_heir():
    of = dispatcher("server_only", holds_budget=True)
    assert {plan_of(of).heirs for _ in range(30)} == {("server", "backup", "device")}
