"""Decides what the model computes next: which answers have their turn, who gets a slot, and which rows share a pass.

An answer is wanted while somebody waits for more of it: a job until it is over, paused or without orders, an answer
that is asked for by rounds while one is worked on. Else it is idle, and keeps slot and cache until another needs them.

Nothing here reads a clock or waits: the engine's thread calls `step` with the time, and tests do so with any time. A
prompt is read in batches of its own between the windows, one batch of one prompt at a time, so that a window waits for
one batch at most. In one pass with windows its numbers would be others than alone (llama.cpp cuts passes by sequence),
and a long prompt gains nothing by it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from disco.endpoints.llamacpp.batching.answer import Answer, Asked, Order
from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.grouping import Group, grouped
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.round_refusals import (
    AnswerLost,
    ModelChanged,
    RoundRefused,
    Superseded,
)
from disco.endpoints.llamacpp.batching.slots import Slots
from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve
from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.endpoints.llamacpp.model.sequences import Rows
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.refusals import malformed, too_busy
from disco.endpoints.llamacpp.runtime.job import Job, failure_of
from disco.endpoints.llamacpp.saving.idle_saving import IdleSaving
from disco.errors import EndpointFailure, LocalModelError

__all__ = ["Scheduler"]


_MOST_ROUNDS: Final = 16  # of one answer, that wait


@dataclass(slots=True, eq=False)
class Served:
    """A job that is served for itself. Mutable.

    Attributes:
        job: the job.
        view: the model as the job sees it.
        turn: see `Answer`.
    """

    job: Job
    view: AnswerModel
    turn: int = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for more of it."""
        return not self.view.ready or self.job.ready


Work = Answer | Served


