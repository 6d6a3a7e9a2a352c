"""Failing: what becomes of an answer when an attempt fails or a clock runs out (design rules 5 to 7)."""

from __future__ import annotations

from math import inf

from disco.dispatch.plan import Candidate
from disco.errors import AnswerTimeoutError, EndpointFailure, FailureKind
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
        self._stop(state, Outcome.FAILED, now, out)
        name = state.candidate.name
        seam_with_withheld = failure.kind is FailureKind.SEAM and bool(state.prefix.withheld)
        if not seam_with_withheld:
            self._failed.add(name)
        if self.error is None:
            self.error = failure.error
        moving = self._moving
        if moving is not None and state.number == moving.target:
            if self._source_of(moving).active:
                self._abandon("target_failed", now, out)
            else:
                self._moving = None
                moving.outcome = "target_failed"
                self._take_over(state, failure, now, out)
        elif moving is not None and state.number == moving.source:
            # The replacement is already on its way, from the same cut.
            moving.beyond = []
        elif seam_with_withheld:
            # It would not write the last word again: let it go on behind that word as it was shown.
            prefix = self._prefix_for(state.candidate, state.prefix.text)
            self._open(name, Role.TAKEOVER, prefix, now, out)
        elif state is self._writer or (self._writer is None and not any(a.active for a in self.attempts)):
            self._take_over(state, failure, now, out)
        elif self._writer is None and not failure.kind.is_callers_fault:
            # A hedge need not wait for its time once the other side has failed.
            self._start_due(now, out, all_of_them=True)

    def _take_over(self, dead: AttemptState, failure: EndpointFailure, now: float, out: list[Effect]) -> None:
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
                    self._take_back(0)
                    self._ids, self._only_text = [], True
                    self._replace(candidate, Prefix(), now, out)
                    return
            if self._retry(dead, failure, now, has_content=has_content):
                return
        self._ended = True
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

    def _retry(self, dead: AttemptState, failure: EndpointFailure, now: float, *, has_content: bool) -> bool:
        """Try the only endpoint there is once more, after a back-off; the session owns all retries."""
        if self._retries >= self.terms.max_retries or failure.kind not in RETRIED:
            return False
        if has_content and not (dead.candidate.continues and self._may_continue):
            return False
        wait = failure.retry_after_s
        if wait is None:
            wait = RETRY_S * 2**self._retries
        if now + wait - self.started_at > (self.terms.timeouts.total_s or inf):
            return False
        self._retries += 1
        prefix = self._last_good_prefix(dead.candidate) if has_content else Prefix()
        if not has_content:
            self._writer = None
        role = Role.TAKEOVER if prefix else Role.STARTER
        self._pending.append(Pending(now + wait, dead.candidate.name, prefix, role))
        return True

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
