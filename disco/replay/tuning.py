"""Tuning: search for the policy, budget, α, λ and pace that serve an objective best on a trace.

Money is counted at the user's own exchange rate throughout: the server's bill, plus the device's energy at that
rate. Another λ that is tried only decides which side counts as more expensive, and so where answers migrate. Unified
costs under different λ cannot be compared, and are not used.

The search has two steps. The vectorised evaluator tries many settings. Then the best few run through the real
session, and the best of those run again at other paces and under another λ. Pace and λ do not change which endpoints
start when; they only change what migrations do. The vectorised evaluator sees no migrations, so the first step leaves
both out. Settings that are too expensive without migrations are kept as long as migrating every answer at once could
make them cheap enough.
"""

from __future__ import annotations

import itertools
import math
import os
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from disco.amounts import money
from disco.cost import ExchangeRate, device_rates
from disco.dispatch import Preset, load_preset
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.regime import regime
from disco.errors import ConfigurationError, nearest
from disco.profiles.profile_toml import dump_toml
from disco.replay.metrics.over_seeds import Cell
from disco.replay.sweeps.sweep import EvaluatorName, is_budgetless, sweep
from disco.replay.vector.arm_delays import RECORDED
from disco.replay.workload.from_recording import is_recording
from disco.replay.workload.scenario import Arm, Scenario
from disco.replay.workload.trace import Trace

__all__ = [
    "OBJECTIVES",
    "PresetChoice",
    "Trial",
    "Tuned",
    "TuningObjective",
    "parse_max_cost",
    "tune",
    "write_preset",
]

Objective = Literal["p99-ttft", "mean-ttft", "cost", "qoe"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)

