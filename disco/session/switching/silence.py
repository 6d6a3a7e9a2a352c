"""Carries out what `silence_rule` decides: another endpoint starts while a silent one may still come back.

Before the first content this is a hedge, one more start in the race. In mid-answer it is an heir: it reads the prompt
and the last good prefix like the target of a migration, and whoever writes first goes on. If that is the heir, the
writer has failed (stalled). If it is the writer, the heir was not needed. An heir that must begin anew, because nobody
can go on and the reader has nothing yet, replaces the writer only once it has written more, and no call of it is
unfinished: the reader would have nothing of that either.

Who may start is whoever could take over if the silent one failed (`FailoverView.beginning`) and does not cool down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from disco.candidate import Candidate
from disco.errors import EndpointFailure
from disco.events import Delta
from disco.playback import last_word_start
from disco.request import Prefix
from disco.session.answer_rule import Calls
from disco.session.attempt.attempt_state import AttemptState, Role
from disco.session.effects import Effect
from disco.session.parts import SessionParts
from disco.session.session_config import RunningMigration
from disco.session.switching.failover import FailoverControl
from disco.session.switching.failover_rule import Beginning, stalled
from disco.session.switching.silence_rule import (
    AT_ONCE,
    LATE,
    MOST_HEIRS,
    NEVER,
    SOON,
    Limits,
    SilentWriter,
    doubted_at,
    in_time_s,
    slow_first_s,
    slow_gap_s,
)

__all__ = ["SilenceControl"]

_ROUNDING = 1e-9  # of times, s
_LATE_S = 0.03  # a timer that is so late says that this process was busy


class _Heir(NamedTuple):
    """Who may take over, where it would begin, after which silence at the least, and not before when, s."""

    candidate: Candidate
    beginning: Beginning
    least: Limits
    not_before: float


@dataclass(frozen=True, slots=True)
class _Due:
    """What is to happen at `at`, s: `heir` starts beside the silent attempts; None: the silent one has failed."""

    at: float
    silent: list[AttemptState]
    heir: _Heir | None = None


class SilenceControl:
    """Starts heirs of silent attempts.

    Attributes:
        next_at: call `check` no later than this; earlier does no harm, and it is often too early. `inf`: not at all.
    """

    def __init__(self, parts: SessionParts, failover: FailoverControl) -> None:
        self.next_at = inf
        self._parts, self._plan, self._config = parts, parts.plan, parts.config
        self._attempts, self._transcript = parts.attempts, parts.transcript
        self._migration, self._race, self._failover = parts.migration, parts.race, failover
        self._seen: tuple[AttemptState | None, float | None, RunningMigration | None] = None, None, None
        self._false_alarms = 0
        self._heirs = 0
        self._not_before = -inf
        self._heirs_calls = Calls()
        self._holds = False  # the next piece of the writer in doubt does not end the doubt
        # Who starts only after a long silence: what the preset spares, but nobody who cools down.
        resting = {rest.endpoint for rest in self._plan.deprioritised if not rest.is_spared}
        others = (*self._plan.fallbacks, *(start.endpoint for start in self._plan.starts))
        spared = [name for name in others if name not in resting and name not in self._plan.heirs]
        self._spared = tuple(spared) if self._config.is_hedged else ()
        # A silence that is only unusual is no reason to rise.
        self._least = LATE if self._plan.cascade is None else SOON

    # ------------------------------------------------------------------ when

    def note(self, now: float) -> None:
        """Compute `next_at` again: an attempt has started, failed, ended or left its queue."""
        writer = self._transcript.writer
        self._seen = writer, None if writer is None else writer.first_content_at, self._migration.moving
        due = self._due(now)
        self.next_at = inf if due is None else max(due.at, self._not_before)

    def wakes_at(self, now: float) -> float:
        """Return `next_at`, computed again where another writer writes, or where a migration began or ended.

        An attempt that takes over is the writer before it writes.
        """
        seen, spoke_at, moving = self._seen
        writer = self._transcript.writer
        is_other = writer is not seen or moving is not self._migration.moving
        if is_other or (writer is not None and writer.first_content_at is not spoke_at):
            self.note(now)
        return self.next_at

    def check(self, now: float, out: list[Effect]) -> bool:
        """Start a hedge or an heir if the rule says so; return whether the answer goes on.

        Where the call itself comes late, this process was busy: what came meanwhile is read first.
        """
        goes_on, due = True, self._due(now)
        if due is not None and due.at <= now + _ROUNDING:
            if now - due.at > _LATE_S and self._not_before < due.at:
                self._not_before = now + _LATE_S
            if now + _ROUNDING < self._not_before:
                self.note(now)
                return True
            first = due.silent[0]
            if due.heir is None:
                goes_on = self._failover.fail(first, self._stalled(first, now), now, out)
            else:
                self._heirs += 1
                if due.heir.candidate.name in self._failover.failures.failed:
                    self._failover.failures.retries[due.heir.candidate.name] += 1
                for state in due.silent:
                    state.doubted_at = now
                if self._transcript.writer is None:
                    self._hedge(due.heir.candidate, now, out)
                else:
                    self._start_heir(first, due.heir.candidate, due.heir.beginning, now, out)
        self.note(now)
        return goes_on

    def _due(self, now: float) -> _Due | None:
        """Return what is to happen next; None: nothing."""
        moving, writer = self._migration.moving, self._transcript.writer
        if moving is None:
            return self._due_at_first(now) if writer is None else self._due_after(writer, now)
        target = self._attempts.states[moving.target]
        if moving.rises:  # the answer that stands is there
            return self._in_place(target, LATE)
        if not moving.is_doubt and self._migration.source.active:  # see `MigrationControl.late_at`
            return None
        other = self._next_heir(now)  # an heir that is silent, too, makes room for another one
        return None if other is None else self._in_place(target, other.least)

    def _due_at_first(self, now: float) -> _Due | None:
        silent = [a for a in self._attempts.states if a.active]
        if not silent or any(a.waits_for_its_turn or a.prefix for a in silent):
            return None
        heir = self._next_heir(now)
        if heir is None:
            return self._in_place(silent[0], SOON) if self._betters(silent[0]) else None
        # All of them must be slow.
        slow = [max(a.works_from_at, a.quiet_from) + self._slow_s(a, heir.least) for a in silent]
        at = max(heir.not_before, *slow)
        return _Due(at, silent, heir) if at < min(inf, self._race.next_at) else None

    def _due_after(self, writer: AttemptState, now: float) -> _Due | None:
        if not writer.active or writer.paused_at is not None or writer.waits_for_its_turn:
            return None
        heir = self._next_heir(now)
        if heir is None and self._betters(writer):
            return self._in_place(writer, SOON)
        if heir is None:
            # A model on this machine writes text token by token: one that does not hangs, and may be asked again.
            hangs = writer.candidate.place == "device" and writer.first_content_at is not None
            may_go_on = self._failover.view(now).may_continue and writer.candidate.continues
            return self._in_place(writer, LATE) if hangs and may_go_on else None
        # Nobody can write beside an answer that is judged or divided.
        if self._failover.rise is not None or self._plan.assist is not None:
            return self._in_place(writer, heir.least)
        limit_s = self._slow_s(writer, heir.least)
        dry_at = -inf
        if self._config.streams and self._config.pace_tps is not None:
            dry_at = now + self._transcript.playback.slack_s(now)
        silent = SilentWriter(writer.silent_from, limit_s, dry_at, self._false_alarms)
        at = doubted_at(silent, heir.candidate, self._config.prompt_tokens + self._transcript.tokens)
        return _Due(max(at, heir.not_before), [writer], heir)

    def _betters(self, state: AttemptState) -> bool:
        """Whether the reader waits for this attempt although an answer is there, of one that was asked before it."""
        kept = self._transcript.kept
        return kept is not None and kept.writer.number < state.number

    def _in_place(self, state: AttemptState, least: Limits) -> _Due | None:
        """Let an attempt fail that another one can only replace; only where nothing need be learnt for that."""
        may_fail = self._config.is_hedged and state.active and state.paused_at is None
        if not may_fail or state.waits_for_its_turn:
            return None
        return _Due(state.silent_from + self._slow_s(state, least), [state])

    def _slow_s(self, state: AttemptState, least: Limits) -> float:
        """Return how long an attempt may be silent, s: no less than `least`, and half of what its clocks leave."""
        candidate, fixed = state.candidate, None
        if self._config.is_hedged:
            fixed = LATE if least is LATE or not candidate.may_be_doubted else SOON
        if self._heirs >= MOST_HEIRS and least is AT_ONCE:
            least = fixed or NEVER
        has_spoken, expected_s = state.first_content_at is not None, 0.0
        if has_spoken:
            limit_s = max(slow_gap_s(candidate, fixed), least.gap_s)
        else:
            tokens = self._config.prompt_tokens + state.prefix.tokens
            expected_s = state.first_token_s(tokens)
            limit_s = max(slow_first_s(candidate, tokens, expected_s, fixed), least.first_s)
        if not self._config.is_hedged:
            return limit_s
        left_s = self._attempts.deadlines.leave_s(state.silent_from, has_spoken=has_spoken)
        return min(limit_s, in_time_s(left_s, expected_s))

    def _next_heir(self, now: float) -> _Heir | None:
        """Return who may take over now; None: nobody may.

        First who needs no proof that it continues, first whom the preset does not spare. One that has failed may be
        asked again as after any failure.
        """
        view, failures = self._failover.view(now), self._failover.failures
        busy = {a.candidate.name for a in self._attempts.states if a.active}
        fresh = [[n for n in names if n not in failures.failed] for names in (self._plan.heirs, self._spared)]
        again = [] if view.has_kept else failures.left(view.max_retries)
        for names in (*fresh, [n for n in again if n in self._plan.heirs or n in self._spared]):
            for if_proved in (False, True):
                for name in names:
                    candidate = self._parts.candidates[name]
                    beginning = view.beginning(candidate, if_proved=if_proved)
                    if name not in busy and beginning is not None and self._fits(candidate, now):
                        not_before = failures.again[name] if name in failures.failed else -inf
                        least = self._least if name in self._spared else AT_ONCE
                        return _Heir(candidate, beginning, least, not_before)
        return None

    def _fits(self, candidate: Candidate, now: float) -> bool:
        """Whether a candidate's context has room for the answer so far, and its budget."""
        written, reservation = self._transcript.tokens, self._parts.reservation
        room = candidate.context_tokens
        if room is not None and self._config.prompt_tokens + written >= room:
            return False
        prefix = Prefix(tokens=written)
        return reservation is None or bool(reservation.allowance(candidate.name, prefix, now))

    # ------------------------------------------------------------------ before the first content

    def _hedge(self, heir: Candidate, now: float, out: list[Effect]) -> None:
        self._race.pending = [p for p in self._race.pending if p.endpoint != heir.name]
        self._race.open(heir.name, Role.HEDGE, Prefix(), now, out)

    def won(self, winner: AttemptState, now: float) -> None:
        """Tell the watch, before the losers are stopped, who was silent until a hedge wrote.

        The answer does not move there any more.
        """
        if winner.role is not Role.HEDGE:
            return
        for loser in self._attempts.states:
            if loser is not winner and loser.active and loser.doubted_at is not None:
                self._migration.has_failed(loser.candidate.name)
                self._attempts.too_silent(loser, self._stalled(loser, now), now)

    # ------------------------------------------------------------------ in mid-answer

    def _start_heir(
        self, writer: AttemptState, heir: Candidate, beginning: Beginning, now: float, out: list[Effect]
    ) -> None:
        """Let the heir read, from the last whole word; a word that the reader has seen must be written again."""
        transcript, cut, prefix = self._transcript, 0, Prefix()
        self._holds = self._config.is_hedged and now - writer.silent_from >= SOON.gap_s
        if beginning is Beginning.GO_ON:
            text, shown, withheld = transcript.written, transcript.shown_chars, ""
            cut = last_word_start(text)
            if not cut or cut < shown:
                cut, withheld = shown, text[cut:shown]
        beyond = transcript.take_back(cut)
        if beginning is Beginning.GO_ON:
            prefix = transcript.prefix_for(heir, writer.candidate, cut, withheld)
        self._heirs_calls = Calls()
        state = self._attempts.open(heir.name, Role.HEIR, prefix, now, out)
        unread = self._config.prompt_tokens + prefix.tokens
        self._migration.begin(writer, state, cut, beyond, now, "silence", unread_tokens=unread)

    def may_replace(self, target: AttemptState, deltas: list[Delta]) -> bool:
        """Whether a target that has now written these deltas is to replace its source; call it once for each delta.

        An heir that began anew has first to write more than its source, and its calls to be whole, unless the source
        has failed.
        """
        moving = self._migration.moving
        if moving is None or not moving.is_doubt or target.prefix or not self._migration.source.active:
            return True
        for delta in deltas:
            self._heirs_calls.read(delta.tool_calls)
        there = self._transcript.tokens + sum(d.tokens for d in moving.beyond)
        return self._heirs_calls.may_be_shown and sum(d.tokens for d in (*target.held, *deltas)) > there

    def came_back(self, now: float, out: list[Effect]) -> None:
        """Let the writer go on, which has written before its heir did.

        After a long silence one piece says little: a server that writes a word every few seconds is as good as silent.
        The piece waits behind the cut until the next one or the heir.
        """
        if self._holds:
            self._holds = False
            return
        self._false_alarms += 1
        self._migration.abandon("source_back", now, out)

    def lost(self, now: float, out: list[Effect]) -> None:
        """Let the writer fail, whose heir has written first."""
        moving, source = self._migration.moving, self._migration.source
        if moving is not None and not moving.cut_chars:
            self._transcript.begin_anew()
        if source.active:
            self._failover.give_up(source, self._stalled(source, now), now, out)

    def _stalled(self, state: AttemptState, now: float) -> EndpointFailure:
        has_spoken = state.first_content_at is not None
        return stalled(state.candidate.name, now - state.silent_from, has_spoken=has_spoken)
