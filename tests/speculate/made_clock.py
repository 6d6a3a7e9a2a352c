"""One answer in virtual time: a drafter, a network and a target with constant times."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf

from disco.speculate.effects import Draft, Effect, Fail, Finish, Send, StopDraft, StopStream, Write
from disco.speculate.rounds import Rounds
from disco.speculate.seen import VerifyCurve
from tests.speculate.made_verifier import MadeVerifier


@dataclass
class Timed:
    """Drives an answer to its end; `now` is the time it took.

    Args:
        draft_s: time per drafted token, at a time.
        right: whether the drafter's next guess is right, given that all before it is.
        ready_s: when the drafter has read the prompt.
        prefill_s: when the target has.
        read_s: time per token that the drafter reads, behind the first.
        hangs_from_s: from then on the drafter does not react to being stopped.
    """

    rounds: Rounds
    verifier: MadeVerifier
    curve: VerifyCurve
    right: Callable[[], bool]
    round_trip_s: float
    draft_s: Callable[[float], float]
    ready_s: float = 0.0
    prefill_s: float = 0.0
    read_s: float = 0.0
    hangs_from_s: float = inf
    now: float = 0.0
    free_s: float = 0.0
    written_s: list[float] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    ids: count[int] = field(default_factory=count)
    sequence: list[int] = field(default_factory=list)
    drafts: dict[int, float] = field(default_factory=dict)
    waiting: list[Send] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    end: Effect | None = None

    def drive(self) -> None:
        if self.rounds.drafter_state == "reading":
            self.at(self.ready_s, lambda: self.take(self.rounds.drafter_ready(self.now)))
        self.take(self.rounds.start(0.0))
        while self.end is None:
            wake = self.rounds.wake_at
            if wake < (self.heap[0][0] if self.heap else inf):
                self.now = wake
                self.take(self.rounds.woken(wake))
            else:
                self.now, _, what = heapq.heappop(self.heap)
                what()

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (time_s, next(self.ids), what))

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Draft():
                    self.draft(effect)
                case StopDraft(number):
                    if number in self.drafts and self.now < self.hangs_from_s:
                        self.at(self.now, lambda number=number: self.drafted(number, ()))
                case Send():
                    self.at(self.now + self.round_trip_s / 2, lambda send=effect: self.arrive(send))
                    if effect.alone:
                        self.streams.add(effect.number)
                case StopStream(number):
                    self.streams.discard(number)
                case Write(_, ids, _, mode):
                    self.written_s += [self.now] * len(ids)
                    self.modes += [mode] * len(ids)
                case Finish() | Fail():
                    self.end = effect

    def draft(self, order: Draft) -> None:
        self.sequence = [*self.sequence[: order.keep], *order.append]
        self.drafts[order.number] = self.now
        target, ids = self.verifier.target, []
        follows = self.sequence == list(target[: len(self.sequence)])
        for _ in range(order.count):
            place = len(self.sequence) + len(ids)
            follows = follows and place < len(target) and self.right()
            ids.append(target[place] if follows else -1)
        took_s = order.count * self.draft_s(self.now) + self.read_s * max(0, len(order.append) - 1)
        self.at(self.now + took_s, lambda: self.drafted(order.number, ids))

    def drafted(self, number: int, ids: Sequence[int]) -> None:
        since = self.drafts.pop(number, None)
        if since is not None:
            self.sequence += ids
            self.take(self.rounds.drafted(self.now, number, ids, self.now - since))

    def arrive(self, send: Send) -> None:
        """Compute a round once those before it are computed; -1, a wrong guess, is never a token of the target."""
        self.waiting.append(send)
        self.waiting.sort(key=lambda one: one.number)
        if len(self.waiting) == 1 or self.free_s <= self.now:
            self.serve()

    def serve(self) -> None:
        if not self.waiting or self.free_s > self.now:
            return
        send = self.waiting.pop(0)
        before = self.verifier.length
        replies = self.verifier.replies(send)
        verdict = self.verifier.stale(send) if replies is None else next(replies)
        rows = (
            1 + len(send.draft) - max(0, before - send.at)
        )  # the newest settled token, and the drafted ones behind it
        if self.verifier.length == before:  # stale, or refuted by what is settled
            rows = 0
        took_s = self.curve.s(rows) if rows else 0.0
        if send.number == 0:
            took_s += self.prefill_s
        self.reply(send, replace(verdict, rows=rows, compute_s=took_s), took_s)
        if send.alone and replies is not None:
            self.at(self.free_s, lambda: self.stream(send, replies))

    def stream(self, send: Send, replies) -> None:
        if send.number in self.streams and (verdict := next(replies, None)) is not None:
            took_s = self.curve.s(1)
            self.reply(send, replace(verdict, rows=1, compute_s=took_s), took_s)
            self.at(self.free_s, lambda: self.stream(send, replies))
        elif send.number in self.streams:
            self.at(
                self.now + self.round_trip_s / 2, lambda: self.take(self.rounds.ended(self.now, send.number))
            )
            self.serve()
        else:
            self.serve()

    def reply(self, send: Send, verdict, took_s: float) -> None:
        self.free_s = self.now + took_s
        self.at(
            self.free_s + self.round_trip_s / 2, lambda: self.take(self.rounds.verified(self.now, verdict))
        )
        if not send.alone:
            self.at(self.free_s, self.serve)

    @property
    def token_s(self) -> float:
        """Mean time per token of the second half, s: behind the start."""
        half = len(self.written_s) // 2
        return (self.written_s[-1] - self.written_s[half]) / (len(self.written_s) - 1 - half)


def a_timed(
    rounds: Rounds,
    curve: VerifyCurve,
    *,
    tokens: int = 3000,
    right: float = 0.8,
    round_trip_s: float = 0.01,
    draft_s: float | Callable[[float], float] = 0.009,
    seed: int = 0,
    **more,
) -> Timed:
    chance = random.Random(seed)
    target = [chance.randrange(100) for _ in range(tokens)]
    per_token = draft_s if callable(draft_s) else lambda _: draft_s
    timed = Timed(
        rounds,
        MadeVerifier(target, "length"),
        curve,
        lambda: chance.random() < right,
        round_trip_s,
        per_token,
        **more,
    )
    timed.drive()
    assert timed.end == Finish("length")
    return timed