AS_GOOD: Final = 1.01  # within this factor of the best value, the second criterion decides


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings and its figures per request.

    Attributes:
        choice: the settings.
        ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s: s.
        by_device: share of answers that the device began.
        server_usd: the server's bill.
        device_usd: the device's energy at the user's exchange rate.
        least_usd: lower bound of the cost, reached if every answer moved to the cheaper side at once; the cost itself
            if `verified`.
        qoe, late_tokens: means per answer; None until `verified`.
        requests: number of requests of the replay that gave the figures.
        verified: the figures come from the event-accurate evaluator.
    """

    choice: PresetChoice
    ttft_mean_s: float
    ttft_p99_s: float
    server_usd: float
    device_usd: float
    least_usd: float
    qoe: float | None
    late_tokens: float | None
    requests: int
    verified: bool
    ttft_p50_s: float = math.nan
    ttft_p90_s: float = math.nan
    by_device: float = math.nan

    @property
    def cost_usd(self) -> float:
        """Return the server's bill and the device's energy together, USD per request."""
        return self.server_usd + self.device_usd


@dataclass(frozen=True, slots=True)
class TuningObjective:
    """An objective and its limits.

    Attributes:
        objective: the figure to optimise.
        max_cost: limit per request: USD, or "0.8x" of the cost of server_only; None: no limit.
        max_p99_s: P99 of TTFT, s; None: no limit.

    Raises:
        ConfigurationError: unknown objective, or a limit that is not valid.
    """

    objective: Objective
    max_cost: float | str | None = None
    max_p99_s: float | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            known = nearest(self.objective, OBJECTIVES)
            raise ConfigurationError(f"no objective is called {self.objective!r}. {known}")
        if isinstance(self.max_cost, str):
            parse_max_cost(self.max_cost)
        if self.max_p99_s is not None and not self.max_p99_s > 0:
            raise ConfigurationError(
                f"max_p99_s is a limit of TTFT's P99 in seconds above 0, not {self.max_p99_s}"
            )

    def limit_usd(self, reference: Trial) -> float | None:
        """Return what a request may cost, USD; None: no limit."""
        limit = parse_max_cost(self.max_cost) if isinstance(self.max_cost, str) else self.max_cost
        return float(limit.removesuffix("x")) * reference.cost_usd if isinstance(limit, str) else limit

    def keeps(self, trial: Trial, reference: Trial, *, hoping: bool = False) -> bool:
        """Return whether a trial keeps to the limits; `hoping`: whether it may once its answers migrate."""
        limit = self.limit_usd(reference)
        usd = trial.least_usd if hoping else trial.cost_usd
        return (limit is None or usd <= limit) and (
            self.max_p99_s is None or trial.ttft_p99_s <= self.max_p99_s
        )

    def value(self, trial: Trial) -> float:
        """Return the value to minimise. Until QoE is known, mean TTFT stands for it: QoE mostly follows mean TTFT."""
        match self.objective:
            case "p99-ttft":
                return trial.ttft_p99_s
            case "cost":
                return trial.cost_usd if trial.verified else trial.least_usd
            case "qoe" if trial.verified:
                return math.inf if trial.qoe is None else 1.0 - trial.qoe
        return trial.ttft_mean_s

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials, the best first."""
        ordered = sorted(trials, key=self.value)
        if not ordered:
            return []
        best = self.value(ordered[0])
        near = [t for t in ordered if self.value(t) <= best * AS_GOOD + 1e-12]
        second = (lambda t: t.ttft_p99_s) if self.objective == "cost" else (lambda t: t.cost_usd)
        return sorted(near, key=second) + ordered[len(near) :]

    def out_of_reach(self, trials: Sequence[Trial], reference: Trial) -> str:
        """Return a message: no trial keeps to the limits, and how close the cheapest and the fastest come."""
        limit = self.limit_usd(reference)
        wanted = []
        if limit is not None:
            wanted.append(
                f"costs at most {_usd(limit)} per request ({limit / reference.cost_usd:.2f}x server_only)"
                if reference.cost_usd
                else f"costs at most {_usd(limit)} per request"
            )
        if self.max_p99_s is not None:
            wanted.append(f"has a P99 of TTFT of at most {self.max_p99_s:g} s")
        cheapest = min(trials, key=lambda t: t.cost_usd)
        fastest = min(trials, key=lambda t: t.ttft_p99_s)
        return (
            f"no settings that were tried {' and '.join(wanted)}. The cheapest is {cheapest.choice.label} at "
            f"{_usd(cheapest.cost_usd)} ({cheapest.cost_usd / max(reference.cost_usd, 1e-300):.2f}x) with a P99 of "
            f"{cheapest.ttft_p99_s:.2f} s; the fastest is {fastest.choice.label} with a P99 of "
            f"{fastest.ttft_p99_s:.2f} s at {_usd(fastest.cost_usd)}. Raise the limits, or try another device or server"
        )


def parse_max_cost(text: str) -> float | str:
    """Parse a cost limit: "0.8x" (of the cost of server_only) stays a string, "0.0004" becomes USD per request.

    Raises:
        ConfigurationError: `text` is neither.
    """
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f'a cost limit is a multiple of the cost of server_only, such as "0.8x", or USD per request, not {text!r}'
        )
    return text if text.endswith("x") else value


def _usd(usd: float) -> str:
    return money(usd)


@dataclass(frozen=True, slots=True)
class PresetChoice:
    """Settings that a preset holds.

    Attributes:
        arm: policy, budget, α and whether answers may move.
        exchange_rate: λ, USD per 10⁶ FLOPs; decides which side is more expensive.
        pace_tps: the reader's pace, tokens/s; None: text is passed on when it arrives.
    """

    arm: Arm
    exchange_rate: float
    pace_tps: float | None

    @property
    def label(self) -> str:
        """The policy and its budget, for tables and messages."""
        if is_budgetless(self.arm.policy):
            return self.arm.policy
        return f"{self.arm.policy} at budget {self.arm.budget:g}"

    def values(self, *, summary: str = "") -> dict[str, dict[str, Any] | str]:
        """Return the settings in the form that `load_preset` takes."""
        policy, options = policy_spec(self.arm.policy)
        dispatch: dict[str, Any] = {"policy": policy, **({"options": options} if options else {})}
        if not is_budgetless(self.arm.policy):
            # A trace is not precise enough for more digits; the tables print two.
            dispatch |= {"budget": round(self.arm.budget, 4), "tail": round(self.arm.tail, 4)}
        playback: dict[str, Any] = (
            {"pace_tps": "off", "max_hold_s": 0.0}
            if self.pace_tps is None
            else {"pace_tps": self.pace_tps, "max_hold_s": 0.3}
        )
        return {
            "summary": summary,
            "dispatch": dispatch,
            "cost": {"exchange_rate": self.exchange_rate},
            "migration": {"enabled": self.arm.migrate, "order": self.arm.order},
            "playback": playback,
        }


