"""What a plan that was not carried out would have come to: arithmetic on the times of the attempts that were made.

Of a start on an endpoint that really began this answer, the time to its first token is known. Of one that was stopped
before its first token, it is known to be longer than that. Of any other, only what was learnt of earlier answers is
known. A time that is not known is a few equally probable values, so that the expected winner of a race is computed,
and not the race of two means.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product

from disco.candidate import Candidate
from disco.cost import Charge, Phase, Totals
from disco.errors import FailureKind
from disco.events import Usage
from disco.plan import Plan, Start
from disco.session.attempt.attempt_state import AttemptState
from disco.session.machine import Session
from disco.session.records.shadow_record import BASES, Basis

__all__ = ["ShadowEstimate", "estimate"]

_MOST_CASES = 1_024  # combinations of unknown times that are looked at


@dataclass(frozen=True, slots=True)
class ShadowEstimate:
    """What a plan would have come to. None where it cannot be known, because every endpoint that it starts has failed.

    Attributes:
        winner: the endpoint that would have written first, in most cases.
        ttft_s: an expected value, s.
        bill_usd, device_energy_j, policy_cost: expected values; see `cost.Charge`.
        ttft_basis, cost_basis: see `Basis`.
        usage: what each endpoint would have processed if `winner` had won.
    """

    winner: str
    ttft_s: float
    ttft_basis: Basis
    bill_usd: float
    device_energy_j: float | None
    policy_cost: float
    cost_basis: Basis
    usage: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class _Runner:
    """A start, and what is known of the time to its first token: equally probable values, s, and their lower bound."""

    name: str
    after_s: float
    first_s: tuple[float, ...]
    basis: Basis
    at_least_s: float = 0.0


def estimate(
    plan: Plan, candidates: Mapping[str, Candidate], known: Collection[str], session: Session
) -> ShadowEstimate | None:
    """Estimate what a plan would have come to, from a closed session of another plan for the same request.

    Args:
        plan: not carried out.
        candidates: by name, at the rates that the result is to be charged at.
        known: names of the endpoints whose speed was measured on this machine.
        session: closed.
    """
    prompt_tokens = session.config.prompt_tokens
    began = {state.candidate.name: state for state in reversed(session.attempts) if state.begins}
    runners = [
        runner
        for start in plan.starts
        if (runner := _runner(start, candidates[start.endpoint], known, began, prompt_tokens)) is not None
    ]
    if not runners:
        return None
    cases = _cases(runners)
    outcomes = [_first(runners, case) for case in cases]
    wins = [sum(number == i for number, _ in outcomes) for i in range(len(runners))]
    winner = runners[max(range(len(runners)), key=wins.__getitem__)]
    ttft_s = math.fsum(at for _, at in outcomes) / len(outcomes)
    basis = _basis(runners, winner, ttft_s)
    usage: dict[str, Usage] = {}
    cases_won: list[tuple[int, Totals]] = []
    for i, runner in enumerate(runners):
        if wins[i] == 0:
            continue
        mean_s = math.fsum(at for number, at in outcomes if number == i) / wins[i]
        spent = _usage(plan, runners, runner, mean_s, began, session)
        cases_won.append(
            (wins[i], Totals.of(_charge(candidates[name], used) for name, used in spent.items()))
        )
        if runner is winner:
            usage = spent
    wrote_alone = {segment.writer.candidate.name for segment in session.transcript.segments} == {winner.name}
    is_exact = wrote_alone and plan.assist is None and all(name in began for name in usage)
    energies = [n * sums.device_energy_j for n, sums in cases_won if sums.device_energy_j is not None]
    return ShadowEstimate(
        winner=winner.name,
        ttft_s=ttft_s,
        ttft_basis=basis,
        bill_usd=math.fsum(n * sums.bill_usd for n, sums in cases_won) / len(outcomes),
        device_energy_j=math.fsum(energies) / len(outcomes) if len(energies) == len(cases_won) else None,
        policy_cost=math.fsum(n * sums.policy_cost for n, sums in cases_won) / len(outcomes),
        cost_basis=basis if is_exact or basis == "assumed" else "expected",
        usage=usage,
    )


def _runner(
    start: Start,
    candidate: Candidate,
    known: Collection[str],
    began: Mapping[str, AttemptState],
    prompt_tokens: int,
) -> _Runner | None:
    """Return what is known of a start; None where the endpoint has failed in this very answer."""
    state = began.get(start.endpoint)
    bound_s = 0.0
    if state is not None and state.failure is not FailureKind.BUDGET:  # such an attempt was never made
        if state.first_content_at is not None:
            first_s = max(0.0, state.first_content_at - state.started_at)
            return _Runner(start.endpoint, start.after_s, (first_s,), "measured")
        if state.failure is not None:
            return None
        if state.ended_at is not None:
            bound_s = max(0.0, state.ended_at - state.started_at)
    basis: Basis = "expected" if candidate.is_measured and start.endpoint in known else "assumed"
    waits_s = candidate.queue_s + candidate.load_s
    usual = [waits_s + seconds for seconds in candidate.ttft_quantiles]
    if not usual:
        usual = [candidate.time_to_first_token_s(prompt_tokens)]
    later = tuple(seconds for seconds in usual if seconds > bound_s) or (max(bound_s, usual[-1]),)
    return _Runner(start.endpoint, start.after_s, later, basis, bound_s)


def _cases(runners: list[_Runner]) -> list[tuple[float, ...]]:
    """Return all combinations of the runners' times; of a coarser grid where there would be too many."""
    unknown = sum(len(runner.first_s) > 1 for runner in runners)
    most = int(_MOST_CASES ** (1 / max(unknown, 1)))
    grids = [runner.first_s[:: math.ceil(len(runner.first_s) / most)] for runner in runners]
    return list(product(*grids))


