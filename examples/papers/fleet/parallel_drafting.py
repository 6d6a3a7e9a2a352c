"""Drafting in parallel: several windows of an answer in flight.

While a window is verified, the drafter goes on from its own last token. So the next window begins with its guess of
the token that the target adds to the window before. Windows of a streak are drafted one behind the other; a verdict
that refutes a token, or a guess, ends the streak: the draft in progress is broken off, windows of the streak that are
still under way are dropped by the server without computing, and a new streak begins behind the target's token.

The server takes an answer's windows in their order. One that begins with a token that is settled by then (the guess of
the bonus, which was right) needs a row less.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from papers.fleet.fleet_job import Answer, Job, Kind

if TYPE_CHECKING:
    from papers.fleet.fleet_simulator import Simulation

__all__ = ["ParallelDrafting"]

_SIZE: Final = (350, 6)  # of a window or a verdict, bytes: in all, and for each token


class _Line:
    """What an answer's drafter and its target do. Mutable.

    Attributes:
        answer: whose line it is.
        streak: number of the drafter's streak.
        place: where the next drafted token belongs in the answer.
        in_flight: windows sent, without a verdict.
        drafting: tokens of the window that is being drafted; 0: none.
        ticket: of that draft; another number where it was broken off.
        began_s: when it began.
        window: chosen by the target's side when it ends a time alone; 0: none.
        refuted: the last streak that the target knows to be wrong.
        verifying: whether a window waits for the target, or is in its pass.
        early: windows whose predecessors are not verified yet.
    """

    __slots__ = (
        *("answer", "began_s", "drafting", "early", "in_flight", "place", "refuted", "streak", "ticket"),
        *("verifying", "window"),
    )

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.streak = 1
        self.place = self.in_flight = self.drafting = self.ticket = self.window = self.refuted = 0
        self.began_s = 0.0
        self.verifying = False
        self.early: deque[Job] = deque()


class ParallelDrafting:
    """Drafts the windows of all answers of a simulation. Mutable: `_lines`, by the answers' numbers.

    Args:
        simulation: plans events, knows servers and times.
        most: windows in flight of one answer.
    """

    def __init__(self, simulation: Simulation, most: int) -> None:
        self._simulation, self._most = simulation, most
        self._lines: dict[int, _Line] = {}

    def go_on(self, now: float, answer: Answer) -> None:
        """The target has read the prompt, or written a token alone: let the drafter begin, or go on alone."""
        line = self._lines.get(answer.number)
        if line is None:
            line = self._lines[answer.number] = _Line(answer)
            heard_s = answer.first_s
        else:
            line.window = answer.pair.next_window(answer.request, answer.length)
            if not line.window:
                self._simulation.write_alone(now, answer)
                return
            heard_s = answer.pair.down_s(now, _SIZE[0])
        self._simulation.schedule(max(heard_s, answer.ready_s), self._restart, line)

    # The drafter

    def _restart(self, now: float, line: _Line) -> None:
        line.streak += 1
        line.in_flight = 0
        line.place = line.answer.length
        self._draft(now, line)

    def _draft(self, now: float, line: _Line) -> None:
        """Begin a window, unless one is being drafted or enough are in flight."""
        if line.drafting or line.in_flight >= self._most:
            return
        answer = line.answer
        drafted = line.window or answer.pair.next_window(answer.request, line.place)
        line.window = 0
        if not drafted:
            if not line.in_flight:
                self._simulation.schedule(answer.pair.up_s(now, _SIZE[0]), self._alone, line)
            return
        line.drafting, line.began_s = drafted, now
        line.ticket += 1
        took_s = self._simulation.draft_s(answer, drafted)
        self._simulation.schedule(now + took_s, self._drafted, (line, line.ticket))

    def _drafted(self, now: float, draft: tuple[_Line, int]) -> None:
        line, ticket = draft
        if ticket != line.ticket:
            return  # broken off
        answer = line.answer
        job = Job(answer)
        job.kind, job.at, job.drafted, job.streak = Kind.ROUND, line.place, line.drafting, line.streak
        line.place += line.drafting
        line.drafting = 0
        line.in_flight += 1
        arrives_s = answer.pair.up_s(now, _SIZE[0] + _SIZE[1] * job.drafted)
        answer.wait_network_s += answer.pair.take_waited_s()
        self._simulation.schedule(arrives_s, self._arrived, (line, job))
        self._draft(now, line)

    def _heard(self, now: float, verdict: tuple[_Line, int, int, bool]) -> None:
        """A verdict: the window's streak, the settled length, and whether a token of the window was refuted."""
        line, streak, length, refuted = verdict
        answer = line.answer
        if streak != line.streak or length >= answer.output:
            self._break_off(now, line)
            return
        line.in_flight -= 1
        bonus = length - 1
        guessed = line.place > bonus or (line.drafting and line.place == bonus)
        if refuted or (guessed and not answer.runs[bonus]):
            self._break_off(now, line)
            line.streak += 1
            line.in_flight = 0
            line.place = length
        elif not guessed:
            line.place = length
        self._draft(now, line)

    def _break_off(self, now: float, line: _Line) -> None:
        if line.drafting:
            whole_s = self._simulation.draft_s(line.answer, line.drafting)
            line.answer.wasted += min(line.drafting, int(line.drafting * (now - line.began_s) / whole_s))
            line.drafting = 0
            line.ticket += 1

    # The target

    def _alone(self, now: float, line: _Line) -> None:
        self._simulation.write_alone(now, line.answer)

    def _arrived(self, now: float, window: tuple[_Line, Job]) -> None:
        self._admit(now, *window)

    def _admit(self, now: float, line: _Line, job: Job) -> None:
        """Let a window be verified, keep it for later, or drop it."""
        answer = job.answer
        length = answer.length
        if job.streak <= line.refuted or length >= answer.output:
            answer.wasted += job.drafted
            return
        if line.verifying or job.at > length:
            line.early.append(job)
            return
        if job.at < length and not answer.runs[job.at]:  # a wrong guess of the bonus
            line.refuted = job.streak
            answer.wasted += job.drafted
            return
        job.before = answer.request.prompt_tokens + length - 1
        job.rows = job.at + job.drafted + 1 - length
        line.verifying = True
        self._simulation.server(answer).enqueue(now, job)

    def verified(self, now: float, job: Job) -> None:
        """A window has been through a pass."""
        answer = job.answer
        line = self._lines[answer.number]
        line.verifying = False
        length = answer.length
        tested = job.at + job.drafted - length
        right = min(answer.runs[length], tested)
        gained = min(right + 1, answer.output - length)
        guess = length - job.at  # 1 where the window began with a settled token
        answer.length = length + gained
        answer.drafted += job.drafted
        answer.accepted += right + guess
        answer.windows.append(job.drafted)
        if answer.pair.fixed is None:
            self._simulation.learn(now, job, job.drafted, right + guess, gained)
        answer.settled_s = now
        if answer.length >= answer.output:
            self._lines.pop(answer.number)
            answer.wasted += sum(each.drafted for each in line.early)
            self._break_off(now, line)
            self._simulation.settle(now, answer)
            return
        refuted = right < tested
        if refuted:
            line.refuted = job.streak
        heard_s = answer.pair.down_s(now, _SIZE[0] + _SIZE[1] * gained)
        self._simulation.schedule(heard_s, self._heard, (line, job.streak, answer.length, refuted))
        early, line.early = line.early, deque()
        for each in early:
            self._admit(now, line, each)
