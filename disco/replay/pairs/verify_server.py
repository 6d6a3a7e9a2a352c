"""A verify server in virtual time: the rounds of one answer, one pass after the other.

It follows the rules of the one that runs live (`endpoints/llamacpp/batching`): a drafted token that is settled already
is compared and not computed again; a window whose beginning is refuted, or that begins behind the answer's end, costs
no pass. Tokens of an answer are their positions in it, and a wrong guess is -1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from disco.endpoints.simulation.simulated_script import Fault
from disco.replay.pairs.simulated_pair import Pair
from disco.speculate.effects import Send
from disco.speculate.messages import Verdict

__all__ = ["Failed", "Reply", "VerifyServer"]

_NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """A verdict, and whether the reply to its round ends with it."""

    verdict: Verdict
    is_last: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The server fails; the answer cannot go on here."""


class VerifyServer:
    """The server's side of one answer. Mutable: everything below the blank line.

    Args:
        pair: times of the passes.
        tokens: length of the answer.
        reason: how it ends.
        first_s: when the client has the first token, s since the attempt began.
        alone_s: time per token of the server alone, s.
        fault: what fails for certain, with `after_tokens` counted in tokens of the answer; None: nothing.
        rng: draws the waits.
        schedule: calls a function at a time, with that time.
        send: sends a reply to the client, at a time.
    """

    __slots__ = (
        *("_fault", "_first_s", "_pair", "_reason", "_rng", "_schedule", "_send", "_tokens"),
        *("_dies_at", "_free_s", "_has_answered", "_left", "_length", "_queue_s", "_ratio"),
        *("_rejected", "_stream", "_waiting"),
    )

    def __init__(
        self,
        pair: Pair,
        *,
        tokens: int,
        reason: str,
        first_s: float,
        alone_s: float,
        fault: Fault | None,
        rng: Random,
        schedule: Callable[[float, Callable[[float], None]], None],
        send: Callable[[float, Reply | Failed], None],
    ) -> None:
        self._pair = pair
        self._tokens, self._reason = tokens, reason
        self._first_s, self._fault = first_s, fault
        self._rng, self._schedule, self._send = rng, schedule, send

        self._queue_s = min(pair.queue_s, alone_s)
        self._ratio = (alone_s - self._queue_s) / pair.verify.s(1)
        self._dies_at = math.inf
        if fault is not None:
            self._dies_at = tokens if fault.after_tokens is None else fault.after_tokens
            if self._dies_at > tokens:
                self._dies_at = math.inf
        self._waiting: deque[Send] = deque()
        self._stream = _NOBODY  # number of the round in which the server goes on alone
        self._left = 0  # tokens of it
        self._free_s = 0.0
        self._has_answered = False
        self._length = 0
        self._rejected = 0  # drafted tokens computed in vain

    def take(self, send: Send, now: float) -> None:
        """Take a round that arrives."""
        self._waiting.append(send)
        self.free(now)

    def stop(self, number: int, now: float) -> None:  # noqa: ARG002 - called at a time, as all else
        """End a reply that nobody reads any more."""
        if self._stream == number:
            self._stream = _NOBODY
        self._waiting = deque(one for one in self._waiting if one.number != number)

    def free(self, now: float) -> None:
        """Begin the next pass, unless one is being made; answer what needs none."""
        while self._free_s <= now:
            if self._stream != _NOBODY:
                self._write(now)
            elif self._waiting:
                self._answer(now, self._waiting.popleft())
            else:
                return

    def _write(self, now: float) -> None:
        """Compute the next token of a stream."""
        number = self._stream
        self._left -= 1
        if self._left == 0:
            self._stream = _NOBODY
        self._compute(now, number, self._length, (), is_last=self._left == 0)

    def _answer(self, now: float, send: Send) -> None:
        length, draft = self._length, send.draft
        known = min(len(draft), length - send.at)
        if known < 0:  # a window before it was cut short
            self._reply(now, send.number, length, 0, 0.0, 0.0, is_last=True)
            return
        refuted = any(draft[place] != send.at + place for place in range(known))
        is_last = not send.alone
        if send.alone:
            self._stream, self._left = send.number, send.alone
        if refuted or send.at + len(draft) < length:
            self._reply(now, send.number, send.at, 0, 0.0, 0.0, is_last=is_last)
        else:
            self._compute(now, send.number, send.at, draft[known:], is_last=is_last)

    @property
    def _is_complete(self) -> bool:
        return self._length == self._tokens and self._dies_at == math.inf

    def _compute(self, now: float, number: int, at: int, rest: tuple[int, ...], *, is_last: bool) -> None:
        """Make one pass: the newest settled token, and drafted ones behind it."""
        length, stalls_s = self._length, 0.0
        if length >= self._dies_at:
            silent_s = self._break_down(now)
            if silent_s is None:
                return
            stalls_s = silent_s
        right = 0
        while right < len(rest) and rest[right] == length + right:
            right += 1
        self._rejected += len(rest) - right
        self._length = int(min(length + right + 1, self._tokens, max(self._dies_at, length)))
        rows = 1 + len(rest)
        waits_s = self._rng.expovariate(1 / self._queue_s) if self._queue_s else 0.0
        takes_s = self._ratio * self._pair.verify.s(rows)
        self._reply(now, number, at, rows, waits_s, takes_s, is_last=is_last, stalls_s=stalls_s)

    def _break_down(self, now: float) -> float | None:
        """Fail, and return None; or return how long nothing happens."""
        fault, self._dies_at = self._fault, math.inf
        assert fault is not None
        if fault.kind is None:
            if fault.gap_s is not None:
                self._ratio, self._queue_s = fault.gap_s / self._pair.verify.s(1), 0.0
            return fault.silence_s
        self._free_s = math.inf  # it never answers again
        heard_s = 0.0 if fault.at_once else max(self._first_s, now + self._pair.round_trip_s / 2)
        self._send(heard_s + fault.silence_s, Failed())
        return None

    def _reply(
        self,
        now: float,
        number: int,
        at: int,
        rows: int,
        waits_s: float,
        takes_s: float,
        *,
        is_last: bool,
        stalls_s: float = 0.0,
    ) -> None:
        begins_s = now + stalls_s
        done_s = begins_s + waits_s + takes_s
        heard_s = done_s + self._pair.round_trip_s / 2
        if not self._has_answered:  # the prompt is read, too: the time to first token has all that
            self._has_answered = True
            heard_s = max(self._first_s, begins_s)
            done_s = max(begins_s, heard_s - self._pair.round_trip_s / 2)
            waits_s, takes_s = 0.0, done_s - begins_s
        finished = self._is_complete
        if finished:
            self._stream, is_last = _NOBODY, True
        verdict = Verdict(
            number,
            at,
            tuple(range(at, self._length)),
            finish_reason=self._reason if finished else None,
            rows=rows,
            completion_tokens=self._length,
            rejected_tokens=self._rejected,
            queue_s=waits_s,
            compute_s=takes_s,
        )
        self._send(heard_s, Reply(verdict, is_last))
        self._free_s = done_s
        if done_s > now:
            self._schedule(done_s, self.free)
