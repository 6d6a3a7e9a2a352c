"""The life of one answer as a state machine: events in, effects out, no clock and no I/O.

A driver calls one method per event with the time `now` (seconds on one clock that never goes back), does
what the returned effects say, and calls `woken` no later than `wake_at`. Every attempt that was started is
reported `stopped` exactly once, whatever became of it; the last effect of a session is `Finish` or `Fail`.

The rules are those of docs/architecture.md. This file has the events, the race and the ends; `answer` has the state
and what every rule is made of, `handover` the moves, `failover` the failures.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, Ended, Usage
from disco.request import Prefix
from disco.session.allowance import has_used_up, was_told_to_stop
from disco.session.attempts import AttemptState, Outcome, Role, is_content, is_text
from disco.session.effects import Effect, Fail, Finish, ParkAttempt
from disco.session.failover import SurvivingAnswer
from disco.session.migration import Verdict, decide
from disco.session.terms import Handover, Pending, Terms

__all__ = ["Handover", "Session", "Terms"]

_RUNNING = Outcome.RUNNING  # as in `attempts`: asked for every token


class Session(SurvivingAnswer):
    """Runs one plan to its end; see the module's docstring for how it is driven."""

    def start(self, now: float) -> list[Effect]:
        """Begin; the first event of every session."""
        self.started_at = now
        self._pending = [
            Pending(now + s.after_s, s.endpoint, Prefix(), Role.STARTER) for s in self.plan.starts
        ]
        out: list[Effect] = []
        self._start_due(now, out)
        return self._settle(now, out)

    def deltas(self, number: int, deltas: list[Delta], now: float) -> list[Effect]:
        """An attempt wrote something (a non-empty batch)."""
        state = self.attempts[number]
        out: list[Effect] = []
        if state.outcome is not _RUNNING or self._ended:
            return out
        state.last_at = now
        if state is self._writer:
            self._written(state, deltas, now)
        elif self._moving is not None and number == self._moving.target:
            if not is_text(deltas) and not self._source_of(self._moving).active:
                # Its source was stopped at the cut: there is nobody to go back to.
                error = IncompleteAnswerError(
                    f"Endpoint {state.candidate.name!r} did not continue the text it was given."
                )
                self._fail_attempt(state, EndpointFailure(FailureKind.SEAM, error), now, out)
            elif not self._arrived(state, deltas, now, out):
                return out
        elif not is_content(deltas):
            state.held.extend(deltas)
            return out
        elif self._writer is None:
            self._commit(state, now, out)
            self._written(state, [*state.held, *deltas], now)
            state.held.clear()
        if state.allowance is not None and state.active and has_used_up(state, deltas, self.terms.max_tokens):
            self._cut_off(state, now, out)
            return self._settle(now, out)
        if self._move is not None and self._moving is None:
            self._consider_move(now, out)
            if self._refused:
                self._turn_back(now, out)
        return self._release(now, out)

    def flows(self, number: int, *, considering: bool = False) -> bool:
        """Whether nothing but the reader's pace stands between the packets of this attempt; then see `flow`.

        Args:
            number: the attempt.
            considering: a move that is considered is no hindrance (see `considered_move`).
        """
        return (
            (self._move is None or considering)
            and self._moving is None
            and self.attempts[number].allowance is None
            and not self._clocked
            and not self._pending
            and self.terms.streams
            and not self._ended
            and self._writer is self.attempts[number]
        )

    def flow(
        self,
        number: int,
        packets: Iterable[tuple[float, Any]],
        offset_s: float,
        until: float,
        out: list[tuple[float, list[Delta]]] | None = None,
    ) -> tuple[float, Any]:
        """Take all that the writer writes in a row: what `deltas` and `woken` would do, packet by packet.

        For drivers that know what comes. Nothing but releases can follow while an attempt `flows`.

        Args:
            number: the attempt; it flows.
            packets: (seconds after `offset_s`, event) in order; taken up to the first event that is none of the
                writer's packets, which is the last at the latest.
            offset_s: see there.
            until: packets of that time or later are not taken either.
            out: where (time, deltas) is written down as the reader gets it, if anywhere.

        Returns:
            (time, event) of the one that was fetched and not taken.
        """
        state, playback, wake_at = self.attempts[number], self.playback, self.wake_at
        for at, event in packets:
            now = at + offset_s
            if now >= until or type(event) is not list:
                self.wake_at = wake_at
                return now, event
            while wake_at < now:
                deltas = playback.release(wake_at)
                if deltas:
                    self._shown(deltas, wake_at)
                    if out is not None:
                        out.append((wake_at, deltas))
                next_at = playback.next_at
                wake_at = inf if next_at is None else next_at
            state.last_at = now
            self._written(state, event, now)
            deltas = playback.release(now)
            if deltas:
                self._shown(deltas, now)
                if out is not None:
                    out.append((now, deltas))
            next_at = playback.next_at
            wake_at = inf if next_at is None else next_at
        raise AssertionError("what an attempt does ends with Ended or a failure")

    def take_stretch(
        self,
        number: int,
        *,
        written_at: list[float],
        written: tuple[list[str], list[int]],
        released_at: list[float],
        released: tuple[list[str], list[int]],
        wake_at: float,
        asked_until: float | None,
    ) -> None:
        """Write down packets that a driver has put through the playback itself, while the attempt flows.

        Args:
            number: the attempt.
            written_at: when each packet came, s; each is one text without token ids.
            written: their texts, and how many tokens each is.
            released_at: when each text left, s.
            released: the same of these.
            wake_at: when the playback has more.
            asked_until: `ConsideredMove.ask_at` after it; None: no move is considered.
        """
        texts, tokens = written
        if texts:
            state, count = self.attempts[number], sum(tokens)
            state.last_at = written_at[-1]
            state.tokens += count
            state.kept_tokens += count
            state.parts += texts
            self._tokens += count
            self._text += texts
            self._ids = None
            self.generated += zip(written_at, tokens, strict=True)
        texts, tokens = released
        self.released += zip(released_at, tokens, strict=True)
        self.delivered += texts
        self.wake_at = wake_at
        if asked_until is not None:
            self._reconsider_at = asked_until

    def is_moving_from(self, number: int) -> bool:
        """Whether what the attempt writes only waits for its move to be given up, until `wake_at`: see `take_beyond`."""
        moving = self._moving
        return moving is not None and not self._clocked and self._can_go_back(moving) and number == moving.source

    def take_beyond(self, number: int, written_at: list[float], deltas: list[Delta]) -> None:
        """Take what the source of a move writes behind the cut: what `deltas` would do, one by one.

        Args:
            number: the attempt; `is_moving_from` holds.
            written_at: when each came, s, all before `wake_at`; not empty.
            deltas: texts.
        """
        self._written_beyond(self.attempts[number], written_at, deltas)
        released = self._release(written_at[-1], [])
        assert not released, "nothing is due before wake_at"

    def waits(self, number: int, now: float) -> None:
        """The attempt is kept waiting by its reader: what it does not write is no silence of its own."""
        self.attempts[number].last_at = now

    def ended(self, number: int, ended: Ended, now: float) -> list[Effect]:
        """An attempt finished properly."""
        state = self.attempts[number]
        out: list[Effect] = []
        if not state.active:
            if state.outcome is Outcome.PARKED:
                state.ended_at = now
            return self._settle(now, out)
        state.usage = ended.usage or state.usage
        if state.first_content_at is None and self._watch is not None:
            self._watch.answered(state.candidate.name, state.started_at, now)
        moving = self._moving
        if was_told_to_stop(state, ended, self.terms.max_tokens):
            self._cut_off(state, now, out)
        elif moving is not None and number == moving.target:
            # The target has nothing to add at the cut; the source knows better while it still writes.
            state.ended_at = now
            if self._source_of(moving).active:
                self._abandon("target_empty", now, out)
            else:
                self._finish(state, ended.finish_reason, now, out)
        elif self._writer is None and any(a.active for a in self.attempts if a is not state):
            # Nothing said is not an answer while somebody else may still speak.
            state.outcome = Outcome.LOST
            state.ended_at = now
        elif state is self._writer or self._writer is None:
            if moving is not None:
                self._abandon("source_finished", now, out)
            if self._writer is None:  # an empty answer is an answer
                self._commit(state, now, out)
                self._written(state, state.held, now)
            self._finish(state, ended.finish_reason, now, out)
        return self._settle(now, out)

    def failed(self, number: int, failure: EndpointFailure, now: float) -> list[Effect]:
        """An attempt failed; whatever it wrote before still counts."""
        state = self.attempts[number]
        out: list[Effect] = []
        if state.active:
            self._fail_attempt(state, failure, now, out)
        return self._settle(now, out)

    def stopped(self, number: int, usage: Usage, now: float) -> list[Effect]:
        """Nothing of the attempt runs any more; `usage` is what it has to be charged for."""
        state = self.attempts[number]
        if self.purse is not None:
            self.purse.settle(
                number,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                reported=state.usage is not None,  # it came with the end
                now=now,
            )
        state.stopped = True
        if state.active:  # its driver was stopped, and that it is cancelled comes only now
            state.outcome = Outcome.CANCELLED
        state.usage = usage
        if state.ended_at is None:
            state.ended_at = now
        return self._settle(now, [])

    def woken(self, now: float) -> list[Effect]:
        """The time `wake_at` has come."""
        out: list[Effect] = []
        if self._pending:
            self._start_due(now, out)
        self._check_clocks(now, out)
        moving = self._moving
        if moving is not None and self._can_go_back(moving) and self._runs_dry(now):
            self._abandon("late", now, out)
        return self._settle(now, out)

    def cancelled(self, now: float) -> list[Effect]:
        """The reader went away: stop everything; `Finish("cancelled")` follows the last `stopped`."""
        out: list[Effect] = []
        if self._closed:
            return out
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._pending.clear()
        self._moving = self._move = None
        self._ended = self._cancelled = True
        self._stop_others(None, Outcome.CANCELLED, now, out)
        return self._settle(now, out)

    def _commit(self, winner: AttemptState, now: float, out: list[Effect]) -> None:
        """The race is won: by the first content, not by headers or an empty role chunk (rule 1)."""
        self._pending.clear()
        self._make_writer(winner)
        losers = [a for a in self.attempts if a is not winner and a.active]
        keep = None
        if losers and self._move is not None and self._move.keep_prefill:
            decision = decide(self._snapshot(now, target_has_prompt=True))
            keep = self._move.target if decision.verdict in (Verdict.GO, Verdict.BANK) else None
        for other in losers:
            if other.candidate.name == keep:
                other.outcome = Outcome.PARKED
                out.append(ParkAttempt(other.number))
            else:
                self._stop(other, Outcome.LOST, now, out)

    def _finish(self, state: AttemptState, reason: str, now: float, out: list[Effect]) -> None:
        """The writer reached the end of the answer."""
        state.outcome = Outcome.FINISHED
        state.ended_at = now
        self.finish_reason = reason
        self.error = None
        self._ended = True
        self._pending.clear()
        self._move = None
        moving = self._moving
        if moving is not None:
            self._moving = None
            moving.outcome = "target_empty"
        self._stop_others(state, Outcome.LOST, now, out)
        self.playback.end(now)

    def _settle(self, now: float, out: list[Effect]) -> list[Effect]:
        """Release what is due; close the session once everything is delivered, stopped and charged."""
        if self._refused:
            self._turn_back(now, out)
        self._release(now, out)
        if (
            self._ended
            and not self._closed
            and (self._cancelled or self.playback.next_at is None)
            and all(a.stopped for a in self.attempts)
        ):
            self._closed = True
            self.finished_at = now
            self.wake_at = inf
            if self.finish_reason is not None:
                out.append(Finish(self.finish_reason))
            else:
                assert self.error is not None
                out.append(Fail(self.error))
        return out
