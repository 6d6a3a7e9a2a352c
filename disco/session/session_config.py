"""The small records a session keeps beside its attempts."""

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
    """What a session knows of its request: numbers only.

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
class RunningMigration:
    """A migration under way: where the cut is, and what the source has written behind it."""

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
class Pending:
    """A start that waits for its time."""

    at: float
    endpoint: str
    prefix: Prefix
    role: Role


class EndpointWatch(Protocol):
    """Is told how endpoints do, as it happens; `dispatch.breakers.endpoint_health` is one.

    Times are on the session's clock.
    """

    def answered(self, endpoint: str, started_at: float, now: float) -> None:
        """An attempt that was started at `started_at` wrote its first content, or ended properly without any."""
        ...

    def stopped(self, endpoint: str, started_at: float, now: float, *, overdue: bool) -> None:
        """An attempt was stopped before it wrote anything: it lost its race, or the reader has left.

        `overdue`: it had taken longer than such an endpoint nearly always does.
        """
        ...

    def failed(self, endpoint: str, failure: EndpointFailure, started_at: float, now: float) -> None:
        """An attempt failed, by its own word or by one of the clocks."""
        ...
