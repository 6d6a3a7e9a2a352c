"""Moving an answer on purpose: bank, cut, start the target, switch or give up (design rule 3).

Whether and when is `migration.decide`; here is what is done about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from disco.events import Delta
from disco.playback import last_word_start
from disco.session.answer import Answer
from disco.session.attempts import AttemptState, Outcome, Role, is_content, is_text
from disco.session.effects import Effect
from disco.session.migration import Rule, Snapshot, Verdict, decide
from disco.session.terms import Handover

__all__ = ["ConsideredMove", "MovingAnswer"]

RECONSIDER_S = 0.01  # how often a move that still waits for its buffer is looked at again


def usable_slack_s(slack_s: float, pace_tps: float) -> float:
    """Of a slack, what a hand-over has: the cut goes back to the last word boundary, about two tokens before the end."""
    return max(0.0, slack_s - 2 / pace_tps)


@dataclass(frozen=True, slots=True)
class ConsideredMove:
    """A move that the answer may yet make, for drivers that know what the writer will write.

    Attributes:
        rule: what decides.
        written_tokens: of the answer so far.
        unchanging: verdicts on which nothing happens that has not happened yet.
        pace_tps: the reader's.
        ask_at: when to ask next, s; then every `RECONSIDER_S` at the earliest.
    """

    rule: Rule
    written_tokens: int
    unchanging: frozenset[Verdict]
    pace_tps: float
    ask_at: float

    def leaves_all_as_it_is(self, more_tokens: int, slack_s: float) -> bool:
        """Whether nothing would happen when so much more is written, and the playback's slack is this."""
        slack_s = usable_slack_s(slack_s, self.pace_tps)
        return self.rule.decide(self.written_tokens + more_tokens, slack_s).verdict in self.unchanging


_WHILE_BANKING = frozenset({Verdict.BANK})
_WHILE_THE_TARGET_READS = frozenset({Verdict.BANK, Verdict.GO})  # it still prefills the prompt for this answer
_NOT_YET = frozenset({Verdict.LATER})


class MovingAnswer(Answer):
    """An answer that can move from one endpoint to another in mid-sentence."""

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
            slack = usable_slack_s(self.playback.slack_s(now), pace)
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

    def considered_move(self, now: float) -> ConsideredMove | None:
        """What `_consider_move` will ask at the next packets; None: nothing, or the reader has no pace."""
        pace = self.terms.pace_tps
        if self._move is None or self._moving is not None or pace is None:
            return None
        kept = self._kept_prefill(self._move.target)
        unchanging = _NOT_YET
        if self.playback.banking:
            unchanging = _WHILE_BANKING if kept is None or kept.stopped else _WHILE_THE_TARGET_READS
        rule = Rule(self._snapshot(now, target_has_prompt=kept is not None))
        return ConsideredMove(rule, self._tokens, unchanging, pace, self._reconsider_at)

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

    def _source_of(self, moving: Handover) -> AttemptState:
        return self.attempts[moving.source]

    def _arrived(self, target: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> bool:
        """The target writes: from here on the answer is its. False while it has no content yet."""
        moving = self._moving
        assert moving is not None
        if not is_content(deltas):
            return False
        if not is_text(deltas):
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
