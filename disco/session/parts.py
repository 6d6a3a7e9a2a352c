"""The parts of one session, so that each part can reach the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from disco.candidate import Candidate
from disco.cost.budget_reservation import BudgetReservation
from disco.plan import Plan
from disco.session.attempt.attempt_table import AttemptTable
from disco.session.race import StartRace
from disco.session.session_config import SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths
from disco.session.switching.follower import Follower
from disco.session.switching.migration import MigrationControl
from disco.session.transcript import Transcript

__all__ = ["SessionParts"]


@dataclass(frozen=True, slots=True)
class SessionParts:
    """One answer's plan and configuration, and those parts of its session that other parts use."""

    plan: Plan
    candidates: Mapping[str, Candidate]
    config: SessionConfig
    reservation: BudgetReservation | None
    attempts: AttemptTable
    transcript: Transcript
    migration: MigrationControl
    race: StartRace
    lengths: AnswerLengths
    follower: Follower

    def next_wake(self, now: float, ended: bool, cancelled: bool) -> float:  # noqa: FBT001 - called for every token
        """Return the earliest time, in seconds, at which something is due without an event; `inf`: nothing is."""
        at = inf
        if (ended or self.config.streams) and not cancelled:
            release_at = self.transcript.playback.next_at
            if release_at is not None:
                at = release_at
        if not ended:
            silent_at = self.attempts.deadlines.next_at
            at = min(at, silent_at)
            if self.race.pending:
                at = min(at, self.race.next_at)
            if self.migration.moving is not None:
                at = min(at, max(now, self.migration.late_at(now)))
        return at
