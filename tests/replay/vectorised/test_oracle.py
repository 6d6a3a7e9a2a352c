"""The oracle is a bound: no choice within the budget is better, and it keeps to the budget itself."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.replay.vector.oracle import oracle_delays
from disco.replay.workload.scenario import Workload

SIDES = st.sampled_from(["device", "server"])
BUDGETS = st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.1, 0.5, 1.0])
SECONDS = st.sampled_from([0.1, 0.2, 0.5, 3.0]) | st.floats(0.001, 20.0)
REQUESTS = st.tuples(st.sampled_from([0, 1, 10]) | st.integers(1, 300), SECONDS, SECONDS)


def workload(rows):
    tokens, server_s, device_s = (np.array(column) for column in zip(*rows, strict=True))
    n = tokens.size
    ones = np.ones(n)
    return Workload(
        arrival_s=np.arange(n, dtype=float),
        prompt_tokens=tokens.astype(np.int64),
        answer_tokens=np.ones(n, dtype=np.int64),
        server_ttft_s=server_s.astype(float),
        device_ttft_s=device_s.astype(float),
        server_tpot_s=0.02 * ones,
        device_tpot_s=0.05 * ones,
    )


def ttft(work, delays):
    return np.minimum(delays.device_s + work.device_ttft_s, delays.server_s + work.server_ttft_s)


def used(work, delays, constrained):
    """Tokens that the constrained side was started on: not when the other one wrote before its turn came."""
    mine, other = delays.device_s, delays.server_s + work.server_ttft_s
    if constrained == "server":
        mine, other = delays.server_s, delays.device_s + work.device_ttft_s
    return int(work.prompt_tokens[(mine <= 0.0) | (mine < other)].sum())


def p99(times_s):
    """The smallest time that at most 1 % exceed."""
    return float(np.sort(times_s)[times_s.size - 1 - int(0.01 * times_s.size + 1e-9)])


def choices(work, constrained):
    """Every set of requests that the constrained side may be started on: tokens used and times, each."""
    free_s, scarce_s = work.server_ttft_s, work.device_ttft_s
    if constrained == "server":
        free_s, scarce_s = scarce_s, free_s
    for picks in product([False, True], repeat=len(work)):
        chosen = np.array(picks)
        yield int(work.prompt_tokens[chosen].sum()), np.where(chosen, np.minimum(free_s, scarce_s), free_s)


@given(st.lists(REQUESTS, min_size=1, max_size=6), SIDES, BUDGETS, st.sampled_from([0, 295]))
@settings(max_examples=100)
def test_no_choice_within_the_budget_is_better(rows, constrained, budget, idle):
    """Nor where, with 99 times as many requests that no start can help, one per cent of all is left out of P99."""
    work = workload(rows + [(1, 0.0001, 0.0001)] * idle)
    few = workload(rows)
    allowed = budget * work.prompt_tokens.sum()
    late = oracle_delays(work, constrained=constrained, budget=budget, objective="p99")
    late_s = p99(ttft(work, late))
    mean = oracle_delays(few, constrained=constrained, budget=budget)
    mean_s = ttft(few, mean).mean()
    limit = max(used(few, mean, constrained), budget * few.prompt_tokens.sum())
    for tokens, times_s in choices(few, constrained):
        everybody = np.concatenate([times_s, np.full(idle, 0.0001)])
        assert tokens > allowed * (1 - 1e-9) or late_s <= p99(everybody)
        assert tokens > limit or mean_s <= times_s.mean() + 1e-9


@given(st.lists(REQUESTS, min_size=1, max_size=300), SIDES, BUDGETS, st.sampled_from(["mean", "p99"]))
def test_the_budget_is_kept_to_within_the_last_prompt(rows, constrained, budget, objective):
    work = workload(rows)
    delays = oracle_delays(work, constrained=constrained, budget=budget, objective=objective)
    chosen = (delays.device_s if constrained == "device" else delays.server_s) == 0.0
    spent = int(work.prompt_tokens[chosen].sum())
    assert spent < budget * work.prompt_tokens.sum() + work.prompt_tokens.max() + 1e-6
    free = delays.server_s if constrained == "device" else delays.device_s
    assert (free == 0.0).all()


@pytest.mark.parametrize(
    ("rows", "budget", "objective", "device_s"),
    [
        # Rescuing the one slow answer takes 10 of 50 tokens; the other 15 go where a token gains most.
        ([(10, 9.0, 1.0), (15, 2.0, 1.0), (25, 2.0, 1.9)], 0.5, "p99", [0.0, 0.0, np.inf]),
        # Nothing is spent where it gains nothing.
        ([(10, 0.5, 1.0), (20, 0.5, 3.0)], 1.0, "mean", [np.inf, np.inf]),
        # Empty prompts cost nothing.
        ([(0, 2.0, 1.0), (20, 2.0, 1.0)], 0.0, "mean", [0.0, np.inf]),
        ([(0, 2.0, 1.0), (20, 2.0, 1.0)], 0.0, "p99", [0.0, np.inf]),
    ],
)
def test_choices_by_hand(rows, budget, objective, device_s):
    delays = oracle_delays(workload(rows), constrained="device", budget=budget, objective=objective)
    assert delays.device_s.tolist() == device_s


def test_a_budget_that_is_no_share_is_refused():
    with pytest.raises(ValueError, match="budget"):
        oracle_delays(workload([(1, 1.0, 1.0)]), constrained="device", budget=1.1)