def write_preset(choice: PresetChoice, path: str | os.PathLike[str], *, summary: str, comment: str) -> Preset:
    """Write a preset that `AsyncDisco(preset=Path(path))` loads.

    Args:
        choice: the settings.
        path: a `.toml` file; an existing file is replaced.
        summary: one line for listings.
        comment: put at the top, wrapped.

    Returns:
        The preset that the file loads as.

    Raises:
        ConfigurationError: the path does not end in ".toml", or the file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".toml":
        raise ConfigurationError(
            f"the preset {target.name} must be a .toml file; write {target.name}.toml instead"
        )
    header = "\n".join("\n".join(textwrap.wrap(part, 98)) for part in comment.splitlines())
    text = dump_toml(choice.values(summary=summary), comment=header)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        preset = load_preset(draft)
        draft.replace(target)
    except OSError as error:
        raise ConfigurationError(
            f"the preset {target} cannot be written: {error.strerror or error}; name a path that can be written"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return preset.model_copy(update={"name": target.stem})


BUDGETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
TAILS: Final = (0.0, 0.02, 0.05, 0.1, 0.2)
PACES: Final = (8.0, 12.0, 25.0, None)  # tokens/s; None: text is passed on when it arrives
FIRST_PACE: Final = 12.0
TAILED: Final = frozenset(("optimal_wait", "wait_time"))  # policies that use α
SEARCHED: Final = ("optimal_wait", "wait_time", "length_threshold", "race", "server_only", "device_only")
REFINEMENTS: Final = (0.05, 0.025)  # steps around the best budgets, one round each
AS_DEAR: Final = 1.0 + 1e-9  # the same tokens, summed in another order
BEST: Final = 5  # settings that are refined and verified
WINNERS: Final = 2  # of these, how many are tried at other paces and under another λ

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found.

    Attributes:
        objective: the objective that was asked for.
        chosen: the best trial that keeps to the limits.
        reference: server_only on the same requests as `chosen`.
        recorded: of a recording, what was, replayed on the same requests; else None.
        max_cost_usd, max_p99_s: the limits, per request; None: no limit.
        verified: every trial that ran through the session, cheapest first.
        searched: how many settings the first step tried.
    """

    objective: Objective
    chosen: Trial
    reference: Trial
    recorded: Trial | None
    max_cost_usd: float | None
    max_p99_s: float | None
    verified: tuple[Trial, ...]
    searched: int


