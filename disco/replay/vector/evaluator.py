"""TTFT, budget and cost of an arm over millions of requests, without a Python loop over them.

The rules are those of `session.machine` if no endpoint fails, no request queues, no model has to be loaded and no
answer migrates; `replay.simulator.event_evaluator` covers the rest. A test checks that both give the same result.

- A side that starts after `delay` writes its first token at `delay + TTFT`; the earlier one wins.
- A side never starts if the other one writes before its delay is over.
- A side that started is charged the whole prompt; the winner also its answer.
- If both would write at the same time, the side that started first wins, and the other side's first token is charged
  before it is stopped. If both also started at the same time, the side that the policy names first wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from disco.cost import Phase, Rates
from disco.dispatch.policies.policy import Delays
from disco.errors import ConfigurationError
from disco.replay.metrics.outcome import Outcome
from disco.replay.vector.arm_delays import ORACLE, Objective, arm_delays, server_leads
from disco.replay.workload.scenario import Arm, Scenario, Workload

__all__ = ["check_evaluable", "evaluate", "race"]

# Requests processed at a time: their dozen columns fit into one core's own cache.
_BLOCK = 1 << 13


def evaluate(
    workload: Workload, scenario: Scenario, arm: Arm, *, seed: int, objective: Objective = "mean"
) -> Outcome:
    """Run an arm on a workload.

    Args:
        workload: resolved for the same scenario.
        scenario: device, server and reader. The oracle is a bound and ignores the scenario's faults, queue and loading.
        arm: the policy and its numbers; without migration.
        seed: seed of the policy's own random draws.
        objective: the figure of TTFT that an oracle minimises.

    Raises:
        ConfigurationError: the arm or the scenario needs the event-accurate evaluator, or as for
            `arm_delays.arm_delays`.
    """
    check_evaluable(scenario, arm)
    delays = arm_delays(workload, scenario, arm, seed=seed, objective=objective)
    return race(workload, scenario, delays, server_first=server_leads(scenario, arm))


def check_evaluable(scenario: Scenario, arm: Arm) -> None:
    """Check that this evaluator covers the scenario and the arm.

    Raises:
        ConfigurationError: only the event-accurate evaluator covers them.
    """
    beyond = ""
    if arm.migrate:
        beyond = "answers migrate only"
    elif arm.drafts:
        beyond = "answers are drafted only"
    elif arm.policy == ORACLE:
        return
    elif scenario.device_fault is not None or scenario.server_fault is not None:
        beyond = "endpoints fail only"
    elif scenario.device_slots is not None:
        beyond = "the device queues only"
    elif scenario.idle_unload_s is not None:
        beyond = "models are unloaded only"
    if beyond:
        raise ConfigurationError(
            f"{beyond} in the event-accurate evaluator: pass evaluator='events' (--events)"
        )


@dataclass(slots=True)
class _Tokens:
    """Tokens charged to one side. Mutable: all."""

    prompt: int = 0
    won_prompt: int = 0
    answer: int = 0
    lost: int = 0  # written by losers
    cached: int = 0  # of `prompt`
    won_cached: int = 0

    def cost_by(self, place: str, rates: Rates) -> dict[tuple[str, Phase], float]:
        lost_prompt = self.prompt - self.won_prompt
        cost = {
            Phase.ANSWER: rates.cost(self.won_prompt, self.answer, self.won_cached),
            Phase.RACE_LOSER: rates.cost(lost_prompt, self.lost, self.cached - self.won_cached),
        }
        charged = {Phase.ANSWER: self.answer, Phase.RACE_LOSER: lost_prompt + self.lost}
        return {(place, phase): usd for phase, usd in cost.items() if charged[phase]}


def race(workload: Workload, scenario: Scenario, delays: Delays, *, server_first: bool = False) -> Outcome:
    """Return the outcome of requests if each side starts after these delays.

    Args:
        workload: the requests, shape (n,).
        scenario: for its rates.
        delays: shape (n,) each, seconds, at least 0; `inf`: never. One of the two is finite.
        server_first: the server wins if both sides start and would write at the same times.

    Raises:
        ConfigurationError: a delay is negative, NaN or of the wrong shape, or a request has no start.
    """
    n = len(workload)
    if delays.device_s.shape != (n,) or delays.server_s.shape != (n,):
        raise ConfigurationError(
            f"a policy gave delays of shapes {delays.device_s.shape} and {delays.server_s.shape} for {n} requests"
        )
    cost_by: dict[tuple[str, Phase], float] = {}
    out = Outcome(
        ttft_s=np.empty(n),
        device_won=np.empty(n, dtype=np.bool_),
        prompt_tokens=workload.prompt_tokens,
        device_prompt_tokens=np.empty(n, dtype=np.int64),
        server_prompt_tokens=np.empty(n, dtype=np.int64),
        cost_usd=np.empty(n),
        cost_by=cost_by,
        failed=np.zeros(n, dtype=np.bool_),
    )
    device, server = _Tokens(), _Tokens()
    for start in range(0, n, _BLOCK):
        rows = slice(start, start + _BLOCK)
        _race_block(workload, scenario, delays, out, rows, device, server, server_first=server_first)
    cost_by |= device.cost_by("device", scenario.device_rates)
    cost_by |= server.cost_by("server", scenario.server_rates)
    return out


def _race_block(
    workload: Workload,
    scenario: Scenario,
    delays: Delays,
    out: Outcome,
    rows: slice,
    device: _Tokens,
    server: _Tokens,
    *,
    server_first: bool,
) -> None:
    """Fill some rows of the outcome, and count their tokens."""
    device_s, server_s = delays.device_s[rows], delays.server_s[rows]
    first = np.minimum(device_s, server_s)
    if not (first.min() >= 0.0 and first.max() < inf):  # in this form it is also true for NaN
        raise ConfigurationError(
            "a policy gave a delay that is negative or NaN, or starts no endpoint for a request"
        )
    device_at = device_s + workload.device_ttft_s[rows]
    server_at = server_s + workload.server_ttft_s[rows]
    np.minimum(device_at, server_at, out=out.ttft_s[rows])
    won = np.less(device_at, server_at, out=out.device_won[rows])
    # Sides with the same delay both start, even if one of them would write at once.
    device_runs = device_s < server_at
    device_runs |= device_s == server_s
    server_runs = server_s < device_at
    server_runs |= device_s == server_s

    tied = np.flatnonzero(device_at == server_at)
    if tied.size:
        sooner, together = device_s[tied] < server_s[tied], device_s[tied] == server_s[tied]
        won[tied] = sooner | (together & (not server_first))

    prompt, answer = workload.prompt_tokens[rows], workload.answer_tokens[rows]
    device_prompt = np.multiply(prompt, device_runs, out=out.device_prompt_tokens[rows])
    server_prompt = np.multiply(prompt, server_runs, out=out.server_prompt_tokens[rows])
    device_rates, server_rates = scenario.device_rates, scenario.server_rates
    cost = np.multiply(device_prompt, device_rates.cost_in, out=out.cost_usd[rows])
    cost += server_prompt * server_rates.cost_in
    cost += answer * np.where(won, device_rates.cost_out, server_rates.cost_out)

    if workload.device_cached_tokens is not None:
        cached = workload.device_cached_tokens[rows] * device_runs
        cost -= cached * (device_rates.cost_in * (1.0 - device_rates.cached_share))
        device.cached += int(cached.sum())
        device.won_cached += int((cached * won).sum())

    won_prompt, won_answer = int((prompt * won).sum()), int((answer * won).sum())
    device.prompt += int(device_prompt.sum())
    device.won_prompt += won_prompt
    device.answer += won_answer
    server.prompt += int(server_prompt.sum())
    server.won_prompt += int(prompt.sum()) - won_prompt
    server.answer += int(answer.sum()) - won_answer
    if tied.size:
        both = tied[device_runs[tied] & server_runs[tied]]
        cost[both] += np.where(won[both], server_rates.cost_out, device_rates.cost_out)
        server_lost = int(np.count_nonzero(won[both]))
        server.lost += server_lost
        device.lost += both.size - server_lost
