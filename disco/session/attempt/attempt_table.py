"""All attempts of one answer: the one place where they are opened, stopped and settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from disco.cost.budget_reservation import BudgetReservation
from disco.errors import BudgetExceededError, EndpointFailure, FailureKind
from disco.events import Usage
from disco.plan import Candidate
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, Role
from disco.session.attempt.token_allowance import lowered_limit
from disco.session.deadlines import Deadlines
from disco.session.effects import CancelAttempt, Effect, StartAttempt
from disco.session.session_config import EndpointWatch, SessionConfig

__all__ = ["AttemptTable"]


class AttemptTable:
    """Opens, stops and settles attempts; tells the watch and the budget. Appends the effects it wants to `out`.

    Mutable: `states`, `refused`, the deadlines.

    Attributes:
        states: every attempt there was, by number.
        refused: starts that no budget allowed, with the failure that this is; the session has them fail.
        deadlines: when silence is over.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidate],
        config: SessionConfig,
        watch: EndpointWatch | None,
        reservation: BudgetReservation | None,
        wants: frozenset[str],
    ) -> None:
        self.states: list[AttemptState] = []
        self.refused: list[tuple[AttemptState, EndpointFailure]] = []
        self.deadlines = Deadlines(config.timeouts)
        self._candidates = candidates
        self._config = config
        self._watch = watch
        self._reservation = reservation
        self._wants = wants

    def open(self, endpoint: str, role: Role, prefix: Prefix, now: float, out: list[Effect]) -> AttemptState:
        """Start an attempt, if the budget allows; else it has failed without having been sent."""
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
        if self._reservation is not None:
            try:
                state.allowance = self._reservation.open(state.number, endpoint, prefix, now)
            except BudgetExceededError as error:
                state.stopped, state.usage = True, Usage()
                self.refused.append((state, EndpointFailure(FailureKind.BUDGET, error)))
                return state
        self.deadlines.note(state)
        limit = lowered_limit(state, self._config.max_tokens)
        out.append(StartAttempt(state.number, endpoint, prefix, limit, self._wants))
        return state

    def began(self, state: AttemptState, now: float) -> None:
        """Its turn has come."""
        state.began_at = state.quiet_from = now
        self.deadlines.note(state)

    def spoke(self, state: AttemptState, now: float) -> None:
        """It writes its first content."""
        state.first_content_at = now
        self.deadlines.note(state)
        if self._watch is not None:
            self._watch.answered(state.candidate.name, state.started_at, now)

    def failed(self, state: AttemptState, failure: EndpointFailure, now: float) -> None:
        """Note a failure and tell of it; what becomes of the attempt is the session's."""
        state.failure = failure.kind
        if self._watch is not None:
            self._watch.failed(state.candidate.name, failure, state.started_at, now)

    def stop(self, state: AttemptState, outcome: AttemptOutcome, now: float, out: list[Effect]) -> None:
        """It is not needed any more, or has failed: cancel what still runs of it."""
        self.leave(state, outcome, now)
        if self._watch is not None and state.first_content_at is None and state.failure is None:
            name = state.candidate.name
            if state.held:  # it was about to speak
                self._watch.answered(name, state.started_at, now)
            else:
                slow_s = state.candidate.time_to_first_token_s(self._config.prompt_tokens)
                overdue = not state.waits_for_its_turn and now - state.works_from_at >= slow_s
                self._watch.stopped(name, state.started_at, now, overdue=overdue)
        if not state.stopped:
            out.append(CancelAttempt(state.number))

    def leave(self, state: AttemptState, outcome: AttemptOutcome, now: float) -> None:
        """Its events do not matter any more; what still runs of it is left alone."""
        state.outcome = outcome
        state.ended_at = now
        self.deadlines.over(state)

    def stop_others(
        self, keep: AttemptState | None, outcome: AttemptOutcome, now: float, out: list[Effect]
    ) -> None:
        """Stop every attempt but one, those that are parked as well."""
        for state in self.states:
            if state is keep or state.stopped:
                continue
            if state.active:
                self.stop(state, outcome, now, out)
            elif state.outcome is AttemptOutcome.PARKED:
                out.append(CancelAttempt(state.number))

    def answered_empty(self, state: AttemptState, now: float) -> None:
        """It ended properly and has written nothing: the endpoint is there."""
        if state.first_content_at is None and self._watch is not None:
            self._watch.answered(state.candidate.name, state.started_at, now)

    def settle(self, state: AttemptState, usage: Usage, now: float) -> None:
        """Nothing of it runs any more; `usage` is what it has to be charged for."""
        usage = _sensible(usage)
        if self._reservation is not None:
            self._reservation.settle(state.number, usage, reported=state.usage is not None, now=now)
        state.stopped = True
        self.deadlines.over(state)
        if state.active:  # its driver was stopped, and that it is cancelled comes only now
            state.outcome = AttemptOutcome.CANCELLED
        state.usage = usage
        if state.ended_at is None:
            state.ended_at = now

    def parked_at(self, endpoint: str) -> AttemptState | None:
        """The loser on that endpoint that keeps its prefill, or is still at it."""
        parked = (
            a for a in self.states if a.candidate.name == endpoint and a.outcome is AttemptOutcome.PARKED
        )
        return next(parked, None)

    def others_active(self, state: AttemptState) -> bool:
        """Whether another attempt may still speak."""
        return any(a.active for a in self.states if a is not state)

    @property
    def any_active(self) -> bool:
        """Whether any attempt may still speak."""
        return any(a.active for a in self.states)

    @property
    def all_stopped(self) -> bool:
        """Whether nothing of any attempt runs."""
        return all(a.stopped for a in self.states)

    def resumed(self, now: float) -> None:
        """The whole process stood still: silence until now is no endpoint's own."""
        for state in self.states:
            if state.active:
                state.quiet_from = now
                self.deadlines.note(state)


def _sensible(usage: Usage) -> Usage:
    """Without counts below 0: an endpoint that reports such has reported nothing."""
    if min(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) >= 0:
        return usage
    return replace(
        usage,
        prompt_tokens=max(0, usage.prompt_tokens),
        completion_tokens=max(0, usage.completion_tokens),
        cached_tokens=max(0, usage.cached_tokens),
    )
