"""Event-accurate evaluator: the dispatcher, session, playback and ledger of a live client, in virtual time.

In addition to the vectorised evaluator it covers answers that migrate, what readers get token by token, a device that
other requests keep busy, models that have to be loaded, and endpoints that fail. A device and a server are two
stations; `replay.stations` runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from disco.candidate import Candidate
from disco.dispatch import Dispatcher, Preset
from disco.dispatch.policies.policy import Delays, Policy
from disco.dispatch.presets import MigrationSection
from disco.dispatch.request_features import Features
from disco.dispatch.two_sided import TwoSided
from disco.plan import CoolDown, Plan, Start
from disco.replay.metrics.outcome import Outcome
from disco.replay.stations import Station, StationWorkload, simulate_stations
from disco.replay.stations.station_simulator import answer_lengths
from disco.replay.vector.arm_delays import ORACLE, RECORDED, arm_delays, arm_policy
from disco.replay.workload.scenario import DEVICE, SERVER, Arm, Scenario, Workload
from disco.session.machine import Session

__all__ = ["answer_lengths", "as_stations", "simulate"]

_FAULT_STREAM, _AGAIN_STREAM = 13, 11  # different from those of `scenario.resolve` and of the policies
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

    Without `device_slots`, `idle_unload_s` and faults, requests do not affect each other, and each runs by itself.
    With `device_slots` or `idle_unload_s`, all requests run on one clock and meet at the device in order of arrival;
    the first one finds the device's model not loaded. If endpoints may fail, all requests run on one clock, too, and
    an endpoint that keeps failing is left alone as in a live client (but not by the arms "oracle" and "recorded",
    whose starts are given). Requests then have the timeouts that a live client has by default, except the one for the
    whole answer. If nothing fails there are no timeouts, so that the trace's slowest server is waited for.

    Args:
        workload: resolved for the same scenario.
        scenario: device, server and reader.
        arm: the policy and its numbers.
        seed: seed of the policy's own random draws, and of everything after first attempts.
        progress: called from time to time with the number of complete answers and the total.

    Raises:
        ConfigurationError: the arm cannot be planned for this workload, a model has to be loaded whose load time is not
            known, or answers are to be drafted in a scenario without a pair.
    """
    stations, columns = as_stations(workload, scenario, seed=seed, drafts=arm.drafts)
    planner = _ArmPlanner(workload, scenario, arm, seed)
    out = simulate_stations(
        columns,
        stations,
        planner,
        pace_tps=scenario.pace_tps,
        release=scenario.release,
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
    workload: Workload, scenario: Scenario, *, seed: int, drafts: bool = False
) -> tuple[tuple[Station, Station], StationWorkload]:
    """Return the same device, server and requests for a replay of any number of stations.

    Args:
        workload: resolved for the scenario.
        scenario: device, server and reader.
        seed: seed of faults, and of everything after first attempts.
        drafts: the server verifies what the device drafts.
    """
    stations = scenario.stations(drafts=drafts)
    levels_by_station = np.random.default_rng([seed, _FAULT_STREAM]).random((2, len(workload)))
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
                np.zeros(len(workload), dtype=np.bool_) if s.fault is None else levels < s.fault.probability
                for s, levels in zip(stations, levels_by_station, strict=True)
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
    return _MOVED if any(h.outcome == "switched" for h in session.migrations) else None


class _DelayedStarts:
    """A policy whose decisions are given. Mutable: `row`, the number of the request that is planned next."""

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
    """Return a dispatcher that plans as in a live client, under the policy of an arm."""
    preset = Preset(migration=MigrationSection(enabled=arm.migrate, order=arm.order))
    lengths, ttft = scenario.planning_lengths(workload.prompt_tokens), scenario.ttft
    rng = np.random.default_rng(0)  # unused: the policy has its own generator
    arranging = TwoSided(preset.dispatch, lengths=lengths, ttft=ttft, rng=rng, policy=policy)
    return Dispatcher(preset, lengths=lengths, ttft=ttft, rng=rng, arranging=arranging)


class _ArmPlanner:
    """Plan under an arm. For the arms "oracle" and "recorded" the number of the request matters."""

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
