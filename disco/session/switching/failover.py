"""Carries out a failover: does what `failover_rule.next_step` decides (design rule 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from disco.candidate import Candidate
from disco.errors import BudgetExceededError, EndpointFailure, FailureKind
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.effects import Effect
from disco.session.parts import SessionParts
from disco.session.session_config import Pending, Role
from disco.session.switching.failover_rule import (
    Beginning,
    FailoverView,
    Failures,
    Replace,
    Retry,
    StartWaiting,
    next_step,
)

if TYPE_CHECKING:
    from disco.session.switching.assist import AssistControl
    from disco.session.switching.rise import RiseControl

__all__ = ["FailoverControl"]


class FailoverControl:
    """Replaces attempts that fail. Mutable: `error`, `made_up_for`, `failures`, `is_cut`.

    Attributes:
        error: the error of the first failure; the answer fails with it if no endpoint can go on.
        made_up_for: whether the last failure is no reason for a missed deadline: an attempt has written its first
            content since, or only the target of a migration failed, and its source goes on.
        failures: which endpoints have failed.
        is_cut: whether a writer had to stop because it had used up its allowance.
        rise: the verdicts on the answer; None where no answer is judged.
        assist: the division of the answer between a writer and its heir; None where there is none.
    """

    def __init__(self, parts: SessionParts) -> None:
        self.error: Exception | None = None
        self.made_up_for = False
        self.failures = Failures()
        self.is_cut = False
        self.rise: RiseControl | None = None
        self.assist: AssistControl | None = None
        plan = parts.plan
        self._order = (*plan.fallbacks, *(s.endpoint for s in plan.starts))
        self._candidates, self._config, self._reservation = parts.candidates, parts.config, parts.reservation
        self._attempts, self._transcript = parts.attempts, parts.transcript
        self._migration, self._race = parts.migration, parts.race

    def fail(self, state: AttemptState, failure: EndpointFailure, now: float, out: list[Effect]) -> bool:
        """Handle the failure of an active attempt.

        Returns:
            Whether the answer goes on; False where no endpoint can continue it.
        """
        name, migration = state.candidate.name, self._migration
        self._attempts.failed(state, failure, now)
        self._attempts.stop(state, AttemptOutcome.FAILED, now, out)
        again = self._asked_again(state, failure)
        if again is None:
            unproved = bool(state.prefix) and state.first_content_at is None and not state.candidate.continues
            self.failures.note(name, failure, now, had_to_prove=unproved)
            migration.has_failed(name)
        is_spare = migration.is_doubt and migration.is_target(state) and migration.source.active
        if not is_spare and (self.error is None or isinstance(self.error, BudgetExceededError)):
            self.error = failure.error
        self.made_up_for = False
        writer, rise = self._transcript.writer, self.rise
        if migration.is_target(state):
            if rise is not None and rise.standing is not None:
                return self.after_rise(failure, now, out, None if again is None else (state.candidate, again))
            if again is not None and migration.is_doubt:
                migration.ask_again(self._attempts.open(name, state.role, again, now, out))
                return True
            if migration.source.active:
                migration.abandon("target_failed", now, out)
                self.made_up_for = True  # the source, which has written, goes on
                return True
            if migration.is_doubt:
                migration.put_back(now)
            source, beyond = migration.source, migration.beyond
            migration.close("target_failed")
            goes_on = self.take_over(failure, now, out)
            if not goes_on and rise is None:
                self._transcript.give_back(source, beyond, now)  # nobody writes it again
            return goes_on
        if migration.is_source(state):
            return True  # the target, which already runs, replaces the source from the same cut
        if state is writer and rise is not None and rise.may_stand:
            return rise.goes_on(now, out)
        if self.assist is not None:
            if self.assist.takes_over(state, now, out):
                return True
            if writer is None:
                self.assist.lost(state, failure, now, out)
        if again is not None:
            self._race.open(name, Role.TAKEOVER, again, now, out)
        elif state is writer or (writer is None and not self._attempts.any_active):
            return self.take_over(failure, now, out)
        elif writer is None and state.role is not Role.HEDGE and not self.failures.end_with(failure):
            # A hedge need not wait for its time once the other endpoint has failed.
            self._race.start_due(now, out, all_of_them=True)
        return True

    def give_up(self, state: AttemptState, failure: EndpointFailure, now: float, out: list[Effect]) -> None:
        """Let a writer fail that another attempt has already replaced."""
        self._attempts.failed(state, failure, now)
        self._attempts.stop(state, AttemptOutcome.FAILED, now, out)
        self.failures.note(state.candidate.name, failure, now)
        self._migration.has_failed(state.candidate.name)
        if self.error is None or isinstance(self.error, BudgetExceededError):
            self.error = failure.error

    def after_rise(
        self,
        failure: EndpointFailure,
        now: float,
        out: list[Effect],
        again: tuple[Candidate, Prefix] | None = None,
    ) -> bool:
        """Go on after a higher tier that was asked has not answered; the arguments are those of `fail` and `goes_on`.

        By the next tier, or with the doubted answer. Where the writer of that answer has failed too, as after any
        failure of a writer.
        """
        rise = self.rise
        assert rise is not None
        if rise.goes_on(now, out, again):
            return True
        if rise.may_stand:
            return False
        rise.put_back(now)
        return self.take_over(failure, now, out)

    def _asked_again(self, state: AttemptState, failure: EndpointFailure) -> Prefix | None:
        """Return the prefix with which a target that failed at the seam is asked once more; None: it is not asked."""
        prefix = state.prefix
        if failure.kind is not FailureKind.SEAM or state.first_content_at is not None or prefix.asked_again:
            return None
        if prefix.withheld:
            # A target that does not repeat the withheld last word may still be able to continue after that word.
            whole = self._transcript.prefix_for(state.candidate, state.candidate, len(prefix.text))
            return replace(whole, ends_in_word=True, asked_again=True)
        return None if failure.retry_after_s is None else replace(prefix, asked_again=True)

    def lose_follower(self, state: AttemptState, failure: EndpointFailure, now: float) -> None:
        """Handle the failure of a parked attempt, which loses its prefill, and report it to the watch."""
        self._attempts.failed(state, failure, now)
        state.outcome = AttemptOutcome.LOST
        state.ended_at = now
        self.failures.note(state.candidate.name, failure, now)
        self._migration.has_failed(state.candidate.name)

    def turn_back(self, now: float, out: list[Effect]) -> bool:
        """Handle starts that no budget allowed: they fail like other attempts, with nothing sent. See `fail`."""
        goes_on = True
        while self._attempts.refused:
            state, failure = self._attempts.refused.pop(0)
            if state.active:
                goes_on = self.fail(state, failure, now, out) and goes_on
        return goes_on

    def cut_off(self, state: AttemptState, now: float, out: list[Effect]) -> bool:
        """Stop an attempt that has used up its allowance; another endpoint may take over. See `fail`."""
        assert self._reservation is not None
        self.is_cut = True
        error = self._reservation.refusal(state.candidate.name, now, state.prefix)
        return self.fail(state, EndpointFailure(FailureKind.BUDGET, error), now, out)

    def take_over(self, failure: EndpointFailure, now: float, out: list[Effect]) -> bool:
        """Let another endpoint go on with the answer, or begin it. See `fail`."""
        transcript = self._transcript
        self._migration.stay()
        transcript.playback.banking = False
        step = next_step(self.view(now), failure)
        if isinstance(step, StartWaiting):
            self._race.start_due(now, out, all_of_them=True)
        elif isinstance(step, Replace):
            role, prefix = self._beginning(step.candidate, step.beginning)
            self._race.open(step.candidate.name, role, prefix, now, out)
        elif isinstance(step, Retry):
            self.failures.retries[step.candidate.name] += 1
            role, prefix = self._beginning(step.candidate, step.beginning)
            self._race.pending.append(Pending(step.at, step.candidate.name, prefix, role))
        else:
            self.error = self.error or failure.error
            return False
        return True

    def view(self, now: float) -> FailoverView:
        """Return what decides who may take over now, and from where."""
        transcript = self._transcript
        is_to_a_part = transcript.writer is not None and transcript.writer.cut_prompt is not None
        return FailoverView(
            now=now,
            until=self._attempts.deadlines.total_at,
            candidates=self._candidates,
            order=self._order if self.rise is None else self.rise.in_order(self._order),
            failures=self.failures,
            max_retries=self._config.max_retries,
            starts_wait=transcript.writer is None and bool(self._race.pending),
            has_content=transcript.tokens > 0,
            nothing_shown=transcript.nothing_shown,
            has_kept=transcript.kept is not None,
            may_continue=transcript.may_be_continued and self._config.may_continue and not is_to_a_part,
            writers={segment.writer.candidate.name for segment in transcript.segments},
        )

    def _beginning(self, target: Candidate, beginning: Beginning) -> tuple[Role, Prefix]:
        """Return the role and the prefix of the replacement."""
        prefix = Prefix()
        if beginning is Beginning.GO_ON:
            writer = self._transcript.writer
            prefix = self._transcript.last_good_prefix(target, writer.candidate if writer else None)
        elif beginning is Beginning.ANEW:
            self._transcript.begin_anew()
        if not prefix:  # also where the whole answer was a first word that the reader has not seen
            self._transcript.writer = None
        return (Role.TAKEOVER if prefix else Role.STARTER), prefix
