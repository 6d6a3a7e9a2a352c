"""What the session machine asks its driver to do. The driver does it and reports back as events."""

from __future__ import annotations

from dataclasses import dataclass

from disco.events import Delta
from disco.request import Prefix

__all__ = [
    "CancelAttempt",
    "Effect",
    "Fail",
    "Finish",
    "FollowAttempt",
    "ParkAttempt",
    "PauseAttempt",
    "Release",
    "ResumeAttempt",
    "StartAttempt",
]


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Open an attempt on `endpoint` and report everything it yields under the number `attempt`.

    `max_tokens`: limit of the whole answer, given where a budget lowers the request's own limit. `cap`: limit of the
    whole answer that the endpoint is sent even where the request has none (`Request.cap`). `wants`: see
    `Endpoint.open`. `drafts`: see `Request.drafts`.
    """

    attempt: int
    endpoint: str
    prefix: Prefix
    max_tokens: int | None = None
    cap: int | None = None
    wants: frozenset[str] = frozenset()
    drafts: int | None = None


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Stop the attempt; report `stopped` once nothing of it runs any more."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ParkAttempt:
    """Let the attempt finish its prefill and keep it without writing; cancel the attempt where it cannot do that.

    `follows`: the attempt is to stay, so that `FollowAttempt` can give it more to read.
    """

    attempt: int
    follows: bool = False


@dataclass(frozen=True, slots=True)
class FollowAttempt:
    """Let a parked attempt read on to the end of `prefix` and stay parked, where the attempt can do that."""

    attempt: int
    prefix: Prefix


@dataclass(frozen=True, slots=True)
class PauseAttempt:
    """Let the attempt stop writing and keep all that it has read and written; see `Candidate.pauses`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeAttempt:
    """Let a paused attempt go on writing where it stopped."""

    attempt: int


@dataclass(slots=True)  # made for nearly every token; a frozen one would take three times as long
class Release:
    """Give these deltas to the reader, in this order."""

    deltas: list[Delta]


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete and everything is charged. The last effect of a session."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """No endpoint can continue the answer: raise `error` to the reader. The last effect of a session."""

    error: Exception


Effect = (
    StartAttempt
    | CancelAttempt
    | ParkAttempt
    | FollowAttempt
    | PauseAttempt
    | ResumeAttempt
    | Release
    | Finish
    | Fail
)
