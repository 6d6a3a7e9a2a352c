"""The life of one answer as a state machine: events in, effects out, no clock and no I/O.

A driver calls one method per event with the time `now` (seconds on one clock that never goes back), does
what the returned effects say, and calls `woken` no later than `wake_at`. The driver reports every attempt that was
started as `stopped` exactly once, with any outcome. The last effect of a session is `Finish` or `Fail`.

The rules are those of docs/architecture.md, each in its own part: `race` has the starts, `writing` decides which
attempt writes, `transcript` holds the text, `attempt/` and `deadlines` hold the attempts and their clocks,
`switching/` has migration and failover, `ending` the end. This file only routes events to these parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from disco.candidate import Candidate
from disco.cost.budget_reservation import BudgetReservation
from disco.errors import EndpointFailure
from disco.events import (
    Alive,
    Delta,
    DeltaKind,
    Ended,
    Parked,
    Progress,
    SeamReport,
    SpeculationReport,
    Traffic,
    Usage,
)
from disco.judging import AgreementJudge
from disco.plan import Plan
from disco.playback import Playback
from disco.session.attempt.attempt_state import AttemptOutcome, is_content
from disco.session.attempt.attempt_table import AttemptTable
from disco.session.effects import Effect, Release
from disco.session.ending import Ending
from disco.session.parts import SessionParts
from disco.session.race import StartRace
from disco.session.session_config import AnswerJudge, EndpointWatch, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths
from disco.session.switching.assist import AssistControl
from disco.session.switching.failover import FailoverControl
from disco.session.switching.follower import Follower
from disco.session.switching.migration import MigrationControl
from disco.session.switching.rise import RiseControl
from disco.session.switching.silence import SilenceControl
from disco.session.transcript import Transcript
from disco.session.writing import Writing

__all__ = ["Session", "SessionConfig"]

_RUNNING, _ROLE = AttemptOutcome.RUNNING, DeltaKind.ROLE  # needed at every token; see `attempt_state`


class Session:
    """Runs one plan to its end; the module's docstring says how a driver uses it.

    Mutable: `started_at`, `wake_at`, `_present`, and the parts.

    Attributes:
        attempts: every attempt so far, by number.
        migrations: every migration that was begun.
        migration: where the answer may move.
        transcript: the text, and how it was written and released.
        ending: why and when the answer ended.
        rise: the verdicts on the answer; None where no answer is judged.
        assist: the division of the answer between a writer and its heir; None where there is none.
        silence: the heirs of silent attempts; None where the plan has none.
        wake_at: call `woken` no later than this; too early does no harm.
    """

    def __init__(
        self,
        plan: Plan,
        candidates: Mapping[str, Candidate],
        config: SessionConfig,
        playback: Playback,
        lengths: AnswerLengths,
        watch: EndpointWatch | None = None,
        reservation: BudgetReservation | None = None,
        judge: AnswerJudge | None = None,
        agreement: AgreementJudge | None = None,
    ) -> None:
        """See the classes of the arguments; `candidates` holds at least every endpoint the plan names."""
        self._present = candidates = dict(candidates)  # changed once a model is loaded
        self.plan, self.candidates, self.config, self.reservation = plan, candidates, config, reservation
        transcript = self.transcript = Transcript(
            playback, streams=config.streams, holds_calls=len(plan.names) > 1
        )
        attempts = self._attempts = AttemptTable(candidates, config, watch, reservation, plan.wants_of)
        self.migration = MigrationControl(plan, candidates, config, lengths, attempts, transcript)
        follower = self._follower = Follower(transcript)
        self._race = StartRace(plan, attempts, transcript, self.migration, follower)
        parts = self.parts = SessionParts(
            plan,
            candidates,
            config,
            reservation,
            attempts,
            transcript,
            self.migration,
            self._race,
            lengths,
            follower,
        )
        self._failover = FailoverControl(parts)
        self.ending = Ending(parts, self._failover)
        self._writing = Writing(parts, self._failover, self.ending)
        self.rise = None
        if judge is not None and plan.cascade is not None:
            self.rise = RiseControl(parts, self.ending, judge)
            self._writing.rise = self._failover.rise = self.ending.rise = self.rise
        self.assist = None
        if plan.assist is not None:
            self.assist = AssistControl(parts, self._failover, self.ending, agreement)
            self._writing.assist = self._failover.assist = self.assist
        self.silence = None
        if plan.heirs or (config.is_hedged and plan.fallbacks):
            self.silence = self._writing.silence = SilenceControl(parts, self._failover)
        self.attempts, self.migrations = attempts.states, self.migration.migrations
        self._streams = config.streams
        self.started_at = 0.0
        self.wake_at: float = inf

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the API's words or "cancelled"; None while it goes on and where it failed."""
        return self.ending.reason

    @property
    def error(self) -> Exception | None:
        """The error that the answer failed with; while the answer goes on, the error that it would fail with."""
        return self._failover.error

    def start(self, now: float) -> list[Effect]:
        """Begin the answer; the first event of every session."""
        out: list[Effect] = []
        self.started_at = self.migration.began_at = now
        self._attempts.deadlines.started(now)
        self._race.begin(now, out)
        return self._noted(now, out)

    def loaded(self, endpoint: str, now: float) -> list[Effect]:
        """Handle the end of an endpoint's loading: from now on its attempts need not wait for its model."""
        self._present[endpoint] = replace(self._present[endpoint], load_s=0.0)
        self.migration.consider_anew()
        return self._settle(now, [])

    def began(self, number: int, now: float) -> list[Effect]:
        """Handle the start of an attempt's work, at the end of its wait in a queue."""
        if self.attempts[number].active:
            self._attempts.began(self.attempts[number], now)
        return self._noted(now, [])

    def alive(self, number: int, alive: Alive, now: float) -> list[Effect]:
        """Handle a sign of life of an attempt's connection, which may excuse its silence for a while."""
        state = self.attempts[number]
        state.heard_at = now
        if state.active and alive.for_s is not None:
            self._attempts.excused(state, now + alive.for_s)
        return self._noted(now, [])

    def deltas(self, number: int, deltas: list[Delta], now: float) -> list[Effect]:
        """Handle what an attempt wrote (a non-empty batch)."""
        state = self.attempts[number]
        out: list[Effect] = []
        if state.outcome is not _RUNNING or self.ending.ended:
            return out
        if deltas[0].kind is not _ROLE or is_content(deltas):
            state.writes(now)
        else:
            state.heard_at = now
        self._writing.take(state, deltas, now, out)
        return self._settle(now, out)

    def waits(self, number: int, now: float) -> None:
        """Count the attempt's silence from now, because its reader has kept it waiting until now."""
        self.attempts[number].counts_from(now)

    def resumed(self, now: float) -> list[Effect]:
        """Count all silence from now: the process stood still until now (stopped, suspended, frozen)."""
        self._attempts.resumed(now)
        return self._noted(now, [])

    def progressed(self, number: int, progress: Progress, now: float) -> list[Effect]:
        """Handle a report on how far an attempt's prefill has come."""
        self.attempts[number].heard_at = now
        if self.assist is not None and not self.ending.ended:
            self.assist.progressed(self.attempts[number], progress, now)
        return self._settle(now, [])

    def parked(self, number: int, parked: Parked, now: float) -> list[Effect]:
        """Handle a parked follower's report that it has read all that it was given."""
        state = self.attempts[number]
        state.holds_prompt, state.usage = True, parked.usage
        if state.prompt_read is None:
            state.prompt_read = now, parked.usage.prompt_tokens - parked.usage.cached_tokens
        out: list[Effect] = []
        if not self.ending.ended:
            self._follower.has_read(parked)
            if self.assist is not None:
                self.assist.parked(state, now, out)
        return self._settle(now, out)

    def ended(self, number: int, ended: Ended, now: float) -> list[Effect]:
        """Handle the proper end of an attempt."""
        state = self.attempts[number]
        out: list[Effect] = []
        if state.active:
            self._writing.end(state, ended, now, out)
        elif state.outcome is AttemptOutcome.PARKED:
            state.ended_at = now
            state.holds_prompt = True
        return self._noted(now, out)

    def failed(self, number: int, failure: EndpointFailure, now: float) -> list[Effect]:
        """Handle an attempt's failure; the text that the attempt wrote before still counts."""
        state = self.attempts[number]
        out: list[Effect] = []
        if state.active:
            self.ending.unless(self._failover.fail(state, failure, now, out), now, out)
        elif state.outcome is AttemptOutcome.PARKED:
            self._failover.lose_follower(state, failure, now)
            if self.assist is not None:
                self.ending.unless(self.assist.lost(state, failure, now, out), now, out)
        return self._noted(now, out)

    def stopped(
        self,
        number: int,
        usage: Usage,
        now: float,
        *,
        traffic: Traffic = Traffic(),  # noqa: B008 - frozen
        seam: SeamReport | None = None,
        speculation: SpeculationReport | None = None,
    ) -> list[Effect]:
        """Settle an attempt once nothing of it runs any more; `usage` is what the attempt is charged for."""
        state = self.attempts[number]
        state.traffic, state.seam, state.speculation = traffic, seam, speculation
        if state.outcome is AttemptOutcome.PARKED and not (state.holds_prompt or self.ending.ended):
            state.outcome = AttemptOutcome.LOST  # the attempt was stopped before it had read the prompt
        self._attempts.settle(state, usage, now)
        out: list[Effect] = []
        if self.assist is not None and not self.ending.ended:
            self.assist.parked(state, now, out)
        return self._noted(now, out)

    def woken(self, now: float) -> list[Effect]:
        """Do what is due at `wake_at`: starts, deadlines, and giving up a late migration."""
        out: list[Effect] = []
        self._race.start_due(now, out)
        if not self.ending.ended and now >= self._attempts.deadlines.next_at:
            self.ending.check_clocks(now, out)
        if self.migration.is_late(now):
            self.migration.abandon("late", now, out)
        if self.silence is not None and not self.ending.ended and now >= self.silence.next_at:
            self.ending.unless(self.silence.check(now, out), now, out)
        if self.assist is not None and not self.ending.ended:
            self.ending.unless(self.assist.check_clock(now, out), now, out)
        # Most calls come for text that is due: whose silence counts has not changed then.
        return self._noted(now, out) if out else self._settle(now, out)

    def cancelled(self, now: float) -> list[Effect]:
        """Stop everything because the reader has left; `Finish("cancelled")` follows the last `stopped`."""
        out: list[Effect] = []
        if self.ending.closed_at is None:
            self.ending.cancel(now, out)
        return self._settle(now, out)

    def _noted(self, now: float, out: list[Effect]) -> list[Effect]:
        """Do as `_settle` after an event that may have changed whose silence counts."""
        if self.silence is not None and not self.ending.ended:
            self.silence.note(now)
        return self._settle(now, out)

    def _settle(self, now: float, out: list[Effect]) -> list[Effect]:
        """Release the text that is due, close the session once everything is over, and set `wake_at`."""
        if self._attempts.refused:
            self.ending.unless(self._failover.turn_back(now, out), now, out)
            if self.silence is not None:
                self.silence.note(now)
        ending = self.ending
        if not ending.cancelled and (self._streams or ending.ended):
            deltas = self.transcript.release(now)
            if deltas:
                out.append(Release(deltas))
        if ending.ended:
            ending.close(now, out)
        self.wake_at = self.parts.next_wake(now, ending.ended, ending.cancelled)
        if self.assist is not None and not ending.ended:
            self.wake_at = min(self.wake_at, self.assist.wakes_at)
        if self.silence is not None and not ending.ended:
            self.wake_at = min(self.wake_at, self.silence.wakes_at(now))
        return out