class Scheduler:
    """All answers of one model. Used by one thread, but for `ahead`, `queued`, `computes_only`, `stop`. Mutable.

    Args:
        model: computes.
        curve: seconds of a pass by its rows.
        limits: of time and number.
        name: of the model, for messages.
        timer: s, for the time that batches take.
        fingerprint: of the model; None: orders are not compared with it.
        saving: saves prompts while there is nothing else to do; None: none is saved.
        stopped: asked where a pass or a job was stopped: whether all is to end. If not, only a job was cancelled.

    Attributes:
        slots: of the model.
        passes: how many were computed.
        saving: see above.
    """

    def __init__(
        self,
        model: BatchModel,
        curve: VerifyCurve,
        limits: Limits,
        *,
        name: str,
        timer: Callable[[], float],
        fingerprint: str | None = None,
        saving: Callable[[Slots], IdleSaving] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model = model
        self._curve = curve
        self._limits = limits
        self._name = name
        self._timer = timer
        self._fingerprint = fingerprint
        self._stopped = stopped
        self.slots = Slots(model.slots)
        self._answers: OrderedDict[str, Answer] = OrderedDict()  # by when they were heard of
        self._changed: deque[Answer] = deque()  # rounds may begin
        self._jobs: dict[Job, Served] = {}
        self._told: dict[Served, None] = {}  # may have something to do that needs no pass
        self._busy: dict[Work, None] = {}  # wanted
        self._queue: dict[Work, None] = {}  # wait for a slot
        self._late: dict[str, Answer] = {}  # a round waits for an earlier one
        self._computed: tuple[Work, ...] = ()  # whose rows are being computed
        self._running: Job | None = None
        self._turns = 0
        self.passes = 0
        self.saving = None if saving is None else saving(self.slots)

    # Jobs

    def begin(self, job: Job, now: float) -> None:
        """Take a job."""
        hold_s = 0.0 if job.resident else self._limits.hold_s
        view = AnswerModel(self._model, job.keyed, self.slots, hold_s=hold_s, whole_batches=False)
        served = self._jobs[job] = Served(job, view)
        self._want(served)
        self._resume(served, now)

    def tell(self, job: Job) -> None:
        """Let a job see what has changed for it: its flags, or its orders."""
        served = self._jobs.get(job)
        if served is not None:
            self._told[served] = None

    def cancel(self, job: Job, now: float) -> None:
        """Leave a job, and close its mailbox; its slot is free, and its cache stays there. Idempotent."""
        served = self._jobs.get(job)
        if served is not None:
            self._end(served, now)

    def computes_only(self, job: Job) -> bool:
        """Return whether the pass that is being computed is of this job alone, so that it may be stopped."""
        computed = self._computed
        return len(computed) == 1 and computed[0].job is job

    def stop(self) -> None:
        """Stop the job that goes on just now, where one does: it may be busy with something that is no pass."""
        running = self._running
        if running is not None:
            running.flag.set()

    def lacks_slot(self, job: Job) -> bool:
        """Return whether a job has no slot, or not any more."""
        served = self._jobs.get(job)
        return served is not None and served.view.slot is None

    @property
    def is_computing(self) -> bool:
        """Whether a pass is being computed."""
        return bool(self._computed)

    @property
    def queued(self) -> int:
        """How many answers wait for a slot."""
        return len(self._queue)

    def ahead(self, now: float) -> int:
        """Return how many answers a new one would wait for."""
        return max(len(self._queue) - self.slots.free(now) + 1, 0)

    def _want(self, work: Work) -> None:
        """Note that somebody asks for more of an answer."""
        self._busy[work] = None
        work.view.idle_since = None
        self._rests(work)

    def _go_on(self, now: float) -> None:
        """Let jobs go on that need no pass for it."""
        told, self._told = self._told, {}
        for served in told:
            if served.job not in self._jobs or not served.view.ready:
                continue
            if served.job.flag.is_set() or served.job.ready:
                if served not in self._busy:
                    self._want(served)
                self._resume(served, now)

    def _came_to_rest(self, served: Served, now: float) -> None:
        if served.view.ready:
            served.view.hold()  # others compute before the job goes on
        if not served.is_wanted:
            self._busy.pop(served, None)
            served.view.idle_since = now
        elif served.view.ready:
            self._told[served] = None  # it only lets others come between

    def _end(self, served: Served, now: float, failure: EndpointFailure | None = None) -> None:
        job = served.job
        del self._jobs[job]
        self._busy.pop(served, None)
        self._queue.pop(served, None)
        self._told.pop(served, None)
        self._release(served, now)
        with suppress(Exception):  # whatever it holds, others must not suffer for it
            job.close()
        if failure is not None:
            job.mail.put(failure)
        job.mail.close()

    # Rounds

    def ask(self, asked: Asked, order: Order | None, now: float) -> None:
        """Take a round."""
        try:
            answer = self._find(asked, order, now)
        except (EndpointFailure, RoundRefused) as failure:
            _refuse(asked, failure)
            return
        answer.heard_s = now
        self._answers.move_to_end(answer.key)
        older = answer.same_round(asked)
        if older is not None:  # whoever sends a round again waits at the new connection only
            answer.leave(older)
            self._rest(answer, now)
            _refuse(older, Superseded())
        answer.asked[asked.round.number] = asked
        self._changed.append(answer)

    def leave(self, asked: Asked, now: float) -> None:
        """Forget a round that nobody waits for any more; the answer stays."""
        answer = self._answers.get(asked.round.key)
        if answer is not None:
            answer.leave(asked)
            self._rest(answer, now)
            self._changed.append(answer)
        asked.reply.close()

    def release(self, key: str, now: float) -> None:
        """Forget an answer that nobody will ask for again; its slot is free, and its cache stays there. Idempotent."""
        answer = self._answers.get(key)
        if answer is not None:
            self._forget(answer, AnswerLost(), now)

    def _find(self, asked: Asked, order: Order | None, now: float) -> Answer:
        answer = self._answers.get(asked.round.key)
        if answer is None and order is None:
            raise AnswerLost
        if order is not None and order.fingerprint not in (None, self._fingerprint or order.fingerprint):
            raise ModelChanged
        known = self._model.vocabulary_tokens
        if any(token >= known for token in (*asked.round.draft, *(order.ids if order else ()))):
            raise malformed("A drafted token is none of this model's.")
        if answer is not None and order is not None and len(order.ids) > len(answer.keyed.chosen):
            self._catch_up(answer, order, now)
            answer = self._answers.get(asked.round.key)
        if answer is None:
            if order is None:
                raise AnswerLost
            if len(self._busy) >= self._limits.waiting:
                raise self._too_busy(f"{len(self._busy):,} rounds wait for it")
            answer = self._open(asked.round.key, order, now)
        if len(answer.asked) >= _MOST_ROUNDS and asked.round.number not in answer.asked:
            raise self._too_busy(f"{len(answer.asked)} rounds of one answer wait")
        return answer

    def _catch_up(self, answer: Answer, order: Order, now: float) -> None:
        """Follow tokens that were settled elsewhere; forget the answer where it has become another."""
        chosen = answer.keyed.chosen
        if tuple(chosen) != order.ids[: len(chosen)] or answer.finish_reason is not None:
            self._forget(answer, AnswerLost(), now)
        elif answer.active is None:
            answer.keyed.forced = deque(order.ids[len(chosen) :])

    def _open(self, key: str, order: Order, now: float) -> Answer:
        while len(self._answers) >= self._limits.answers:
            left = self._least_missed(now)
            if left is None:
                raise self._too_busy(f"it keeps {len(self._answers):,} answers")
            self._forget(left, AnswerLost(), now)
        keyed = Keyed(order.seed, deque(order.ids))
        view = AnswerModel(self._model, keyed, self.slots, hold_s=self._limits.hold_s, whole_batches=True)
        answer = Answer(key, view, keyed, now)
        answer.job = order.make(answer)
        if answer.job is None:
            answer.finish_reason = "length"
        self._answers[key] = answer
        return answer

    def _least_missed(self, now: float) -> Answer | None:
        """Return an answer that has ended, else that not heard of for longest: its client can open it again."""
        ended = next((one for one in self._answers.values() if one.finish_reason is not None), None)
        if ended is not None:
            return ended
        oldest = next(iter(self._answers.values()))
        is_idle = oldest.active is None and not oldest.asked and oldest.heard_s + self._limits.hold_s <= now
        return oldest if is_idle else None

    def _too_busy(self, why: str) -> EndpointFailure:
        return too_busy(
            f"The model of {self._name!r} is too busy: {why}. Send fewer at a time, or try again."
        )

    # What the model does

    def step(self, now: float) -> bool:
        """Do the next piece of work, one pass at most; return whether there was any.

        Raises:
            Aborted: the model was stopped.
            LocalModelError: the model failed, and with it all answers.
        """
        self._expire(now)
        self._start(now)
        self._go_on(now)
        self._seat(now)
        windows: list[tuple[Work, Rows]] = []
        reading: tuple[Work, Rows] | None = None
        alone = [work for work in self._busy if self._is_alone(work) and work.view.slot is not None]
        for work in alone or self._busy:
            if work.view.slot is not None and not work.view.ready:
                rows, is_window = work.view.next_rows()
                if is_window:
                    windows.append((work, rows))
                elif reading is None:
                    reading = work, rows
        turn = min((work.turn for work, _ in windows), default=self._turns)
        try:
            if reading is not None and reading[0].turn <= turn:
                self._compute([reading], now, waits=not reading[0].view.has_more_prompt)
            elif windows:
                self._compute_windows(windows, now)
        except EndpointFailure as lost:  # what the model needs elsewhere; the model itself stays
            self.fail_all(lost)
        works = bool(windows or self._told) or reading is not None
        if self.saving is not None:
            if works:
                self.saving.worked(now)
            elif self.saving.due_at <= now:
                self.saving.save(now)
        return works

    @property
    def wake_at(self) -> float:
        """When there is something to do although nobody asks for anything; infinite where never."""
        times = [answer.wake_at for answer in self._late.values()]
        if self._queue:
            times.append(self.slots.next_idle)
        if self._answers:
            times.append(next(iter(self._answers.values())).heard_s + self._limits.forget_s)
        if self.saving is not None:
            times.append(self.saving.due_at)
        return min(times, default=inf)

    @property
    def waiting(self) -> int:
        """How many answers wait for the model or are worked on."""
        return len(self._busy)

    def fail_all(self, failure: EndpointFailure) -> None:
        """Forget all answers: the model is lost, or goes, and its slots with it."""
        for answer in tuple(self._answers.values()):
            self._forget(answer, failure, 0.0)
        for served in tuple(self._jobs.values()):
            self._end(served, 0.0, failure)

    def _expire(self, now: float) -> None:
        while self._answers:
            answer = next(iter(self._answers.values()))
            if answer.heard_s + self._limits.forget_s > now:
                break
            if answer.active is not None or answer.asked:  # somebody waits for it
                answer.heard_s = now
                self._answers.move_to_end(answer.key)
                continue
            self._forget(answer, AnswerLost(), now)
        for answer in tuple(self._late.values()):
            if answer.wake_at <= now:
                self._changed.append(answer)

    def _start(self, now: float) -> None:
        while self._changed:
            answer = self._changed.popleft()
            if self._answers.get(answer.key) is not answer:
                continue
            self._late.pop(answer.key, None)
            while answer.active is None:
                asked = answer.next_round(now)
                if asked is None:
                    break
                if answer.begin(asked):
                    self._want(answer)
                    if answer.view.ready:  # a new one
                        self._resume(answer, now)
            if answer.active is None and answer.asked:
                self._late[answer.key] = answer

    def _seat(self, now: float) -> None:
        for work in self._busy:
            if work.view.waits_for_slot:
                self._queue.setdefault(work)
        while self._queue and self.slots.free(now):
            work = min(self._queue, key=_rank)  # of equal ones the one that has waited longest
            if any(
                self._is_alone(one) or self._is_alone(work) for one in self._busy if one.view.slot is not None
            ):
                return
            slot = self.slots.take(work.view, work.view.wanted, now)
            if slot is None:
                return
            del self._queue[work]
            work.view.seat(slot)
            if work.view.ready:
                self._resume(work, now)

    @staticmethod
    def _is_alone(work: Work) -> bool:
        return isinstance(work, Served) and work.job.alone

    def _compute_windows(self, windows: list[tuple[Work, Rows]], now: float) -> None:
        if not self._model.cuts:  # what fills a pass up could not be taken back
            windows = [min(windows, key=lambda one: one[0].turn)]
        if len(windows) == 1 or not self._model.fills_up:
            self._compute(windows, now)
            return
        by_slot = {rows.slot: (work, rows) for work, rows in windows}
        most = self._model.most_rows
        lengths = {slot: len(rows.ids) for slot, (_, rows) in by_slot.items()}
        room = self.slots.room(self._model.room_tokens)  # rows that nobody reads get no larger cache
        groups = grouped(lengths, self._curve.s, most=most, room=room)

        def oldest(group: Group) -> int:
            return min(
                by_slot[slot][0].turn for slot in range(group.first, group.last + 1) if slot in by_slot
            )

        group = min(groups, key=oldest)
        members = [by_slot[slot] for slot in range(group.first, group.last + 1) if slot in by_slot]
        self._compute(members, now, group)

    def _compute(
        self,
        members: list[tuple[Work, Rows]],
        now: float,
        group: Group | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """Compute rows of answers and let them go on.

        Args:
            members: the answers with their rows.
            now: s.
            group: see `grouped`.
            waits: for the numbers, so that the pass is timed. The batches of a prompt but the last need not: the model
                may take the next one meanwhile.
        """
        for work, _ in members:
            if isinstance(work, Answer) and work.active is not None and work.active.begun_s is None:
                work.active.begun_s = now
        have_room = [self._has_room(work, rows) for work, rows in members]  # each drops what is in the way
        if not all(have_room) or not self._has_memory(members, now):
            return
        parts, fillers = self._filled([rows for _, rows in members], group)
        began_at = self._timer()
        first = self._pass(members, parts, waits=waits)
        if first is None:
            return
        places = dict(zip((part.slot for part in parts), first, strict=True))
        took_s = self._timer() - began_at
        for slot_number, length in fillers:
            self._model.cut(slot_number, length)
        for work, rows in members:
            self._rests(work)
            again = work.view.computed(rows, places[rows.slot], took_s)
            if isinstance(work, Served):
                work.job.read_again(again)
            elif work.active is not None:
                work.active.compute_s += took_s
                if work.view.ready and work.keyed.chosen:
                    work.active.rows += len(rows.ids)
            if work.view.ready:
                self._resume(work, now + took_s)

    def _has_room(self, work: Work, rows: Rows) -> bool:
        """Drop what the cache holds behind the place of the rows; return False where then nothing is left of it."""
        slot = work.view.slot
        assert slot is not None
        if len(slot.ids) > rows.at:
            del slot.ids[rows.at :]
            if not self._model.cut(slot.number, rows.at):
                work.view.lost()
                return rows.at == 0
        return True

    def _has_memory(self, members: list[tuple[Work, Rows]], now: float) -> bool:
        """Get the memory that the rows need; where there is none, fail the answer that needs most, and no other."""
        work, rows = max(members, key=lambda one: one[1].at + len(one[1].ids))
        try:
            self._model.make_room(rows.at + len(rows.ids))
        except LocalModelError as error:
            failure = failure_of(error, f"The model of {self._name!r} got no memory")
            self._fail(work, failure, now)
            return False
        return True

    def _pass(self, members: list[tuple[Work, Rows]], parts: list[Rows], *, waits: bool) -> list[int] | None:
        """Compute; return the place of each part's first row, None where the pass was stopped.

        Raises:
            Aborted: all is to end.
        """
        self._computed = tuple(work for work, _ in members)
        try:
            # Looked at once more now that `computes_only` knows of the pass, so that no cancelled job is missed.
            if all(isinstance(work, Served) and work.job.flag.is_set() for work, _ in members):
                return None
            first = self._model.compute(parts)
            if waits:
                self._model.synchronise()
            self.passes += 1
        except Aborted:
            if self._stopped():
                raise
            for part in parts:
                # Some of the rows may be in the caches.
                if not self._model.cut(part.slot, part.at) and part.at:
                    self._empty(part.slot)
            return None
        finally:
            self._computed = ()
        return first

    def _empty(self, number: int) -> None:
        slot = self.slots.all[number]
        slot.ids.clear()
        if isinstance(slot.holder, AnswerModel):
            slot.holder.lost()

    def _filled(
        self, wanted: Iterable[Rows], group: Group | None
    ) -> tuple[list[Rows], list[tuple[int, int]]]:
        """Return the rows with those that make them a rectangle, and to what the caches are cut behind the pass."""
        if group is None:
            return list(wanted), []
        rows = {one.slot: one for one in wanted}
        parts, cuts = [], []
        for number in range(group.first, group.last + 1):
            part = rows.get(number)
            if part is not None and len(part.ids) == group.rows:
                parts.append(part)
                continue
            ids = [] if part is None else list(part.ids)
            at = len(self.slots.all[number].ids) if part is None else part.at
            parts.append(Rows(number, at, [*ids, *[0] * (group.rows - len(ids))], 0 if ids else group.rows))
            cuts.append((number, at + len(ids)))
        return parts, cuts

    def _resume(self, work: Work, now: float) -> None:
        """Let a job go on until it needs rows or a slot, and say what is new."""
        assert work.job is not None
        self._running = work.job if isinstance(work.job, Job) else None
        try:
            over = work.job.run(work.view)
        except Aborted:
            if self._stopped():
                raise
            self._fail(work, None, now)
            return
        except EndpointFailure as failure:
            self._fail(work, failure, now)
            return
        except Exception as exc:  # noqa: BLE001 - other answers go on
            self._fail(
                work, failure_of(exc, f"The model of {self._name!r} failed while it wrote an answer"), now
            )
            return
        finally:
            self._running = None
        if isinstance(work, Served):
            if over:
                self._end(work, now)
            else:
                self._came_to_rest(work, now)
            return
        if over:
            work.over()
            self._release(work, now)
        if work.active is not None and work.settle(waiting=len(self._busy) - 1):
            self._rest(work, now)
            self._changed.append(work)

    def _fail(self, work: Work, failure: EndpointFailure | None, now: float) -> None:
        if isinstance(work, Served):
            self._end(work, now, failure)
        else:
            self._forget(work, AnswerLost() if failure is None else failure, now)

    def _rests(self, work: Work) -> None:
        """Note when an answer came to wait for rows: who has waited longest has the next turn."""
        self._turns += 1
        work.turn = self._turns

    def _rest(self, answer: Answer, now: float) -> None:
        """Note that nobody asks for more of an answer now."""
        if answer.active is None:
            self._busy.pop(answer, None)
            self._queue.pop(answer, None)
            if answer.view.idle_since is None:
                answer.view.idle_since = now

    def _release(self, work: Work, now: float) -> None:
        if work.view.slot is not None:
            self.slots.release(work.view.slot, now)

    def _forget(self, answer: Answer, failure: Exception, now: float) -> None:
        waiting = [*answer.asked.values(), *([answer.active] if answer.active is not None else [])]
        answer.asked.clear()
        answer.active = None
        answer.over()
        self._release(answer, now)
        self._answers.pop(answer.key, None)
        self._late.pop(answer.key, None)
        self._busy.pop(answer, None)
        self._queue.pop(answer, None)
        for asked in waiting:
            _refuse(asked, failure)


def _rank(work: Work) -> int:
    """Return whose turn it is to get a slot: who goes on, then who begins, last who only helps another."""
    if isinstance(work, Served) and work.job.resident:
        return 2
    return 0 if work.view.length else 1


def _refuse(asked: Asked, failure: Exception) -> None:
    asked.reply.put(failure)
    asked.reply.close()
