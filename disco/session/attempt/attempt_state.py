"""The state of one attempt, as its session knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from disco.candidate import Candidate
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind, SeamReport, SpeculationReport, Traffic, Usage
from disco.request import Prefix
from disco.session.session_config import BEGINNERS, Role

__all__ = ["AttemptOutcome", "AttemptState", "Role", "is_content", "is_text"]


class AttemptOutcome(StrEnum):
    """Whether an attempt runs, or how it ended."""

    RUNNING = "running"
    PARKED = "parked"  # lost the race and keeps its prefill for a migration
    FINISHED = "finished"  # wrote the end of the answer
    LOST = "lost"  # another attempt wrote first
    HANDED_OVER = "handed_over"  # wrote up to a cut; another attempt went on
    OVERRULED = "overruled"  # wrote an answer that a higher tier's has replaced
    ABANDONED = "abandoned"  # target of a migration that came too late or was not needed any more
    FAILED = "failed"
    CANCELLED = "cancelled"  # the reader has left


# Needed at every token: a look-up on the enum costs more than the rest of `active` (3.11).
_RUNNING, _ROLE = AttemptOutcome.RUNNING, DeltaKind.ROLE


@dataclass(slots=True)
class AttemptState:
    """What a session knows about one attempt. Mutable: everything below `prefix`."""

    number: int
    candidate: Candidate
    role: Role
    started_at: float
    prefix: Prefix
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    failure: FailureKind | None = None
    began_at: float | None = None  # when it left its queue; None while it waits, or where that is not known
    first_content_at: float | None = None
    last_at: float = 0.0  # when its last content came
    quiet_from: float = 0.0  # its silence is counted from here at the earliest
    heard_at: float = -inf  # when its last sign of life came that was no content; `-inf`: none came
    paused_at: float | None = None  # since when it is paused; None: it is not
    paused_s: float = 0.0  # of the pauses after which it went on
    ended_at: float | None = None
    longest_gap_s: float = 0.0  # its longest silence between two pieces of content, pauses not counted
    doubted_at: float | None = None  # when another attempt was started because it was silent; None: none was
    is_reported: bool = False  # the watch knows that it was silent until such an attempt wrote
    tokens: int = 0  # content tokens written so far
    held: list[Delta] = field(default_factory=list)  # role chunks that came before its content
    parts: list[str] = field(default_factory=list, repr=False)  # the text it wrote, as it wrote it
    usage: Usage | None = None
    cut_prompt: tuple[int, int] | None = (
        None  # its tokens that were read, of at least so many; None: all of them
    )
    # The server's chunk with the finish reason, passed on unread like those of deltas.
    last_raw: Any = field(default=None, repr=False)
    traffic: Traffic = Traffic()  # noqa: RUF009 - frozen
    seam: SeamReport | None = None
    speculation: SpeculationReport | None = None
    holds_prompt: bool = False  # it has reported that it keeps its prefill
    follows: bool = False  # parked, and given the answer to read while another attempt writes it
    prompt_read: tuple[float, int] | None = (
        None  # when a follower had read its prompt, and how many tokens it computed
    )
    is_reading: bool = False  # a follower that has not read all that it was given
    given_tokens: int = 0  # tokens of the answer that the follower was given, and that it has read
    read_tokens: int = 0
    stopped: bool = False  # the driver confirmed that nothing of it runs, or it was never started
    cap: int | None = None  # tokens that the plan lets it write; another attempt then goes on
    allowance: int | None = None  # tokens that a budget lets it write; None: no budget counts them
    written_bytes: int = 0  # bytes of its text; counted only where there is an allowance

    @property
    def active(self) -> bool:
        """Whether the attempt's events still matter."""
        return self.outcome is _RUNNING

    @property
    def begins(self) -> bool:
        """Whether the attempt was asked for the answer from its beginning, so that it may have begun it."""
        return self.role in BEGINNERS and not self.prefix

    @property
    def fell_silent(self) -> bool:
        """Whether a server was silent until another attempt was started for that reason, and has not gone on since.

        One piece before the other one wrote is no going on: the session has let it fail (stalled). A model on this
        machine is slow far more often than it hangs, and its host ends one that hangs.
        """
        is_done = self.outcome is AttemptOutcome.FINISHED
        if self.doubted_at is None or is_done or self.candidate.place == "device":
            return False
        return self.failure is FailureKind.STALLED or self.last_at <= self.doubted_at

    @property
    def silent_from(self) -> float:
        """Since when it has written nothing although it could, s."""
        return max(self.last_at, self.quiet_from)

    def counts_from(self, now: float) -> None:
        """Count its silence from now, where it is not excused for longer."""
        self.quiet_from = max(self.quiet_from, now)

    def writes(self, now: float) -> None:
        """Store that content has come now; its first content ends no gap."""
        if now - self.last_at > self.longest_gap_s and self.first_content_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self.silent_from)
        self.last_at = now

    @property
    def awaits_text(self) -> bool:
        """Whether the attempt is a follower that has read all that it was given."""
        return self.follows and self.holds_prompt and not (self.is_reading or self.stopped)

    @property
    def keeps_prefill(self) -> bool:
        """Whether the attempt is parked and has nothing left to do."""
        return self.stopped or self.awaits_text

    @property
    def waits_for_its_turn(self) -> bool:
        """Whether the attempt waits in a queue, as far as is known; that time does not count as silence."""
        return self.began_at is None and self.candidate.announces

    @property
    def works_from_at(self) -> float:
        """When the attempt began to work, as far as is known; its speed is measured from this time."""
        return self.started_at if self.began_at is None else self.began_at

    def first_token_s(self, tokens: int) -> float:
        """Return the expected time to first token, s, with `tokens` left to read; once it works, without any wait."""
        waits_s = 0.0 if self.began_at is None else self.candidate.queue_s + self.candidate.load_s
        return self.candidate.time_to_first_token_s(tokens) - waits_s


def is_content(deltas: list[Delta]) -> bool:
    """Whether a batch holds content, the only thing that wins a race (design rule 1)."""
    for delta in deltas:  # noqa: SIM110 - `any` takes several times as long
        if delta.kind is not _ROLE:
            return True
    return False


def is_text(deltas: list[Delta]) -> bool:
    """Whether a target's batch continues a text; reasoning or a tool call in mid-sentence does not."""
    return all(d.kind in (DeltaKind.TEXT, DeltaKind.ROLE) for d in deltas)
