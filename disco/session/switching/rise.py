"""The cascade: an answer that its writer was unsure of rises to a higher tier, and stands until that tier has answered.

What is judged, and how, is the judge's matter (`disco.judging`). Here stands what follows from a verdict: which tier
comes next, which text is kept, what the reader may see meanwhile, and what is delivered where no higher tier answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from disco.candidate import Candidate
from disco.events import Delta, Ended
from disco.judging.threshold_rules import Verdict
from disco.playback import last_sentence_end, last_word_start
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, Role
from disco.session.effects import Effect, Release
from disco.session.ending import Ending
from disco.session.parts import SessionParts
from disco.session.session_config import AnswerJudge, AttemptJudge, Judgement
from disco.session.transcript import Aside

__all__ = ["RiseControl"]

_LONGEST_SENTENCE = 400  # characters; of a longer one, all but the last word is shown


@dataclass(slots=True)
class Standing:
    """An answer that a verdict has overruled: delivered where no higher tier answers. Mutable: `ended`.

    Attributes:
        source: the attempt that wrote it.
        cut: how many characters of it the reader has, or may have; the higher tier continues from here.
        aside: its text behind the cut.
        judgement: the verdict.
        ended: how it ended; None while it is still being written.
        revises: the reader has it, and the higher tier's answer replaces it; else no text that was shown is taken back.
    """

    source: AttemptState
    cut: int
    aside: Aside
    judgement: Judgement
    ended: Ended | None
    revises: bool


class RiseControl:
    """What follows from verdicts on one answer. Mutable: `judgements`, `standing`, `_judges`, `_overruled`, the gate.

    Attributes:
        judgements: every verdict, and every answer that could not be judged.
        standing: the overruled answer that may still be delivered; None: there is none.
    """

    def __init__(self, parts: SessionParts, ending: Ending, judge: AnswerJudge) -> None:
        cascade = parts.plan.cascade
        assert cascade is not None
        self.judgements: list[Judgement] = []
        self.standing: Standing | None = None
        self._cascade, self._judge, self._ending = cascade, judge, ending
        self._candidates, self._config, self._lengths = parts.candidates, parts.config, parts.lengths
        self._attempts, self._transcript = parts.attempts, parts.transcript
        self._migration, self._race = parts.migration, parts.race
        # By number of the attempt; None: the attempt is not judged, or not any more.
        self._judges: dict[int, AttemptJudge | None] = {}
        self._overruled: set[str] = set()  # endpoints whose answer has been handed up
        self._gate = 0  # text before this position may be shown
        self._cuts: list[int] = []  # ends of sentences before it, where a higher tier may go on
        self._behind_gate = ""  # the text behind it
        self._may_hold = parts.config.streams and cascade.display != "revise"
        self._holds = self._may_hold  # text until it is judged

    # ------------------------------------------------------------------ judging

    def read(self, state: AttemptState, deltas: list[Delta]) -> list[Delta]:
        """Show the judge what the writer wrote; return it as it is to stand in the answer."""
        number = state.number
        if number not in self._judges:
            # Only what an endpoint wrote from the beginning can be compared with its other answers.
            is_highest = not self._cascade.above(state.candidate.name)
            judge = None if state.prefix else self._judge.of(state.candidate, is_highest=is_highest)
            self._judges[number] = judge
            if self._judges[number] is None:
                # Banking stays as the switch to this attempt has set it.
                self._lift(banks=self._transcript.playback.banking)
            else:
                self._withhold()
        judge = self._judges[number]
        return deltas if judge is None else judge.read(deltas)

    def consider(self, state: AttemptState, deltas: list[Delta], now: float, out: list[Effect]) -> None:
        """Act on what the judge says of the answer so far: hand it up, or let the reader have more of it."""
        judge = self._judges.get(state.number)
        if judge is None or self._migration.moving is not None:
            return
        if not self._transcript.only_text:
            self._not_judged(state, judge, "not_text", now)
            return
        if judge.is_blind:
            self._not_judged(state, judge, "no_score", now)
            return
        verdict = judge.check()
        if verdict is not None:
            self._decide(state, judge, verdict, None, now, out)
        elif self._holds and self._cascade.display == "guard":
            self._behind_gate += "".join([d.text for d in deltas])
            if judge.trusts:
                self._show_sentences()

    def ends(self, state: AttemptState, ended: Ended, now: float, out: list[Effect]) -> bool:
        """Judge the writer's complete answer; return whether the answer goes on, on a higher tier."""
        judge = self._judges.get(state.number)
        if judge is None:
            return False
        is_text = self._transcript.only_text  # log probabilities say nothing about other content
        text = self._transcript.written
        above = self._cascade.above(state.candidate.name)
        if is_text and above and not text.strip() and ended.finish_reason == "stop":
            return self._decide(state, judge, None, ended, now, out)
        answer = judge.settled(text, ended.finish_reason) if is_text else None
        if answer is None:
            cut_short = ended.finish_reason != "stop"
            why = "cut_short" if cut_short else "no_class" if is_text else "not_text"
            self._not_judged(state, judge, why, now)
            return False
        if answer != text:
            self._transcript.rewrite(state, answer, now)
        verdict = judge.end()
        if verdict is not None:
            return self._decide(state, judge, verdict, ended, now, out)
        if above:
            self._not_judged(state, judge, "no_score", now)
        return False

    def _decide(
        self,
        state: AttemptState,
        judge: AttemptJudge,
        verdict: Verdict | None,
        ended: Ended | None,
        now: float,
        out: list[Effect],
    ) -> bool:
        """Keep the answer or hand it up, as the verdict says; return whether it was handed up.

        An empty answer has no verdict, and is handed up: it is no answer, as that of a higher tier would not be.
        """
        why = "empty" if verdict is None else None
        judgement = Judgement(
            state.number, now, state.tokens, judge.task, judge.model, judge.kind, verdict, why=why
        )
        self.judgements.append(judgement)
        self._judges[state.number] = None
        rises = verdict is None or verdict.rises
        if rises and self._hand_up(state, judgement, ended, now, out):
            return True
        judgement.outcome = "stood" if rises else "kept"
        self._lift()
        return False

    def _not_judged(self, state: AttemptState, judge: AttemptJudge, why: str, now: float) -> None:
        self.judgements.append(
            Judgement(
                state.number, now, state.tokens, judge.task, judge.model, judge.kind, None, "not_judged", why
            )
        )
        self._judges[state.number] = None
        self._lift()

    # ------------------------------------------------------------------ what the reader sees

    def _withhold(self) -> None:
        """Show nothing of an answer that a judged attempt begins, until its judge lets it.

        Also where another attempt began before it, whose text was not held, and of which nothing is left.
        """
        self._gate, self._behind_gate, self._cuts = 0, "", []
        self._holds = self._may_hold
        if self._holds:
            # Text leaves no faster than it is read, so that as much of it as possible can still be replaced.
            self._transcript.playback.gate, self._transcript.playback.banking = 0, True

    def _show_sentences(self) -> None:
        """Let the reader have the complete sentences before the gate."""
        text = self._behind_gate
        end = last_sentence_end(text)
        if not end and len(text) > _LONGEST_SENTENCE:
            end = last_word_start(text)
        if end > 0:
            self._gate += end
            self._cuts.append(self._gate)
            self._behind_gate = text[end:]
            self._transcript.playback.gate = self._gate

    def _lift(self, *, banks: bool = False) -> None:
        """Let the reader have everything from now on; `banks`: no faster than it is read."""
        if self._holds:
            self._holds = False
            self._transcript.playback.gate, self._transcript.playback.banking = None, banks

    # ------------------------------------------------------------------ handing up

    def _hand_up(
        self, state: AttemptState, judgement: Judgement, ended: Ended | None, now: float, out: list[Effect]
    ) -> bool:
        """Let the next tier that can answer do so; False where there is none."""
        transcript = self._transcript
        revises = self._cascade.display == "revise" and not transcript.nothing_shown
        cut = 0 if revises else self._cut
        is_over = ended is not None and bool(cut) and cut >= transcript.playback.pushed_chars
        target = None if is_over else self._next(state, cut, now)
        if target is None:
            return False
        self._overrule()
        self._overruled.add(state.candidate.name)
        if ended is not None:
            self._attempts.leave(state, AttemptOutcome.FINISHED, now)
        aside = Aside([], ()) if revises else transcript.set_aside(cut)
        self.standing = Standing(state, cut, aside, judgement, ended, revises)
        self._open(target, now, out)
        return True

    @property
    def _cut(self) -> int:
        """The first position behind what the reader has where a higher tier may go on; 0: it begins anew."""
        if self._transcript.nothing_shown:
            return 0
        shown = self._transcript.shown_chars
        return next((cut for cut in self._cuts if cut >= shown), self._gate)

    def _next(self, state: AttemptState, cut: int, now: float) -> Candidate | None:
        """Return the next tier above that has not failed, can continue what is shown, and is in time."""
        failed = self._ending.failures.failed
        for name in self._cascade.above(state.candidate.name):
            candidate = self._candidates[name]
            if name not in failed and (not cut or candidate.continues) and self._is_in_time(candidate, now):
                return candidate
        return None

    def _is_in_time(self, candidate: Candidate, now: float) -> bool:
        """Whether the tier can be expected to complete the answer before the answer's deadline."""
        until = self._attempts.deadlines.total_at
        if until == inf:
            return True
        judged, lengths = self.judgements[-1], self._lengths.capped(self._config.max_tokens)
        tokens = judged.tokens if judged.kind == "class" else lengths.expected_remaining(0)
        first_s = candidate.time_to_first_token_s(self._config.prompt_tokens)
        return now + first_s + tokens / candidate.decode_tps <= until

    def _open(self, target: Candidate, now: float, out: list[Effect], prefix: Prefix | None = None) -> None:
        """Start an attempt on a higher tier; the text that stands is put aside until that attempt writes."""
        standing = self.standing
        assert standing is not None
        if prefix is None:
            cut, prefix = standing.cut, Prefix()
            if cut:
                prefix = self._transcript.prefix_for(target, standing.source.candidate, cut)
        state = self._attempts.open(target.name, Role.RISE, prefix, now, out)
        self._migration.begin(standing.source, state, standing.cut, standing.aside.deltas, now, "confidence")

    def ends_source(self, state: AttemptState, ended: Ended, now: float) -> None:
        """Store that the overruled answer is complete, while a higher tier has not yet written."""
        assert self.standing is not None
        self._attempts.leave(state, AttemptOutcome.FINISHED, now)
        self.standing.ended = ended

    def switched(self, out: list[Effect]) -> None:
        """Store that a higher tier writes. It replaces an answer that was shown, or that was not complete."""
        standing = self.standing
        if standing is None:
            return
        if standing.revises:
            self._overrule()
            out.append(Release([self._transcript.begin_revision()]))
        elif standing.ended is None:
            self.standing = None

    def _overrule(self) -> None:
        """Drop the answer that stood: a higher one is complete, or has itself been handed up."""
        standing = self.standing
        if standing is not None:
            whole = AttemptOutcome.HANDED_OVER if standing.cut else AttemptOutcome.OVERRULED
            standing.source.outcome = whole
        self.standing = None

    # ------------------------------------------------------------------ where no higher tier answers

    @property
    def may_stand(self) -> bool:
        """Whether there is a complete overruled answer that can still be delivered."""
        standing = self.standing
        if standing is None or standing.ended is None:
            return False
        return standing.revises or self._transcript.shown_chars <= standing.cut

    def goes_on(self, now: float, out: list[Effect], again: tuple[Candidate, Prefix] | None = None) -> bool:
        """After the failure of a higher tier: ask the next one, or let the source go on if it still writes.

        Args:
            now: the time, s.
            out: the effects.
            again: the tier that failed and the prefix with which it may be asked once more, which comes first.

        Returns:
            Whether the answer goes on; False where it ends with the answer that stands.
        """
        standing, migration, transcript = self.standing, self._migration, self._transcript
        assert standing is not None
        target, prefix = again or (self._next(standing.source, standing.cut, now), None)
        if target is not None:
            if migration.moving is not None:
                migration.moving.outcome = "target_failed"
            else:  # the tier that failed had written
                if standing.cut:
                    transcript.take_back(standing.cut)
                else:
                    transcript.begin_anew()
                transcript.writer = standing.source
            self._open(target, now, out, prefix)
            return True
        if not standing.source.active:
            return False
        migration.abandon("target_failed", now, out)
        standing.judgement.outcome = "stood"
        self.standing = None
        self._lift()
        return True

    def put_back(self, now: float) -> None:
        """Let what the overruled answer has so far be the answer: its source has failed, and no higher tier answers."""
        standing = self.standing
        assert standing is not None
        self._migration.close("target_failed")
        self._transcript.put_back(standing.aside, now)
        standing.judgement.outcome = "stood"
        self.standing = None
        self._lift()

    def stand(self, now: float, out: list[Effect]) -> bool:
        """Deliver the overruled answer, for want of a better one; False where there is none to deliver."""
        standing = self.standing
        if standing is None or standing.ended is None or not self.may_stand:
            return False
        self._migration.close("target_failed")
        if not standing.revises:
            self._transcript.take_back(standing.cut)
        self._transcript.put_back(standing.aside, now)
        standing.judgement.outcome = "stood"
        self.standing = None
        self._ending.finish(standing.source, standing.ended.finish_reason, now, out)
        return True

    def finished(self) -> None:
        """Store that the answer is complete."""
        self._overrule()
        self._lift()

    def in_order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the endpoints that may take over, those whose answer was overruled last."""
        return tuple(sorted(names, key=self._overruled.__contains__))
