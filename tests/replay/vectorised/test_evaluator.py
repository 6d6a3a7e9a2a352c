"""The vectorised evaluator agrees with the event-accurate one, also on ties and edges; its oracle is a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco._resources import resource_dir
from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED, Rates
from disco.dispatch.policies import policy_registry
from disco.dispatch.policies.policy import Delays
from disco.dispatch.policies.policy_registry import BUILT_IN
from disco.dispatch.request_features import Features
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError
from disco.plan import Plan, Start
from disco.profiles import load_device, load_lengths, load_profile, load_server
from disco.profiles.profile_toml import read_toml
from disco.replay.simulator.event_evaluator import as_stations, simulate
from disco.replay.stations import simulate_stations
from disco.replay.vector import evaluator
from disco.replay.vector.arm_delays import arm_delays, arm_policy, server_leads
from disco.replay.vector.evaluator import evaluate, race
from disco.replay.vector.oracle import OBJECTIVES, oracle_delays
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Workload, resolve, scenario_for
from disco.replay.workload.trace import Trace

SERVER_CONSTRAINED, DEVICE_CONSTRAINED = (
    scenario_for(load_device("pixel7pro-bloom-1.1b"), load_server("deepseek-v3-2025"), exchange_rate=rate)
    for rate in (PAPER_SERVER_CONSTRAINED, PAPER_DEVICE_CONSTRAINED)
)
# Powers of two apart, so that a cost says what it is made of and sums are exact.
PRICED = replace(
    SERVER_CONSTRAINED, device_rates=Rates(1.0, 2.0**10, 0.0), server_rates=Rates(2.0**20, 2.0**30)
)


def workload(device_ttft_s, server_ttft_s, prompt_tokens, answer_tokens) -> Workload:
    n = len(prompt_tokens)
    return Workload(
        arrival_s=np.arange(n, dtype=np.float64),
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        answer_tokens=np.array(answer_tokens, dtype=np.int64),
        server_ttft_s=np.array(server_ttft_s),
        device_ttft_s=np.array(device_ttft_s),
        server_tpot_s=np.full(n, 0.02),
        device_tpot_s=np.full(n, 0.05),
    )


def prompts(*tokens: int) -> Workload:
    """Requests of these prompts that are the same otherwise."""
    ones = [1.0] * len(tokens)
    return workload(ones, ones, tokens, [1] * len(tokens))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("device_s", "server_s"), [([NAN], [0.0]), ([-0.1], [0.0]), ([INF], [INF]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_delays_that_cannot_be_are_refused(device_s, server_s):
    with pytest.raises(ConfigurationError, match="a policy gave"):
        race(prompts(1), PRICED, Delays(np.array(device_s), np.array(server_s)))


# ---------------------------------------------------------------------- the session itself

times = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.0]) | st.floats(0.0, 3.0)
due = st.tuples(times | st.just(INF), times | st.just(INF)).filter(lambda pair: min(pair) < INF)
requests = st.tuples(due, times, times, st.integers(0, 90), st.integers(1, 9))


@settings(max_examples=100)
@example(
    [((0.5, 0.0), 1.0, 0.5, 8, 1)], False, 1
)  # the device is due when the server writes: it never starts
@example([((0.0, 0.0), 0.5, 0.5, 8, 3)], False, 1)  # both at once: one wins, the other is charged a token
@example([((0.0, 0.0), 0.5, 0.5, 8, 3)], True, 1)
@example([((INF, 0.0), 0.1, 0.9, 40, 4), ((0.25, INF), 0.7, 0.1, 50, 5)], False, 1)
@given(st.lists(requests, min_size=1, max_size=5), st.booleans(), st.sampled_from([1, 2, 1 << 13]))
def test_ties_and_edges_are_those_of_the_session(drawn, server_first, block):
    starts, *columns = map(list, zip(*drawn, strict=True))
    work, when = workload(*columns), Delays(*np.array(starts).T)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "_BLOCK", block)
        outcome = race(work, PRICED, when, server_first=server_first)

    def plan_row(row, *_, **__):
        starts = [Start(DEVICE, float(when.device_s[row])), Start(SERVER, float(when.server_s[row]))]
        return Plan(tuple(s for s in starts[:: -1 if server_first else 1] if s.after_s < INF))

    stations, known = as_stations(work, PRICED, seed=0)
    played = simulate_stations(known, stations, SimpleNamespace(plan_row=plan_row), pace_tps=None)
    assert outcome.device_won.tolist() == [played.names[column] == DEVICE for column in played.winner]
    started = np.stack([outcome.device_prompt_tokens, outcome.server_prompt_tokens], axis=1)
    assert started.tolist() == played.started_tokens.tolist()
    assert outcome.ttft_s.tolist() == played.ttft_s.tolist()
    assert outcome.cost_usd.tolist() == pytest.approx(played.total_usd.tolist(), rel=1e-12)
    charged = ({key: usd for key, usd in out.cost_by.items() if usd} for out in (outcome, played))
    assert next(charged) == pytest.approx(next(charged), rel=1e-12)
    if work.prompt_tokens.any():
        device_share = outcome.device_prompt_tokens.sum() / work.prompt_tokens.sum()
        assert outcome.budget_used("device") == device_share


# ---------------------------------------------------------------------- arms


@pytest.mark.parametrize("name", BUILT_IN)
def test_ties_go_to_the_side_that_the_policy_names_first(name):
    scenario = DEVICE_CONSTRAINED if name in ("wait_time", "optimal_wait") else SERVER_CONSTRAINED
    arm = Arm(name, 1.0)
    policy = arm_policy(scenario, arm, np.array([10, 20, 30]), seed=0)
    starts = policy.starts(Features(prompt_tokens=20), *scenario.candidates())
    if len({start.after_s for start in starts}) < len(starts):
        assert (starts[0].endpoint == SERVER) == server_leads(scenario, arm)
    else:
        assert name in ("device_only", "server_only", "random")


def test_a_policy_without_delays_is_asked_request_by_request_and_its_mistakes_are_its_own(monkeypatch):
    def theirs(asks="prompt_tokens", starts=SERVER) -> Delays:
        def plan(features, device, server):
            short = getattr(features, asks) < 50
            return (Start(device.name), Start(starts, 0.5)) if short else (Start(starts),)

        policy = SimpleNamespace(name="theirs", starts=plan)
        entry = SimpleNamespace(label="the policy 'theirs'", load=lambda: lambda **_: policy)
        monkeypatch.setattr(policy_registry, "_plugged", {"theirs": entry}.get)
        return arm_delays(prompts(10, 70, 49, 50), SERVER_CONSTRAINED, Arm("theirs"), seed=0)

    when = theirs()
    assert when.device_s.tolist() == [0.0, INF, 0.0, INF]
    assert when.server_s.tolist() == [0.5, 0.0, 0.5, 0.0]
    with pytest.raises(ConfigurationError, match="'theirs' needs 'confidence' of a request"):
        theirs(asks="confidence")
    with pytest.raises(ConfigurationError, match="starts 'edge'"):
        theirs(starts="edge")
    with pytest.raises(ConfigurationError, match=r"'theirs' failed \(TypeError\)"):
        theirs(asks=None)


FAULT = Fault(after_tokens=3)


@pytest.mark.parametrize(
    ("arm", "beyond", "said"),
    [
        (Arm("race", migrate=True), {}, "answers migrate only.*--events"),
        (Arm("race"), {"server_fault": FAULT}, "endpoints fail only.*--events"),
        (Arm("race"), {"device_fault": FAULT}, "endpoints fail only.*--events"),
        (Arm("race"), {"device_slots": 1}, "the device queues only.*--events"),
        (Arm("race"), {"idle_unload_s": 60.0}, "models are unloaded only.*--events"),
        (Arm("waittime"), {}, "wait_time"),
        (Arm("length_threshold"), {}, "'length_threshold' cannot be planned on this trace"),
    ],
)
def test_what_it_does_not_know_it_refuses(arm, beyond, said):
    with pytest.raises(ConfigurationError, match=said):
        evaluate(prompts(0), replace(SERVER_CONSTRAINED, **beyond), arm, seed=0)


def test_the_oracle_is_a_bound_also_where_things_go_wrong():
    scenario = replace(SERVER_CONSTRAINED, server_fault=FAULT, device_slots=1)
    work = workload([0.5, 3.0, 1.0], [1.0, 0.25, 2.0], [10, 20, 30], [5, 5, 5])
    assert evaluate(work, scenario, Arm("oracle", 1.0), seed=0).ttft_s.tolist() == [0.5, 0.25, 1.0]


# ---------------------------------------------------------------------- every shipped pair

KINDS = {path: read_toml(path).get("kind") for path in sorted(resource_dir("profiles").glob("*.toml"))}
DEVICES = [path for path, kind in KINDS.items() if kind == "device"]
SERVERS = [path for path, kind in KINDS.items() if kind == "server"]
ARMS = (
    *(Arm(policy, 0.3) for policy in ("length_threshold", "wait_time", "optimal_wait", "random", "oracle")),
    Arm("auto", 0.7),
    *(Arm(policy) for policy in ("race", "device_only", "server_only")),
)


@pytest.mark.parametrize(
    "rate", [PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED], ids=["device", "server"]
)
@pytest.mark.parametrize("number", range(len(SERVERS)), ids=[path.stem for path in SERVERS])
def test_both_evaluators_agree(number, rate):
    """Every server in both regimes, and every device twice with each regime; a reader's pace changes neither side."""
    here, there = load_profile(DEVICES[number % len(DEVICES)]), load_profile(SERVERS[number])
    pace_tps, max_tokens = [(None, None), (4.8, 9), (60.0, 9)][number % 3]
    where = scenario_for(here, there, exchange_rate=rate, pace_tps=pace_tps, max_tokens=max_tokens)
    n, rng = 60, np.random.default_rng(7)
    # Prompts as people ask them; answers short, since neither evaluator's TTFT or price depends on more.
    trace = Trace.of(
        arrival_s=np.cumsum(rng.exponential(1.0, n)),
        prompt_tokens=np.maximum(load_lengths("lengths-azure-conv-2023").prompt().sample(rng, n), 1),
        output_tokens=rng.integers(1, 12, n),
    )
    load = resolve(trace, where, seed=7)
    for arm in ARMS:
        exact, fast = simulate(load, where, arm, seed=7), evaluate(load, where, arm, seed=7)
        np.testing.assert_allclose(exact.ttft_s, fast.ttft_s, rtol=0, atol=1e-9)
        np.testing.assert_allclose(exact.cost_usd, fast.cost_usd, rtol=1e-12)
        for column in ("device_won", "device_prompt_tokens", "server_prompt_tokens", "failed"):
            np.testing.assert_array_equal(getattr(exact, column), getattr(fast, column), err_msg=column)
        assert exact.cost_by == pytest.approx(fast.cost_by, rel=1e-12, abs=0)


