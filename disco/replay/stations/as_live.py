"""A preset followed as by a live client: its plans, judges, budgets and pace. Dispatch and session are the live ones.

Live, a client learns the endpoints' times and the lengths of answers as it goes. A replay knows them from the
beginning. The state of the machine ([power]) is not replayed, and the prompt that an heir reads is not refined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from disco.candidate import Candidate
from disco.cost import Ledger
from disco.cost.budget_limiter import BudgetLimiter
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch import Dispatcher, Features, Preset
from disco.dispatch.answer_judging import Judging
from disco.dispatch.breakers.endpoint_health import HealthWatch
from disco.dispatch.policies.policy_registry import CASCADE
from disco.dispatch.within_budget import within_budget
from disco.errors import BudgetExceededError, ConfigurationError, NoEndpointError
from disco.judging import HistoryStore
from disco.playback import Pace, playback_for
from disco.profiles import Empirical, Lengths, LinearFit
from disco.replay.stations.station import Station
from disco.replay.stations.station_workload import StationWorkload
from disco.request import Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["AsLive", "LiveAnswers"]


@dataclass(frozen=True, slots=True)
class AsLive:
    """A preset, and what a client keeps from one answer to the next: plans, histories of scores, budgets.

    Attributes:
        preset: followed in all its parts but [power]. A cascade cannot aim at "bytes": a replay knows none.
        histories: of an earlier run; None: the first answer is compared with nothing. Nothing is saved there.
        seed: of the policy's draws.
        epoch_s: Unix time at arrival 0, s, for budgets by calendar period.
    """

    preset: Preset
    histories: HistoryStore | None = None
    seed: int = 0
    epoch_s: float = 0.0

    def __post_init__(self) -> None:
        cascade = self.preset.cascade
        if self.preset.dispatch.policy == CASCADE and cascade.aim == "bytes":
            raise ConfigurationError(
                f'the cascade of the preset {self.preset.name!r} aims at "bytes", and a replay knows no bytes; '
                'choose aim = "share" or "money"'
            )


@dataclass(slots=True)
class LiveAnswers:
    """Makes the sessions of one replay, as a client does. Mutable: what the judges, budgets and plans keep."""

    preset: Preset
    dispatcher: Dispatcher
    workload: StationWorkload
    lengths: AnswerLengths
    models: Mapping[str, str]
    judging: Judging
    epoch_s: float
    limiter: BudgetLimiter = field(default_factory=BudgetLimiter)

    @classmethod
    def of(
        cls, as_live: AsLive, workload: StationWorkload, stations: Sequence[Station], lengths: AnswerLengths
    ) -> LiveAnswers:
        """Return what a replay of these requests on these stations needs."""
        dispatcher = Dispatcher(
            as_live.preset,
            lengths=Lengths.from_samples(workload.prompt_tokens),
            ttft=_planned_ttft(workload, stations),
            rng=np.random.default_rng(as_live.seed),
            answers=lengths.capped,
            holds_budget=True,
        )
        return cls(
            as_live.preset,
            dispatcher,
            workload,
            lengths,
            {station.name: station.model for station in stations},
            Judging(as_live.histories),
            as_live.epoch_s,
        )

    @property
    def pace(self) -> Pace | None:
        """The reader's pace under the preset; None: text is passed on as it comes."""
        playback = self.preset.playback
        if playback.pace_tps == "off":
            return None
        return Pace(float(playback.pace_tps), playback.max_hold_s or 1e-3, playback.release)

    def session(
        self,
        row: int,
        candidates: Sequence[Candidate],
        watch: HealthWatch | None,
        timeouts: Timeouts,
        at: float,
    ) -> Session | None:
        """Plan a request that arrives at `at`, and return its session; None where nothing may serve it."""
        preset, workload, pace = self.preset, self.workload, self.pace
        pace_tps = None if pace is None else pace.tps
        prompt_tokens, classes = int(workload.prompt_tokens[row]), workload.classes
        max_tokens = workload.limit_of(row)
        features = Features(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            divided_at_tps=pace_tps,
            class_tokens=int(workload.answer_tokens[row].max()) if classes else None,
            counted={one.name: prompt_tokens for one in candidates},
        )
        by_name = {c.name: c for c in candidates}
        resting, probing = ({}, ()) if watch is None else watch.look(at)
        reservation = self._reservation(candidates, prompt_tokens, max_tokens)
        try:
            plan = self.dispatcher.plan(features, candidates, {}, resting=resting, probing=probing)
        except NoEndpointError:
            return None
        if reservation is not None:
            try:
                plan = within_budget(
                    plan, by_name, reservation, at, known=tuple(by_name), prompt_tokens=prompt_tokens
                )
            except BudgetExceededError:
                self.dispatcher.settle(plan.spend, ())
                return None
        task = workload.tasks[row] if workload.tasks else None
        plan, judge = self.judging.judged(plan, preset, self.models.__getitem__, task=task, classes=classes)
        if watch is not None:
            watch.claim(plan, at)
        config = SessionConfig(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            may_continue=not classes,
            may_be_empty=True,  # if the trace says so, at every endpoint
            pace_tps=pace_tps,
            timeouts=timeouts,
            is_hedged=True,
        )
        agreement = self.judging.agreement(plan, preset, self.models.__getitem__, task=task)
        return Session(
            plan,
            by_name,
            config,
            playback_for(pace),
            self.lengths,
            watch,
            reservation,
            judge,
            agreement,
        )

    def answered(self, session: Session, ledger: Ledger, at: float) -> None:
        """Learn from a closed answer: settle its budgets and the policy's, and what it has cost."""
        if session.reservation is not None:
            session.reservation.close(at)
        self.judging.answered(session.plan, self.preset, (), ledger.totals().bill_usd)
        self.dispatcher.settle(session.plan.spend, {state.candidate.place for state in session.attempts})

    def _reservation(
        self, candidates: Sequence[Candidate], prompt_tokens: int, max_tokens: int | None
    ) -> BudgetReservation | None:
        limits = self.preset.limits
        if not limits.budgets:
            return None
        return BudgetReservation(
            self.limiter,
            limits.budgets,
            {c.name: c.payers for c in candidates},
            prompt_tokens,
            max_tokens=max_tokens,
            unreported=limits.unreported,
            offset_s=self.epoch_s,
        )


def _planned_ttft(workload: StationWorkload, stations: Sequence[Station]) -> Empirical:
    """Return the TTFT that policies plan with: that of the cheapest server, backups aside, as in a live client."""
    timed = [
        (station.rates.cost_out, station.rates.cost_in, column)
        for column, station in enumerate(stations)
        if not (station.standby or isinstance(station.ttft, LinearFit))
    ]
    column = min(timed)[-1] if timed else 0
    return Empirical.from_samples(workload.ttft_s[:, column])
