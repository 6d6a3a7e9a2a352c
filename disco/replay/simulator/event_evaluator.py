"""The event-accurate evaluator: the dispatcher, session, playback and ledger that run live, in virtual time.

What it adds to the vectorised one: answers that move in mid-sentence, what readers get token by token, a device
that others keep busy, models that have to be loaded, and endpoints that fail. A device and a server are two stations:
what plays them is `replay.stations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from disco.dispatch import Dispatcher, Preset
from disco.dispatch.policies.policy import Delays, Policy
from disco.dispatch.presets import MigrationSection
from disco.dispatch.request_features import Features
from disco.dispatch.two_sided import TwoSided
from disco.plan import Candidate, CoolDown, Plan, Start
from disco.replay.metrics.outcome import Outcome
from disco.replay.stations import Station, StationWorkload, simulate_stations
from disco.replay.stations.station_simulator import answer_lengths
from disco.replay.vector.arm_delays import ORACLE, RECORDED, arm_delays, arm_policy
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Scenario, Workload
from disco.session.machine import Session

__all__ = ["answer_lengths", "as_stations", "simulate"]

_FAULT_STREAM, _AGAIN_STREAM = 13, 11  # apart from those of `scenario.resolve` and of the policies
_MOVED = ("moved",)


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
    stations, columns = as_stations(workload, scenario, seed=seed)
    planner = _ArmPlanner(workload, scenario, arm, seed)
    out = simulate_stations(
        columns,
        stations,
        planner,
        pace_tps=scenario.pace_tps,
        breakers=planner.delayed is None,
        policy=arm.policy,
        example_of=_moved,
        progress=progress,
    )
    device, server = out.started_tokens.T
    return Outcome(
        ttft_s=out.ttft_s,
        device_won=out.winner == out.names.index(DEVICE),
        prompt_tokens=out.request_tokens,
        device_prompt_tokens=device.copy(),
        server_prompt_tokens=server.copy(),
        cost_usd=out.total_usd,
        cost_by=out.cost_by,
        failed=out.failed,
        reading=out.reading,
        example=out.examples.get(_MOVED),
    )


def as_stations(
    workload: Workload, scenario: Scenario, *, seed: int
) -> tuple[tuple[Station, Station], StationWorkload]:
    """The same device, server and requests for a replay of any number of stations.

    Args:
        workload: resolved for the scenario.
        scenario: where.
        seed: of faults, and of what happens after first attempts.
    """
    stations = scenario.stations()
    lucks = np.random.default_rng([seed, _FAULT_STREAM]).random((2, len(workload)))
    cached = workload.device_cached_tokens
    columns = StationWorkload(
        names=(DEVICE, SERVER),
        arrival_s=workload.arrival_s,
        prompt_tokens=workload.prompt_tokens,
        answer_tokens=workload.answer_tokens,
        ttft_s=np.stack([workload.device_ttft_s, workload.server_ttft_s], axis=1),
        tpot_s=np.stack([workload.device_tpot_s, workload.server_tpot_s], axis=1),
        faulty=np.stack(
            [
                np.zeros(len(workload), dtype=np.bool_) if s.fault is None else luck < s.fault.probability
                for s, luck in zip(stations, lucks, strict=True)
            ],
            axis=1,
        ),
        again=((seed, _AGAIN_STREAM),) * 2,
        max_tokens=workload.max_tokens,
        gaps={} if workload.gaps is None else {SERVER: workload.gaps},
        cached_tokens=None if cached is None else np.stack([cached, np.zeros_like(cached)], axis=1),
    )
    return stations, columns


def _moved(session: Session) -> tuple[str, ...] | None:
    return _MOVED if any(h.outcome == "switched" for h in session.migrations_run) else None


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


def _dispatcher(policy: Policy, workload: Workload, scenario: Scenario, arm: Arm) -> Dispatcher:
    """Plans as it does live, under the policy of an arm."""
    preset = Preset(migration=MigrationSection(enabled=arm.migrate, order=arm.order))
    lengths, ttft = scenario.planning_lengths(workload.prompt_tokens), scenario.ttft
    rng = np.random.default_rng(0)  # the policy brings its own
    arranging = TwoSided(preset.dispatch, lengths=lengths, ttft=ttft, rng=rng, policy=policy)
    return Dispatcher(preset, lengths=lengths, ttft=ttft, rng=rng, arranging=arranging)


class _ArmPlanner:
    """Plans under an arm; the arms "oracle" and "recorded" know which request it is."""

    def __init__(self, workload: Workload, scenario: Scenario, arm: Arm, seed: int) -> None:
        self.delayed: _DelayedStarts | None = None
        policy: Policy
        if arm.policy in (ORACLE, RECORDED):
            policy = self.delayed = _DelayedStarts(arm_delays(workload, scenario, arm, seed=seed))
        else:
            policy = arm_policy(scenario, arm, workload.prompt_tokens, seed=seed)
        self.dispatcher = _dispatcher(policy, workload, scenario, arm)

    def plan_row(
        self,
        row: int,
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        """See `stations.Planner`."""
        if self.delayed is not None:
            self.delayed.row = row
        return self.dispatcher.plan(features, candidates, {}, resting=resting, probing=probing)
