"""The vectorised evaluator on ties and edges, with policies of third parties, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED, Rates
from disco.dispatch.policies import policy_registry
from disco.dispatch.policies.policy import Delays
from disco.dispatch.policies.policy_registry import BUILT_IN
from disco.dispatch.request_features import Features
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError
from disco.plan import Plan, Start
from disco.profiles import load_device, load_server
from disco.replay.simulator.event_evaluator import as_stations
from disco.replay.stations import simulate_stations
from disco.replay.vector import evaluator
from disco.replay.vector.arm_delays import arm_delays, arm_policy, server_leads
from disco.replay.vector.evaluator import evaluate, race
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Workload, scenario_for

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


def by_session(work: Workload, when: Delays, *, server_first: bool):
    """Every request through the real session, with its starts in that order."""
    stations, columns = as_stations(work, PRICED, seed=0)

    class Given:
        def plan_row(self, row, *_, **__):
            starts = [Start(DEVICE, float(when.device_s[row])), Start(SERVER, float(when.server_s[row]))]
            return Plan(tuple(s for s in starts[:: -1 if server_first else 1] if s.after_s < INF))

    return simulate_stations(columns, stations, Given(), pace_tps=None)


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
    played = by_session(work, when, server_first=server_first)
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


class OneByOne:
    """A third party's policy: without `delays`."""

    name = "theirs"

    def __init__(self, *, asks: str = "prompt_tokens", starts: str = SERVER) -> None:
        self._asks = asks
        self._starts = starts

    def starts(self, features, device, server):
        if getattr(features, self._asks) < 50:
            return (Start(device.name), Start(self._starts, 0.5))
        return (Start(self._starts),)


@pytest.fixture
def theirs(monkeypatch):
    def delays_of(policy: OneByOne) -> Delays:
        entry = type("Entry", (), {"value": "theirs:Policy", "load": lambda self: lambda **_: policy})()
        monkeypatch.setattr(policy_registry, "_entry_point", lambda name: entry if name == "theirs" else None)
        return arm_delays(prompts(10, 70, 49, 50), SERVER_CONSTRAINED, Arm("theirs"), seed=0)

    return delays_of


def test_a_policy_without_delays_is_asked_request_by_request(theirs):
    when = theirs(OneByOne())
    assert when.device_s.tolist() == [0.0, INF, 0.0, INF]
    assert when.server_s.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_a_policy_that_asks_too_much_is_named_and_a_mistake_inside_it_is_not_taken_for_that(theirs):
    with pytest.raises(ConfigurationError, match="'theirs' needs 'confidence' of a request"):
        theirs(OneByOne(asks="confidence"))
    with pytest.raises(ConfigurationError, match="starts 'edge'"):
        theirs(OneByOne(starts="edge"))
    broken = OneByOne()
    del broken._asks
    with pytest.raises(AttributeError, match="_asks"):
        theirs(broken)


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
