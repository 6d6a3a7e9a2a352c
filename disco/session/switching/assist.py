"""The assist: a server writes a short beginning while the heir, a device, reads the prompt; the heir then goes on.

The plan names both and the most tokens that the writer may write (`plan.Assist`); both start at once. If the heir is
ready first, it wins the race like any other attempt, and the writer loses it. Else the heir is parked: it reads the
prompt and then the writer's text, and the reader is shown that text just slowly enough. The answer is handed over as
soon as the heir can go on before the reader has read everything, at the latest where the writer has used up its tokens.
The method is that of P/D-Device (Jin et al., 2025); docs/concepts/assist.md says where disco differs.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Literal

from disco.candidate import READ_BATCH_TOKENS, Candidate
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, DeltaKind, Ended, Progress
from disco.judging import AgreementJudge
from disco.plan import OVER_CAP_TOKENS
from disco.playback import last_word_start
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.effects import CancelAttempt, Effect
from disco.session.ending import Ending
from disco.session.parts import SessionParts
from disco.session.session_config import Judgement, Role
from disco.session.switching.failover import FailoverControl
from disco.session.switching.failover_rule import stalled
from disco.session.switching.silence_rule import LATE

__all__ = ["AssistControl", "AssistOutcome"]

AssistOutcome = Literal[
    "running",
    "heir_first",  # the heir was ready before the writer's first token, and wrote the whole answer
    "handed_over",  # the heir went on
    "complete",  # the writer's answer was complete within its tokens
    "kept",  # the heir's model agreed too little, so the writer's endpoint was asked to go on
    "heir_lost",  # the heir failed, so another endpoint had to go on
    "not_text",  # the writer began with a call or a thought, so it was asked again, without a limit
    "ended",  # cancelled or failed
]

# The heir is expected to need so many times what is left of its prefill. The later tokens of a long prompt take longer,
# other work may halve the speed at any time, and text that was shown too early leaves a gap, while text that is shown
# late is only read more slowly.
_SPARE = 2.5
_REPORTS = 4  # of the heir's prefill: a few batches tell how fast it reads now
_LOST_TOKENS = 2  # the cut goes back to a word boundary; about so many tokens are lost there
# The text in hand is to last so much longer than the heir is expected to need: shown faster, it would have to slow down
# again once the heir writes.
_BEYOND_S = 2.0
# How long the text in hand is to last, at the pace, while the heir writes. Its words come unevenly: they have several
# tokens, and are shown once the next one has begun.
_RESERVE_S = 0.8
_DEAD_ZONE = 0.03  # smaller changes of the tempo are not worth a change


class AssistControl:
    """The assist of one answer. Mutable: every field.

    Attributes:
        outcome: how it went.
        writer: the attempt that writes the beginning; None until it has written.
        over_cap: whether the writer wrote more than it was allowed to.
        judgements: the verdict on the heir's agreement, if there is one.
        read_at: when the heir, parked, had read the prompt; None before.
        tempos: (time, tokens/s) of each change of the rate at which text is shown; None: about as it comes.
    """

    def __init__(
        self, parts: SessionParts, failover: FailoverControl, ending: Ending, judge: AgreementJudge | None
    ) -> None:
        assist = parts.plan.assist
        assert assist is not None
        self.outcome: AssistOutcome = "running"
        self.writer: AttemptState | None = None
        self.over_cap = False
        self.read_at: float | None = None
        self.tempos: list[tuple[float, float | None]] = []
        self._assist, self._config, self._candidates = assist, parts.config, parts.candidates
        self._attempts, self._transcript, self._race = parts.attempts, parts.transcript, parts.race
        self._migration, self._follower = parts.migration, parts.follower
        self._failover, self._ending, self._judge = failover, ending, judge
        self.judgements: list[Judgement] = []
        # The heir's newest reports, and when they came: the further it has come in a prompt, the more slowly it reads.
        self._reports: deque[tuple[float, Progress]] = deque(maxlen=_REPORTS)
        # Where the writer is done: since when, and the heir's prefix.
        self._waiting: tuple[float, Prefix] | None = None
        self._beyond: list[Delta] = []  # the writer's last word, which may be incomplete
        self._prompt_tokens = assist.heir_tokens or parts.config.prompt_tokens  # that the heir reads
        parts.attempts.cap_of = self._cap_of

    def _cap_of(self, candidate: Candidate, role: Role) -> int | None:
        """Return the writer's limit, as long as the heir can still go on behind it."""
        divides = self.outcome == "running" and role is Role.STARTER and candidate.name == self._assist.writer
        limit = self._config.max_tokens
        return self._assist.tokens if divides and (limit is None or self._assist.tokens < limit) else None

    @property
    def _runs(self) -> bool:
        return self.outcome == "running"

    # ------------------------------------------------------------------ while the writer writes

    def starts_anew(self, state: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> bool:
        """Ask the writer again without a limit if it begins with what nobody else can continue; return whether it does.

        Its tokens would be used up by a thought or by half a call. The reader has nothing yet.
        """
        if state.cap is None or self._transcript.writer is not None or not self._runs:
            return False
        if all(d.kind in (DeltaKind.TEXT, DeltaKind.ROLE) for d in deltas):
            return False
        self._attempts.stop(state, AttemptOutcome.LOST, now, out)
        self._ask_anew(state, now, out)
        return True

    def _ask_anew(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        self.outcome = "not_text"
        self._race.open(state.candidate.name, Role.STARTER, Prefix(), now, out)

    def won(self, winner: AttemptState) -> None:
        """Store which attempt writes first."""
        if winner.cap is not None:
            self.writer = winner
        elif self._runs:
            self.outcome = "heir_first" if winner.candidate.name == self._assist.heir else "ended"

    def consider(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """Act on what the writer has written: let the heir read it, hand over as soon as the heir can go on in time."""
        if state is not self.writer or not (state.active and self._runs) or self._waiting is not None:
            return
        cap = state.cap or 0
        if state.tokens >= cap + OVER_CAP_TOKENS:
            self.over_cap = True
            self._attempts.stop(state, AttemptOutcome.HANDED_OVER, now, out)
            self._wait_for_heir(state, now, out)
            return
        self._steer(now)
        heir = self._follower.state
        if heir is None or heir.stopped:
            return
        needed_s = heir.first_token_s(self._transcript.tokens - heir.read_tokens)
        slack_s = self._transcript.playback.slack_s(now) - _LOST_TOKENS / (self._config.pace_tps or inf)
        if slack_s < needed_s * self._config.margin or last_word_start(self._transcript.written) == 0:
            self._follower.keep_up(out)
        elif heir.awaits_text:  # else it first reads what it was given
            self._attempts.stop(state, AttemptOutcome.HANDED_OVER, now, out)
            self._wait_for_heir(state, now, out)

    def progressed(self, state: AttemptState, progress: Progress, now: float) -> None:
        """Let the display follow the heir's prefill."""
        if self._runs and state.candidate.name == self._assist.heir:
            if not progress.prefill_tps:  # it begins to read, perhaps after a wait
                self._reports.clear()
            self._reports.append((now, progress))
            if self.writer is not None:
                self._steer(now)

    @property
    def heir_progress(self) -> Progress | None:
        """The heir's newest report on its prefill; None before the first one."""
        return self._reports[-1][1] if self._reports else None

    def parked(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """Go on after the heir has read all that it was given, or has stopped."""
        if state is not self._follower.state or not self._runs or self.writer is None:
            return
        if self.read_at is None and state.holds_prompt:
            self.read_at = now
        if self._waiting is not None:
            self._hand_over(now, out)
        else:
            self.consider(self.writer, now, out)

    # ------------------------------------------------------------------ the display

    def _steer(self, now: float) -> None:
        """Show the text just slowly enough that the reader has some of it left when the heir goes on."""
        playback, pace = self._transcript.playback, self._config.pace_tps
        if pace is None:
            return
        if self._assist.heir in self._failover.failures.failed:
            self._show_at(None, now)
            return
        if self._assist.tempo == "once":
            if not self.tempos:
                self._show_at(self._paper_tps(), now)
            return
        writer = self.writer
        assert writer is not None
        coming = 0 if self._waiting is not None else max(0, (writer.cap or 0) - writer.tokens - _LOST_TOKENS)
        lasts_s = max(self._heir_ready_s(now), 0.0) + _BEYOND_S
        even_tps = max(pace, (playback.banked_tokens + coming) / lasts_s)
        # Text that arrives no faster than it is to be shown needs no tempo.
        tempo = even_tps if even_tps < writer.candidate.decode_tps else None
        last = self.tempos[-1][1] if self.tempos else None
        if tempo is None or last is None or abs(tempo - last) > _DEAD_ZONE * last:
            self._show_at(tempo, now)

    def _show_at(self, tempo: float | None, now: float) -> None:
        if not self.tempos or self.tempos[-1][1] != tempo:
            self.tempos.append((now, tempo))
            self._transcript.playback.tempo = tempo

    def _heir_ready_s(self, now: float) -> float:
        """Return how long the heir is expected to need until its first token, in seconds."""
        heir, writer = self._follower.state, self.writer
        assert writer is not None
        if heir is None or heir.stopped:
            return self._candidates[self._assist.heir].time_to_first_token_s(self._prompt_tokens)
        speed = self._reading_tps(heir.candidate)
        if heir.holds_prompt:
            prompt_s = 0.0
        elif self._reports:
            at, progress = self._reports[-1]
            prompt_s = (progress.tokens_total - progress.tokens_done) / speed - (now - at)
        else:
            prompt_s = heir.first_token_s(self._prompt_tokens) - (now - heir.works_from_at)
        more_s, more = 0.0, 0
        if self._waiting is None:
            more = max(0, (writer.cap or 0) - writer.tokens)
            more_s = more / writer.candidate.decode_tps
        # What comes while the heir still reads the prompt waits for it; of the rest, only the newest does.
        unread = writer.tokens + more - heir.read_tokens
        read_s = max(unread, READ_BATCH_TOKENS) / speed
        return max(max(prompt_s, 0.0) * _SPARE, more_s) + read_s * _SPARE + 1 / heir.candidate.decode_tps

    def _reading_tps(self, heir: Candidate) -> float:
        """Return how fast the heir reads now, in tokens/s; as planned where it has not said so."""
        if not self._reports:
            return heir.prefill_tps
        (since, first), (at, last) = self._reports[0], self._reports[-1]
        if at > since and last.tokens_done > first.tokens_done:
            return (last.tokens_done - first.tokens_done) / (at - since)
        return last.prefill_tps or heir.prefill_tps

    def _paper_tps(self) -> float:
        """Return the tempo of Eq. 4, `1/(TPOT_d + (prefill_d - TTFT_c)/(L - 1))`, tokens/s, computed once."""
        heir, writer = self._candidates[self._assist.heir], self.writer
        assert writer is not None
        assert writer.first_content_at is not None
        prefill_s = heir.time_to_first_token_s(self._prompt_tokens)
        more_s = max(0.0, prefill_s - (writer.first_content_at - writer.started_at))
        return 1 / (1 / heir.decode_tps + more_s / max(1, self._assist.tokens - 1))

    # ------------------------------------------------------------------ the hand-over

    def ends(self, state: AttemptState, ended: Ended, now: float, out: list[Effect]) -> bool:
        """Handle the writer's end; return whether the answer goes on, because only the writer's tokens are used up.

        They may have been used up by thoughts that the server does not show; see `starts_anew`.
        """
        if not self._runs:
            return False
        if state.cap is not None and self._transcript.writer is None and ended.finish_reason == "length":
            self._attempts.leave(state, AttemptOutcome.LOST, now)
            self._ask_anew(state, now, out)
            return True
        if state is not self.writer:
            return False
        if ended.finish_reason != "length" or not self._transcript.only_text:
            self.outcome = "complete" if ended.finish_reason == "stop" else "ended"
            return False
        self._attempts.leave(state, AttemptOutcome.HANDED_OVER, now)
        self._wait_for_heir(state, now, out)
        return True

    def takes_over(self, state: AttemptState, now: float, out: list[Effect]) -> bool:
        """Let the heir go on after the writer has failed; return whether it does."""
        heir = self._follower.state
        if state is not self.writer or not self._runs or heir is None or self._waiting is not None:
            return False
        if heir.outcome is not AttemptOutcome.PARKED or not self._transcript.only_text:
            return False
        self._wait_for_heir(state, now, out)
        return True

    def _wait_for_heir(self, writer: AttemptState, now: float, out: list[Effect]) -> None:
        """End the writer's part at its last whole word; hand over now, or once the heir has read so far."""
        heir, transcript = self._candidates[self._assist.heir], self._transcript
        cut = last_word_start(transcript.written)
        if cut and cut >= transcript.shown_chars:
            self._beyond = transcript.take_back(cut)
            self._waiting = now, transcript.prefix_for(heir, writer.candidate, cut)
        else:
            self._waiting = now, transcript.last_good_prefix(heir, writer.candidate)
        self._hand_over(now, out)
        if self._waiting is not None:
            self._steer(now)

    def _hand_over(self, now: float, out: list[Effect]) -> None:
        """Let the heir go on if it has read everything; else let it read the rest, and wait."""
        assert self._waiting is not None
        assert self.writer is not None
        cut_at, prefix = self._waiting
        state = self._follower.state
        if state is not None and state.outcome is AttemptOutcome.PARKED:
            if not state.keeps_prefill:
                return
            if self._follower.reads_on(prefix, out):
                return
            if not state.stopped:
                out.append(CancelAttempt(state.number))
        self._waiting = None
        keeps = self._candidates[self._assist.writer].continues and self._disagrees(now)
        name = self._assist.writer if keeps else self._assist.heir
        self.outcome = "kept" if keeps else "handed_over"
        if name in self._failover.failures.failed:
            error = IncompleteAnswerError(f"Endpoint {name!r} was to go on with the answer, and has failed.")
            failure = EndpointFailure(FailureKind.INCOMPLETE, error)
            self._ending.unless(self._without_heir(failure, now, out), now, out)
            return
        if not prefix:  # the whole beginning was one word, which the reader has not seen
            self._transcript.writer = None
            self._race.open(name, Role.STARTER, Prefix(), now, out)
            self._show_at(None, now)
            return
        target = self._attempts.open(name, Role.TARGET, prefix, now, out)
        unread = self._prompt_tokens if keeps or state is None else 0
        self._migration.begin(
            self.writer, target, len(prefix.text), self._beyond, cut_at, "assist", unread_tokens=unread
        )

    def _disagrees(self, now: float) -> bool:
        """Whether the heir's model agrees too little with the writer's text to go on with it."""
        total, tokens = self._follower.agreement
        if self._judge is None or not tokens:
            return False
        assert self.writer is not None
        verdict, key = self._judge.verdict(total / tokens), self._judge.standard.key
        outcome: Literal["handed_up", "kept"] = "handed_up" if verdict.rises else "kept"
        self.judgements.append(
            Judgement(self.writer.number, now, tokens, key.task, key.model, key.kind, verdict, outcome)
        )
        return verdict.rises

    def switched(self, now: float) -> None:
        """Store that the heir writes: from now on, text is shown about as it comes."""
        if self._config.pace_tps is not None and self._assist.tempo == "follow":
            self._transcript.playback.keep_reserve(_RESERVE_S)
        self._show_at(None, now)

    # ------------------------------------------------------------------ where there is no heir

    def lost(self, state: AttemptState, failure: EndpointFailure, now: float, out: list[Effect]) -> bool:
        """Handle the failure of the heir; return whether the answer goes on.

        A writer that writes goes on to the end of its part. Then the failover decides: most often the writer's endpoint
        continues. One that has written nothing yet is asked again, without a limit, if it could not continue later.
        """
        if not self._runs or state.candidate.name != self._assist.heir:
            return True
        if self._waiting is not None:
            self._waiting = None
            return self._without_heir(failure, now, out)
        server = self._candidates[self._assist.writer]
        written = self._transcript.writer is not None
        if not written and not server.continues:
            self.outcome = "heir_lost"
            for other in self._attempts.states:
                if other.active and other.cap is not None:
                    self._attempts.stop(other, AttemptOutcome.LOST, now, out)
                    self._race.open(server.name, Role.STARTER, Prefix(), now, out)
        return True

    def _without_heir(self, failure: EndpointFailure, now: float, out: list[Effect]) -> bool:
        """Let another endpoint go on behind the writer's part; return whether one does."""
        self.outcome = "heir_lost"
        self._show_at(None, now)
        if self.writer is not None:
            self._transcript.give_back(self.writer, self._beyond, now)
        return self._failover.take_over(failure, now, out)

    @property
    def wakes_at(self) -> float:
        """When a heir that is waited for has been silent for too long, in seconds."""
        limit = LATE.first_s if self._config.is_hedged else self._config.timeouts.first_content_s
        state = self._follower.state
        if self._waiting is None or limit is None or state is None or state.waits_for_its_turn:
            return inf
        return self._waiting_from(state) + limit

    def _waiting_from(self, heir: AttemptState) -> float:
        """Return since when the heir that is waited for has said nothing, s."""
        at = 0.0 if self._waiting is None else self._waiting[0]
        return max(at, heir.quiet_from, self._reports[-1][0] if self._reports else 0.0)

    def check_clock(self, now: float, out: list[Effect]) -> bool:
        """Give the heir up if it has been silent for too long; return whether the answer goes on."""
        state = self._follower.state
        if now < self.wakes_at or state is None:
            return True
        failure = stalled(state.candidate.name, now - self._waiting_from(state), has_spoken=False)
        self._failover.lose_follower(state, failure, now)
        out.append(CancelAttempt(state.number))
        return self.lost(state, failure, now, out)
