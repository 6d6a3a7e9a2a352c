"""The state of one answer, and the moves that every rule of a session is made of.

Attempts are opened and stopped here, text goes into playback and comes out, and deadlines are kept. The rules
themselves stand in `handover`, `failover` and `machine`, each a layer on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from disco.cost.purse import Purse
from disco.errors import BudgetExceededError, EndpointFailure, FailureKind
from disco.events import Delta, DeltaKind, Usage
from disco.plan import Candidate, Move, Plan
from disco.playback import Playback
from disco.request import Prefix
from disco.session.allowance import lowered_limit
from disco.session.answer_lengths import AnswerLengths
from disco.session.attempts import AttemptState, Outcome, Role
from disco.session.effects import CancelAttempt, Effect, Release, StartAttempt
from disco.session.terms import Handover, Pending, Terms, Watch

__all__ = ["Answer"]

# Looking a member up on its enum class runs Python code (3.11), and these are needed for every token.
_TEXT, _ROLE = DeltaKind.TEXT, DeltaKind.ROLE


class Answer:
    """Mutable state: the fields set in `__init__` below the line; nothing else.

    Methods that return nothing append the effects they want to `out`.
    """

    def __init__(
        self,
        plan: Plan,
        candidates: Mapping[str, Candidate],
        terms: Terms,
        playback: Playback,
        lengths: AnswerLengths,
        watch: Watch | None = None,
        purse: Purse | None = None,
    ) -> None:
        """See the classes of the arguments; `candidates` holds at least every endpoint the plan names."""
        self.plan = plan
        self.candidates = candidates
        self.terms = terms
        self.playback = playback
        self.lengths = lengths
        self._watch = watch
        self.purse = purse  # every start reserves here; None: nothing is limited
        # --- mutable from here on
        self.attempts: list[AttemptState] = []
        self.segments: list[tuple[int, int]] = []  # (first character, attempt) of each piece of the answer
        self.handovers: list[Handover] = []
        self.released: list[tuple[float, int]] = []  # (time, tokens) as the reader got them
        self.generated: list[tuple[float, int]] = []  # (time, tokens) as they were written
        self.delivered: list[str] = []  # text given to the reader, in order
        self.started_at = 0.0
        self.finished_at: float | None = None
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.wake_at: float = inf  # call `woken` no later than this; too early does no harm
        self._pending: list[Pending] = []
        self._writer: AttemptState | None = None
        self._move: Move | None = None  # where the answer may go from the present writer
        self._moving: Handover | None = None
        self._margin = terms.margin
        clocks = terms.timeouts
        self._clocked = (clocks.first_content_s, clocks.gap_s, clocks.total_s) != (None, None, None)
        self._reconsider_at = 0.0
        self._text: list[str] = []  # what was pushed to playback
        self._tokens = 0  # content tokens pushed to playback
        self._ids: list[tuple[int, tuple[int, ...]]] | None = []  # (end character, ids); None once unknown
        self._only_text = True  # no tool call and no reasoning so far
        self._failed: set[str] = set()
        self._again: dict[str, float] = {}  # of these, who may be asked once more, and from when
        self._refused: list[tuple[AttemptState, EndpointFailure]] = []  # starts without a budget for them
        self._is_cut = False  # a writer had to stop because it had used up its allowance
        self._retries = 0
        self._ended = False  # no more text will come
        self._cancelled = False  # the reader went away
        self._closed = False  # Finish or Fail was returned

    @property
    def text(self) -> str:
        """The answer as the reader has it so far."""
        return "".join(self.delivered)

    @property
    def writer(self) -> str | None:
        """Name of the endpoint that is writing now."""
        return self._writer.candidate.name if self._writer is not None else None

    def writer_at(self, char: int) -> str | None:
        """Name of the endpoint that wrote the character at this position of the answer."""
        name = None
        for first, number in self.segments:
            if first > char:
                break
            name = self.attempts[number].candidate.name
        return name

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return self._tokens

    def _start_due(self, now: float, out: list[Effect], *, all_of_them: bool = False) -> None:
        due = [p for p in self._pending if all_of_them or p.at <= now]
        if due:
            self._pending = [p for p in self._pending if p not in due]
            for pending in due:
                self._open(pending.endpoint, pending.role, pending.prefix, now, out)

    def _open(self, endpoint: str, role: Role, prefix: Prefix, now: float, out: list[Effect]) -> AttemptState:
        state = AttemptState(
            number=len(self.attempts),
            candidate=self.candidates[endpoint],
            role=role,
            started_at=now,
            prefix=prefix,
            last_at=now,
        )
        self.attempts.append(state)
        self.wake_at = inf  # a new deadline
        self._begin(state, now, out)
        if role is Role.TAKEOVER:
            self._make_writer(state)
        return state

    def _begin(self, state: AttemptState, now: float, out: list[Effect]) -> None:
        """Have it begin, if the budget allows; else it has failed without having been sent."""
        if self.purse is not None:
            try:
                state.allowance = self.purse.open(state.number, state.candidate.name, state.prefix, now)
            except BudgetExceededError as error:
                state.stopped, state.usage = True, Usage()
                self._refused.append((state, EndpointFailure(FailureKind.BUDGET, error)))
                return
        limit = lowered_limit(state, self.terms.max_tokens)
        out.append(StartAttempt(state.number, state.candidate.name, state.prefix, limit))

    def _make_writer(self, state: AttemptState) -> None:
        self._writer = state
        self.wake_at = inf  # its deadlines are new
        at = self.playback.pushed_chars
        if self.segments and self.segments[-1][0] == at:
            self.segments[-1] = (at, state.number)
        else:
            self.segments.append((at, state.number))
        allowed = self.terms.may_migrate and self.terms.may_continue
        move = self.plan.moves.get(state.candidate.name) if allowed else None
        if move is not None and move.target in self._failed:
            move = None
        self._move = move
        self._reconsider_at = 0.0

    def _stop(self, state: AttemptState, outcome: Outcome, now: float, out: list[Effect]) -> None:
        state.outcome = outcome
        state.ended_at = now
        if self._watch is not None and state.first_content_at is None and state.failure is None:
            name, started_at = state.candidate.name, state.started_at
            if state.held:  # it was about to speak
                self._watch.answered(name, started_at, now)
            else:
                slow_s = state.candidate.time_to_first_token_s(self.terms.prompt_tokens)
                self._watch.stopped(name, started_at, now, overdue=now - started_at >= slow_s)
        if not state.stopped:
            out.append(CancelAttempt(state.number))

    def _stop_others(
        self, keep: AttemptState | None, outcome: Outcome, now: float, out: list[Effect]
    ) -> None:
        for state in self.attempts:
            if state is keep or state.stopped:
                continue
            if state.active:
                self._stop(state, outcome, now, out)
            elif state.outcome is Outcome.PARKED:
                out.append(CancelAttempt(state.number))

    def _written(self, state: AttemptState, deltas: list[Delta], now: float) -> None:
        """The writer's deltas: into the answer, or behind the cut while a move is under way."""
        moving = self._moving
        for delta in deltas:
            if delta.kind is _ROLE:
                if state.role is Role.STARTER and moving is None:
                    self.playback.push(now, delta)
                continue
            tokens = delta.tokens
            state.tokens += tokens
            state.parts.append(delta.text)
            if state.first_content_at is None:
                state.first_content_at = now
                if self._watch is not None:
                    self._watch.answered(state.candidate.name, state.started_at, now)
            self.generated.append((now, tokens))
            if moving is None:
                self._push(state, delta, now)
            else:
                moving.beyond.append(delta)

    def _written_beyond(self, state: AttemptState, written_at: list[float], deltas: list[Delta]) -> None:
        """The same for texts that come one by one while a move is under way."""
        assert self._moving is not None
        tokens = [delta.tokens for delta in deltas]
        state.last_at = written_at[-1]
        state.tokens += sum(tokens)
        state.parts += [delta.text for delta in deltas]
        self.generated += zip(written_at, tokens, strict=True)
        self._moving.beyond += deltas

    def _push(self, state: AttemptState, delta: Delta, now: float) -> None:
        self.playback.push(now, delta)
        state.kept_tokens += delta.tokens
        self._tokens += delta.tokens
        if delta.kind is not _TEXT:
            self._only_text = False
            self._move = None
            return
        self._text.append(delta.text)
        if self._ids is not None:
            if delta.ids is None:
                self._ids = None
            else:
                self._ids.append((self.playback.pushed_chars, delta.ids))

    def _release(self, now: float, out: list[Effect]) -> list[Effect]:
        if self._cancelled or not (self.terms.streams or self._ended):
            self._set_wake(now)
            return out
        deltas = self.playback.release(now)
        if deltas:
            self._shown(deltas, now)
            out.append(Release(deltas))
        self._set_wake(now)
        return out

    def _shown(self, deltas: list[Delta], now: float) -> None:
        for delta in deltas:
            if delta.kind is not _ROLE:
                self.released.append((now, delta.tokens))
                if delta.text:
                    self.delivered.append(delta.text)

    def _take_back(self, position: int) -> list[Delta]:
        """Remove unreleased text after `position` from the answer."""
        taken = self.playback.retract(position)
        if taken:
            self._text = ["".join(self._text)[:position]]
            tokens = sum(d.tokens for d in taken)
            self._tokens -= tokens
            for _, number in reversed(self.segments):
                state = self.attempts[number]
                lost = min(tokens, state.kept_tokens)
                state.kept_tokens -= lost
                tokens -= lost
            self.segments = [s for s in self.segments if s[0] < position] or self.segments[:1]
            if self._ids is not None:
                self._ids = [entry for entry in self._ids if entry[0] <= position]
                if position and (not self._ids or self._ids[-1][0] != position):
                    self._ids = None  # the cut goes through a token
        return taken

    def _prefix_for(self, target: Candidate, text: str, withheld: str = "") -> Prefix:
        source = self._writer.candidate if self._writer is not None else None
        ids = vocabulary = None
        if (
            self._ids
            and not withheld
            and source is not None
            and target.vocabulary is not None
            and target.vocabulary == source.vocabulary
        ):
            ids = tuple(i for _, piece in self._ids for i in piece)
            vocabulary = source.vocabulary
        return Prefix(text=text, tokens=self._tokens, ids=ids, vocabulary=vocabulary, withheld=withheld)

    def _can_go_back(self, moving: Handover) -> bool:
        """Whether a move that takes too long is better given up: the source writes on and has more to show."""
        return bool(moving.beyond) and self.attempts[moving.source].active

    def _deadline(self, state: AttemptState) -> float:
        clocks = self.terms.timeouts
        if state.first_content_at is None:
            return state.started_at + (inf if clocks.first_content_s is None else clocks.first_content_s)
        return state.last_at + (inf if clocks.gap_s is None else clocks.gap_s)

    def _set_wake(self, now: float) -> None:
        """Earliest moment at which something happens by itself.

        An earlier `wake_at` that is still ahead is kept: waking too often costs less than computing every
        deadline anew for every token.
        """
        at = inf
        if (self.terms.streams or self._ended) and not self._cancelled:
            release_at = self.playback.next_at
            if release_at is not None:
                at = release_at
        if self._ended:
            self.wake_at = at
            return
        if self._moving is None and not self._pending:
            if not self._clocked:
                self.wake_at = at
                return
            if now < self.wake_at <= at and self.wake_at != inf:
                return
        for pending in self._pending:
            at = min(at, pending.at)
        if self._clocked:
            for state in self.attempts:
                if state.active:
                    at = min(at, self._deadline(state))
        total_s = self.terms.timeouts.total_s
        if total_s is not None:
            at = min(at, self.started_at + total_s)
        if self._moving is not None and self.terms.streams and self._can_go_back(self._moving):
            at = min(at, max(now, now + self.playback.slack_s(now)))
        self.wake_at = at
