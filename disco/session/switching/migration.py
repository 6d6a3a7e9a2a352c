"""Carries out a migration: bank, cut, start the target, switch or give up (design rule 3).

`migration_rule` decides whether an answer migrates, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from disco.candidate import Candidate
from disco.events import Delta
from disco.plan import FOLLOW_TOKENS, Migration, Plan
from disco.playback import last_word_start
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.attempt.attempt_table import AttemptTable
from disco.session.effects import Effect
from disco.session.session_config import MoveReason, Role, RunningMigration, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths
from disco.session.switching.migration_lateness import late_at
from disco.session.switching.migration_rule import (
    HandoverOrder,
    MigrationVerdict,
    Rule,
    Snapshot,
    handover_order,
)
from disco.session.transcript import Transcript

__all__ = ["MigrationControl"]

_RECONSIDER_S = 0.01  # how often a migration that still waits for its bank is considered again, s
_ROUNDING = 1e-9  # of times, s
_MOST_GIVEN_UP = 2  # migrations away from one writer that may fail before it keeps the answer
_MOST_PAUSED = 4  # the same where the writer was paused meanwhile, so that a try wastes only a prompt
_SLOWER_THAN_READER = 1.2  # a target below this many times the reader's pace uses up the bank


def _usable_slack_s(slack_s: float, pace_tps: float, lost_tokens: float) -> float:
    """Return the part of a slack that a migration can use: the cut goes back to a word boundary."""
    return max(0.0, slack_s - lost_tokens / pace_tps)


class MigrationControl:
    """Where the answer may move from its present writer, and the migration under way, if there is one.

    Mutable: `migrations`, `moving`, `move`, `began_at`, `_writer`, `_lateness`, `_rules`, `_reconsider_at`, `_failed`.

    Attributes:
        migrations: every migration that was begun.
        moving: the migration under way; None: there is none.
        move: the migration that the plan allows from the present writer; None: the answer stays.
        began_at: when the answer began, s; models load from then on.
    """

    def __init__(
        self,
        plan: Plan,
        candidates: Mapping[str, Candidate],
        config: SessionConfig,
        lengths: AnswerLengths,
        attempts: AttemptTable,
        transcript: Transcript,
    ) -> None:
        self.migrations: list[RunningMigration] = []
        self.moving: RunningMigration | None = None
        self.move: Migration | None = None
        self.began_at = 0.0
        self._plan = plan
        self._candidates = candidates
        self._config = config
        self._lengths = lengths
        self._attempts = attempts
        self._transcript = transcript
        self._writer: AttemptState | None = None
        self._lost_tokens = 1 if plan.order == "auto" else 2
        self._lateness = 1.0  # how many times slower than known the targets are taken to be
        # For this writer and margin; the key is whether the target has the prompt.
        self._rules: dict[bool, Rule] = {}
        self._reconsider_at = 0.0
        self._failed: set[str] = set()

    # ------------------------------------------------------------------ where the answer may move

    def writer_is(self, writer: AttemptState) -> None:
        """Consider migrations from this writer from now on."""
        self._writer = writer
        self.consider_anew()
        allowed = self._config.may_migrate and self._config.may_continue and self._plan.assist is None
        move = self._plan.migrations.get(writer.candidate.name) if allowed else None
        self.move = None if move is None or move.target in self._failed else move

    def has_failed(self, endpoint: str) -> None:
        """Store that the endpoint failed: this answer does not move there any more."""
        self._failed.add(endpoint)
        if self.move is not None and self.move.target == endpoint and self.moving is None:
            self.move = None

    def consider_anew(self) -> None:
        """Forget the rules: the writer, or what is known of a target, has changed."""
        self._rules.clear()
        self._reconsider_at = 0.0

    def stay(self) -> None:
        """Forbid any further migration of this answer."""
        self.move = None

    def keeps(self, now: float) -> str | None:
        """Return the endpoint whose prefill is kept although it lost the race, because a migration there is likely."""
        if self.move is None or not self.move.keep_prefill:
            return None
        verdict = self._rule(target_has_prompt=True).verdict(self._transcript.tokens, self._slack_s(now))
        return self.move.target if verdict in (MigrationVerdict.GO, MigrationVerdict.BANK) else None

    def _slack_s(self, now: float) -> float:
        """Return how long a migration may take, in seconds."""
        if not self._config.streams:
            return inf
        pace = self._config.pace_tps
        if pace is None:
            return 0.0
        return _usable_slack_s(self._transcript.playback.slack_s(now), pace, self._lost_tokens)

    def _rule(self, *, target_has_prompt: bool) -> Rule:
        """Return the rule for the migration that is considered; needed at every token, so made once."""
        rule = self._rules.get(target_has_prompt)
        if rule is None:
            assert self._writer is not None
            assert self.move is not None
            source, target = self._writer.candidate, self._candidates[self.move.target]
            if target_has_prompt and target.load_s:
                # Its model is loaded, even if the plan expected a load time.
                target = replace(target, load_s=0.0)
            order = handover_order(self._plan.order, source, target)
            margin = self._lateness * self._margin(order, target)
            snapshot = Snapshot(
                source=source,
                target=target,
                prompt_tokens=self._config.prompt_tokens,
                written_tokens=0,
                max_tokens=self._config.max_tokens,
                target_has_prompt=target_has_prompt,
                slack_s=0.0,
                pace_tps=self._config.pace_tps,
                lengths=self._lengths,
                margin=margin,
                order=order,
                # One batch that is being read, and one that is not yet full.
                most_unread=2 * FOLLOW_TOKENS if target_has_prompt and target.follows else inf,
            )
            rule = self._rules[target_has_prompt] = Rule(snapshot)
        return rule

    def _margin(self, order: HandoverOrder, target: Candidate) -> float:
        """Return the safety factor on the target's time, by what a late target costs the reader."""
        if order == "pause" and target.ttft_quantiles:
            return 1.0  # nothing, and the rule weighs the quantiles itself
        if order == "break_before_make" and self._plan.order == "auto":
            return self._config.margin**2  # a gap: the source cannot go on
        return self._config.margin

    # ------------------------------------------------------------------ the migration

    def consider(self, now: float, out: list[Effect]) -> None:
        """Ask the migration rule: bank text on the verdict BANK, cut the answer and start the target on GO."""
        if not self._transcript.may_be_continued:
            self.move = None
        if self.move is None or now < self._reconsider_at:
            return
        target = self._candidates[self.move.target]
        kept = self._attempts.parked_at(target.name)
        rule = self._rule(target_has_prompt=kept is not None)
        reads_s = self._still_reads_s(kept, rule, now)
        if reads_s is not None and kept is None:
            reads_s -= target.has_loaded_s(now - self.began_at)
        decision = rule.decide(self._transcript.tokens, self._slack_s(now) - (reads_s or 0.0))
        self._reconsider_at = now + _RECONSIDER_S
        self._transcript.playback.banking = decision.verdict in (MigrationVerdict.GO, MigrationVerdict.BANK)
        if decision.verdict is MigrationVerdict.NEVER:
            self.move = None
        if decision.verdict is not MigrationVerdict.GO or reads_s is None:
            return
        cut = last_word_start(self._transcript.written)
        if cut > 0 and cut >= self._transcript.shown_chars and self._is_covered(cut, rule, reads_s, now):
            self._cut(cut, target, rule.order, decision.handover_s + reads_s, now, out)

    def _may_cut_early(self, rule: Rule) -> bool:
        """Whether the answer may be cut while a parked target still reads its prompt.

        A source that is stopped or paused at the cut then writes nothing in vain meanwhile.
        """
        return self._plan.order == "auto" and rule.order != "make_before_break"

    def _still_reads_s(self, kept: AttemptState | None, rule: Rule, now: float) -> float | None:
        """Return how long a parked target will read its prompt at most, s; None: wait until it has reported that.

        It takes its turn before the attempt that continues the answer.
        """
        if kept is None or kept.keeps_prefill:
            return 0.0
        target = kept.candidate
        unpaced = self._config.streams and self._config.pace_tps is None
        if not self._may_cut_early(rule) or unpaced or kept.waits_for_its_turn or target.ttft_quantiles:
            return None
        reads_s = kept.first_token_s(self._config.prompt_tokens)
        left_s = kept.works_from_at + self._margin(rule.order, target) * reads_s - now
        return left_s if left_s > 0 else None  # slower than known: so is what is left

    def _is_covered(self, cut: int, rule: Rule, reads_s: float, now: float) -> bool:
        """Whether the slack at this very cut is large enough; the named orders take an average cut instead."""
        pace = self._config.pace_tps
        if self._plan.order != "auto" or pace is None or not self._config.streams:
            return True
        playback = self._transcript.playback
        slack_s = _usable_slack_s(playback.slack_s(now), pace, playback.tokens_after(cut)) - reads_s
        return rule.verdict(self._transcript.tokens, slack_s) is MigrationVerdict.GO

    def _cut(
        self,
        cut: int,
        target: Candidate,
        order: HandoverOrder,
        expected_s: float,
        now: float,
        out: list[Effect],
    ) -> None:
        source, transcript = self._writer, self._transcript
        assert source is not None
        if order == "pause":
            self._attempts.pause(source, now, out)
        beyond = transcript.take_back(cut)
        prefix = transcript.prefix_for(target, source.candidate, cut)
        state = self._attempts.open(target.name, Role.TARGET, prefix, now, out)
        self.moving = RunningMigration(
            source=source.number,
            target=state.number,
            decided_at=now,
            cut_chars=cut,
            cut_tokens=transcript.tokens,
            expected_s=expected_s,
            slack_s=transcript.playback.slack_s(now) if self._config.streams else inf,
            beyond=beyond,
            paused=order == "pause",
        )
        self.migrations.append(self.moving)
        if order == "break_before_make":
            self._attempts.stop(source, AttemptOutcome.HANDED_OVER, now, out)

    def begin(
        self,
        source: AttemptState,
        target: AttemptState,
        cut: int,
        beyond: list[Delta],
        now: float,
        reason: MoveReason,
        *,
        unread_tokens: int | None = None,
    ) -> None:
        """Move the answer from the cut on to an attempt that was opened; `rise`, `assist` and `silence` decide that.

        `unread_tokens`: how many the target has still to read; None: the whole prompt.
        """
        unread_tokens = self._config.prompt_tokens if unread_tokens is None else unread_tokens
        self.moving = RunningMigration(
            source=source.number,
            target=target.number,
            decided_at=now,
            cut_chars=cut,
            cut_tokens=self._transcript.tokens,
            expected_s=target.candidate.time_to_first_token_s(unread_tokens),
            slack_s=self._transcript.playback.slack_s(now) if self._config.streams else inf,
            beyond=beyond,
            reason=reason,
        )
        if cut:  # else the answer begins again: there is no seam
            self.migrations.append(self.moving)

    def is_target(self, state: AttemptState) -> bool:
        """Whether the attempt is the target of the migration under way."""
        return self.moving is not None and self.moving.target == state.number

    def is_source(self, state: AttemptState) -> bool:
        """Whether the attempt is the source of the migration under way."""
        return self.moving is not None and self.moving.source == state.number

    @property
    def rises(self) -> bool:
        """Whether the migration under way is to a higher tier, because the source was unsure."""
        return self.moving is not None and self.moving.rises

    @property
    def is_doubt(self) -> bool:
        """Whether the migration under way is to the heir of a silent writer, which may still come back."""
        return self.moving is not None and self.moving.is_doubt

    def ask_again(self, target: AttemptState) -> None:
        """Let another attempt take the place of the target of the migration under way."""
        assert self.moving is not None
        self.moving.target = target.number

    @property
    def source(self) -> AttemptState:
        """The source of the migration under way."""
        assert self.moving is not None
        return self._attempts.states[self.moving.source]

    def late_at(self, now: float) -> float:
        """Return when to give up the migration under way, in seconds; `inf` where it is not to be given up."""
        if self.moving is None or not self._config.streams:
            return inf
        slack_s = self._transcript.playback.slack_s(now)
        return late_at(self.moving, self.source, now + slack_s, self._config, self._lateness)

    def is_late(self, now: float) -> bool:
        """Whether to give up the migration under way now."""
        return self.moving is not None and self.late_at(now) <= now + _ROUNDING

    def switch(self, target: AttemptState, now: float, out: list[Effect]) -> None:
        """Complete the migration: the target writes, and the source is stopped."""
        moving, source = self.moving, self.source
        assert moving is not None
        moving.switched_at = now
        moving.outcome = "switched"
        self.moving = None
        if source.active:
            overruled = moving.rises and not moving.cut_chars
            outcome = AttemptOutcome.OVERRULED if overruled else AttemptOutcome.HANDED_OVER
            self._attempts.stop(source, outcome, now, out)
        # A target slower than the reader uses up the bank during the rest of the answer.
        pace = self._config.pace_tps
        slow = pace is not None and target.candidate.decode_tps < _SLOWER_THAN_READER * pace
        self._transcript.playback.banking = slow

    def abandon(self, why: str, now: float, out: list[Effect]) -> None:
        """Give up the migration under way: stop the target, and let the source go on with all that it wrote."""
        moving, source = self.moving, self.source
        assert moving is not None
        self.moving = None
        moving.outcome = why
        target = self._attempts.states[moving.target]
        if target.active:
            self._attempts.stop(target, AttemptOutcome.ABANDONED, now, out)
        self._transcript.give_back(source, moving.beyond, now)
        moving.beyond = []
        if source.paused_at is not None and why != "source_finished":
            moving.resumed_at = now
            self._attempts.resume(source, now, out)
        if moving.is_doubt:  # it says nothing about how long a planned migration takes
            return
        self._lateness *= self._config.margin if moving.paused else 2
        self._rules.clear()
        self._reconsider_at = now + _RECONSIDER_S
        given_up = sum(1 for h in self.migrations if h.source == source.number and not h.is_doubt)
        if (
            given_up >= (_MOST_PAUSED if moving.paused else _MOST_GIVEN_UP)
            or target.candidate.name in self._failed
        ):
            self.move = None
            self._transcript.playback.banking = False

    @property
    def beyond(self) -> list[Delta]:
        """What the source of the migration under way has written behind the cut."""
        assert self.moving is not None
        return self.moving.beyond

    def put_back(self, now: float) -> None:
        """Put back what a stopped source had written behind the cut: its target has nothing to add."""
        assert self.moving is not None
        beyond, self.moving.beyond = self.moving.beyond, []
        self._transcript.give_back(self.source, beyond, now)

    def close(self, outcome: str | None) -> None:
        """End the migration under way, if there is one, and allow no other; None leaves its outcome unchanged."""
        if self.moving is not None and outcome is not None:
            self.moving.outcome = outcome
        self.moving = None
        self.move = None
