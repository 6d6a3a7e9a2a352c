"""The event-accurate evaluator: the dispatcher, session, playback and ledger that run live, in virtual time.

What it adds to the vectorised one: answers that move in mid-sentence, what readers get token by token, a device
that others keep busy, models that have to be loaded, and endpoints that fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from disco.cost import Phase
from disco.dispatch import Dispatcher, Preset
from disco.dispatch.base import Delays, Policy
from disco.dispatch.features import Features
from disco.dispatch.health import Health, Watch
from disco.dispatch.presets import MigrationSection
from disco.errors import ConfigurationError, NoEndpointError
from disco.plan import Candidate, Start
from disco.playback import Pace, Playback
from disco.replay.answers import Answers
from disco.replay.arms import ORACLE, RECORDED, arm_delays, arm_policy
from disco.replay.device import Device
from disco.replay.outcome import Outcome
from disco.replay.reading import Readings
from disco.replay.scenario import DEVICE, SERVER, Arm, Scenario, Workload
from disco.replay.virtual import Player, Shared, run_together
from disco.request import Timeouts
from disco.session.answer_lengths import AnswerLengths
from disco.session.attempts import Role
from disco.session.billing import settle_accounts
from disco.session.machine import Session, Terms
from disco.session.record import RouteRecord
from disco.session.recording import make_record

__all__ = ["answer_lengths", "simulate"]

_NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
_PROGRESS_EVERY = 64


def simulate(
    workload: Workload,
    scenario: Scenario,
    arm: Arm,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Run an arm on a workload, token by token.

    Without `device_slots`, `idle_unload_s` and faults requests know nothing of each other, and each is run by itself.
    With the first two all run on one clock, meet at the device in order of arrival, and the first finds its model not
    loaded. Where endpoints may fail, all run on one clock, too, and an endpoint that fails again and again is left
    alone as it is live (but not by the arms "oracle" and "recorded", whose starts are given). They then run under the
    clocks that a live client has by default, less the one for the whole answer; where nothing fails there are none, so
    that the trace's slowest server is waited for.

    Args:
        workload: resolved for the same scenario.
        scenario: where.
        arm: what.
        seed: of the policy's own randomness, and of what happens after first attempts.
        progress: is told every now and then how many answers are complete, and how many there are.

    Raises:
        ConfigurationError: the arm cannot be planned here, or a model is to be loaded that nobody knows the load
            time of.
    """
    return _Replay(workload, scenario, arm, seed).run(progress)


def answer_lengths(workload: Workload) -> AnswerLengths:
    """How long answers are, as the migration rule wants it; those at the limit would have been longer."""
    tokens, limit = workload.answer_tokens, workload.max_tokens
    if limit is None:
        return AnswerLengths.from_samples(tokens.tolist())
    ended = tokens[tokens < limit]
    if not ended.size:
        # All that is known is that nobody was seen to stop: far longer than the limit.
        return AnswerLengths.geometric(float(tokens.sum())).capped(limit)
    lengths = AnswerLengths.from_samples(ended.tolist(), tokens[tokens >= limit].tolist())
    return lengths.capped(limit)


