"""Judging an answer while it is written: unsure answers go up early, and the share that goes up is still beta.

The score of an answer is the lowest running confidence at any checkpoint that the answer passes, and at its end. So
the score so far never rises: once it is below a level, the score of the whole answer is below it too. The confidences
"sum" and "weakest" never rise; with these every token is a checkpoint, and the score is the confidence of the answer.
"mean" has few checkpoints: its first values vary widely, and the lowest of many would say little.

An answer that goes up early is not written to its end. Only an upper bound of its score is known: its score at the
exit. If answers left at the beta-quantile of the history, as the threshold moves, later verdicts would depend on
scores that are not known. So an answer leaves early only below a level that is lower. Every other answer is judged at
its end, by the exact rule. With n scores in the history:

    level = the larger of  (a) the r-th lowest score, r = floor(beta*n - 2*sqrt(n*beta*(1 - beta)));
                           (b) the number just above the highest score of an early exit.
    No answer leaves early while E + 1 > beta*(n + 1), where E is the number of scores below the level.

Claim: these are the verdicts that the exact rule gives on the scores of complete answers. So the share is beta at
every n, for exchangeable answers, with ties and with any number of checkpoints.

Proof, by induction over the answers. By (b) every exit of the history is below the level, and so is its complete
score. The other scores are complete. So the number of complete scores below the level is E too.
An answer leaves early: its complete score is below the level as well. The rank of that among complete scores is
(lower + U*(equal + 1))/(n + 1) < (E + 1)/(n + 1) <= beta, so that the complete answer goes up as well.
An answer ends at or above the level: all exits of the history are below it, by their bounds and by their complete
scores. `judge` sees the same rank in both histories.
An answer ends below the level: both ranks are below beta, as for an answer that leaves early.

The claim does not cover answers that end while no answer may leave early, with a score not above that of an exit. The
margin of 2 standard deviations in (a) makes them rare, for one beta or a beta that rises. After beta has fallen, past
exits may lie above its quantile, so that more than beta go up until these have left the window: 0.33 instead of 0.30,
where beta falls from 0.5 to 0.1 within 300 answers. `ExitHistory.unsettled` counts all of these answers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from disco.judging.confidence import RunningConfidence, SequenceConfidence
from disco.judging.score_history import ScoreHistory
from disco.judging.threshold_rules import Verdict, check_beta, judge

__all__ = ["CHECKPOINTS", "ExitHistory", "ExitWatch"]

CHECKPOINTS: Final = tuple(2**power for power in range(1, 17))
"""Numbers of tokens after which the running "mean" counts: 2, 4, 8, 16, and so on."""

_MARGIN = 2.0
"""Standard deviations between (a) and the beta-quantile. With a smaller margin the quantile more often falls below past
exits, so that the claim does not cover some answers. With a larger one fewer answers leave early."""


class ExitHistory:
    """The scores of one model's answers to one task, some of which went up early. Outlives requests.

    Mutable: `scores`, `unsettled`, `_exits`.

    Answers may be watched at the same time. Each is compared with the verdicts that fell before its own. Low scores
    are then known sooner than high ones, so that the share may differ from beta while the history is short.

    Attributes:
        kind: the confidence that is watched.
        checkpoints: of "mean"; see `CHECKPOINTS`. Empty, for any kind: no answer leaves early.
        scores: of the last answers, from the oldest to the newest; of an early exit, the score at its exit.
        unsettled: answers so far that the claim of this module does not cover.
    """

    __slots__ = ("_exits", "checkpoints", "kind", "scores", "unsettled")

    def __init__(
        self,
        kind: SequenceConfidence,
        *,
        capacity: int = 1_000,
        checkpoints: Iterable[int] = CHECKPOINTS,
        scores: ScoreHistory | None = None,
        exits: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Make a history.

        Args:
            kind: see the class.
            capacity: how many scores are kept; ignored where `scores` is given.
            checkpoints: see the class; rising numbers of tokens from 1 on.
            scores: those of an earlier process. Changed by what follows.
            exits: the `exits` of that process.

        Raises:
            ValueError: the checkpoints do not rise from 1 or more.
        """
        self.kind: SequenceConfidence = kind
        self.checkpoints = tuple(checkpoints)
        if any(one >= other for one, other in zip((0, *self.checkpoints), self.checkpoints, strict=False)):
            raise ValueError(f"Checkpoints are rising numbers of tokens from 1 on, not {self.checkpoints}.")
        self.scores = ScoreHistory(capacity) if scores is None else scores
        self.unsettled = 0
        self._exits: deque[tuple[int, float]] = deque(exits)

    @property
    def exits(self) -> tuple[tuple[int, float], ...]:
        """Exits that are needed to go on from here: (number of the answer, score at its exit), oldest first."""
        return tuple(self._exits)

    def watch(self, beta: float, *, seed: int = 0, leaves_early: bool = True) -> ExitWatch:
        """Return the judge of one answer.

        Args:
            beta: the share of answers that go up, between 0 and 1.
            seed: as in `judge`.
            leaves_early: the answer may go up before its end. Its score is the same if it may not, so that answers of
                both kinds share a history.

        Raises:
            ValueError: beta is not between 0 and 1.
        """
        return ExitWatch(self, check_beta(beta), seed, leaves_early=leaves_early)

    def checks_at(self, tokens: int) -> bool:
        """Return whether the running confidence counts after so many tokens of an answer."""
        return tokens in self.checkpoints if self.kind == "mean" else bool(self.checkpoints)

    def level(self, beta: float) -> float | None:
        """Return the score below which an answer that is being written goes up now; None where no answer may.

        Args:
            beta: the share of answers that go up, between 0 and 1.
        """
        count = len(self.scores)
        if not count:
            return None
        place = math.floor(beta * count - _MARGIN * math.sqrt(count * beta * (1.0 - beta)))
        highest = self._highest_exit()
        above = -math.inf if highest is None else math.nextafter(highest, math.inf)
        level = max(above, self.scores.lowest(place) if place >= 1 else -math.inf)
        below, _ = self.scores.rank(level)
        return level if level > -math.inf and below + 1 <= beta * (count + 1) else None

    def _highest_exit(self) -> float | None:
        oldest = self.scores.seen - len(self.scores)
        while self._exits and self._exits[0][0] < oldest:
            self._exits.popleft()
        return self._exits[0][1] if self._exits else None

    def _judge(self, score: float, beta: float, seed: int, *, early: bool) -> Verdict:
        highest = self._highest_exit()
        if early:
            # An exit that is followed by a higher one never becomes the highest of the window: it is dropped.
            while self._exits and self._exits[-1][1] <= score:
                self._exits.pop()
            self._exits.append((self.scores.seen, score))
        elif highest is not None and score <= highest and self.level(beta) is None:
            self.unsettled += 1
        return judge(score, self.scores, beta, seed=seed)


