"""The life of one answer as a state machine: events in, effects out, no clock and no I/O.

A driver calls one method per event with the time `now` (seconds on one clock that never goes back), does
what the returned effects say, and calls `woken` no later than `wake_at`. Every attempt that was started is
reported `stopped` exactly once, whatever became of it; the last effect of a session is `Finish` or `Fail`.

The rules are those of docs/architecture.md: the race (`deltas`, `_commit`), the hand-over
(`_consider_move` to `_abandon`), failover (`_take_over`), the ends (`_settle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from disco.dispatch.plan import Candidate, Move, Plan
from disco.errors import AnswerTimeoutError, EndpointFailure, FailureKind
from disco.playback import Playback, last_word_start
from disco.request import Prefix, Timeouts
from disco.session.attempts import AttemptState, Outcome, Role, is_content
from disco.session.effects import (
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    ParkAttempt,
    Release,
    StartAttempt,
)
from disco.session.events import Delta, DeltaKind, Ended, Usage
from disco.session.migration import AnswerLengths, Snapshot, Verdict, decide

__all__ = ["Handover", "Session", "Terms"]

RECONSIDER_S = 0.01  # how often a move that still waits for its buffer is looked at again
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
# Looking a member up on its enum class runs Python code (3.11), and these are needed for every token.
_TEXT, _ROLE = DeltaKind.TEXT, DeltaKind.ROLE


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session must know of its request, in numbers.

    Attributes:
        prompt_tokens: of the request, estimated or counted.
        max_tokens: limit of the answer, None for none.
        streams: whether a reader waits for the text; if not, nothing is released before the end.
        may_migrate: False where the request forbids a voluntary move.
        may_continue: False where only one endpoint may write the whole answer (structured output, log
            probabilities, tools): what a dead writer has shown is then not continued by another (rule 4).
        pace_tps: the reader's pace, None when pacing is off.
        timeouts: the four clocks.
        max_retries: how often the *only* endpoint left is tried again before giving up.
        margin: safety factor on the predicted hand-over time; doubled after a hand-over that came late.
    """

    prompt_tokens: int
    max_tokens: int | None = None
    streams: bool = True
    may_migrate: bool = True
    may_continue: bool = True
    pace_tps: float | None = None
    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - frozen
    max_retries: int = 2
    margin: float = 1.25


@dataclass(slots=True)
class Handover:
    """A move under way: where the cut is and what the source wrote after it meanwhile."""

    source: int
    target: int
    decided_at: float
    cut_chars: int
    cut_tokens: int
    expected_s: float
    slack_s: float
    beyond: list[Delta]
    switched_at: float | None = None
    outcome: str = "running"  # then "switched" or why not


@dataclass(slots=True)
class _Pending:
    """A start that waits for its time."""

    at: float
    endpoint: str
    prefix: Prefix
    role: Role


