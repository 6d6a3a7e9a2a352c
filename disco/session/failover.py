"""Failing: what becomes of an answer when an attempt fails or a clock runs out (design rules 5 to 7)."""

from __future__ import annotations

from math import inf

from disco.errors import AnswerTimeoutError, BudgetExceededError, EndpointFailure, FailureKind
from disco.plan import Candidate
from disco.playback import last_word_start
from disco.request import Prefix
from disco.session.attempts import AttemptState, Outcome, Role
from disco.session.effects import Effect
from disco.session.handover import MovingAnswer
from disco.session.terms import Pending

__all__ = ["SurvivingAnswer"]

RETRY_S = 0.5  # first back-off before the only endpoint is tried again; doubles
RETRIED = frozenset(
    {
        FailureKind.CONNECTION,
        FailureKind.TIMEOUT,
        FailureKind.STALLED,
        FailureKind.RATE_LIMIT,
        FailureKind.SERVER,
        FailureKind.INCOMPLETE,
    }
)


class SurvivingAnswer(MovingAnswer):
    """An answer that outlives its writer."""

    def _fail_attempt(
        self, state: AttemptState, failure: EndpointFailure, now: float, out: list[Effect]
    ) -> None:
        state.failure = failure.kind
        if self._watch is not None:
            self._watch.failed(state.candidate.name, failure, state.started_at, now)
        self._stop(state, Outcome.FAILED, now, out)
        name = state.candidate.name
        seam_with_withheld = (
            failure.kind is FailureKind.SEAM
            and bool(state.prefix.withheld)
            and state.first_content_at is None
        )
        if not seam_with_withheld:
            self._failed.add(name)
            # A crash that says when it is over: the process of the local model is started again.
            returns = failure.kind is FailureKind.CRASHED and failure.retry_after_s is not None
            if returns or failure.kind in RETRIED:
                wait = failure.retry_after_s
                self._again[name] = now + (RETRY_S * 2**self._retries if wait is None else wait)
            else:
                self._again.pop(name, None)
        if self.error is None or isinstance(self.error, BudgetExceededError):
            self.error = failure.error
        moving = self._moving
        if moving is not None and state.number == moving.target:
            if self._source_of(moving).active:
                self._abandon("target_failed", now, out)
            else:
                self._moving = None
                moving.outcome = "target_failed"
                self._take_over(failure, now, out)
        elif moving is not None and state.number == moving.source:
            # The replacement is already on its way, from the same cut.
            moving.beyond = []
        elif seam_with_withheld:
            # It would not write the last word again: let it go on behind that word as it was shown.
            prefix = self._prefix_for(state.candidate, state.prefix.text)
            self._open(name, Role.TAKEOVER, prefix, now, out)
        elif state is self._writer or (self._writer is None and not any(a.active for a in self.attempts)):
            self._take_over(failure, now, out)
        elif self._writer is None and not failure.kind.is_callers_fault:
            # A hedge need not wait for its time once the other side has failed.
            self._start_due(now, out, all_of_them=True)

    def _turn_back(self, now: float, out: list[Effect]) -> None:
        """Starts that no budget allowed have failed like any other, except that nothing was sent."""
        while self._refused:
            state, failure = self._refused.pop(0)
            if state.active:
                self._fail_attempt(state, failure, now, out)

    def _cut_off(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """An attempt has used up its allowance: somebody else writes on, or the answer ends there."""
        assert self.purse is not None
        self._is_cut = True
        error = self.purse.refusal(state.candidate.name, now, state.prefix)
        self._fail_attempt(state, EndpointFailure(FailureKind.BUDGET, error), now, out)

    def _take_over(self, failure: EndpointFailure, now: float, out: list[Effect]) -> None:
        """Replace the writer, or the last starter, by the next endpoint that can go on (rule 5)."""
        self._move = None
        self.playback.banking = False
        nothing_shown = not self.terms.streams or not self.released
        has_content = self._tokens > 0
        if not failure.kind.is_callers_fault:
            if self._writer is None and self._pending:
                self._start_due(now, out, all_of_them=True)
                return
            for name in self._successors():
                candidate = self.candidates[name]
                if not has_content:
                    self._replace(candidate, Prefix(), now, out)
                    return
                if candidate.continues and self._may_continue:
                    self._replace(candidate, self._last_good_prefix(candidate), now, out)
                    return
                if nothing_shown:
                    self._begin_anew()
                    self._replace(candidate, Prefix(), now, out)
                    return
            if self._retry(now):
                return
        self._ended = True
        if self._is_cut and has_content:
            self.finish_reason, self.error = "length", None  # as any answer that a limit has cut short
        else:
            self.error = self.error or failure.error
        self._pending.clear()
        self._stop_others(None, Outcome.CANCELLED, now, out)
        self.playback.end(now)

    @property
    def _may_continue(self) -> bool:
        return self._only_text and self.terms.may_continue

    def _successors(self) -> list[str]:
        order = [*self.plan.fallbacks, *(s.endpoint for s in self.plan.starts)]
        return [name for name in dict.fromkeys(order) if name not in self._failed]

    def _replace(self, candidate: Candidate, prefix: Prefix, now: float, out: list[Effect]) -> None:
        role = Role.TAKEOVER if prefix else Role.STARTER
        if not prefix:
            self._writer = None
        self._open(candidate.name, role, prefix, now, out)

    def _last_good_prefix(self, target: Candidate) -> Prefix:
        """All the text there is, less a last word that may be incomplete."""
        text = "".join(self._text)
        shown = self.playback.released_chars if self.terms.streams else 0
        cut = last_word_start(text)
        if cut >= shown and cut > 0:
            self._take_back(cut)
            return self._prefix_for(target, text[:cut])
        self._take_back(shown)
        return self._prefix_for(target, text[:shown], withheld=text[cut:shown])

    def _retry(self, now: float) -> bool:
        """Nobody is left: try one that has failed once more, after a back-off; the session owns all retries."""
        if self._retries >= self.terms.max_retries:
            return False
        has_content = self._tokens > 0
        nothing_shown = not self.terms.streams or not self.released
        for name in sorted(self._again, key=self._again.__getitem__):  # who may be asked first
            candidate = self.candidates[name]
            goes_on = has_content and candidate.continues and self._may_continue
            if has_content and not goes_on and not nothing_shown:
                continue
            at = max(now, self._again[name])
            if at - self.started_at > (self.terms.timeouts.total_s or inf):
                continue
            self._retries += 1
            if has_content and not goes_on:
                self._begin_anew()
            prefix = self._last_good_prefix(candidate) if goes_on else Prefix()
            if not prefix:  # also where all there was is a first word that nobody has seen
                self._writer = None
            role = Role.TAKEOVER if prefix else Role.STARTER
            self._pending.append(Pending(at, name, prefix, role))
            return True
        return False

    def _begin_anew(self) -> None:
        """Nobody has seen what there is of the answer: forget it."""
        self._take_back(0)
        self._ids, self._only_text = [], True

    def _check_clocks(self, now: float, out: list[Effect]) -> None:
        if self._ended or not self._clocked:
            return
        clocks = self.terms.timeouts
        total = clocks.total_s
        if total is not None and now >= self.started_at + total:
            error = AnswerTimeoutError(
                f"The answer was not complete after {total:g} s (timeouts.total_s, or the request's deadline_s)."
            )
            self.error = self.error or error
            self._ended = True
            self._pending.clear()
            self._moving = self._move = None
            self._stop_others(None, Outcome.FAILED, now, out)
            self.playback.end(now)
            return
        for state in list(self.attempts):
            if state.active and now >= self._deadline(state):
                name = state.candidate.name
                if state.first_content_at is None:
                    kind, limit, what = FailureKind.TIMEOUT, clocks.first_content_s, "first_content_s"
                else:
                    kind, limit, what = FailureKind.STALLED, clocks.gap_s, "gap_s"
                error = AnswerTimeoutError(
                    f"Endpoint {name!r} wrote nothing for {limit:g} s (timeouts.{what}); "
                    "raise the limit or configure another endpoint that can take over."
                )
                self._fail_attempt(state, EndpointFailure(kind, error), now, out)