# ---------------------------------------------------------------------- the oracle

SIDES = st.sampled_from(["device", "server"])
BUDGETS = st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.1, 0.5, 1.0])
SECONDS = st.sampled_from([0.1, 0.2, 0.5, 3.0]) | st.floats(0.001, 20.0)
ROWS = st.tuples(st.sampled_from([0, 1, 10]) | st.integers(1, 300), SECONDS, SECONDS)


def asked(rows):
    tokens, server_s, device_s = zip(*rows, strict=True)
    return workload(device_s, server_s, tokens, [1] * len(rows))


def used(work, delays, constrained):
    """Tokens that the constrained side was started on: not when the other one wrote before its turn came."""
    mine, other = delays.device_s, delays.server_s + work.server_ttft_s
    if constrained == "server":
        mine, other = delays.server_s, delays.device_s + work.device_ttft_s
    return int(work.prompt_tokens[(mine <= 0.0) | (mine < other)].sum())


@given(
    st.lists(ROWS, min_size=1, max_size=6),
    SIDES,
    BUDGETS,
    st.sampled_from([("p50", 0.5, 0), ("p90", 0.9, 20), ("p99", 0.99, 0), ("p99", 0.99, 295)]),
)
@settings(max_examples=150)
def test_no_choice_within_the_budget_is_better(rows, constrained, budget, quantile):
    """Nor where some are left out of the quantile: with many times as many requests that no start can help."""
    objective, level, idle = quantile

    def ttft(work, delays):
        return np.minimum(delays.device_s + work.device_ttft_s, delays.server_s + work.server_ttft_s)

    work, few = asked(rows + [(1, 0.0001, 0.0001)] * idle), asked(rows)
    allowed = budget * work.prompt_tokens.sum()
    late = oracle_delays(work, constrained=constrained, budget=budget, objective=objective)
    late_s = np.quantile(ttft(work, late), level)
    mean = oracle_delays(few, constrained=constrained, budget=budget)
    mean_s = ttft(few, mean).mean()
    limit = max(used(few, mean, constrained), budget * few.prompt_tokens.sum())
    free_s, scarce_s = few.server_ttft_s, few.device_ttft_s
    if constrained == "server":
        free_s, scarce_s = scarce_s, free_s
    for picks in product([False, True], repeat=len(few)):
        chosen = np.array(picks)
        tokens, times_s = (
            few.prompt_tokens[chosen].sum(),
            np.where(chosen, np.minimum(free_s, scarce_s), free_s),
        )
        everybody = np.concatenate([times_s, np.full(idle, 0.0001)])
        assert tokens > allowed * (1 - 1e-9) or late_s <= np.quantile(everybody, level) + 1e-9
        assert tokens > limit or mean_s <= times_s.mean() + 1e-9


@given(st.lists(ROWS, min_size=1, max_size=300), SIDES, BUDGETS, st.sampled_from(OBJECTIVES))
def test_the_budget_is_kept_to_within_the_last_prompt(rows, constrained, budget, objective):
    work = asked(rows)
    delays = oracle_delays(work, constrained=constrained, budget=budget, objective=objective)
    chosen = (delays.device_s if constrained == "device" else delays.server_s) == 0.0
    spent = int(work.prompt_tokens[chosen].sum())
    assert spent < budget * work.prompt_tokens.sum() + work.prompt_tokens.max() + 1e-6
    free = delays.server_s if constrained == "device" else delays.device_s
    assert (free == 0.0).all()
    gains_s = work.server_ttft_s - work.device_ttft_s
    assert ((gains_s if constrained == "device" else -gains_s)[chosen] > 0).all(), (
        "spent where it gains nothing"
    )
    with pytest.raises(ValueError, match="budget"):
        oracle_delays(work, constrained=constrained, budget=1.1)
