"""The race for the first content: starts that wait for their time, and the losers' end (rules 1 and 2)."""

from __future__ import annotations

from math import inf

from disco.plan import Plan
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.attempt.attempt_table import AttemptTable
from disco.session.effects import Effect
from disco.session.session_config import Pending, Role
from disco.session.switching.follower import Follower
from disco.session.switching.migration import MigrationControl
from disco.session.switching.silence_rule import in_time_s
from disco.session.transcript import Transcript

__all__ = ["StartRace"]


_NOTHING = Prefix()


class StartRace:
    """Starts that are still to come, and the choice of a writer. Mutable: `pending`."""

    def __init__(
        self,
        plan: Plan,
        attempts: AttemptTable,
        transcript: Transcript,
        migration: MigrationControl,
        follower: Follower,
    ) -> None:
        self.pending: list[Pending] = []
        self._plan = plan
        self._attempts = attempts
        self._transcript = transcript
        self._migration = migration
        self._follower = follower

    def begin(self, now: float, out: list[Effect]) -> None:
        """Schedule the plan's starts, and open those that are due at once."""
        latest_s = in_time_s(self._attempts.deadlines.leave_s(now, has_spoken=False))
        for s in self._plan.starts:
            after_s = min(s.after_s, latest_s) if s.doubts else s.after_s
            self.pending.append(Pending(now + after_s, s.endpoint, _NOTHING, Role.STARTER, s.doubts))
        self.start_due(now, out)

    @property
    def next_at(self) -> float:
        """When the next start is due, in seconds; `inf`: none waits."""
        return min((p.at for p in self.pending), default=inf)

    def start_due(self, now: float, out: list[Effect], *, all_of_them: bool = False) -> None:
        """Open the starts that are due, or all that wait."""
        due = [p for p in self.pending if all_of_them or p.at <= now]
        if due:
            self.pending = [p for p in self.pending if p not in due]
            for p in due:
                for state in self._attempts.states:
                    if p.doubts and state.active:
                        state.doubted_at = now
                self.open(p.endpoint, p.role, p.prefix, now, out)

    def open(self, endpoint: str, role: Role, prefix: Prefix, now: float, out: list[Effect]) -> None:
        """Open an attempt; an attempt that takes over becomes the writer at once."""
        state = self._attempts.open(endpoint, role, prefix, now, out)
        if role is Role.TAKEOVER:
            self.hand_to(state)

    def hand_to(self, writer: AttemptState) -> None:
        """Make this attempt the writer of the answer."""
        self._transcript.hand_to(writer)
        self._migration.writer_is(writer)

    def commit(self, winner: AttemptState, now: float, out: list[Effect]) -> None:
        """Make the winner the writer, and stop or park the losers.

        The first content wins the race, not headers or an empty role chunk.
        """
        self.pending.clear()
        self.hand_to(winner)
        losers = [a for a in self._attempts.states if a is not winner and a.active]
        keep = self._kept(winner, now) if losers else None
        for loser in losers:
            if loser.candidate.name == keep:
                self._attempts.leave(loser, AttemptOutcome.PARKED, now)
                loser.ended_at = None  # the prefill of a parked attempt goes on
                self._follower.adopt(loser, out)
            else:
                self._attempts.stop(loser, AttemptOutcome.LOST, now, out)

    def _kept(self, winner: AttemptState, now: float) -> str | None:
        """Return the endpoint whose attempt keeps its prefill although it has lost: the answer will move there."""
        assist = self._plan.assist
        if assist is not None and winner.cap is not None:
            return assist.heir
        return self._migration.keeps(now)