def tune(
    trace: Trace,
    scenario: Scenario,
    *,
    objective: Objective,
    exchange_rate: float | None = None,
    max_cost: float | str | None = None,
    max_p99_s: float | None = None,
    policies: Sequence[str] = SEARCHED,
    paces: Sequence[float | None] = PACES,
    search_requests: int = 200_000,
    verify_requests: int = 1_000,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Tell | None = None,
) -> Tuned:
    """Search for settings with the vectorised evaluator, verify the best with the session, and choose one.

    Args:
        trace: requests that represent future ones.
        scenario: device, server and reader. Its pace is replaced by the paces that are tried.
        objective: the least P99 or mean of TTFT, the least cost, or the most QoE. Among settings within 1 % of the
            best, the cheapest is chosen (or, where cost is the objective, the one with the least P99 of TTFT).
        exchange_rate: the user's λ, USD per 10⁶ FLOPs, at which the scenario's device is priced; None: computed from
            the device's rates and its FLOPs per token.
        max_cost: at most, per request: USD, or "0.8x" of the cost of server_only on the same requests; None: of a
            recording what its own starts cost, else no limit.
        max_p99_s: P99 of TTFT at most, s.
        policies: the policies to try.
        paces: paces to try besides 12 tokens/s; None passes text on when it arrives. Not tried for QoE.
        search_requests: the search uses every k-th request, so that it has at most this many.
        verify_requests: the best few run on this many requests, the last of the trace.
        seed: seed of the random draws that the trace leaves open.
        executor: as for `sweep`.
        progress: called with the name of the current step, the work done and the total.

    Raises:
        ConfigurationError: unknown objective; the device is not priced at `exchange_rate`, or its λ cannot be
            computed; or no settings keep to the limits, and the message says how close they come.
    """
    aim = TuningObjective(objective, max_cost, max_p99_s)
    exchange_rate = _own_rate(scenario, exchange_rate)
    search = _Search(
        # The few verified requests plan on the lengths of the whole trace, like a client that has run for a while.
        scenario=replace(scenario, lengths=scenario.planning_lengths(trace.prompt_tokens)),
        exchange_rate=exchange_rate,
        seed=seed,
        executor=executor,
        tell=progress or (lambda _what, _done, _total: None),
    )
    thinned = _thin(trace, search_requests)
    if is_recording(trace) and max_cost is None:
        aim = TuningObjective(objective, search.recorded(thinned).cost_usd * AS_DEAR, max_p99_s)
    found = search.wide(thinned, policies, aim)
    few = trace.take(max(0, len(trace) - verify_requests), len(trace))
    reference = search.reference(few)
    recorded = search.recorded(few, moves=True) if is_recording(trace) else None
    if recorded is not None and max_cost is None:
        aim = TuningObjective(objective, recorded.cost_usd * AS_DEAR, max_p99_s)
    shortlist = _shortlist(found, aim, search.reference(thinned))
    verified = search.exact(few, [trial.choice.arm for trial in shortlist], FIRST_PACE, exchange_rate)
    winners = aim.ranked([t for t in verified if aim.keeps(t, reference)] or verified)[:WINNERS]
    arms = [trial.choice.arm for trial in winners]
    # QoE is measured against the pace: a slower pace only lowers the demand, it does not serve readers better.
    others = () if objective == "qoe" else tuple(pace for pace in paces if pace != FIRST_PACE)
    for pace_tps in others:
        verified += search.exact(few, arms, pace_tps, exchange_rate)
    for rate in search.steering_rates():
        verified += search.exact(few, arms, FIRST_PACE, rate)
    fitting = [trial for trial in verified if aim.keeps(trial, reference)]
    if not fitting and max_cost is None and max_p99_s is None:
        fitting = verified  # nobody set that limit: the best of all is shown beside what was
    if not fitting:
        raise ConfigurationError(aim.out_of_reach(verified, reference))
    return Tuned(
        objective=objective,
        chosen=aim.ranked(fitting)[0],
        reference=reference,
        recorded=recorded,
        max_cost_usd=aim.limit_usd(reference),
        max_p99_s=max_p99_s,
        verified=tuple(sorted(verified, key=lambda trial: trial.cost_usd)),
        searched=len(found),
    )


