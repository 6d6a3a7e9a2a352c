"""The budget in every window of requests, for any prompts, servers' times, plans and refits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.dispatch import Candidate, Dispatcher, Features, Start, TwoSided, load_preset
from disco.dispatch.policies.budget_governor import WINDOW_REQUESTS, BudgetGovernor, level_at
from disco.dispatch.presets import DispatchSection
from disco.plan import Spend
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

BUDGETS = st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1)
# What arrives need not follow any distribution: each number is a phase of prompts of one length or of mixed ones.
REQUESTS = st.lists(
    st.tuples(st.integers(1, 5_000) | st.sampled_from([1, 2, 10, 4_000]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=60,
)


def worst(tokens, used, budget, window):
    """How far the worst window exceeds the budget, in its longest prompts."""
    found = -np.inf
    for end in range(window, len(tokens) + 1):
        part, was_used = np.array(tokens[end - window : end]), np.array(used[end - window : end])
        found = max(found, (part @ was_used - budget * part.sum()) / part.max())
    return found


@given(BUDGETS, st.integers(1, 12), REQUESTS, st.integers(0, 5), st.sampled_from([1, 7]))
def test_no_window_uses_more_than_the_budget_and_its_longest_prompt(
    budget, window, requests, open_at_once, least
):
    """Every request wants the endpoint or not, and uses it or not; outcomes come late."""
    governor = BudgetGovernor(budget, window=window, least_tokens=least)
    tokens, used, running = [], [], []
    for drawn, wants, late in requests * 3:
        length = max(drawn, least)
        may = wants and governor.room_for(length).admits
        running.append((governor.add(length, used=may), may and late))
        tokens.append(length)
        used.append(may and late)
        if len(running) > open_at_once:
            ticket, was_used = running.pop(0)
            governor.settle(ticket, used=was_used)
    assert worst(tokens, used, budget, window) <= 1 + 1e-9


@given(BUDGETS, st.integers(1, 8), REQUESTS)
def test_a_request_is_refused_only_where_something_that_may_follow_would_break_the_promise(
    budget, window, requests
):
    governor = BudgetGovernor(budget, window=window)
    tokens, used = [1] * window, [False] * window  # before the first request
    for length, wants, _ in requests:
        may = wants and governor.room_for(length).admits
        if wants and not may:
            then = [*tokens, length] + [1] * window
            assert worst(then, [*used, True] + [False] * window, budget, window) > 1
        governor.add(length, used=may)
        tokens.append(length)
        used.append(may)


def test_a_request_whose_outcome_is_open_counts_as_used_and_tickets_that_left_the_window_are_ignored():
    governor = BudgetGovernor(0.5, window=4)
    first = governor.add(10, used=True)
    second = governor.add(10, used=governor.room_for(10).admits)
    assert not governor.room_for(10).admits
    governor.settle(first, used=False)
    assert governor.room_for(10).admits
    for _ in range(100):
        governor.add(10, used=False)
    governor.settle(second, used=True)
    assert governor.room_for(10).admits
    with pytest.raises(ValueError, match="a budget is a share"):
        BudgetGovernor(1.5)


def test_plans_follow_the_room():
    shares = np.linspace(-0.5, 2, 50)
    levels = [level_at(share) for share in shares]
    assert levels == sorted(levels)
    assert (min(levels), max(levels)) == (0.5, 1.25)


DEVICE = Candidate("device", "device", rates=Rates(1e-9, 1e-9), prefill_tps=50.0)
SERVER = Candidate("server", "any", rates=Rates(1e-7, 6e-7))


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["wait_time", "length_threshold", "optimal_wait"]),
    st.sampled_from([0.05, 0.1, 0.3, 0.5]),
    st.integers(0, 2**32 - 1),
)
def test_the_policies_keep_the_budget_in_every_200_requests_whatever_comes(policy, budget, seed):
    """Phases of short, long, equal and mixed prompts, of quick and silent servers; plans are refitted at any time."""
    rng = np.random.default_rng(seed)
    lengths, ttft = Lengths.from_samples([20, 30, 200]), Empirical.from_samples([0.4, 0.6, 5.0])
    section = DispatchSection(policy=policy, budget=budget)
    free = TwoSided(section, lengths=lengths, ttft=ttft, rng=np.random.default_rng(1))
    kept = TwoSided(section, lengths=lengths, ttft=ttft, rng=np.random.default_rng(1), holds_budget=True)
    exceeds = []
    for one in (free, kept):
        tokens, used = [], []
        for _ in range(int(rng.integers(4, 9))):
            longest, quick_s = int(rng.choice([7, 8, 40, 4_000])), float(rng.choice([0.05, 0.5, 30.0]))
            for _ in range(int(rng.integers(1, 150))):
                length = int(rng.integers(7, longest + 1)) if longest > 8 else longest
                arranged = one.arrange(Features(length), (DEVICE, SERVER), "standard")
                after = {start.endpoint: start.after_s for start in arranged.starts}
                limited = one.constrained(DEVICE, SERVER)
                other_at = quick_s if limited is DEVICE else DEVICE.time_to_first_token_s(length)
                tokens.append(length)
                used.append(after.get(limited.name, np.inf) < other_at)
                if arranged.spend is not None:
                    one.settle(arranged.spend, used=used[-1])
                if rng.random() < 0.02:
                    one.refit(Lengths.from_samples(tokens[-50:]), Empirical.from_samples([quick_s, 1.0]))
        for _ in range(WINDOW_REQUESTS):  # the adversary's end
            tokens.append(7)
            used.append(False)
        exceeds.append(worst(tokens, used, budget, WINDOW_REQUESTS))
    assert exceeds[1] <= 1 + 1e-9


def test_without_the_rule_the_same_policies_break_the_promise_and_the_rule_is_told_by_the_plan():
    """All prompts are longer than any known one: without the rule, each races the server."""
    known = {"lengths": Lengths.from_samples([10, 20]), "ttft": Empirical.from_samples([0.4])}
    preset = load_preset("balanced")
    used = {}
    for holds in (False, True):
        dispatcher = Dispatcher(preset, **known, rng=np.random.default_rng(0), holds_budget=holds)
        used[holds] = 0
        for _ in range(WINDOW_REQUESTS):
            plan = dispatcher.plan(Features(500), (DEVICE, SERVER), {})
            races = len(plan.starts) == 2
            used[holds] += races
            assert (plan.spend is not None) == holds
            dispatcher.settle(plan.spend, {"device", "server"} if races else {"device"})
            if not races:
                assert plan.starts == (Start("device"),)
                assert plan.fallbacks == ("server",)  # it still takes over when the device fails
    assert used == {False: WINDOW_REQUESTS, True: WINDOW_REQUESTS // 2 + 1}
    # What is not the policy's choice is not counted; another dispatcher's ticket does no harm.
    dispatcher = Dispatcher(preset, **known, rng=np.random.default_rng(0), holds_budget=True)
    assert dispatcher.plan(Features(500), (DEVICE, SERVER), {}, budget_class="urgent").spend is None
    assert dispatcher.plan(Features(500), (SERVER,), {}).spend is None
    dispatcher.settle(Spend("device", 4), {"device"})