def _first(runners: list[_Runner], times_s: tuple[float, ...]) -> tuple[int, float]:
    """Return the number of the runner that writes first, and when."""
    at, number = min(
        (runner.after_s + first_s, i)
        for i, (runner, first_s) in enumerate(zip(runners, times_s, strict=True))
    )
    return number, at


def _basis(runners: list[_Runner], winner: _Runner, ttft_s: float) -> Basis:
    """Return where the time to the first token comes from: the worst of the starts that may have decided it."""
    decided = [winner.basis]
    decided += [
        runner.basis
        for runner in runners
        # A bound behind the winner's first token is as good as a measured time.
        if runner is not winner and runner.after_s + runner.at_least_s < ttft_s
    ]
    return max(decided, key=BASES.index)


def _usage(
    plan: Plan,
    runners: list[_Runner],
    winner: _Runner,
    ttft_s: float,
    began: Mapping[str, AttemptState],
    session: Session,
) -> dict[str, Usage]:
    """Return what each endpoint processes if this one wins and its answer stays there, or is divided as planned."""
    written = {winner.name: session.transcript.tokens}
    if plan.assist is not None and plan.assist.writer == winner.name:
        own = min(plan.assist.tokens, session.transcript.tokens)
        written = {winner.name: own, plan.assist.heir: session.transcript.tokens - own}
    counted = [state.usage.prompt_tokens for state in began.values() if state.usage is not None]
    prompt_tokens = max(counted, default=0) or session.config.prompt_tokens
    spent = {}
    for runner in runners:
        if runner.after_s >= ttft_s and runner is not winner:
            continue
        state = began.get(runner.name)
        read, cached = prompt_tokens, 0
        # One that was stopped while it read may have been charged for a part of the prompt only.
        if state is not None and state.usage is not None and state.first_content_at is not None:
            read, cached = state.usage.prompt_tokens, state.usage.cached_tokens
        spent[runner.name] = Usage(read, written.get(runner.name, 0), cached)
    return spent


def _charge(candidate: Candidate, usage: Usage) -> Charge:
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    return Charge.of(None, candidate.name, Phase.ANSWER, candidate.charged, *tokens)