class ExitWatch:
    """The judge of one answer in progress. Mutable: `confidence`, `score`, `verdict`.

    Where an answer is not finished (cancelled, failed), the watch is dropped: the history does not learn of it.

    Attributes:
        confidence: of the tokens so far.
        score: the lowest running confidence at a checkpoint so far; infinite before the first.
        verdict: None until it falls.

    Args:
        history: the scores of earlier answers.
        beta: the share of answers that go up, between 0 and 1.
        seed: as in `judge`.
        leaves_early: whether the answer may go up before its end.
    """

    __slots__ = ("_beta", "_history", "_leaves_early", "_seed", "confidence", "score", "verdict")

    def __init__(self, history: ExitHistory, beta: float, seed: int, *, leaves_early: bool) -> None:
        self.confidence = RunningConfidence()
        self.score = math.inf
        self.verdict: Verdict | None = None
        self._history = history
        self._beta = beta
        self._seed = seed
        self._leaves_early = leaves_early

    def add(self, logp: Iterable[float]) -> Verdict | None:
        """Add the log probabilities of the next tokens. Returns the verdict, "goes up", if it falls here.

        After the verdict further tokens are ignored, and None is returned.

        Args:
            logp: natural log probabilities, one for each token.
        """
        for value in logp:
            if self.verdict is not None:
                return None
            self.confidence.add((value,))
            if not self._history.checks_at(self.confidence.tokens):
                continue
            self._lower()
            level = self._history.level(self._beta) if self._leaves_early else None
            if level is not None and self.score < level:
                return self._judged(early=True)
        return None

    def end(self) -> Verdict | None:
        """Judge the complete answer.

        Returns the verdict; None if it has fallen before, or if the answer has no tokens and is not judged.
        """
        if self.verdict is not None or not self.confidence.tokens:
            return None
        self._lower()
        return self._judged(early=False)

    def _lower(self) -> None:
        self.score = min(self.score, self.confidence.score(self._history.kind))

    def _judged(self, *, early: bool) -> Verdict:
        self.verdict = self._history._judge(self.score, self._beta, self._seed, early=early)  # noqa: SLF001
        return self.verdict
