"""A verify server in memory that follows the rules of the real one, and a driver that treats it badly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite

from disco.speculate.effects import Draft, Effect, Fail, Finish, Send, StopDraft, StopStream, Write
from disco.speculate.messages import LONGEST_DRAFT, Verdict
from disco.speculate.rounds import Rounds

STALE_AFTER = 5
"""Turns that the server waits for an earlier window."""


@dataclass
class MadeVerifier:
    """Knows the whole answer, and how far it is settled.

    Args:
        target: the answer's tokens.
        reason: "length": the last token ends the answer; "stop": an end token follows, which is no part of it.
        holds: positions whose text is not shown before that of the next token.
    """

    target: Sequence[int]
    reason: str = "stop"
    holds: frozenset[int] = frozenset()
    length: int = 0
    is_finished: bool = False
    judged: int = 0
    accepted: int = 0

    def replies(self, send: Send) -> Iterator[Verdict] | None:
        """Return the verdicts on a round, each computed when asked for; None: an earlier window must come first."""
        return None if send.at > self.length else self._replies(send, self._judge(send))

    def _replies(self, send: Send, first: Verdict) -> Iterator[Verdict]:
        yield first
        at = self.length
        for _ in range(send.alone):
            if at == self.length and self.is_finished:
                return
            if at == self.length:
                self._next()
            verdict, at = self._verdict(send, at, 1), self.length
            yield verdict

    def _judge(self, send: Send) -> Verdict:
        at, before, guesses, judged = send.at, self.length, list(send.draft), 0
        right_so_far = True
        while right_so_far and guesses and at < self.length:
            right_so_far = guesses.pop(0) == self.target[at]
            judged += 1
            self.accepted += right_so_far
            at += 1
        if at == self.length:  # nothing of it was wrong, and no more is settled
            while right_so_far and not self.is_finished:
                guess = guesses.pop(0) if guesses else None
                token = self._next()
                judged += guess is not None
                right_so_far = guess is not None and guess == token
                self.accepted += right_so_far
        self.judged += judged
        rows = self.length - before + len(guesses)
        return self._verdict(send, send.at, rows)

    def stale(self, send: Send) -> Verdict:
        return Verdict(send.number, self.length)

    def _next(self) -> int | None:
        if self.length == len(self.target):
            self.is_finished = True
            return None
        self.length += 1
        self.is_finished = self.reason == "length" and self.length == len(self.target)
        return self.target[self.length - 1]

    def _verdict(self, send: Send, at: int, rows: int) -> Verdict:
        ids = tuple(self.target[at : self.length])
        deltas = [delta for position in range(at, self.length) for delta in self._deltas(position)]
        if self.is_finished and self._held(self.length):
            deltas.append(
                {"delta": {"content": text_of(self._held(self.length))}, "tokens": 0, "at": self.length}
            )
        reason = self.reason if self.is_finished else None
        return Verdict(send.number, at, ids, tuple(deltas), reason, rows=rows, compute_s=0.01 * rows)

    def _held(self, position: int) -> Sequence[int]:
        """Return the tokens before a position whose text is held back there."""
        first = position
        while first > 0 and first - 1 in self.holds:
            first -= 1
        return self.target[first:position]

    def _deltas(self, position: int) -> list[dict[str, object]]:
        if position in self.holds:
            return []
        tokens = [*self._held(position), self.target[position]]
        return [{"delta": {"content": text_of(tokens)}, "tokens": len(tokens), "at": position}]


def text_of(tokens: Sequence[int]) -> str:
    return "".join(f"{token}," for token in tokens)


@dataclass(frozen=True)
class Weather:
    """How badly rounds are treated: probabilities per turn."""

    reorders: float = 0.0
    duplicates: float = 0.0
    loses: float = 0.0
    times_out: float = 0.0
    forgets: float = 0.0
    stops_early: float = 0.0
    drafter_dies: float = 0.0
    late: float = 0.0
    gaps: float = 0.0


@dataclass
class Reply:
    """A reply that is on its way."""

    number: int
    lines: Iterator[Verdict]


@dataclass
class Run:
    """One answer driven to its end, with everything checked on the way."""

    rounds: Rounds
    verifier: MadeVerifier
    guess: Callable[[Sequence[int]], int | None]
    random: random.Random
    weather: Weather = Weather()
    now: float = 0.0
    written: list[int] = field(default_factory=list)
    text: str = ""
    end: Effect | None = None
    turns: int = 0
    sequence: list[int] = field(default_factory=list)
    order: Draft | None = None
    sends: dict[int, tuple[Send, list[int]]] = field(default_factory=dict)
    requests: list[tuple[Send, int]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    stopped_draft: bool = False
    prompt_read: bool = False

    def drive(self, most_turns: int) -> None:
        self.take(self.rounds.start(self.now))
        while self.end is None:
            self.turns += 1
            assert self.turns <= most_turns, "no end in sight"
            self.turn()
        assert self.rounds.is_over
        assert not isfinite(self.rounds.wake_at)

    def turn(self) -> None:
        """Let one thing happen."""
        self.now += 0.001
        rare, weather = self.random.random, self.weather
        choices: list[Callable[[], None]] = []
        if self.requests:
            choices.append(self.serve)
        if self.replies:
            choices.append(self.reply)
        if not self.prompt_read and self.rounds.drafter_state == "reading":
            choices.append(self.ready)
        if self.order is not None and not (rare() < weather.late and choices):
            choices.append(self.draft)
        if not choices:
            assert isfinite(self.rounds.wake_at), "nothing is under way, and the machine waits"
            self.now = max(self.now, self.rounds.wake_at)
        if self.rounds.wake_at <= self.now or rare() < 0.02:
            self.take(self.rounds.woken(self.now))
        elif choices:
            self.random.choice(choices)()
        if rare() < weather.drafter_dies and self.rounds.drafter_state != "absent":
            self.order = None
            self.take(self.rounds.failed(self.now, "drafter"))

    def ready(self) -> None:
        self.prompt_read = True
        self.take(self.rounds.drafter_ready(self.now))

    def draft(self) -> None:
        order, self.order = self.order, None
        assert order is not None
        count = order.count
        if self.stopped_draft or self.random.random() < self.weather.stops_early:
            count = self.random.randrange(count + 1)
        ids: list[int] = []
        while len(ids) < count and (token := self.guess([*self.sequence, *ids])) is not None:
            ids.append(token)
        self.sequence += ids
        took_s = 0.002 * len(ids) + 0.0005 * len(order.append)
        effects = self.rounds.drafted(self.now, order.number, ids, took_s)
        for effect in effects:
            if isinstance(effect, Send) and effect.draft:
                self.sends[effect.number] = effect, self.sequence[: effect.at + len(effect.draft)]
                assert self.sequence[effect.at :][: len(effect.draft)] == list(effect.draft)
        self.take(effects)

    def serve(self) -> None:
        """Let a request arrive: the first one, or another where they may overtake each other."""
        overtakes = self.random.random() < self.weather.reorders
        send, waited = self.requests.pop(self.random.randrange(len(self.requests)) if overtakes else 0)
        if self.random.random() < self.weather.loses:
            self.take(self.rounds.failed(self.now, "verifier", send.number))
            return
        if self.random.random() < self.weather.forgets:  # and reads the answer's tokens again
            self.verifier.length = len(self.rounds.ids)
            self.verifier.is_finished = False
        lines = self.verifier.replies(send)
        if lines is None:
            cut = any(other.number < send.number for other, _ in self.requests)
            if waited < STALE_AFTER and cut and self.random.random() >= self.weather.times_out:
                self.requests.append((send, waited + 1))
                return
            lines = iter([self.verifier.stale(send)])
        self.replies.append(Reply(send.number, lines))

    def reply(self) -> None:
        """Let the next verdict of a reply arrive."""
        overtakes = self.random.random() < self.weather.reorders
        place = self.random.randrange(len(self.replies)) if overtakes else 0
        reply = self.replies[place]
        is_lost = self.random.random() < self.weather.loses
        verdict = None if is_lost else next(reply.lines, None)
        if verdict is not None and self.random.random() < self.weather.gaps:
            verdict = next(reply.lines, None)
        if verdict is None:
            del self.replies[place]
            if is_lost:
                self.take(self.rounds.failed(self.now, "verifier", reply.number))
            else:
                self.take(self.rounds.ended(self.now, reply.number))
            return
        self.take(self.rounds.verified(self.now, verdict))
        while self.end is None and self.random.random() < self.weather.duplicates:
            self.take(self.rounds.verified(self.now, verdict))

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert self.end is None
            match effect:
                case Write(at, ids, deltas):
                    assert at == len(self.written)
                    self.written += ids
                    self.text += "".join(delta["delta"]["content"] for delta in deltas)
                    assert all("at" not in delta for delta in deltas)
                    assert self.written == list(self.verifier.target[: len(self.written)])
                case Draft(_, keep, append, count):
                    assert self.order is None
                    assert 1 <= count <= LONGEST_DRAFT
                    assert keep <= len(self.sequence)
                    self.sequence = [*self.sequence[:keep], *append]
                    assert self.sequence[: len(self.written)] == self.written
                    self.order, self.stopped_draft = effect, False
                case StopDraft(number):
                    if self.order is not None:  # none where the drafter has died
                        assert self.order.number == number
                    self.stopped_draft = True
                case Send(_, at, draft, alone):
                    assert len(draft) <= LONGEST_DRAFT
                    assert not (draft and alone)
                    assert at >= len(self.written) or effect.number in self.sends
                    self.requests.append((effect, 0))
                case StopStream(number):
                    for reply in self.replies:
                        if reply.number == number:  # what is on its way may be dropped, or still come
                            reply.lines = islice(reply.lines, self.random.randrange(3))
                    self.requests = [one for one in self.requests if one[0].number != number]
                case Finish() | Fail():
                    self.end = effect
