"""Judges of one attempt's answer: of the class that it chose, or of the text that it wrote.

A judge lives as long as its attempt. What it compares with, a `ScoreHistory` and a `LabelPrior`, outlives the request.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

from disco.events import Delta, DeltaKind
from disco.judging.confidence import RunningConfidence, best_label, class_confidence
from disco.judging.early_exit import ExitHistory
from disco.judging.history_store import HistoryKey
from disco.judging.label_prior import LabelPrior
from disco.judging.score_history import ScoreHistory
from disco.judging.threshold_rules import Rule, Verdict, judge

__all__ = ["AgreementJudge", "ClassJudge", "SequenceJudge", "Standard", "named_class"]

_AROUND = string.whitespace + "\u00a0\"'`\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"  # blanks and quotes


@dataclass(frozen=True, slots=True)
class Standard:
    """By what an answer is judged.

    Attributes:
        key: with whose scores the answer's is compared.
        beta: the share of answers to hand up.
        rule: see `threshold_rules.Rule`.
    """

    key: HistoryKey
    beta: float
    rule: Rule = "exact"

    def verdict(self, score: float, history: ScoreHistory) -> Verdict:
        """Judge a score and add it to its history."""
        return judge(score, history, self.beta, rule=self.rule, seed=self.key.seed)


@dataclass(frozen=True, slots=True)
class AgreementJudge:
    """Judges the beginning of an answer by how far the model agrees that is to go on with it.

    The score is the mean log probability, under that model, of the tokens that another model has written.

    Attributes:
        standard: by what it is judged; the key's kind is "agreement".
        history: of earlier scores.
    """

    standard: Standard
    history: ScoreHistory

    def verdict(self, agreement: float) -> Verdict:
        """Judge a score and add it to its history; the verdict rises where the model agrees too little to go on.

        Args:
            agreement: mean log probability of the tokens that the model has read, nats.
        """
        return self.standard.verdict(agreement, self.history)


class SequenceJudge:
    """Judges a text by the log probabilities of its tokens; an answer without them is not judged.

    Under the rule "paper" the answer is judged once, when it is complete; else as its `ExitHistory` says. Mutable.

    Attributes:
        task, model, kind: see `HistoryKey`.
        confidence: of the text so far.
    """

    def __init__(
        self, standard: Standard, history: ExitHistory, *, trusts_from: int = 0, leaves_early: bool = True
    ) -> None:
        """Make a judge of one answer.

        Args:
            standard: by what it is judged.
            history: what it is compared with.
            trusts_from: how many tokens are judged before any of them may be shown.
            leaves_early: whether the answer may be handed up before it is complete.
        """
        self.task, self.model, self.kind = standard.key
        self._standard, self._history, self._trusts_from = standard, history, trusts_from
        self._watch = None
        self.confidence = RunningConfidence()
        if standard.rule == "exact":
            self._watch = history.watch(standard.beta, seed=standard.key.seed, leaves_early=leaves_early)
            self.confidence = self._watch.confidence
        self._verdict: Verdict | None = None  # before the end
        self._is_known = True

    @property
    def trusts(self) -> bool:
        """Whether the text so far may be shown: so many tokens have come, and none of the checkpoints stopped them."""
        return self.confidence.tokens >= self._trusts_from

    @property
    def is_blind(self) -> bool:
        """Whether text came without log probabilities, so that the answer cannot be judged any more."""
        return not self._is_known

    def read(self, deltas: list[Delta]) -> list[Delta]:
        """Take what the attempt wrote; return it unchanged.

        Args:
            deltas: a batch of the attempt.
        """
        for delta in deltas:
            if delta.logp is None:
                if delta.kind is DeltaKind.TEXT and delta.text:
                    self._is_known = False
            elif not self._is_known:
                continue
            elif self._watch is None:
                self.confidence.add(delta.logp)
            else:
                self._verdict = self._watch.add(delta.logp) or self._verdict
        return deltas

    def check(self) -> Verdict | None:
        """Return the verdict if it fell before the answer is complete."""
        return self._verdict

    def settled(self, text: str, finish_reason: str) -> str | None:
        """Return the text of the complete answer as it is; None where a limit or a filter has cut it short.

        Args:
            text: the complete answer.
            finish_reason: the API's.
        """
        return text if finish_reason == "stop" else None

    def end(self) -> Verdict | None:
        """Judge the complete answer; None where a part of it came without log probabilities, or it is empty."""
        if not self._is_known or not self.confidence.tokens:
            return None
        if self._watch is not None:
            return self._watch.end()
        return self._standard.verdict(self.confidence.score(self._history.kind), self._history.scores)


class ClassJudge:
    """Chooses the class of an answer, and judges how clear the choice was.

    The model's preference for a label whatever the text is (`LabelPrior`) is taken off first, so that the class may be
    another one than the model's most probable text. An answer without label scores is not judged; its class is the one
    that its text names.

    Attributes:
        task, model, kind: see `HistoryKey`.
        trusts: always False: nothing of a class is shown before it is judged.
        is_blind: always False: only the end shows that no scores came.

    Args:
        standard: by what it is judged.
        classes: the texts of the classes.
        history: the earlier scores; None: the answer is not judged.
        prior: what the model prefers among the classes.
    """

    trusts, is_blind = False, False

    def __init__(
        self, standard: Standard, classes: Sequence[str], history: ScoreHistory | None, prior: LabelPrior
    ) -> None:
        """Make the judge of one answer; without a history the class is chosen and not judged."""
        self.task, self.model, self.kind = standard.key
        self._standard, self._classes = standard, classes
        self._history, self._prior = history, prior
        self._score: float | None = None

    def read(self, deltas: list[Delta]) -> list[Delta]:
        """Take what the attempt wrote; return the chosen class in its place.

        Args:
            deltas: a batch of the attempt.
        """
        read = []
        for delta in deltas:
            if delta.label_scores is not None:
                read.append(self._chosen(delta))
            elif self._score is None or delta.kind is not DeltaKind.TEXT:
                read.append(delta)  # else it is the rest of the text that was replaced
        return read

    def _chosen(self, delta: Delta) -> Delta:
        assert delta.label_scores is not None
        scores = self._prior.removed_from(delta.label_scores)
        self._prior.push(delta.label_scores)
        self._score = class_confidence(scores)
        text = self._classes[best_label(scores)]
        return delta if text == delta.text else replace(delta, text=text, ids=None)

    def check(self) -> Verdict | None:
        """Return None: the answer is judged at its end."""
        return None

    def settled(self, text: str, finish_reason: str) -> str | None:
        """Return the class that the answer is; None where its text names none of them.

        A class that a limit has cut nothing off but what came behind it is whole.

        Args:
            text: the complete answer.
            finish_reason: the API's.
        """
        return named_class(text, self._classes) if finish_reason in ("stop", "length") else None

    def end(self) -> Verdict | None:
        """Judge the choice; None where the answer came without label scores, or there is no history."""
        if self._score is None or self._history is None:
            return None
        return self._standard.verdict(self._score, self._history)


def named_class(text: str, classes: Sequence[str]) -> str | None:
    """Return the class that a text is, apart from its case, blanks, quotes and a final full stop.

    Returns:
        The class as the application wrote it; None where the text is none of them, or could be several.
    """
    if text in classes:
        return text
    plain = _plain(text)
    found = [name for name in classes if _plain(name) == plain]
    return found[0] if len(found) == 1 and plain else None


def _plain(text: str) -> str:
    return text.strip(_AROUND).removesuffix(".").strip(_AROUND).casefold()