class Session:
    """Runs one plan. Mutable state: the fields set in `__init__` below the line; nothing else."""

    def __init__(
        self,
        plan: Plan,
        candidates: Mapping[str, Candidate],
        terms: Terms,
        playback: Playback,
        lengths: AnswerLengths,
    ) -> None:
        """See the classes of the arguments; `candidates` holds at least every endpoint the plan names."""
        self.plan = plan
        self.candidates = candidates
        self.terms = terms
        self.playback = playback
        self.lengths = lengths
        # --- mutable from here on
        self.attempts: list[AttemptState] = []
        self.segments: list[tuple[int, int]] = []  # (first character, attempt) of each piece of the answer
        self.handovers: list[Handover] = []
        self.released: list[tuple[float, int]] = []  # (time, tokens) as the reader got them
        self.generated: list[tuple[float, int]] = []  # (time, tokens) as they were written
        self.delivered: list[str] = []  # text given to the reader, in order
        self.started_at = 0.0
        self.committed_at: float | None = None
        self.finished_at: float | None = None
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.wake_at: float = inf  # call `woken` no later than this; too early does no harm
        self._pending: list[_Pending] = []
        self._writer: AttemptState | None = None
        self._move: Move | None = None  # where the answer may go from the present writer
        self._moving: Handover | None = None
        self._margin = terms.margin
        self._reconsider_at = 0.0
        self._text: list[str] = []  # what was pushed to playback
        self._tokens = 0  # content tokens pushed to playback
        self._ids: list[tuple[int, tuple[int, ...]]] | None = []  # (end character, ids); None once unknown
        self._only_text = True  # no tool call and no reasoning so far
        self._failed: set[str] = set()
        self._retries = 0
        self._ended = False  # no more text will come
        self._cancelled = False  # the reader went away
        self._closed = False  # Finish or Fail was returned

    # ------------------------------------------------------------------ events

    def start(self, now: float) -> list[Effect]:
        """Begin; the first event of every session."""
        self.started_at = now
        self._pending = [
            _Pending(now + s.after_s, s.endpoint, Prefix(), Role.STARTER) for s in self.plan.starts
        ]
        out: list[Effect] = []
        self._start_due(now, out)
        return self._settle(now, out)

    def deltas(self, number: int, deltas: list[Delta], now: float) -> list[Effect]:
        """An attempt wrote something (a non-empty batch)."""
        state = self.attempts[number]
        out: list[Effect] = []
        if not state.active or self._ended:
            return out
        state.last_at = now
        if state is self._writer:
            self._written(state, deltas, now)
        elif self._moving is not None and number == self._moving.target:
            if not self._arrived(state, deltas, now, out):
                return out
        elif not is_content(deltas):
            state.held.extend(deltas)
            return out
        elif self._writer is None:
            self._commit(state, now, out)
            self._written(state, [*state.held, *deltas], now)
            state.held.clear()
        if self._move is not None and self._moving is None:
            self._consider_move(now, out)
        return self._release(now, out)

    def ended(self, number: int, ended: Ended, now: float) -> list[Effect]:
        """An attempt finished properly."""
        state = self.attempts[number]
        out: list[Effect] = []
        if not state.active:
            if state.outcome is Outcome.PARKED:
                state.ended_at = now
            return self._settle(now, out)
        state.usage = ended.usage or state.usage
        moving = self._moving
        if moving is not None and number == moving.target:
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
        state.stopped = True
        state.usage = usage
        if state.ended_at is None:
            state.ended_at = now
        return self._settle(now, [])

    def woken(self, now: float) -> list[Effect]:
        """The time `wake_at` has come."""
        out: list[Effect] = []
        self._start_due(now, out)
        self._check_clocks(now, out)
        moving = self._moving
        if moving is not None and moving.beyond and self._runs_dry(now):
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

    # ------------------------------------------------------------------ what others may read

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

    # ------------------------------------------------------------------ starting, race

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
        out.append(StartAttempt(state.number, endpoint, prefix))
        if role is Role.TAKEOVER:
            self._make_writer(state)
        return state

    def _commit(self, winner: AttemptState, now: float, out: list[Effect]) -> None:
        """The race is won: by the first content, not by headers or an empty role chunk (rule 1)."""
        self.committed_at = now
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

    # ------------------------------------------------------------------ text

    def _written(self, state: AttemptState, deltas: list[Delta], now: float) -> None:
        """The writer's deltas: into the answer, or behind the cut while a move is under way."""
        moving = self._moving
        for delta in deltas:
            kind = delta.kind
            if kind is _ROLE:
                if state.role is Role.STARTER and moving is None:
                    self.playback.push(now, delta)
                continue
            tokens = delta.tokens
            state.tokens += tokens
            state.parts.append(delta.text)
            if state.first_content_at is None:
                state.first_content_at = now
            self.generated.append((now, tokens))
            if moving is not None:
                moving.beyond.append(delta)
            else:
                self._push(state, delta, now)

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
            for delta in deltas:
                if delta.kind is not _ROLE:
                    self.released.append((now, delta.tokens))
                    if delta.text:
                        self.delivered.append(delta.text)
            out.append(Release(deltas))
        self._set_wake(now)
        return out

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

    # ------------------------------------------------------------------ moving on purpose

    def _snapshot(self, now: float, *, target_has_prompt: bool) -> Snapshot:
        assert self._writer is not None
        assert self._move is not None
        target = self.candidates[self._move.target]
        pace = self.terms.pace_tps
        if not self.terms.streams:
            slack = inf
        elif pace is None:
            slack = 0.0
        else:
            # The cut goes back to the last word boundary, about two tokens before the end.
            slack = max(0.0, self.playback.slack_s(now) - 2 / pace)
        return Snapshot(
            source=self._writer.candidate,
            # What holds the prompt has loaded its model, whatever the plan had to reckon with.
            target=replace(target, load_s=0.0) if target_has_prompt and target.load_s else target,
            prompt_tokens=self.terms.prompt_tokens,
            written_tokens=self._tokens,
            max_tokens=self.terms.max_tokens,
            target_has_prompt=target_has_prompt,
            slack_s=slack,
            pace_tps=pace,
            lengths=self.lengths,
            margin=self._margin,
            make_before_break=self.plan.order == "make_before_break",
        )

    def _kept_prefill(self, target: str) -> AttemptState | None:
        """The loser on that endpoint that keeps its prefill, or is still at it."""
        parked = (a for a in self.attempts if a.candidate.name == target and a.outcome is Outcome.PARKED)
        return next(parked, None)

    def _consider_move(self, now: float, out: list[Effect]) -> None:
        """Ask the migration rule; bank text while it says "not yet"; cut and start the target on "go"."""
        assert self._move is not None
        if now < self._reconsider_at:
            return
        kept = self._kept_prefill(self._move.target)
        decision = decide(self._snapshot(now, target_has_prompt=kept is not None))
        target = self.candidates[self._move.target]
        self._reconsider_at = now + RECONSIDER_S
        self.playback.banking = decision.verdict in (Verdict.GO, Verdict.BANK)
        if decision.verdict is Verdict.NEVER:
            self._move = None
        if decision.verdict is not Verdict.GO or (kept is not None and not kept.stopped):
            return
        text = "".join(self._text)
        cut = last_word_start(text)
        if cut <= 0 or cut < (self.playback.released_chars if self.terms.streams else 0):
            return
        source = self._writer
        assert source is not None
        beyond = self._take_back(cut)
        state = self._open(target.name, Role.TARGET, self._prefix_for(target, text[:cut]), now, out)
        moving = Handover(
            source=source.number,
            target=state.number,
            decided_at=now,
            cut_chars=cut,
            cut_tokens=self._tokens,
            expected_s=decision.handover_s,
            slack_s=self.playback.slack_s(now) if self.terms.streams else inf,
            beyond=beyond,
        )
        self.handovers.append(moving)
        self._moving = moving
        if self.plan.order == "break_before_make":
            self._stop(source, Outcome.HANDED_OVER, now, out)

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

    def _source_of(self, moving: Handover) -> AttemptState:
        return self.attempts[moving.source]

    def _arrived(self, target: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> bool:
        """The target writes: from here on the answer is its. False while it has no content yet."""
        moving = self._moving
        assert moving is not None
        if not is_content(deltas):
            return False
        if any(d.kind not in (DeltaKind.TEXT, DeltaKind.ROLE) for d in deltas):
            # It thinks or calls a tool in the middle of a sentence: that is no continuation.
            self._failed.add(target.candidate.name)
            self._abandon("not_text", now, out)
            return True
        moving.switched_at = now
        moving.outcome = "switched"
        self._moving = None
        source = self._source_of(moving)
        if source.active:
            self._stop(source, Outcome.HANDED_OVER, now, out)
        self._make_writer(target)
        self._move = None  # one move an answer: the target was chosen because it is the cheaper one
        # A target slower than the reader lives on the bank for the rest of the answer.
        pace = self.terms.pace_tps
        self.playback.banking = pace is not None and target.candidate.decode_tps < 1.2 * pace
        self._written(target, deltas, now)
        return True

    def _runs_dry(self, now: float) -> bool:
        return self.terms.streams and self.playback.slack_s(now) <= 1e-9

    def _abandon(self, why: str, now: float, out: list[Effect]) -> None:
        """Give up a move: the source goes on as if nothing had been."""
        moving = self._moving
        assert moving is not None
        self._moving = None
        moving.outcome = why
        target = self.attempts[moving.target]
        if target.active:
            self._stop(target, Outcome.ABANDONED, now, out)
        for delta in moving.beyond:
            self._push(self._source_of(moving), delta, now)
        moving.beyond = []
        self._margin *= 2
        self._reconsider_at = now + RECONSIDER_S
        tries = sum(1 for h in self.handovers if h.source == moving.source)
        if tries >= 2 or target.candidate.name in self._failed:
            self._move = None
            self.playback.banking = False

    # ------------------------------------------------------------------ failing

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
        self._pending.append(_Pending(now + wait, dead.candidate.name, prefix, role))
        return True

    def _check_clocks(self, now: float, out: list[Effect]) -> None:
        if self._ended:
            return
        clocks = self.terms.timeouts
        total = clocks.total_s
        if total is not None and now >= self.started_at + total:
            error = AnswerTimeoutError(f"The answer was not complete after {total:g} s (timeouts.total_s).")
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

    def _deadline(self, state: AttemptState) -> float:
        clocks = self.terms.timeouts
        if state.first_content_at is None:
            return state.started_at + (inf if clocks.first_content_s is None else clocks.first_content_s)
        return state.last_at + (inf if clocks.gap_s is None else clocks.gap_s)

    # ------------------------------------------------------------------ ending

    def _stop(self, state: AttemptState, outcome: Outcome, now: float, out: list[Effect]) -> None:
        state.outcome = outcome
        state.ended_at = now
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

    def _set_wake(self, now: float) -> None:
        """Earliest moment at which something happens by itself.

        An earlier `wake_at` that is still ahead is kept: waking too often costs less than computing every
        deadline anew for every token.
        """
        release_at = self.playback.next_at if (self.terms.streams or self._ended) else None
        at = inf if release_at is None or self._cancelled else release_at
        if self._ended:
            self.wake_at = at
            return
        if now < self.wake_at <= at and self.wake_at != inf and self._moving is None and not self._pending:
            return
        for pending in self._pending:
            at = min(at, pending.at)
        for state in self.attempts:
            if state.active:
                at = min(at, self._deadline(state))
        total = self.terms.timeouts.total_s
        if total is not None:
            at = min(at, self.started_at + total)
        if self._moving is not None and self.terms.streams:
            at = min(at, max(now, now + self.playback.slack_s(now)))
        self.wake_at = at