@dataclass(frozen=True, slots=True)
class _Search:
    scenario: Scenario
    exchange_rate: float
    seed: int
    executor: Executor | None
    tell: Tell

    def wide(self, trace: Trace, policies: Sequence[str], aim: TuningObjective) -> list[Trial]:
        """Try all settings of the coarse grid, then finer steps around the best."""
        arms = [arm for policy in policies for arm in _grid(policy, BUDGETS)]
        found = {trial.choice: trial for trial in self._run(trace, arms, "searching")}
        reference = self.reference(trace)
        for step in REFINEMENTS:
            best = _shortlist(list(found.values()), aim, reference)
            near = {arm for trial in best for arm in _neighbours(trial.choice.arm, step)}
            arms = sorted(near, key=lambda arm: (arm.policy, arm.budget, arm.tail))
            if arms:
                found |= {trial.choice: trial for trial in self._run(trace, arms, "refining")}
        return list(found.values())

    def reference(self, trace: Trace) -> Trial:
        """Return the trial of server_only."""
        return self._run(trace, [Arm("server_only", 1.0, 0.0)], "searching")[0]

    def recorded(self, trace: Trace, *, moves: bool = False) -> Trial:
        """Return the trial of a recording's own starts; with `moves`, answers move if some of the recorded did."""
        arm = Arm(RECORDED, 1.0, 0.0)
        if moves and trace.features["moved"].any():
            return self.exact(trace, [arm], self.scenario.pace_tps, self.exchange_rate)[0]
        return self._run(trace, [arm], "searching")[0]

    def exact(
        self, trace: Trace, arms: Sequence[Arm], pace_tps: float | None, exchange_rate: float
    ) -> list[Trial]:
        """Run arms through the real session, with migrations."""
        moving = [replace(arm, migrate=True) for arm in arms]
        return self._run(trace, moving, "verifying", "events", pace_tps, exchange_rate)

    def steering_rates(self) -> tuple[float, ...]:
        """Return a λ under which the other side is more expensive; empty if the device's FLOPs are not known."""
        flops, server = self.scenario.device.flops, self.scenario.server_rates
        server_usd = max(server.cost_in, server.cost_out)
        if flops is None or server_usd == 0:
            return ()
        work = flops.decode, flops.prefill_at(128.0)
        threshold = server_usd * 1e6 / min(work)  # from here on the device is more expensive
        if self.exchange_rate <= threshold:
            return (threshold * 2,)
        return (min(server.cost_in, server.cost_out) * 1e6 / max(work) / 2,)

    def _run(
        self,
        trace: Trace,
        arms: Sequence[Arm],
        what: str,
        evaluator: EvaluatorName = "vectorised",
        pace_tps: float | None = FIRST_PACE,
        exchange_rate: float | None = None,
    ) -> list[Trial]:
        rate = self.exchange_rate if exchange_rate is None else exchange_rate
        scenario = replace(self.scenario, pace_tps=pace_tps)
        if rate != self.exchange_rate:
            rates = device_rates(scenario.device, ExchangeRate(usd_per_mflop=rate))
            scenario = replace(scenario, device_rates=rates)
        cells = sweep(
            trace,
            [scenario],
            arms,
            seeds=(self.seed,),
            evaluator=evaluator,
            executor=self.executor,
            progress=lambda done, total: self.tell(what, done, total),
            oracle=False,
        )
        answer_tokens = _answer_tokens(trace, scenario)
        return [
            self._trial(cell, PresetChoice(cell.arm, rate, pace_tps), scenario, answer_tokens)
            for cell in cells
        ]

    def _trial(self, cell: Cell, choice: PresetChoice, steered: Scenario, answer_tokens: float) -> Trial:
        summary = cell.summary
        usd = {"device": 0.0, "server": 0.0}
        for key, each in summary.cost_by.items():
            usd[key.partition("/")[0]] += each
        # Energy cost is linear in λ, so the cost at the user's λ follows from the cost at the other λ.
        if steered.device_rates.cost_out > 0:
            usd["device"] *= self.scenario.device_rates.cost_out / steered.device_rates.cost_out
        reading = summary.reading
        cost_usd = usd["device"] + usd["server"]
        may_save_usd = _may_save(cell, self.scenario, answer_tokens) if reading is None else 0.0
        return Trial(
            choice=choice,
            ttft_mean_s=summary.ttft_mean_s.mean,
            ttft_p50_s=summary.ttft_p50_s.mean,
            ttft_p90_s=summary.ttft_p90_s.mean,
            by_device=summary.device_won.mean,
            ttft_p99_s=summary.ttft_p99_s.mean,
            server_usd=usd["server"],
            device_usd=usd["device"],
            least_usd=cost_usd - may_save_usd,
            qoe=None if reading is None or math.isnan(reading.qoe.mean) else reading.qoe.mean,
            late_tokens=None if reading is None else reading.late_tokens.mean,
            requests=summary.requests,
            verified=reading is not None,
        )


