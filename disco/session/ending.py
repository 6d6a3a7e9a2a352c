"""How an answer ends (complete, cut short, failed, or cancelled by its reader), and when its session closes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from disco.errors import AnswerTimeoutError
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.effects import Effect, Fail, Finish
from disco.session.parts import SessionParts
from disco.session.switching.failover import FailoverControl
from disco.session.switching.failover_rule import Failures, silence

if TYPE_CHECKING:
    from disco.session.switching.rise import RiseControl

__all__ = ["Ending"]


class Ending:
    """The end of one answer. Mutable: every field without an underscore.

    Attributes:
        reason: why the answer ended, in the API's words or "cancelled"; None while it goes on, and where it failed.
        ended: no more text will come.
        cancelled: the reader has left.
        closed_at: when everything was delivered, stopped and charged; None before.
        rise: the verdicts on the answer; None where no answer is judged.
    """

    def __init__(self, parts: SessionParts, failover: FailoverControl) -> None:
        self.reason: str | None = None
        self.ended = False
        self.cancelled = False
        self.closed_at: float | None = None
        self.rise: RiseControl | None = None
        self._config, self._attempts, self._transcript = parts.config, parts.attempts, parts.transcript
        self._migration, self._race, self._failover = parts.migration, parts.race, failover

    @property
    def failures(self) -> Failures:
        """Which endpoints have failed."""
        return self._failover.failures

    def finish(self, state: AttemptState, reason: str, now: float, out: list[Effect]) -> None:
        """End the answer because its writer has finished it."""
        if self.rise is not None:
            self.rise.finished()
        if state.active:
            self._attempts.leave(state, AttemptOutcome.FINISHED, now)
        self._transcript.show_calls(now)
        self.reason, self._failover.error = reason, None
        self._end(state, AttemptOutcome.LOST, now, out, move="target_empty")

    def unless(self, goes_on: bool, now: float, out: list[Effect]) -> None:  # noqa: FBT001 - its name says what it is
        """End the answer unless an endpoint goes on with it."""
        if goes_on or self.ended or self._stands(now, out):
            return
        if self._failover.is_cut and self._transcript.tokens:
            self.reason, self._failover.error = "length", None  # as after any limit
        self._end(None, AttemptOutcome.CANCELLED, now, out)

    def _stands(self, now: float, out: list[Effect]) -> bool:
        """Deliver an answer that was to be bettered, for want of a better one; False where there is none."""
        if self.rise is not None and self.rise.stand(now, out):
            return True
        kept = self._transcript.take_kept(now)
        if kept is not None:
            self.finish(kept.writer, kept.reason, now, out)
        return kept is not None

    def cancel(self, now: float, out: list[Effect]) -> None:
        """End the answer because its reader has left."""
        if self.reason is None:
            self.reason = "cancelled"
        self.cancelled = True
        self._end(None, AttemptOutcome.CANCELLED, now, out)

    def check_clocks(self, now: float, out: list[Effect]) -> None:
        """Fail every attempt whose deadline has passed, and the whole answer once its own has (rule 6)."""
        clocks, deadlines = self._config.timeouts, self._attempts.deadlines
        if now >= deadlines.total_at:
            if self._stands(now, out):
                return
            failover = self._failover
            # An earlier failure that no attempt has made up for is itself why the answer is not complete.
            if failover.error is None or failover.made_up_for:
                failover.error = AnswerTimeoutError(
                    f"The answer was not complete after {clocks.total_s:g} s (timeouts.total_s, or the request's "
                    "deadline_s)."
                )
            if self._migration.is_doubt:  # the heir will not write the last word again
                self._migration.put_back(now)
            self._end(None, AttemptOutcome.FAILED, now, out)
            return
        for state in deadlines.due([a for a in self._attempts.states if a.active], now):
            if state.active:  # the failure of another attempt may have ended this one
                failure = silence(
                    state.candidate.name,
                    clocks,
                    has_spoken=state.first_content_at is not None,
                    has_begun=self._config.streams and state.heard_at > -inf,
                )
                self.unless(self._failover.fail(state, failure, now, out), now, out)

    def _end(
        self,
        keep: AttemptState | None,
        others: AttemptOutcome,
        now: float,
        out: list[Effect],
        *,
        move: str | None = None,
    ) -> None:
        self.ended = True
        self._race.pending.clear()
        self._migration.close(move)
        if self.rise is not None:
            self._transcript.playback.gate = None
        self._attempts.stop_others(keep, others, now, out)
        if not self.cancelled:
            if keep is None:
                self._transcript.restore(now)
            self._transcript.playback.end(now)

    def close(self, now: float, out: list[Effect]) -> None:
        """Close the session once everything is delivered, stopped and charged."""
        delivered = self.cancelled or self._transcript.playback.next_at is None
        if self.closed_at is not None or not (self.ended and delivered and self._attempts.all_stopped):
            return
        self.closed_at = now
        if self.reason is not None:
            out.append(Finish(self.reason))
        else:
            assert self._failover.error is not None
            out.append(Fail(self._failover.error))
