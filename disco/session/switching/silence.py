"""Carries out what `silence_rule` decides: another endpoint starts while a silent one may still come back.

Before the first content this is a hedge, one more start in the race. In mid-answer it is an heir: it reads the prompt
and the last good prefix like the target of a migration, and whoever writes first goes on. If that is the heir, the
writer has failed (stalled), as after its fixed clock. If it is the writer, the heir was not needed.
"""

from __future__ import annotations

from math import inf

from disco.candidate import Candidate
from disco.errors import AnswerTimeoutError, EndpointFailure, FailureKind
from disco.playback import last_word_start
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptState, Role
from disco.session.effects import Effect
from disco.session.parts import SessionParts
from disco.session.session_config import RunningMigration
from disco.session.switching.failover import FailoverControl
from disco.session.switching.silence_rule import MOST_HEIRS, SilentWriter, doubted_at, heir_of

__all__ = ["SilenceControl"]

_ROUNDING = 1e-9  # of times, s
_LATE_S = 0.03  # a timer that is so late says that this process was busy


class SilenceControl:
    """Starts heirs of silent attempts. Mutable: `next_at`, `_seen`, `_false_alarms`, `_heirs`, `_not_before`.

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

    # ------------------------------------------------------------------ when

    def note(self, now: float) -> None:
        """Compute `next_at` again: an attempt has started, failed, ended or left its queue."""
        writer = self._transcript.writer
        self._seen = writer, None if writer is None else writer.first_content_at, self._migration.moving
        due = self._due(now)
        self.next_at = inf if due is None else max(due[0], self._not_before)

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

    def check(self, now: float, out: list[Effect]) -> None:
        """Start a hedge or an heir if the rule says so.

        Where the call itself comes late, this process was busy: what came meanwhile is read first.
        """
        due = self._due(now)
        if due is not None and due[0] <= now + _ROUNDING:
            if now - due[0] > _LATE_S and self._not_before < due[0]:
                self._not_before = now + _LATE_S
            if now + _ROUNDING < self._not_before:
                self.note(now)
                return
            self._heirs += 1
            _, heir, doubted = due
            for state in doubted:
                state.doubted_at = now
            if self._transcript.writer is None:
                self._hedge(heir, now, out)
            else:
                self._start_heir(doubted[0], heir, now, out)
        self.note(now)

    def _due(self, now: float) -> tuple[float, Candidate, list[AttemptState]] | None:
        """Return when to start which endpoint, and who is then in doubt; None: there is nothing to start."""
        if self._heirs >= MOST_HEIRS or self._migration.moving is not None:
            return None
        writer = self._transcript.writer
        return self._due_at_first(now) if writer is None else self._due_after(writer, now)

    def _due_at_first(self, now: float) -> tuple[float, Candidate, list[AttemptState]] | None:
        silent = [a for a in self._attempts.states if a.active]
        heir = heir_of(self._free(now, Prefix()), self._config.prompt_tokens, 0, continues=False)
        if heir is None or not silent or any(a.waits_for_its_turn or a.prefix for a in silent):
            return None
        tokens = self._config.prompt_tokens
        # All of them must be slow. Before there is data on each, that is not known.
        at = max(max(a.works_from_at, a.quiet_from) + a.candidate.slow_first_token_s(tokens) for a in silent)
        return (at, heir, silent) if at < min(inf, self._race.next_at) else None

    def _due_after(
        self, writer: AttemptState, now: float
    ) -> tuple[float, Candidate, list[AttemptState]] | None:
        transcript, config = self._transcript, self._config
        may_move = config.may_continue and transcript.only_text and self._plan.assist is None
        is_silent = writer.active and writer.first_content_at is not None and writer.paused_at is None
        if not (may_move and is_silent and writer.candidate.silence_s is not None) or self._failover.rise:
            return None
        prefix = Prefix(tokens=transcript.tokens)
        heir = heir_of(self._free(now, prefix), config.prompt_tokens, transcript.tokens, continues=True)
        if heir is None:
            return None
        dry_at = -inf
        if config.streams and config.pace_tps is not None:
            dry_at = now + transcript.playback.slack_s(now)
        silent = SilentWriter(writer.silent_from, writer.candidate.silence_s, dry_at, self._false_alarms)
        return doubted_at(silent, heir, config.prompt_tokens + transcript.tokens), heir, [writer]

    def _free(self, now: float, prefix: Prefix) -> list[Candidate]:
        """Return the heirs that have not failed, have nothing to do, and are within the budget, in order."""
        busy = {a.candidate.name for a in self._attempts.states if a.active}
        reservation = self._parts.reservation
        return [
            self._parts.candidates[name]
            for name in self._plan.heirs
            if name not in busy
            and name not in self._failover.failures.failed
            and (reservation is None or reservation.allowance(name, prefix, now))
        ]

    # ------------------------------------------------------------------ before the first content

    def _hedge(self, heir: Candidate, now: float, out: list[Effect]) -> None:
        self._race.pending = [p for p in self._race.pending if p.endpoint != heir.name]
        self._race.open(heir.name, Role.HEDGE, Prefix(), now, out)

    def won(self, winner: AttemptState, now: float) -> None:
        """Tell the watch, before the losers are stopped, who was silent until a hedge wrote.

        The answer does not move there any more. That an empty role chunk has come makes the endpoint reachable.
        """
        if winner.role is not Role.HEDGE:
            return
        for loser in self._attempts.states:
            if loser is winner or not loser.active or loser.doubted_at is None:
                continue
            self._migration.has_failed(loser.candidate.name)
            if not loser.held:
                self._attempts.too_silent(loser, self._stalled(loser, FailureKind.TIMEOUT, now), now)

    # ------------------------------------------------------------------ in mid-answer

    def _start_heir(self, writer: AttemptState, heir: Candidate, now: float, out: list[Effect]) -> None:
        """Let the heir read, from the last whole word; a word that the reader has seen must be written again."""
        transcript = self._transcript
        text, shown = transcript.written, transcript.shown_chars
        cut = last_word_start(text)
        withheld = ""
        if not cut or cut < shown:
            cut, withheld = shown, text[cut:shown]
        beyond = transcript.take_back(cut)
        prefix = transcript.prefix_for(heir, writer.candidate, cut, withheld)
        state = self._attempts.open(heir.name, Role.HEIR, prefix, now, out)
        unread = self._config.prompt_tokens + prefix.tokens
        self._migration.begin(writer, state, cut, beyond, now, "silence", unread_tokens=unread)

    def came_back(self, now: float, out: list[Effect]) -> None:
        """Let the writer go on, which has written before its heir did."""
        self._false_alarms += 1
        self._migration.abandon("source_back", now, out)

    def lost(self, now: float, out: list[Effect]) -> None:
        """Let the writer fail, whose heir has written first."""
        source = self._migration.source
        if source.active:
            self._failover.give_up(source, self._stalled(source, FailureKind.STALLED, now), now, out)

    def _stalled(self, state: AttemptState, kind: FailureKind, now: float) -> EndpointFailure:
        error = AnswerTimeoutError(
            f"Endpoint {state.candidate.name!r} was silent for {now - state.silent_from:.2f} s, longer than it "
            "nearly ever is, and another endpoint has gone on with the answer."
        )
        return EndpointFailure(kind, error)
