"""A session's configuration and the small records that it keeps beside its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from disco.errors import EndpointFailure
from disco.events import Delta
from disco.request import Prefix, Timeouts

__all__ = ["EndpointWatch", "Pending", "Role", "RunningMigration", "SessionConfig"]


class Role(StrEnum):
    """Why an attempt was started."""

    STARTER = "starter"  # by the plan, from the beginning of the answer
    TARGET = "target"  # of a migration
    TAKEOVER = "takeover"  # in place of one that failed


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a session knows about its request: numbers only.

    Attributes:
        prompt_tokens: of the request, estimated or counted.
        max_tokens: limit of the answer, None for none.
        streams: whether a reader waits for the text; if not, nothing is released before the end.
        may_migrate: False where the request forbids migration.
        may_continue: False where one endpoint must write the whole answer (structured output, log probabilities,
            tools): no other endpoint then continues what a failed writer has shown (rule 4).
        pace_tps: the reader's pace, None when pacing is off.
        timeouts: the four clocks.
        max_retries: how often the *only* endpoint left is tried again before giving up.
        margin: safety factor on the predicted time of a migration; doubled after a migration that was given up.
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
class RunningMigration:
    """A migration under way: where the cut is, and what the source has written after the cut."""

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


@dataclass(slots=True)
class Pending:
    """A start that waits for its time."""

    at: float
    endpoint: str
    prefix: Prefix
    role: Role


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
