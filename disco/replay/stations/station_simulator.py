"""Sessions of a whole workload on any number of stations, in virtual time, token by token.

Session, playback, breakers and ledger are those that run live. `_Replay._session` and `_Replay._note` hold all calls
to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.cost import Phase
from disco.dispatch import Dispatcher, Features
from disco.dispatch.breakers.endpoint_health import Asked, Health, HealthWatch
from disco.errors import ConfigurationError, NoEndpointError
from disco.plan import ReleaseUnit
from disco.playback import Pace, playback_for
from disco.replay.simulator.device_queue import SharedDevice
from disco.replay.simulator.reader_columns import Readings
from disco.replay.simulator.virtual_driver import Player, Shared, run_together
from disco.replay.stations.as_live import AsLive, LiveAnswers
from disco.replay.stations.station import Station, check_stations
from disco.replay.stations.station_outcome import StationOutcome
from disco.replay.stations.station_planning import HoldsBudget, PlanFunction, Planner, planner_of
from disco.replay.stations.station_scripts import Answers
from disco.replay.stations.station_workload import StationWorkload
from disco.request import Timeouts
from disco.session.attempt.attempt_state import AttemptOutcome, Role
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["ExampleOf", "Setting", "answer_lengths", "simulate_stations", "writers"]

ExampleOf = Callable[[Session], tuple[str, ...] | None]
"""Returns the kind of example that a closed session is; None: it is no example."""

Setting = Callable[[float, tuple[Candidate, ...]], tuple[Candidate, ...]]
"""Returns the stations as they are when a request arrives, at that time in s, given how they are otherwise."""

_NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
_SILENCES = Timeouts(
    connect_s=None, first_content_s=30.0, gap_s=15.0, total_s=None
)  # after which a fault is noticed
_PROGRESS_EVERY = 64
_HOLD_S: Mapping[ReleaseUnit, float] = {
    "word": 0.3,
    "sentence": 2.0,
}  # as in the presets `balanced` and `speech`
_MOST_EXAMPLES = 32  # each example holds the timelines of an answer
MOST_TOKENS = 1_000_000  # of an answer: more is taken for a mistake in the trace, and would run for hours


class _Answered(Protocol):
    """A workload, either of stations or of a device and a server."""

    @property
    def answer_tokens(self) -> NDArray[np.int64]: ...
    @property
    def max_tokens(self) -> int | None: ...


def answer_lengths(workload: _Answered) -> AnswerLengths:
    """Return the answer lengths for the migration rule; answers at the limit count as longer than the limit."""
    tokens, limit = workload.answer_tokens.ravel(), workload.max_tokens
    if limit is None:
        return AnswerLengths.from_samples(tokens.tolist())
    ended = tokens[tokens < limit]
    if not ended.size:
        # No answer was seen to end, so lengths are far above the limit: assume a geometric distribution.
        return AnswerLengths.geometric(float(tokens.sum())).capped(limit)
    lengths = AnswerLengths.from_samples(ended.tolist(), tokens[tokens >= limit].tolist())
    return lengths.capped(limit)


def writers(session: Session) -> tuple[str, ...] | None:
    """Return the names of the endpoints that wrote an answer, in order; None if there was only one."""
    names = tuple(segment.writer.candidate.name for segment in session.transcript.segments)
    return names if len(names) > 1 else None


def simulate_stations(
    workload: StationWorkload,
    stations: Sequence[Station],
    plan: AsLive | Dispatcher | PlanFunction | Planner,
    *,
    pace_tps: float | None = 4.8,
    release: ReleaseUnit = "word",
    timeouts: Timeouts | None = None,
    breakers: bool = True,
    policy: str = "plan",
    setting: Setting | None = None,
    example_of: ExampleOf = writers,
    on_record: Callable[[int, RouteRecord], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> StationOutcome:
    """Run a workload on stations, token by token.

    If no station queues, unloads its model or fails, requests do not affect each other, and each runs by itself, but
    for `AsLive`.
    Otherwise all requests run on one clock in order of arrival and meet at the stations' queues. A station that unloads
    its model has it not loaded at first. A station that keeps failing is left alone as in a live client.

    Args:
        workload: resolved for these stations.
        stations: in the workload's order.
        plan: `AsLive` follows a whole preset as a live client does: plans, judges, budgets and pace. A dispatcher plans
            as in a live client (it knows the cheapest endpoint on the device and the cheapest one elsewhere, and falls
            back to the others); a function plans freely; see `Planner` for a planner that needs the number of the
            request.
        pace_tps: the reader's pace, tokens/s; None: text is passed on when it arrives. Not used with `AsLive`, whose
            preset has one.
        release: what text leaves by, where there is a pace; not used with `AsLive`.
        timeouts: timeouts of each attempt; None: if stations may fail, those of a live client without the one for the
            whole answer; if nothing fails, no timeouts, so that the slowest station is waited for.
        breakers: stations that keep failing are left alone.
        policy: name of the planner in records; with `AsLive` it is the preset's.
        setting: changes the stations' prices and what else plans know of them, by time; called once for each request,
            in order of arrival, before it is planned. All requests then run on one clock.
        example_of: selects the sessions that are kept as examples.
        on_record: called with the row and the record of every answer when it ends; not called for requests that no
            station could serve.
        progress: called from time to time with the number of complete answers and the total.

    Raises:
        ConfigurationError: stations and workload do not match, an answer has more than a million tokens, or a plan
            names an unknown station.
    """
    pace = None if pace_tps is None else Pace(pace_tps, _HOLD_S[release], release)
    replay = _Replay(workload, stations, plan, pace, timeouts, policy, breakers=breakers, setting=setting)
    return replay.run(example_of, on_record, progress)


def _check_lengths(workload: StationWorkload) -> None:
    longest = workload.answer_tokens.reshape(len(workload), -1).max(axis=1)
    if longest.max() > MOST_TOKENS:
        row = int(longest.argmax())
        raise ConfigurationError(
            f"request {row + 1} has an answer of {longest[row]:,} tokens; answers are run token by token, up to "
            f"{MOST_TOKENS:,}; limit answers with max_tokens (--max-tokens)"
        )


class _Tally:
    """What one station was charged for, by request. Lists, because writing an element costs a tenth of an array's."""

    __slots__ = ("cached", "column", "completion", "cost_usd", "failures", "prompt", "started")

    def __init__(self, requests: int, column: int) -> None:
        self.column = column
        self.started, self.prompt, self.completion, self.cached, self.failures = (
            [0] * requests for _ in range(5)
        )
        self.cost_usd = [0.0] * requests