def _own_rate(scenario: Scenario, given: float | None) -> float:
    """Return the λ of the scenario's device. A preset with another λ may swap which side is more expensive."""
    profile, rates = scenario.device, scenario.device_rates
    if profile.flops is None:
        if rates.cost_in == rates.cost_out == 0:
            return 0.0  # the device's work is free: any λ is right
        raise ConfigurationError(
            f"the exchange rate of {scenario.name!r} cannot be computed: its device costs {rates.cost_out:.3g} USD per "
            "token, and its profile does not say how many FLOPs a token takes. Name a device profile with "
            "[flops] (--device), or describe the device's price (--exchange-rate)"
        )
    rate = rates.cost_out * 1e6 / profile.flops.decode
    if given is not None:
        if not math.isclose(given, rate, rel_tol=1e-6):
            raise ConfigurationError(
                f"the device of {scenario.name!r} is priced at {rate:.3g} USD per 10^6 FLOPs and not at {given:.3g}; "
                "leave exchange_rate out, or price the device at that rate"
            )
        rate = given
    priced = device_rates(profile, ExchangeRate(usd_per_mflop=rate))
    if regime(priced, scenario.server_rates) != regime(rates, scenario.server_rates):
        raise ConfigurationError(
            f"at the exchange rate of {scenario.name!r} the profile {profile.name!r} is not on the same side of the "
            "server's price as the device that was recorded; name the profile of that device (--device), or describe "
            "its price (--exchange-rate)"
        )
    return rate


def _answer_tokens(trace: Trace, scenario: Scenario) -> float:
    """Return the mean length of an answer under the scenario's limit, tokens."""
    limit = np.inf if scenario.max_tokens is None else scenario.max_tokens
    return float(np.clip(trace.output_tokens, 1, limit).mean())


def _may_save(cell: Cell, scenario: Scenario, answer_tokens: float) -> float:
    """Return what migrations could save at most, USD per request: the expensive side's answers at the cheap price."""
    device, server = scenario.device_rates.cost_out, scenario.server_rates.cost_out
    expensive, continues = (
        ("device", scenario.server_continues) if device > server else ("server", scenario.device_continues)
    )
    if not continues or device == server:
        return 0.0
    # Of the cost of answers there, prompts included, no more than this was for writing.
    writing_usd = min(
        cell.summary.cost_by.get(f"{expensive}/answer", 0.0), answer_tokens * max(device, server)
    )
    return writing_usd * (1.0 - min(device, server) / max(device, server))


def _grid(policy: str, budgets: Sequence[float]) -> list[Arm]:
    if is_budgetless(policy):
        return [Arm(policy, 1.0, 0.0)]
    tails = TAILS if policy in TAILED else (0.0,)
    return [Arm(policy, budget, tail) for budget, tail in itertools.product(budgets, tails)]


def _neighbours(arm: Arm, step: float) -> list[Arm]:
    """Return the arm with slightly more and slightly less budget and tail."""
    if is_budgetless(arm.policy):
        return []
    budgets = {round(min(1.0, max(0.0, arm.budget + by)), 6) for by in (-step, 0.0, step)}
    tails = {arm.tail}
    if arm.policy in TAILED:
        tails |= {round(arm.tail * factor, 6) for factor in (0.5, 1.5) if arm.tail * factor < 1.0}
    return [replace(arm, budget=b, tail=t) for b, t in itertools.product(sorted(budgets), sorted(tails))]


def _shortlist(trials: Sequence[Trial], aim: TuningObjective, reference: Trial) -> list[Trial]:
    """Return the best trials that may keep to the limits, the best that do for certain, and the cheapest of all."""
    hoping = aim.ranked([t for t in trials if aim.keeps(t, reference, hoping=True)])
    sure = aim.ranked([t for t in trials if aim.keeps(t, reference)])
    cheapest = min(trials, key=lambda t: t.cost_usd)
    return list(dict.fromkeys([*hoping[:BEST], *sure[:BEST], cheapest]))


def _thin(trace: Trace, most: int) -> Trace:
    """Keep every k-th request, so that at most `most` remain; all times of day stay covered."""
    step = -(-len(trace) // most)
    if step <= 1:
        return trace
    columns = {
        f.name: getattr(trace, f.name)[::step]
        for f in fields(trace)
        if isinstance(getattr(trace, f.name), np.ndarray)
    }
    return replace(trace, **columns, gaps=None, features={n: v[::step] for n, v in trace.features.items()})
