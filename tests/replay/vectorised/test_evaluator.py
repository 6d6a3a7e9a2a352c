"""The vectorised evaluator against the session itself, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playing import run_session
from session.plays import NO_CLOCKS, REQUEST

from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED, Phase, Rates
from disco.dispatch.policies import policy_registry
from disco.dispatch.policies.policy import Delays
from disco.dispatch.policies.policy_registry import BUILT_IN
from disco.dispatch.request_features import Features
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError
from disco.plan import Plan, Start
from disco.playback import Playback
from disco.profiles import load_device, load_server
from disco.replay.metrics.outcome import Outcome
from disco.replay.vector import evaluator
from disco.replay.vector.arm_delays import arm_delays, arm_policy, server_leads
from disco.replay.vector.evaluator import evaluate, race
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Scenario, Workload, resolve, scenario_for
from disco.replay.workload.trace import Trace
from disco.session.attempt.attempt_state import AttemptOutcome as Fate
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.switching.migration_rule import AnswerLengths

SERVER_CONSTRAINED, DEVICE_CONSTRAINED = (
    scenario_for(load_device("pixel7pro-bloom-1.1b"), load_server("deepseek-v3-2025"), exchange_rate=rate)
    for rate in (PAPER_SERVER_CONSTRAINED, PAPER_DEVICE_CONSTRAINED)
)
# Powers of two apart, so that a cost says what it is made of and sums are exact.
PRICED = replace(
    SERVER_CONSTRAINED, device_rates=Rates(1.0, 2.0**10, 0.0), server_rates=Rates(2.0**20, 2.0**30)
)


def workload(
    device_ttft_s: list[float], server_ttft_s: list[float], prompt_tokens: list[int], answer_tokens: list[int]
) -> Workload:
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


def random_workload(n: int, scenario: Scenario, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    trace = Trace.of(
        arrival_s=np.arange(n, dtype=np.float64),
        prompt_tokens=np.clip(rng.lognormal(4.0, 1.0, n), 1, 4_000).astype(np.int64),
        output_tokens=rng.integers(1, 300, n),
    )
    return resolve(trace, scenario, seed=seed)


def delays(device_s: list[float], server_s: list[float]) -> Delays:
    return Delays(np.array(device_s, dtype=np.float64), np.array(server_s, dtype=np.float64))


@pytest.mark.parametrize(
    "bad",
    [
        delays([math.nan], [0.0]),
        delays([-0.1], [0.0]),
        delays([math.inf], [math.inf]),
        delays([0.0, 0.0], [0.0, 0.0]),
    ],
    ids=["nan", "negative", "nobody", "shape"],
)
def test_delays_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigurationError, match="a policy gave"):
        race(workload([1.0], [1.0], [1], [1]), PRICED, bad)


# ---------------------------------------------------------------------- the session itself

times = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.0]) | st.floats(0.0, 3.0)
due = times | st.just(math.inf)


@st.composite
def requests(draw: st.DrawFn) -> tuple[float, float, float, float, int, int]:
    device_s, server_s = draw(st.tuples(due, due).filter(lambda pair: min(pair) < math.inf))
    return device_s, server_s, draw(times), draw(times), draw(st.integers(0, 90)), draw(st.integers(1, 9))


def columns(drawn: list[tuple[float, float, float, float, int, int]]) -> tuple[Workload, Delays]:
    device_s, server_s, device_ttft_s, server_ttft_s, prompt, answer = map(list, zip(*drawn, strict=True))
    return workload(device_ttft_s, server_ttft_s, prompt, answer), delays(device_s, server_s)


# ---------------------------------------------------------------------- the session itself


def by_session(work: Workload, scenario: Scenario, when: Delays, *, server_first: bool) -> list[Outcome]:
    """Every request through the real session, one after the other: rows of one request each."""
    device, server = scenario.candidates()
    out = []
    for row in range(len(work)):
        answer_tokens = int(work.answer_tokens[row])
        profiles = {
            name: SimulatedProfile(
                ttft_s=float(ttft_s[row]), gap_s=float(gap_s[row]), answer_tokens=answer_tokens
            )
            for name, ttft_s, gap_s in (
                (DEVICE, work.device_ttft_s, work.device_tpot_s),
                (SERVER, work.server_ttft_s, work.server_tpot_s),
            )
        }
        starts = [Start(DEVICE, float(when.device_s[row])), Start(SERVER, float(when.server_s[row]))]
        if server_first:
            starts.reverse()
        plan = Plan(tuple(start for start in starts if start.after_s < math.inf))
        prompt = int(work.prompt_tokens[row])
        session = Session(
            plan,
            {DEVICE: device, SERVER: server},
            SessionConfig(prompt_tokens=prompt, timeouts=NO_CLOCKS),
            Playback(None),
            AnswerLengths.geometric(150.0),
        )
        run = run_session(session, profiles, REQUEST, np.random.default_rng(0))
        assert run.finished is not None
        ledger = settle_accounts(session)
        tried = {state.candidate.name: state for state in session.attempts}
        (winner,) = (name for name, state in tried.items() if state.outcome is Fate.FINISHED)
        cost_by: dict[tuple[str, Phase], float] = {}
        for charge in ledger.charges:
            key = charge.endpoint, charge.phase
            cost_by[key] = cost_by.get(key, 0.0) + charge.cost
        out.append(
            Outcome(
                ttft_s=np.array([session.transcript.released.at[0]]),
                device_won=np.array([winner == DEVICE]),
                prompt_tokens=np.array([prompt]),
                device_prompt_tokens=np.array([prompt if DEVICE in tried else 0]),
                server_prompt_tokens=np.array([prompt if SERVER in tried else 0]),
                cost_usd=np.array([ledger.total_cost]),
                cost_by=cost_by,
                failed=np.array([False]),
            )
        )
    return out


def assert_same(outcome: Outcome, rows: list[Outcome]) -> None:
    for name in ("device_won", "device_prompt_tokens", "server_prompt_tokens"):
        assert getattr(outcome, name).tolist() == [getattr(row, name)[0] for row in rows], name
    assert outcome.ttft_s.tolist() == [row.ttft_s[0] for row in rows]
    assert outcome.cost_usd.tolist() == pytest.approx([row.cost_usd[0] for row in rows], rel=1e-12)
    by: dict[tuple[str, Phase], float] = {}
    for row in rows:
        for key, usd in row.cost_by.items():
            by[key] = by.get(key, 0.0) + usd
    assert {k: v for k, v in outcome.cost_by.items() if v} == pytest.approx(
        {k: v for k, v in by.items() if v}, rel=1e-12
    )


@settings(max_examples=200)
@example([(0.5, 0.0, 1.0, 0.5, 8, 1)], False, 1)  # the device is due when the server writes: it never starts
@example([(0.0, 0.0, 0.5, 0.5, 8, 3)], False, 1)  # both at once: one wins, the other is charged a token
@example([(0.0, 0.0, 0.5, 0.5, 8, 3)], True, 1)
@example([(math.inf, 0.0, 0.1, 0.9, 40, 4), (0.25, math.inf, 0.7, 0.1, 50, 5)], False, 1)
@given(st.lists(requests(), min_size=1, max_size=5), st.booleans(), st.sampled_from([1, 2, 1 << 13]))
def test_ties_and_edges_are_those_of_the_session(drawn, server_first, block):
    work, when = columns(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "_BLOCK", block)
        outcome = race(work, PRICED, when, server_first=server_first)
    assert_same(outcome, by_session(work, PRICED, when, server_first=server_first))
    if work.prompt_tokens.any():
        device_share = outcome.device_prompt_tokens.sum() / work.prompt_tokens.sum()
        assert outcome.budget_used("device") == device_share


ARMS = [
    (SERVER_CONSTRAINED, Arm("auto", 0.4)),
    (DEVICE_CONSTRAINED, Arm("auto", 0.4)),
    (SERVER_CONSTRAINED, Arm("race")),
    (DEVICE_CONSTRAINED, Arm("random", 0.3)),
    (DEVICE_CONSTRAINED, Arm("wait_time", 0.1, 0.05)),
    (DEVICE_CONSTRAINED, Arm("optimal_wait", 0.3)),
    (SERVER_CONSTRAINED, Arm("oracle", 0.3)),
    (DEVICE_CONSTRAINED, Arm("oracle", 0.3)),
]


# ---------------------------------------------------------------------- arms


@pytest.mark.parametrize("name", BUILT_IN)
def test_ties_go_to_the_side_that_the_policy_names_first(name):
    scenario = DEVICE_CONSTRAINED if name in ("wait_time", "optimal_wait") else SERVER_CONSTRAINED
    device, server = scenario.candidates()
    arm = Arm(name, 1.0)
    policy = arm_policy(scenario, arm, np.array([10, 20, 30]), seed=0)
    starts = policy.starts(Features(prompt_tokens=20), device, server)
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
    def install(policy: object) -> None:
        entry = type("Entry", (), {"value": "theirs:Policy", "load": lambda self: lambda **_: policy})()
        monkeypatch.setattr(policy_registry, "_entry_point", lambda name: entry if name == "theirs" else None)

    return install


def test_a_policy_without_delays_is_asked_request_by_request(theirs):
    theirs(OneByOne())
    work = random_workload(200, SERVER_CONSTRAINED)
    when = arm_delays(work, SERVER_CONSTRAINED, Arm("theirs"), seed=0)
    short = work.prompt_tokens < 50
    assert short.any()
    assert not short.all()
    assert when.device_s.tolist() == np.where(short, 0.0, math.inf).tolist()
    assert when.server_s.tolist() == np.where(short, 0.5, 0.0).tolist()


def test_a_mistake_inside_a_policy_is_not_taken_for_a_need(theirs):
    policy = OneByOne()
    del policy._asks
    theirs(policy)
    with pytest.raises(AttributeError, match="_asks"):
        evaluate(random_workload(2, SERVER_CONSTRAINED), SERVER_CONSTRAINED, Arm("theirs"), seed=0)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (OneByOne(asks="confidence"), "'theirs' needs 'confidence' of a request"),
        (OneByOne(starts="edge"), "starts 'edge'"),
    ],
)
def test_a_policy_that_asks_too_much_is_named(theirs, policy, said):
    theirs(policy)
    with pytest.raises(ConfigurationError, match=said):
        evaluate(random_workload(9, SERVER_CONSTRAINED), SERVER_CONSTRAINED, Arm("theirs"), seed=0)


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
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_it_does_not_know_it_refuses(arm, beyond, said):
    scenario = replace(SERVER_CONSTRAINED, **beyond)
    with pytest.raises(ConfigurationError, match=said):
        evaluate(random_workload(2, scenario), scenario, arm, seed=0)


def test_prompts_without_a_token_cannot_be_planned_on():
    with pytest.raises(ConfigurationError, match="'length_threshold' cannot be planned on this trace"):
        evaluate(workload([1.0], [1.0], [0], [1]), SERVER_CONSTRAINED, Arm("length_threshold"), seed=0)


def test_the_oracle_is_a_bound_also_where_things_go_wrong():
    scenario = replace(SERVER_CONSTRAINED, server_fault=FAULT, device_slots=1)
    work = random_workload(100, scenario)
    outcome = evaluate(work, scenario, Arm("oracle", 1.0), seed=0)
    assert outcome.ttft_s.tolist() == np.minimum(work.device_ttft_s, work.server_ttft_s).tolist()