class _Replay:
    """One run. Mutable: the columns of its outcome, filled when answers end."""

    def __init__(
        self,
        workload: StationWorkload,
        stations: Sequence[Station],
        plan: AsLive | Dispatcher | PlanFunction | Planner,
        pace: Pace | None,
        timeouts: Timeouts | None,
        policy: str,
        *,
        breakers: bool,
        setting: Setting | None,
    ) -> None:
        self.stations = check_stations(stations)
        names = tuple(station.name for station in self.stations)
        if names != workload.names:
            raise ConfigurationError(
                f"the workload was resolved for the stations {', '.join(workload.names)}, not for {', '.join(names)}; "
                "resolve it again for these stations"
            )
        workload.check()
        _check_lengths(workload)
        self.workload = workload
        self.lengths = answer_lengths(workload)
        self.live: LiveAnswers | None = None
        self.planner: Planner | None = None
        self.budget: HoldsBudget | None = None
        self.exchange_rate: float | None = None
        if isinstance(plan, AsLive):
            self.live = LiveAnswers.of(plan, workload, self.stations, self.lengths)
            pace, policy = self.live.pace, plan.preset.name
            self.exchange_rate = plan.preset.cost.exchange_rate
        else:
            self.planner = planner = planner_of(plan)
            self.budget = planner if isinstance(planner, HoldsBudget) else None
        self.policy = policy
        self.setting = setting
        self.warm = tuple(station.candidate() for station in self.stations)
        self.cold = tuple(station.candidate(cold=True) for station in self.stations)
        self.by_name = {candidate.name: candidate for candidate in self.warm}
        self.devices: dict[str, SharedDevice] = {
            station.name: device for station in self.stations if (device := station.device()) is not None
        }
        self.answers = Answers(workload, self.stations, reads_as_live=self.live is not None)
        self.pace, self.pace_tps = pace, None if pace is None else pace.tps
        fails = any(station.fault is not None for station in self.stations)
        self.timeouts = timeouts or (_SILENCES if fails else _NO_CLOCKS)
        self.health = Health() if fails and breakers else None
        n = len(workload)
        self.ttft_s: NDArray[np.float64] = np.full(n, math.nan)
        self.total_usd = np.zeros(n)
        self.winner = np.full(n, -1)
        self.answer_tokens, self.migrations = (np.zeros(n, dtype=np.int64) for _ in range(2))
        self.tallies = {name: _Tally(n, column) for column, name in enumerate(names)}
        self.cost_by: dict[tuple[str, Phase], float] = {}
        self.failed = np.zeros(n, dtype=np.bool_)
        self.readings = Readings(n, self.pace_tps)
        self.examples: dict[tuple[str, ...], RouteRecord] = {}

    def run(
        self,
        example_of: ExampleOf,
        on_record: Callable[[int, RouteRecord], None] | None,
        progress: Callable[[int, int], None] | None,
    ) -> StationOutcome:
        """Play all requests and return their outcome."""
        n = len(self.workload)
        # What a client keeps from one answer to the next depends on which of them overlap.
        apart = not self.devices and self.health is None and self.setting is None and self.live is None
        ended = self._one_by_one() if apart else self._together()
        for done, (row, session) in enumerate(ended, 1):
            if session is None:
                self.failed[row] = True
            else:
                self._note(row, session, example_of, on_record)
            if progress is not None and (done % _PROGRESS_EVERY == 0 or done == n):
                progress(done, n)
        return StationOutcome(
            names=self.workload.names,
            ttft_s=self.ttft_s,
            winner=self.winner,
            request_tokens=self.workload.prompt_tokens,
            answer_tokens=self.answer_tokens,
            started_tokens=self._column("started"),
            prompt_tokens=self._column("prompt"),
            completion_tokens=self._column("completion"),
            cached_tokens=self._column("cached"),
            cost_usd=self._column("cost_usd"),
            migrations=self.migrations,
            failures=self._column("failures"),
            failed=self.failed,
            total_usd=self.total_usd,
            cost_by=self.cost_by,
            reading=self.readings.reading(),
            examples=self.examples,
        )

    def _column(self, name: str) -> NDArray[Any]:
        """Return the stations' tallies of that name; shape (n, k)."""
        return np.array([getattr(tally, name) for tally in self.tallies.values()]).T.copy()

    def _one_by_one(self) -> Iterator[tuple[int, Session | None]]:
        for row in range(len(self.workload)):
            session = self._session(row, self.warm, None)
            if session is not None:
                player = Player(session, self.answers.of(row))
                player.run(0.0)
                player.forget()
            yield row, session

    def _together(self) -> Iterator[tuple[int, Session | None]]:
        health, devices = self.health, self.devices
        shared = Shared()
        rows: dict[Session, tuple[int, HealthWatch | None]] = {}
        refused: list[int] = []
        keys = {name: Asked(name, "") for name in self.workload.names}

        def player(row: int, at: float) -> Player | None:
            watch = None if health is None else health.watch(keys)
            session = self._session(row, self._standing(at), watch, at)
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

    def _standing(self, at: float) -> tuple[Candidate, ...]:
        """Return the stations' candidates at a time: with the model loaded or not, in their setting."""
        unloaded = {name for name, device in self.devices.items() if device.is_cold(at)}
        standing = self.warm
        if unloaded:
            standing = tuple(
                cold if cold.name in unloaded else warm
                for warm, cold in zip(self.warm, self.cold, strict=True)
            )
        if self.live is not None:  # a live client knows what waits at its local model
            standing = tuple(
                replace(one, queue_s=device.queue_s)
                if (device := self.devices.get(one.name)) is not None and device.queue_s > 0.0
                else one
                for one in standing
            )
        return standing if self.setting is None else self.setting(at, standing)

    def _session(
        self, row: int, candidates: tuple[Candidate, ...], watch: HealthWatch | None, at: float = 0.0
    ) -> Session | None:
        """Plan a request and return its session; None if no station may serve it."""
        if self.live is not None:
            return self.live.session(row, candidates, watch, self.timeouts, at)
        assert self.planner is not None
        prompt_tokens = self.answers.prompt_tokens[row]
        max_tokens = self.workload.limit_of(row)
        counted = {one.name: prompt_tokens for one in candidates}
        features = Features(prompt_tokens=prompt_tokens, max_tokens=max_tokens, counted=counted)
        resting, probing = ({}, ()) if watch is None else watch.look(at)
        try:
            plan = self.planner.plan_row(row, features, candidates, resting=resting, probing=probing)
        except NoEndpointError:
            return None
        if watch is not None:
            watch.claim(plan, at)
        config = SessionConfig(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            may_be_empty=True,  # if the trace says so, at every endpoint
            pace_tps=self.pace_tps,
            timeouts=self.timeouts,
        )
        by_name = self.by_name if candidates is self.warm else {c.name: c for c in candidates}
        return Session(plan, by_name, config, playback_for(self.pace), self.lengths, watch)

    def _note(
        self,
        row: int,
        session: Session,
        example_of: ExampleOf,
        on_record: Callable[[int, RouteRecord], None] | None,
    ) -> None:
        """Add the outcome of a request to the columns."""
        tallies = self.tallies
        t0 = session.started_at
        released = session.transcript.released
        times_s = np.fromiter(released.at, np.float64, len(released)) - t0
        if released.tokens.count(1) < len(released):
            times_s = np.repeat(times_s, released.tokens)
        if times_s.size:
            self.ttft_s[row] = times_s[0]
        first = session.transcript.first_writer
        if first is not None:
            self.winner[row] = tallies[first.candidate.name].column
        self.answer_tokens[row] = session.transcript.tokens
        for state in session.attempts:
            if state.role is Role.STARTER and state.usage is not None and state.usage.prompt_tokens:
                tallies[state.candidate.name].started[row] = session.config.prompt_tokens
            if state.outcome is AttemptOutcome.FAILED:
                tallies[state.candidate.name].failures[row] += 1
        if session.migrations:
            self.migrations[row] = sum(h.outcome == "switched" for h in session.migrations)
        if self.budget is not None:
            self.budget.settle(session.plan.spend, {state.candidate.place for state in session.attempts})
        ledger = settle_accounts(session)
        if self.live is not None:
            self.live.answered(session, ledger, session.ending.closed_at or t0)
        self.total_usd[row] = math.fsum(charge.policy_cost for charge in ledger.charges)
        for charge in ledger.charges:
            if not charge.prompt_tokens + charge.completion_tokens:
                continue
            tally = tallies.get(charge.endpoint)
            if tally is not None:  # None: a drafter that is no station
                tally.prompt[row] += charge.prompt_tokens
                tally.completion[row] += charge.completion_tokens
                tally.cached[row] += charge.cached_tokens
                tally.cost_usd[row] += charge.policy_cost
            key = charge.endpoint, charge.phase
            self.cost_by[key] = self.cost_by.get(key, 0.0) + charge.policy_cost
        self.failed[row] = session.error is not None
        self.readings.add(row, session, times_s)
        kind = example_of(session)
        if kind in self.examples or len(self.examples) >= _MOST_EXAMPLES:
            kind = None
        if kind is not None or on_record is not None:
            record = make_record(session, ledger, preset=self.policy, exchange_rate=self.exchange_rate)
            if kind is not None:
                self.examples[kind] = record
            if on_record is not None:
                on_record(row, record)
