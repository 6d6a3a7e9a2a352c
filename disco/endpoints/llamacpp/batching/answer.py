"""One answer on a verify server: its job, its tokens so far, and the rounds that ask for more of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol

from disco.endpoints.event_coding import coded
from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.events import Delta, Ended, Usage
from disco.speculate.messages import Round, Verdict

__all__ = ["LATE_S", "Answer", "AnswerJob", "Asked", "MakeJob", "Order", "Reply"]

LATE_S: Final = 1.0
"""How long a round waits for an earlier one that its position presupposes, s."""


class Reply(Protocol):
    """Where the verdicts on a round go: a `Mailbox`."""

    def put(self, item: Any) -> None: ...

    def close(self) -> None: ...


class AnswerJob(Protocol):
    """What writes an answer: a `Generation`."""

    @property
    def usage(self) -> Usage: ...

    def run(self, model: Any) -> bool: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Asked:
    """A round that was asked for. Mutable.

    Attributes:
        round: the round.
        reply: takes the verdicts.
        at_s: when it was asked for; behind the first verdict, when its first batch began: no later one waited.
        begun_s: when its first batch began; None before.
        compute_s: how long its batches took since its last verdict.
        rows: tokens of the answer computed for it since its last verdict, drafted ones included.
        first: whether no verdict was given yet.
        until: length at which the server stops going on alone; None before the verdict on the draft.
        next_at: position of the next verdict.
    """

    round: Round
    reply: Reply
    at_s: float
    begun_s: float | None = None
    compute_s: float = 0.0
    rows: int = 0
    first: bool = True
    until: int | None = None
    next_at: int = 0


@dataclass(slots=True, eq=False)
class Answer:
    """One answer. Mutable; also the outbox of its job.

    Attributes:
        key: its name.
        view: the model as the job sees it.
        keyed: the tokens chosen so far, and those of the opening that are yet to be followed.
        job: writes it; None once it is over.
        asked: rounds that wait, by number.
        active: the round that is worked on.
        heard_s: when the client was last heard of.
        turn: rises with each time that the job came to wait for rows; the lowest has the next turn.
        finish_reason: how the answer ended; None while it goes on.
        usage: what the job has used, once it is over.
        abandoned: False: nobody leaves an answer but the scheduler.
    """

    key: str
    view: AnswerModel
    keyed: Keyed
    heard_s: float
    job: AnswerJob | None = None
    asked: dict[int, Asked] = field(default_factory=dict)
    active: Asked | None = None
    turn: int = 0
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    abandoned: bool = False
    _seen: int = -1  # the highest number of a round that was answered
    _deltas: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    _end_token: int | None = None

    # The job's outbox

    def put(self, item: Any) -> None:
        """Take what the job hands over."""
        if isinstance(item, Delta):
            self._deltas.append((max(len(self.keyed.chosen) - 1, 0), coded(item)))
        elif isinstance(item, Ended):
            self.finish_reason = item.finish_reason
            chosen = self.keyed.chosen
            if chosen and self.view.ends_answer(chosen[-1]):
                self._end_token = chosen.pop()
            self.keyed.forced.clear()
            self.view.drop_window()

    def close(self) -> None:
        """Do nothing: an answer outlives its job."""

    # Rounds

    def next_round(self, now: float) -> Asked | None:
        """Return the next round whose turn has come, and take it from those that wait.

        A round behind the answer's end waits for the earlier ones that it presupposes, but not for long.
        """
        while self.asked:
            asked = self.asked[min(self.asked)]
            wanted = asked.round
            later = wanted.at > len(self.keyed.chosen) + len(self.keyed.forced)
            may_come = self.finish_reason is None and wanted.number > self._seen + 1
            if later and may_come and now < asked.at_s + LATE_S:
                return None
            del self.asked[wanted.number]
            self._seen = max(self._seen, wanted.number)
            if not later:
                return asked
            self._stale(asked)
        return None

    @property
    def wake_at(self) -> float:
        """When a round has waited long enough for an earlier one."""
        if self.active is not None or not self.asked:
            return float("inf")
        return self.asked[min(self.asked)].at_s + LATE_S

    def begin(self, asked: Asked) -> bool:
        """Work on a round; return whether tokens must be computed. Otherwise all is said already."""
        wanted, known = asked.round, [*self.keyed.chosen, *self.keyed.forced]
        settled = known[wanted.at :]
        asked.next_at = wanted.at
        agrees = all(one == other for one, other in zip(wanted.draft, settled, strict=False))
        window = wanted.at + (len(wanted.draft) if agrees else self._agreeing(wanted)) + 1
        if self.finish_reason is None and (self.keyed.forced or window > len(known)):
            self.active = asked
            ahead = wanted.draft[len(settled) :] if agrees else ()
            self.view.draft.clear()
            self.view.draft.extend([*self.keyed.forced, *ahead])
            return True
        self.active = asked
        return not self.settle(waiting=0)

    def settle(self, *, waiting: int) -> bool:
        """Say what is new, where the job has come to rest; return whether the round is over.

        Args:
            waiting: rounds that wait for the model.
        """
        asked = self.active
        assert asked is not None
        over = self.finish_reason is not None
        length, wanted = len(self.keyed.chosen), asked.round
        agreeing = self._agreeing(wanted)
        if not over and (self.keyed.forced or self.view.draft or length <= wanted.at + agreeing):
            return False
        if asked.until is None:
            asked.until = wanted.at + agreeing + 1 + wanted.alone if wanted.alone else length
        self._say(asked, waiting)
        if not over and length < asked.until:
            return False
        self.active = None
        asked.reply.close()
        return True

    def _agreeing(self, wanted: Round) -> int:
        """Return how many of the drafted tokens are right, as far as the answer has come."""
        chosen = self.keyed.chosen
        count = 0
        for drafted, token in zip(wanted.draft, islice(chosen, wanted.at, None), strict=False):
            if drafted != token:
                return count
            count += 1
        if self._end_token is not None and wanted.draft[count : count + 1] == (self._end_token,):
            count += 1
        return count

    def _say(self, asked: Asked, waiting: int) -> None:
        wanted, chosen = asked.round, self.keyed.chosen
        at = min(asked.next_at, len(chosen))
        accepted = self._agreeing(wanted) if asked.first else 0
        judged_to = wanted.at + accepted
        behind = judged_to < len(chosen) or (self._end_token is not None and judged_to == len(chosen))
        judged = accepted + (accepted < len(wanted.draft) and behind) if asked.first else 0
        verdict = self._verdict(asked, at, waiting)
        deltas = tuple({"at": place, **content} for place, content in self._deltas_from(at))
        ids = tuple(chosen[at:])
        asked.reply.put(replace(verdict, ids=ids, deltas=deltas, judged=judged, accepted=accepted))
        asked.first, asked.next_at, asked.rows = False, len(chosen), 0
        # The next verdict tells of its own batch.
        asked.compute_s, asked.at_s = 0.0, asked.at_s if asked.begun_s is None else asked.begun_s

    def _deltas_from(self, at: int) -> list[tuple[int, Mapping[str, Any]]]:
        first = len(self._deltas)
        while first and self._deltas[first - 1][0] >= at:
            first -= 1
        return self._deltas[first:]

    def _verdict(self, asked: Asked, at: int, waiting: int) -> Verdict:
        usage = self.usage if self.job is None else self.job.usage
        begun = asked.at_s if asked.begun_s is None else asked.begun_s
        return Verdict(
            number=asked.round.number,
            at=at,
            finish_reason=self.finish_reason,
            rows=asked.rows,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            rejected_tokens=self.view.rejected,
            prompt_ids=tuple(self.view.prompt) if asked.round.wants_prompt and asked.first else None,
            queue_s=max(begun - asked.at_s, 0.0),
            compute_s=asked.compute_s,
            waiting=waiting,
        )

    def _stale(self, asked: Asked) -> None:
        asked.reply.put(self._verdict(asked, len(self.keyed.chosen) + len(self.keyed.forced), 0))
        asked.reply.close()

    def over(self) -> None:
        """Let the job go: the answer has ended, or failed."""
        if self.job is not None:
            self.usage = self.job.usage
            self.job.close()
        self.job = None
        self._forget_draft()

    def _forget_draft(self) -> None:
        self.view.drop_window()
        self.view.draft.clear()

    def same_round(self, asked: Asked) -> Asked | None:
        """Return a round with the same number that waits or is worked on."""
        number, active = asked.round.number, self.active
        return active if active is not None and active.round.number == number else self.asked.get(number)

    def leave(self, asked: Asked) -> None:
        """Forget a round that nobody waits for any more."""
        if self.asked.get(asked.round.number) is asked:
            del self.asked[asked.round.number]
        if self.active is asked:
            self.active = None
            self.view.draft.clear()


MakeJob = Callable[[Answer], AnswerJob | None]
"""Makes the job of a new answer, which is its outbox; None where the answer is at its length limit already."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an opening says to the scheduler.

    Attributes:
        make: makes the job.
        seed: of the noise.
        ids: tokens to follow.
        fingerprint: of the model that the client expects; None: any.
    """

    make: MakeJob
    seed: int
    ids: tuple[int, ...] = ()
    fingerprint: str | None = None
