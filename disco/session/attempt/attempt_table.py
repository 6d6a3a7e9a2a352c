"""All attempts of one answer: the one place where they are opened, stopped and settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from disco.candidate import Candidate
from disco.cost.budget_reservation import BudgetReservation
from disco.errors import BudgetExceededError, EndpointFailure, FailureKind
from disco.events import Usage
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, Role
from disco.session.attempt.token_allowance import lowered_limit
from disco.session.deadlines import Deadlines
from disco.session.effects import CancelAttempt, Effect, PauseAttempt, ResumeAttempt, StartAttempt
from disco.session.session_config import EndpointWatch, SessionConfig

__all__ = ["AttemptTable"]


class AttemptTable:
    """Opens, stops and settles attempts, and reports them to the watch and to the budget. Appends effects to `out`.

    Mutable: `states`, `refused`, the deadlines.

    Attributes:
        cap_of: returns the tokens that the plan lets an attempt in this role write; None: as many as it likes. Mutable.
        states: every attempt so far, by number.
        refused: attempts that a budget did not allow to start, each with its failure; the session lets them fail.
        deadlines: when each attempt has been silent for too long.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidate],
        config: SessionConfig,
        watch: EndpointWatch | None,
        reservation: BudgetReservation | None,
        wants: Callable[[Candidate], frozenset[str]],
    ) -> None:
        self.cap_of: Callable[[Candidate, Role], int | None] = _no_cap
        self.states: list[AttemptState] = []
        self.refused: list[tuple[AttemptState, EndpointFailure]] = []
        self.deadlines = Deadlines(config.timeouts)
        self._candidates = candidates
        self._config = config
        self._watch = watch
        self._reservation = reservation
        self._wants = wants

    def open(self, endpoint: str, role: Role, prefix: Prefix, now: float, out: list[Effect]) -> AttemptState:
        """Start an attempt if the budget allows it; else add it to `refused`, with nothing sent."""
        state = AttemptState(
            number=len(self.states),
            candidate=self._candidates[endpoint],
            role=role,
            started_at=now,
            prefix=prefix,
            last_at=now,
            quiet_from=now,
        )
        self.states.append(state)
        state.cap = self.cap_of(state.candidate, role)
        drafts = None
        if self._reservation is not None:
            try:
                state.allowance = self._reservation.open(state.number, endpoint, prefix, now)
                drafts = self._reservation.drafts(state.number)
            except BudgetExceededError as error:
                state.stopped, state.usage = True, Usage()
                self.refused.append((state, EndpointFailure(FailureKind.BUDGET, error)))
                return state
        self.deadlines.note(state)
        limit = lowered_limit(state, self._config.max_tokens)
        wants = self._wants(state.candidate)
        out.append(StartAttempt(state.number, endpoint, prefix, limit, state.cap, wants, drafts))
        return state

    def began(self, state: AttemptState, now: float) -> None:
        """Store that the attempt has left its queue and begins to work."""
        state.began_at = now
        state.counts_from(now)
        self.deadlines.note(state)

    def excused(self, state: AttemptState, until: float) -> None:
        """Count the attempt's silence from a later moment."""
        state.quiet_from = until
        self.deadlines.note(state)

    def spoke(self, state: AttemptState, now: float) -> None:
        """Store that the attempt writes its first content, and report it to the watch."""
        state.first_content_at = now
        self.deadlines.note(state)
        if self._watch is not None:
            self._watch.answered(state.candidate.name, state.started_at, now)

    def failed(self, state: AttemptState, failure: EndpointFailure, now: float) -> None:
        """Store a failure and report it to the watch. The session decides what happens next."""
        state.failure = failure.kind
        if self._watch is not None:
            self._watch.failed(state.candidate.name, failure, state.started_at, now)

    def too_silent(self, state: AttemptState, failure: EndpointFailure, now: float) -> None:
        """Report to the watch that an attempt was silent until another one, started for that reason, wrote.

        For the session it has lost a race.
        """
        state.is_reported = True
        if self._watch is not None:
            self._watch.failed(state.candidate.name, failure, state.started_at, now)

    def stop(self, state: AttemptState, outcome: AttemptOutcome, now: float, out: list[Effect]) -> None:
        """Cancel an attempt that is not needed any more or has failed."""
        self.leave(state, outcome, now)
        is_known = state.failure is not None or state.is_reported
        if self._watch is not None and state.first_content_at is None and not is_known:
            name = state.candidate.name
            if state.held:  # a role chunk has come: the endpoint had begun to answer
                self._watch.answered(name, state.started_at, now)
            else:
                slow_s = state.first_token_s(self._config.prompt_tokens)
                overdue = not state.waits_for_its_turn and now - state.works_from_at >= slow_s
                self._watch.stopped(name, state.started_at, now, overdue=overdue)
        if not state.stopped:
            out.append(CancelAttempt(state.number))

    def pause(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """Let an attempt stop writing; its silence is no failure until it goes on."""
        state.paused_at = now
        self.deadlines.note(state)
        out.append(PauseAttempt(state.number))

    def resume(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """Let a paused attempt go on writing; its silence is counted from now."""
        assert state.paused_at is not None
        state.paused_s += now - state.paused_at
        state.paused_at = None
        state.counts_from(now)
        self.deadlines.note(state)
        out.append(ResumeAttempt(state.number))

    def leave(self, state: AttemptState, outcome: AttemptOutcome, now: float) -> None:
        """Ignore the attempt's events from now on, without cancelling the attempt."""
        state.outcome = outcome
        state.paused_at = None
        state.ended_at = now
        self.deadlines.over(state)

    def stop_others(
        self, keep: AttemptState | None, outcome: AttemptOutcome, now: float, out: list[Effect]
    ) -> None:
        """Stop every attempt except `keep`, parked ones included."""
        for state in self.states:
            if state is keep or state.stopped:
                continue
            if state.active:
                self.stop(state, outcome, now, out)
            elif state.outcome is AttemptOutcome.PARKED:
                out.append(CancelAttempt(state.number))

    def answered_empty(self, state: AttemptState, now: float) -> None:
        """Report to the watch that the endpoint answered, where the attempt ended properly without content."""
        if state.first_content_at is None and self._watch is not None:
            self._watch.answered(state.candidate.name, state.started_at, now)

    def settle(self, state: AttemptState, usage: Usage, now: float) -> None:
        """Close the attempt's account: nothing of the attempt runs any more, and `usage` is what it is charged for."""
        usage = _sensible(usage)
        if self._reservation is not None:
            self._reservation.settle(state.number, usage, reported=state.usage is not None, now=now)
        state.stopped = True
        self.deadlines.over(state)
        if state.active:  # the driver itself was stopped, so no event said that the attempt is cancelled
            state.outcome = AttemptOutcome.CANCELLED
        state.usage = usage
        if state.ended_at is None:
            state.ended_at = now

    def parked_at(self, endpoint: str) -> AttemptState | None:
        """Return the parked attempt on that endpoint, whether or not its prefill is complete; None: there is none."""
        parked = (
            a for a in self.states if a.candidate.name == endpoint and a.outcome is AttemptOutcome.PARKED
        )
        return next(parked, None)

    def others_active(self, state: AttemptState) -> bool:
        """Whether an attempt other than `state` is active."""
        return any(a.active for a in self.states if a is not state)

    @property
    def any_active(self) -> bool:
        """Whether any attempt is active."""
        return any(a.active for a in self.states)

    @property
    def all_stopped(self) -> bool:
        """Whether nothing of any attempt runs."""
        return all(a.stopped for a in self.states)

    def resumed(self, now: float) -> None:
        """Count the silence of every attempt from now: the whole process stood still until now."""
        for state in self.states:
            state.counts_from(now)
            if state.active:
                self.deadlines.note(state)


def _no_cap(candidate: Candidate, role: Role) -> None:
    """Let every attempt write as many tokens as it likes."""
    del candidate, role


def _sensible(usage: Usage) -> Usage:
    """Replace counts below 0 by 0: a negative count reports nothing."""
    counts = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.cache_write_tokens
    if min(counts) >= 0:
        return usage
    return replace(
        usage,
        prompt_tokens=max(0, usage.prompt_tokens),
        completion_tokens=max(0, usage.completion_tokens),
        cached_tokens=max(0, usage.cached_tokens),
        cache_write_tokens=max(0, usage.cache_write_tokens),
    )
