"""A session's configuration and the small records that it keeps beside its attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol

from disco.candidate import Candidate
from disco.errors import EndpointFailure
from disco.events import Delta
from disco.judging.threshold_rules import Verdict
from disco.request import Prefix, Timeouts

__all__ = [
    "BEGINNERS",
    "AnswerJudge",
    "AttemptJudge",
    "EndpointWatch",
    "Judgement",
    "MoveReason",
    "Pending",
    "Role",
    "RunningMigration",
    "SessionConfig",
]


MoveReason = Literal["cost", "confidence", "assist", "silence"]
"""Why an answer moves: to save; the source was unsure; as planned; the source was silent for unusually long."""


class Role(StrEnum):
    """Why an attempt was started."""

    STARTER = "starter"  # by the plan, from the beginning of the answer
    TARGET = "target"  # of a migration
    TAKEOVER = "takeover"  # in place of one that failed
    RISE = "rise"  # on a higher tier, because the writer was unsure
    HEDGE = "hedge"  # from the beginning, because those that were started were silent for unusually long
    HEIR = "heir"  # behind the answer so far, because its writer was silent for unusually long


BEGINNERS: Final = frozenset((Role.STARTER, Role.TAKEOVER, Role.HEDGE, Role.HEIR))
"""Roles of attempts that may begin the answer, where there is no text of it yet. The others go on behind another's
text, or write an answer anew that was judged."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a session knows about its request: numbers only, one of which is counted where it is needed.

    Attributes:
        prompt_tokens: of the request, estimated or counted.
        max_tokens: limit of the answer, None for none.
        streams: whether a reader waits for the text; if not, nothing is released before the end.
        may_migrate: False where the request forbids migration.
        may_continue: False where one endpoint must write the whole answer (structured output, log probabilities,
            tools): no other endpoint then continues what a failed writer has shown (rule 4).
        may_be_empty: whether the request itself explains an answer without content: it has stop strings, or allows
            hardly a token.
        pace_tps: the reader's pace, None when pacing is off.
        timeouts: when an attempt has failed.
        max_retries: how often each endpoint is tried again, once none is left that has not failed.
        is_hedged: whether a silence of which nothing is learnt starts another endpoint, too (see `silence_rule`); a
            replay plays its formulas without that.
        margin: safety factor on the predicted time of a migration; larger where a late target leaves a gap, and after a
            migration that was given up.
        least_tokens: counts the least tokens that the prompt can have; None: nobody asks (see `cut_prompt`).
    """

    prompt_tokens: int
    max_tokens: int | None = None
    streams: bool = True
    may_migrate: bool = True
    may_continue: bool = True
    may_be_empty: bool = False
    pace_tps: float | None = None
    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - frozen
    max_retries: int = 2
    is_hedged: bool = False
    margin: float = 1.25
    least_tokens: Callable[[], int] | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class RunningMigration:
    """A migration under way: where the cut is, and what the source has written after the cut.

    `paused`: the source was paused at the cut; `resumed_at`: when it went on because the migration was given up, s.
    """

    source: int
    target: int
    decided_at: float
    cut_chars: int
    cut_tokens: int
    expected_s: float
    slack_s: float
    beyond: list[Delta]
    switched_at: float | None = None
    outcome: str = "running"  # then "switched", or why the migration was given up
    paused: bool = False
    resumed_at: float | None = None
    reason: MoveReason = "cost"

    @property
    def rises(self) -> bool:
        """Whether the answer moves to a higher tier because the source was unsure."""
        return self.reason == "confidence"

    @property
    def is_doubt(self) -> bool:
        """Whether the source is only silent: it goes on where it writes before the target does."""
        return self.reason == "silence"


@dataclass(slots=True)
class Pending:
    """A start that waits for its time."""

    at: float
    endpoint: str
    prefix: Prefix
    role: Role
    doubts: bool = False  # see `Start.doubts`


class EndpointWatch(Protocol):
    """Receives the outcome of every attempt as it happens; `dispatch.breakers.endpoint_health` has one.

    Times are on the session's clock.
    """

    def answered(self, endpoint: str, started_at: float, now: float) -> None:
        """Called when an attempt wrote its first content, or ended properly without any."""
        ...

    def stopped(self, endpoint: str, started_at: float, now: float, *, overdue: bool) -> None:
        """Called when an attempt was stopped before it wrote anything: it lost its race, or the reader has left.

        `overdue`: the attempt had taken longer than this endpoint nearly always does.
        """
        ...

    def failed(self, endpoint: str, failure: EndpointFailure, started_at: float, now: float) -> None:
        """Called when an attempt failed: it reported a failure, or one of the clocks ran out."""
        ...


class AttemptJudge(Protocol):
    """Judges what one attempt writes: pure, without a clock. `disco.judging` has the judges.

    Attributes:
        task: the task whose answers it compares.
        model: the model whose answers it compares; see `disco.judging.HistoryKey`.
        kind: how it scores; see `disco.judging.HistoryKey`.
        trusts: whether the text so far may be shown.
        is_blind: the answer cannot be judged any more, because a part of it came without a score.
    """

    @property
    def task(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def trusts(self) -> bool: ...

    @property
    def is_blind(self) -> bool: ...

    def read(self, deltas: list[Delta]) -> list[Delta]:
        """Take what the attempt wrote; return it as it is to stand in the answer."""
        ...

    def check(self) -> Verdict | None:
        """Return the verdict where it is known before the answer is complete."""
        ...

    def settled(self, text: str, finish_reason: str) -> str | None:
        """Return what the complete answer is delivered as; None where it is cut short, or none of the classes."""
        ...

    def end(self) -> Verdict | None:
        """Judge the complete answer; None where there is no score, so that the answer is not judged."""
        ...


class AnswerJudge(Protocol):
    """Judges the attempts at one answer."""

    def of(self, candidate: Candidate, *, is_highest: bool) -> AttemptJudge | None:
        """Return the judge of an attempt on that endpoint, which writes from the beginning; None: it is not judged.

        `is_highest`: no tier is above, so the judge only chooses between classes.
        """
        ...


@dataclass(slots=True)
class Judgement:
    """A verdict on an attempt's answer, and what followed from it. Mutable: `outcome`.

    Attributes:
        attempt: the attempt's number.
        at: when, s.
        tokens: how many tokens of the answer were judged.
        task, model, kind: see `AttemptJudge`.
        verdict: None where the answer was not judged, or was empty.
        outcome: "kept"; "handed_up" (a higher tier was asked); "stood" (no higher tier could answer: the answer was
            delivered although the judge doubts it); "not_judged".
        why: "empty" of an empty answer, which goes up without a verdict. Of an answer that was not judged: "no_score",
            "no_class" (its text is none of the classes), "cut_short" (by a limit or a filter), "not_text" (a tool call
            or reasoning).
    """

    attempt: int
    at: float
    tokens: int
    task: str
    model: str
    kind: str
    verdict: Verdict | None
    outcome: Literal["kept", "handed_up", "stood", "not_judged"] = "handed_up"
    why: str | None = None
