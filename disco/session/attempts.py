"""What a session knows about each of its attempts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from disco.errors import FailureKind
from disco.events import Delta, DeltaKind, Usage
from disco.plan import Candidate
from disco.request import Prefix

__all__ = ["AttemptState", "Outcome", "Role", "is_content", "is_text"]


class Role(StrEnum):
    """Why an attempt was started."""

    STARTER = "starter"  # by the plan, from the beginning of the answer
    TARGET = "target"  # of a voluntary move
    TAKEOVER = "takeover"  # in place of one that failed


class Outcome(StrEnum):
    """How an attempt stands or how it ended."""

    RUNNING = "running"
    PARKED = "parked"  # lost the race and keeps its prefill for a move
    FINISHED = "finished"  # wrote the end of the answer
    LOST = "lost"  # another one spoke first
    HANDED_OVER = "handed_over"  # wrote up to a cut; another one went on
    ABANDONED = "abandoned"  # target of a move that came too late or was not needed any more
    FAILED = "failed"
    CANCELLED = "cancelled"  # the reader went away


_RUNNING = Outcome.RUNNING  # asked for every token; looking it up on the enum costs more than the rest (3.11)


@dataclass(slots=True)
class AttemptState:
    """Mutable: everything below `prefix`."""

    number: int
    candidate: Candidate
    role: Role
    started_at: float
    prefix: Prefix
    outcome: Outcome = Outcome.RUNNING
    failure: FailureKind | None = None
    first_content_at: float | None = None
    last_at: float = 0.0
    ended_at: float | None = None
    tokens: int = 0  # content tokens written so far
    kept_tokens: int = 0  # of these, in the answer
    held: list[Delta] = field(default_factory=list)  # role chunks that came before its content
    parts: list[str] = field(default_factory=list, repr=False)  # the text it wrote, as it wrote it
    usage: Usage | None = None
    stopped: bool = False  # the driver confirmed that nothing of it runs, or it was never started
    allowance: int | None = None  # tokens that a budget lets it write; None: no budget counts them
    written_bytes: int = 0  # of its text; counted only where there is an allowance

    @property
    def active(self) -> bool:
        """Whether its events still matter."""
        return self.outcome is _RUNNING


def is_content(deltas: list[Delta]) -> bool:
    """Whether a batch holds content, the only thing that wins a race (design rule 1)."""
    return any(d.kind is not DeltaKind.ROLE for d in deltas)


def is_text(deltas: list[Delta]) -> bool:
    """Whether a target's batch continues a text; thinking or calling a tool in mid-sentence does not."""
    return all(d.kind in (DeltaKind.TEXT, DeltaKind.ROLE) for d in deltas)