class _DelayedStarts:
    """A policy whose decisions are known beforehand. Mutable: `row`, which request is planned next."""

    name = "delays"

    def __init__(self, delays: Delays) -> None:
        self._device_s: list[float] = delays.device_s.tolist()
        self._server_s: list[float] = delays.server_s.tolist()
        self.row = 0

    def starts(
        self,
        features: Features,  # noqa: ARG002 - a policy's signature
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        sides = (device, self._device_s[self.row]), (server, self._server_s[self.row])
        return tuple(Start(c.name, after_s) for c, after_s in sides if c is not None and after_s < math.inf)


class _ReplayDispatcher(Dispatcher):
    """Plans as it does live, under the policy of an arm."""

    __slots__ = ("_policy",)

    def __init__(self, policy: Policy, workload: Workload, scenario: Scenario, arm: Arm) -> None:
        super().__init__(
            Preset(migration=MigrationSection(enabled=arm.migrate, order=arm.order)),
            lengths=scenario.planning_lengths(workload.prompt_tokens),
            ttft=scenario.ttft,
            rng=np.random.default_rng(0),  # the policy brings its own
        )
        self._policy = policy

    def policy_for(self, device: Candidate, server: Candidate) -> Policy:  # noqa: ARG002 - there is one
        return self._policy


class _Replay:
    """One run. Mutable: the columns of its outcome, filled as answers end."""

    def __init__(self, workload: Workload, scenario: Scenario, arm: Arm, seed: int) -> None:
        self.workload = workload
        self.scenario = scenario
        self.arm = arm
        self.answers = Answers(workload, scenario, seed=seed)
        self.lengths = answer_lengths(workload)
        self.delayed: _DelayedStarts | None = None
        policy: Policy
        if arm.policy in (ORACLE, RECORDED):
            policy = self.delayed = _DelayedStarts(arm_delays(workload, scenario, arm, seed=seed))
        else:
            policy = arm_policy(scenario, arm, workload.prompt_tokens, seed=seed)
        self.dispatcher = _ReplayDispatcher(policy, workload, scenario, arm)
        self.warm = scenario.candidates()
        self.cold = self.warm
        self.device: Device | None = None
        if scenario.device_slots is not None or scenario.idle_unload_s is not None:
            load_s = scenario.device.load_s
            if scenario.idle_unload_s is not None and load_s is None:
                raise ConfigurationError(
                    f"idle_unload_s unloads a model, and device {scenario.device.name!r} does not say how long loading "
                    "it takes; add load_s to its profile, or leave idle_unload_s out"
                )
            self.device = Device(
                slots=scenario.device_slots, load_s=load_s or 0.0, idle_unload_s=scenario.idle_unload_s
            )
            # Its answers wait for their turn, and say when that has come.
            self.warm = (replace(self.warm[0], announces=True), self.warm[1])
            self.cold = (replace(self.warm[0], load_s=self.device.load_s), self.warm[1])
        self.pace = None if scenario.pace_tps is None else Pace(scenario.pace_tps)
        fails = scenario.device_fault is not None or scenario.server_fault is not None
        self.timeouts = Timeouts(connect_s=None, total_s=None) if fails else _NO_CLOCKS
        self.health = Health() if fails and self.delayed is None else None
        n = len(workload)
        self.ttft_s: NDArray[np.float64] = np.full(n, math.nan)
        self.device_won = np.zeros(n, dtype=np.bool_)
        self.device_prompt_tokens = np.zeros(n, dtype=np.int64)
        self.server_prompt_tokens = np.zeros(n, dtype=np.int64)
        self.cost_usd = np.zeros(n)
        self.cost_by: dict[tuple[str, Phase], float] = {}
        self.failed = np.zeros(n, dtype=np.bool_)
        self.readings = Readings(n, scenario.pace_tps)
        self.example: RouteRecord | None = None

    def run(self, progress: Callable[[int, int], None] | None) -> Outcome:
        """Play all requests."""
        n = len(self.workload)
        alone = self.device is None and self.health is None
        ended = self._one_by_one() if alone else self._together()
        for done, (row, session) in enumerate(ended, 1):
            if session is None:
                self.failed[row] = True
            else:
                self._note(row, session)
            if progress is not None and (done % _PROGRESS_EVERY == 0 or done == n):
                progress(done, n)
        return Outcome(
            ttft_s=self.ttft_s,
            device_won=self.device_won,
            prompt_tokens=self.workload.prompt_tokens,
            device_prompt_tokens=self.device_prompt_tokens,
            server_prompt_tokens=self.server_prompt_tokens,
            cost_usd=self.cost_usd,
            cost_by=self.cost_by,
            failed=self.failed,
            reading=self.readings.reading(),
            example=self.example,
        )

    def _one_by_one(self) -> Iterator[tuple[int, Session | None]]:
        for row in range(len(self.workload)):
            session = self._session(row, self.warm, None)
            if session is not None:
                player = Player(session, self.answers.of(row))
                player.run(0.0)
                player.forget()
            yield row, session

    def _together(self) -> Iterator[tuple[int, Session | None]]:
        device, health = self.device, self.health
        shared = Shared()
        rows: dict[Session, tuple[int, Watch | None]] = {}
        refused: list[int] = []
        devices = {} if device is None else {DEVICE: device}

        def player(row: int, at: float) -> Player | None:
            watch = None if health is None else health.watch({DEVICE: DEVICE, SERVER: SERVER}, SERVER)
            cold = device is not None and device.is_cold(at)
            session = self._session(row, self.cold if cold else self.warm, watch, at)
            if session is None:
                refused.append(row)
                return None
            rows[session] = row, watch
            return Player(session, self.answers.of(row), shared=shared, devices=devices)

        arrivals = ((at, partial(player, row, at)) for row, at in enumerate(self.workload.arrival_s.tolist()))
        for played in run_together(arrivals, shared):
            row, watch = rows.pop(played.session)
            if watch is not None:
                watch.close()
            yield row, played.session
            played.forget()
        for row in refused:
            yield row, None

    def _session(
        self, row: int, candidates: tuple[Candidate, Candidate], watch: Watch | None, at: float = 0.0
    ) -> Session | None:
        """The session of a request, planned; None when nobody may serve it."""
        workload = self.workload
        prompt_tokens = self.answers.prompt_tokens[row]
        features = Features(prompt_tokens=prompt_tokens, max_tokens=workload.max_tokens)
        if self.delayed is not None:
            self.delayed.row = row
        try:
            if watch is None:
                plan = self.dispatcher.plan(features, candidates, {})
            else:
                resting, probing = watch.look(at)
                plan = self.dispatcher.plan(features, candidates, {}, resting=resting, probing=probing)
                watch.claim(plan, at)
        except NoEndpointError:
            return None
        terms = Terms(
            prompt_tokens=prompt_tokens,
            max_tokens=workload.max_tokens,
            pace_tps=self.scenario.pace_tps,
            timeouts=self.timeouts,
        )
        by_name = {c.name: c for c in candidates}
        return Session(plan, by_name, terms, Playback(self.pace), self.lengths, watch)

    def _note(self, row: int, session: Session) -> None:
        """Write down what became of a request."""
        t0 = session.started_at
        times_s = np.array([at - t0 for at, tokens in session.transcript.released for _ in range(tokens)])
        if times_s.size:
            self.ttft_s[row] = times_s[0]
        first = session.transcript.first_writer
        if first is not None:
            self.device_won[row] = first.candidate.place == "device"
        for state in session.attempts:
            if state.role is Role.STARTER and state.usage is not None and state.usage.prompt_tokens:
                of_side = (
                    self.device_prompt_tokens if state.candidate.name == DEVICE else self.server_prompt_tokens
                )
                of_side[row] = session.terms.prompt_tokens
        ledger = settle_accounts(session)
        self.cost_usd[row] = ledger.total_cost
        for charge in ledger.charges:
            if not charge.prompt_tokens + charge.completion_tokens:
                continue
            key = charge.endpoint, charge.phase
            self.cost_by[key] = self.cost_by.get(key, 0.0) + charge.cost
        self.failed[row] = session.error is not None
        self.readings.add(row, session, times_s)
        if self.example is None and any(h.outcome == "switched" for h in session.handovers):
            self.example = make_record(session, ledger, policy=self.arm.policy)
