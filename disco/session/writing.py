"""Which attempt's text becomes the answer: the writer's, the race winner's or a migration target's (rules 1 to 3)."""

from __future__ import annotations

from disco.errors import ContextLengthError, EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, DeltaKind, Ended
from disco.session.answer_rule import FAILED, Calls, has_failed, lacking
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, is_content, is_text
from disco.session.attempt.token_allowance import has_used_up, was_told_to_stop
from disco.session.cut_prompt import tokens_read
from disco.session.effects import Effect
from disco.session.ending import Ending
from disco.session.parts import SessionParts
from disco.session.switching.assist import AssistControl
from disco.session.switching.failover import FailoverControl
from disco.session.switching.rise import RiseControl
from disco.session.switching.silence import SilenceControl

__all__ = ["Writing"]


class Writing:
    """Handles what attempts write and how they end. It has no state of its own."""

    def __init__(self, parts: SessionParts, failover: FailoverControl, ending: Ending) -> None:
        self._max_tokens, self._may_be_empty = parts.config.max_tokens, parts.config.may_be_empty
        self._attempts, self._transcript = parts.attempts, parts.transcript
        self._migration, self._race, self._follower = parts.migration, parts.race, parts.follower
        self._failover, self._ending = failover, ending
        self._config = parts.config
        self.rise: RiseControl | None = None  # the verdicts on the answer; None where no answer is judged
        self.assist: AssistControl | None = None  # None where the answer is not divided
        self.silence: SilenceControl | None = None  # None where no silent attempt has an heir

    def take(self, state: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> None:
        """Handle what an active attempt wrote."""
        migration = self._migration
        if state is self._transcript.writer:
            if self.silence is not None and migration.is_doubt and is_content(deltas):
                self.silence.came_back(now, out)
            self._add(state, deltas, now)
        elif not is_content(deltas):
            if not (state.prefix and migration.is_target(state)):
                state.held.extend(deltas)
            return
        elif migration.is_target(state):
            if self.silence is not None and not self.silence.may_replace(state, deltas):
                state.held.extend(deltas)
                return
            self._arrived(state, deltas, now, out)
        elif self._transcript.writer is None:
            if self.assist is not None:
                if self.assist.starts_anew(state, deltas, now, out):
                    return
                self.assist.won(state)
            if self.silence is not None:
                self.silence.won(state, now)
            self._race.commit(state, now, out)
            self._add(state, [*state.held, *deltas], now)
            state.held.clear()
        if state.allowance is not None and state.active and has_used_up(state, deltas, self._max_tokens):
            self._ending.unless(self._failover.cut_off(state, now, out), now, out)
        elif migration.move is not None and migration.moving is None:
            migration.consider(now, out)  # first: a target that is always given more would always be reading
            if migration.moving is None:
                self._follower.keep_up(out)
        if self.rise is not None and state is self._transcript.writer and state.active:
            self.rise.consider(state, deltas, now, out)
        if self.assist is not None and state.active:
            self.assist.consider(state, now, out)

    def end(self, state: AttemptState, ended: Ended, now: float, out: list[Effect]) -> None:
        """Handle the proper end of an active attempt."""
        migration, writer = self._migration, self._transcript.writer
        state.usage, state.last_raw = ended.usage or state.usage, ended.raw
        lacks = self._lacking(state, ended)
        if lacks is None:
            self._attempts.answered_empty(state, now)
        if self.assist is not None and self.assist.ends(state, ended, now, out):
            return
        if lacks is not None and migration.is_doubt:  # the other of the two goes on
            self._give_up(state, lacks, ended, now, out)
            return
        if migration.is_doubt and migration.is_target(state) and is_content(state.held):
            held, state.held = state.held, []
            self._arrived(state, held, now, out)
            writer = state
        if self._begins_elsewhere(state, ended, now, out):
            return
        if was_told_to_stop(state, ended, self._max_tokens):
            self._ending.unless(self._failover.cut_off(state, now, out), now, out)
        elif migration.is_target(state):
            # The target has nothing to add at the cut. A source that still writes goes on instead; for one that is
            # silent, this is the answer's end, unless the target was not allowed to write.
            state.ended_at = now
            if self.rise is not None and self.rise.standing is not None:
                self._attempts.leave(state, AttemptOutcome.LOST, now)
                self._failover.failures.failed.add(state.candidate.name)
                error = IncompleteAnswerError(
                    f"Endpoint {state.candidate.name!r} answered without any content."
                )
                failure = EndpointFailure(FailureKind.INCOMPLETE, error)
                self._ending.unless(self._failover.after_rise(failure, now, out), now, out)
            elif migration.source.active and not (
                migration.is_doubt and state.prefix and ended.finish_reason == "stop"
            ):
                migration.abandon("target_empty", now, out)
            else:
                if self.silence is not None and migration.is_doubt:
                    self.silence.lost(now, out)
                migration.put_back(now)
                self._ending.finish(state, ended.finish_reason, now, out)
        elif lacks is not None:
            if self.rise is not None and writer is None and not self._attempts.others_active(state):
                self._race.commit(state, now, out)  # so that it goes up like any answer
                self._add(state, state.held, now)
            if self.rise is None or not self.rise.ends(state, ended, now, out):
                self._give_up(state, lacks, ended, now, out)
        elif writer is None and self._attempts.others_active(state):
            # An attempt without content does not end the answer while another attempt may still write. It has nothing
            # more to say, so that nobody asks it again because that one is late.
            self._transcript.keep(state, ended.finish_reason, state.held, now)
            self._attempts.leave(state, AttemptOutcome.LOST, now)
            self._failover.failures.failed.add(state.candidate.name)
        elif state is writer or writer is None:
            if migration.rises:
                assert self.rise is not None
                self.rise.ends_source(state, ended, now)
                return
            if migration.moving is not None:
                migration.abandon("source_finished", now, out)
            if writer is None:  # no attempt is left: the answer is empty
                self._race.commit(state, now, out)
                self._add(state, state.held, now)
            if self.rise is None or not self.rise.ends(state, ended, now, out):
                self._ending.finish(state, ended.finish_reason, now, out)

    def _lacking(self, state: AttemptState, ended: Ended) -> str | None:
        """Return what the answer lacks that this attempt has ended; None: nothing, or it does not end the answer.

        Where the plan names one endpoint alone, all counts as an answer that the SDK takes for one, unless the endpoint
        can ask in another way. A writer in doubt and an heir that began anew have an answer each.
        """
        transcript, migration = self._transcript, self._migration
        writes = transcript.writer is None or state is transcript.writer
        text, calls, has_more = transcript.written, transcript.calls, transcript.has_more or transcript.holds
        if calls is None:
            return ended.lacks
        if migration.is_doubt and (writes or (migration.is_target(state) and not state.prefix)):
            apart = migration.beyond if writes else state.held
            text = (text if writes else "") + "".join(d.text for d in apart if d.kind is DeltaKind.TEXT)
            has_more = (has_more and writes) or any(d.kind is DeltaKind.TOOL for d in apart)
            calls = Calls()
            for delta in apart:
                calls.read(delta.tool_calls)
        elif not writes:
            return None
        elif migration.moving is not None:
            is_left = has_failed(ended.finish_reason) and not migration.rises
            return FAILED if is_left else None  # the target goes on
        calls.read(ended.tool_calls)
        return lacking(
            text,
            calls,
            ended.finish_reason,
            has_more=has_more or ended.has_content,
            may_be_empty=self._may_be_empty,
        )

    def _give_up(self, state: AttemptState, lacks: str, ended: Ended, now: float, out: list[Effect]) -> None:
        """Let an attempt fail whose answer is none.

        Where nobody has more, thoughts, white space, fields of a provider's own, calls whose arguments are no JSON, and
        an answer that says itself that it has failed are delivered. The last is an answer for the SDK: its endpoint is
        not asked again.
        """
        transcript = self._transcript
        is_kept = has_failed(ended.finish_reason) and self._keep(state, ended, now)
        error = IncompleteAnswerError(
            f"Endpoint {state.candidate.name!r} {lacks} (finish reason {ended.finish_reason!r})."
        )
        failure = EndpointFailure(FailureKind.INCOMPLETE, error, may_retry=False if is_kept else None)
        failure.once_more = failure.plainly = ended.lacks is not None
        goes_on = self._failover.fail(state, failure, now, out)
        is_none = not (transcript.holds or transcript.has_more or transcript.written.strip())
        is_odd = transcript.calls is not None and transcript.calls.are_broken and not transcript.calls.are_cut
        is_unread = ended.has_content or (is_none and ended.has_notes)
        if not goes_on and is_unread and not transcript.tokens:
            self._race.commit(state, now, out)
            self._add(state, state.held, now)
            self._ending.finish(state, ended.finish_reason, now, out)
        elif not goes_on and ((transcript.tokens and is_none) or is_odd):
            self._ending.finish(state, ended.finish_reason, now, out)
        else:
            self._ending.unless(goes_on, now, out)

    def _keep(self, state: AttemptState, ended: Ended, now: float) -> bool:
        """Keep what an attempt has written, to be delivered where nobody has better; return whether it is there."""
        moving = self._migration.moving
        if state is self._transcript.writer and state.tokens:
            beyond = [] if moving is None else moving.beyond
            return self._transcript.keep(state, ended.finish_reason, beyond, now)
        if self._migration.is_target(state) and not state.prefix and is_content(state.held):
            return self._transcript.keep(state, ended.finish_reason, state.held, now)
        return False

    def _add(self, state: AttemptState, deltas: list[Delta], now: float) -> None:
        """Add the writer's deltas to the answer, or after the cut where a migration is under way."""
        if state.first_content_at is None and is_content(deltas):
            self._attempts.spoke(state, now)
            self._failover.made_up_for = True
        moving = self._migration.moving
        if self.rise is not None:
            deltas = self.rise.read(state, deltas)
        self._transcript.add(state, deltas, now, None if moving is None else moving.beyond)

    def _arrived(self, target: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> None:
        """Handle the target's first content. Reasoning or a tool call in mid-sentence is not a continuation."""
        name = target.candidate.name
        if is_text(deltas) or not target.prefix:
            if self.silence is not None and self._migration.is_doubt:
                self.silence.lost(now, out)
            self._migration.switch(target, now, out)
            if self.assist is not None:
                self.assist.switched(now)
            if self.rise is not None:
                self.rise.switched(out)
            self._race.hand_to(target)
            self._add(target, [*target.held, *deltas], now)
            target.held.clear()
        elif self._migration.source.active and not self._migration.rises:
            self._failover.failures.failed.add(name)
            self._migration.has_failed(name)
            self._migration.abandon("not_text", now, out)
        else:  # the source was stopped at the cut, or is in doubt: the failure decides what goes on instead
            error = IncompleteAnswerError(f"Endpoint {name!r} did not continue the text it was given.")
            failure = EndpointFailure(FailureKind.SEAM, error)
            self._ending.unless(self._failover.fail(target, failure, now, out), now, out)

    def _begins_elsewhere(self, state: AttemptState, ended: Ended, now: float, out: list[Effect]) -> bool:
        """Handle an answer to a prompt that the server has cut; see `cut_prompt`. False: it ends like any other."""
        config = self._config
        if (
            config.least_tokens is None
            or state.prefix
            or tokens_read(ended, config.prompt_tokens, None) is None
        ):
            return False
        least = config.least_tokens()
        read = tokens_read(ended, config.prompt_tokens, least)
        if read is None:
            return False
        state.cut_prompt = read, least
        is_alone = self._migration.moving is None and self.rise is None and self.assist is None
        # On the user's own machines, the context is the user's to set.
        is_own = state.candidate.reach != "any"
        if state is not self._transcript.writer or not (
            is_alone and (is_own or self._transcript.nothing_shown)
        ):
            return False
        name = state.candidate.name
        error = ContextLengthError(
            f"Endpoint {name!r} cut the prompt: it has read {read:,} tokens of at least {least:,}. Raise its context, "
            "shorten the prompt, or configure an endpoint with a longer context."
        )
        failure = EndpointFailure(FailureKind.CONTEXT_LENGTH, error)
        if is_own:
            self._ending.unless(self._failover.fail(state, failure, now, out), now, out)
            return True
        self._keep(state, ended, now)
        if not self._failover.fail(state, failure, now, out):  # nobody else: better this answer than none
            self._ending.finish(state, ended.finish_reason, now, out)
        return True
