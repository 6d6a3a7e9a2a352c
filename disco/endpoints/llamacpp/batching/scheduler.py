"""Decides what the model computes next: which rounds have their turn, who gets a slot, and which rows share a pass.

Nothing here reads a clock or waits: the engine's thread calls `step` with the time, and tests do so with any time. A
prompt is read in batches of its own between the windows, one batch of one prompt at a time, so that a window waits for
one batch at most. In one pass with windows its numbers would be others than alone (llama.cpp cuts passes by sequence),
and a long prompt gains nothing by it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
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
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["Scheduler"]


_MOST_ROUNDS: Final = 16  # of one answer, that wait


class Scheduler:
    """All answers of one model. Used by one thread. Mutable.

    Args:
        model: computes.
        curve: seconds of a pass by its rows.
        limits: of time and number.
        name: of the server's model, for messages.
        timer: s, for the time that batches take.
        fingerprint: of the model; None: orders are not compared with it.
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
    ) -> None:
        self._model = model
        self._curve = curve
        self._limits = limits
        self._name = name
        self._timer = timer
        self._fingerprint = fingerprint
        self.slots = Slots(model.slots, limits.hold_s)
        self._room = self.slots.room(model.context_tokens)
        self._answers: OrderedDict[str, Answer] = OrderedDict()  # by when they were heard of
        self._changed: deque[Answer] = deque()  # rounds may begin
        self._busy: dict[str, Answer] = {}  # with an active round
        self._queue: OrderedDict[str, Answer] = OrderedDict()  # wait for a slot
        self._late: dict[str, Answer] = {}  # a round waits for an earlier one
        self._turns = 0

    # What clients ask for

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
        answer = Answer(key, AnswerModel(self._model, keyed), keyed, now)
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
        message = (
            f"The verify server of {self._name!r} is too busy: {why}. Send fewer at a time, or try again."
        )
        return EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError(message), retry_after_s=1.0)

    # What the model does

    def step(self, now: float) -> bool:
        """Do the next piece of work, one pass at most; return whether there was any.

        Raises:
            Aborted: the model was stopped.
            LocalModelError: the model failed, and with it all answers.
        """
        self._expire(now)
        self._start(now)
        self._seat(now)
        windows: list[tuple[Answer, Rows]] = []
        reading: tuple[Answer, Rows] | None = None
        for answer in self._busy.values():
            if answer.view.slot is not None and not answer.view.ready:
                rows, is_window = answer.view.next_rows()
                if is_window:
                    windows.append((answer, rows))
                elif reading is None:
                    reading = answer, rows
        turn = min((answer.turn for answer, _ in windows), default=self._turns)
        try:
            if reading is not None and reading[0].turn <= turn:
                self._compute([reading], now, waits=not reading[0].view.has_more_prompt)
            elif windows:
                self._compute_windows(windows, now)
        except EndpointFailure as lost:  # what the model needs elsewhere; the model itself stays
            self.fail_all(lost)
        return bool(windows) or reading is not None

    @property
    def wake_at(self) -> float:
        """When there is something to do although nobody asks for anything; infinite where never."""
        times = [answer.wake_at for answer in self._late.values()]
        if self._queue:
            times.append(self.slots.next_idle)
        if self._answers:
            times.append(next(iter(self._answers.values())).heard_s + self._limits.forget_s)
        return min(times, default=float("inf"))

    @property
    def waiting(self) -> int:
        """How many rounds wait for the model or are worked on."""
        return len(self._busy)

    def fail_all(self, failure: Exception) -> None:
        """Forget all answers: the model is lost, or goes, and its slots with it."""
        for answer in tuple(self._answers.values()):
            self._forget(answer, failure, 0.0)

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
                    self._busy[answer.key] = answer
                    answer.view.idle_since = None
                    self._rests(answer)
                    if answer.view.ready:  # a new one
                        self._resume(answer, now)
            if answer.active is None and answer.asked:
                self._late[answer.key] = answer

    def _seat(self, now: float) -> None:
        for answer in self._busy.values():
            if answer.view.waits_for_slot and answer.key not in self._queue:
                self._queue[answer.key] = answer
        while self._queue:
            answer = next(iter(self._queue.values()))
            slot = self.slots.take(answer.view, answer.view.wanted, now)
            if slot is None:
                return
            del self._queue[answer.key]
            answer.view.seat(slot)
            if answer.view.ready:
                self._resume(answer, now)

    def _compute_windows(self, windows: list[tuple[Answer, Rows]], now: float) -> None:
        by_slot = {rows.slot: (answer, rows) for answer, rows in windows}
        if len(windows) == 1 or not self._model.fills_up:
            self._compute(windows, now)
            return
        most = self._model.most_rows
        lengths = {slot: len(rows.ids) for slot, (_, rows) in by_slot.items()}
        groups = grouped(lengths, self._curve.s, most=most, room=self._room)

        def oldest(group: Group) -> int:
            return min(
                by_slot[slot][0].turn for slot in range(group.first, group.last + 1) if slot in by_slot
            )

        group = min(groups, key=oldest)
        members = [by_slot[slot] for slot in range(group.first, group.last + 1) if slot in by_slot]
        self._compute(members, now, group)

    def _compute(
        self,
        members: list[tuple[Answer, Rows]],
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
        for answer, rows in members:
            slot = answer.view.slot
            assert slot is not None
            if len(slot.ids) > rows.at:
                del slot.ids[rows.at :]
                if not self._model.cut(slot.number, rows.at):
                    raise LocalModelError("llama.cpp could not drop the end of a cache.")
            if answer.active is not None and answer.active.begun_s is None:
                answer.active.begun_s = now
        parts, fillers = self._filled([rows for _, rows in members], group)
        began_at = self._timer()
        places = dict(zip((part.slot for part in parts), self._model.compute(parts), strict=True))
        if waits:
            self._model.synchronise()
        took_s = self._timer() - began_at
        for slot_number, length in fillers:
            self._model.cut(slot_number, length)
        for answer, rows in members:
            if answer.active is not None:
                answer.active.compute_s += took_s
            self._rests(answer)
            if answer.view.computed(rows, places[rows.slot]):
                if answer.active is not None and answer.keyed.chosen:
                    answer.active.rows += len(rows.ids)
                self._resume(answer, now + took_s)

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

    def _resume(self, answer: Answer, now: float) -> None:
        """Let the job go on until it needs rows or a slot, and say what is new."""
        assert answer.job is not None
        try:
            over = answer.job.run(answer.view)
        except EndpointFailure as failure:
            self._forget(answer, failure, now)
            return
        except Exception as exc:  # noqa: BLE001 - other answers go on
            what = f"The verify server of {self._name!r} failed while it wrote an answer"
            self._forget(answer, failure_of(exc, what), now)
            return
        if over:
            answer.over()
            self._release(answer, now)
        if answer.active is not None and answer.settle(waiting=len(self._busy) - 1):
            self._rest(answer, now)
            self._changed.append(answer)

    def _rests(self, answer: Answer) -> None:
        """Note when an answer came to wait for rows: who has waited longest has the next turn."""
        self._turns += 1
        answer.turn = self._turns

    def _rest(self, answer: Answer, now: float) -> None:
        """Note that nobody asks for more of an answer now."""
        if answer.active is None:
            self._busy.pop(answer.key, None)
            self._queue.pop(answer.key, None)
            if answer.view.idle_since is None:
                answer.view.idle_since = now

    def _release(self, answer: Answer, now: float) -> None:
        if answer.view.slot is not None:
            self.slots.release(answer.view.slot, now)

    def _forget(self, answer: Answer, failure: Exception, now: float) -> None:
        waiting = [*answer.asked.values(), *([answer.active] if answer.active is not None else [])]
        answer.asked.clear()
        answer.active = None
        answer.over()
        self._release(answer, now)
        for where in (self._answers, self._busy, self._queue, self._late):
            where.pop(answer.key, None)
        for asked in waiting:
            _refuse(asked, failure)


def _refuse(asked: Asked, failure: Exception) -> None:
    asked.reply.put(failure)
    asked.reply.close()
