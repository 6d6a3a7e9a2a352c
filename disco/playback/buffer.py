"""The buffer between generation and the reader, and the pace at which it lets text go.

Driven by an explicit `now` (seconds of one monotonic clock): no clock, no task, no I/O.

Two clocks, kept apart. The *reader's deadline* of token i is `D_i = t_0 + i/r_c`, with t_0 the first text and
r_c = `Pace.tps`. The *screen cadence* is the schedule that the pacer follows: the next word is due
`tokens/rate` after the word before it was due. Two promises follow from taking the earlier one:
a token that the reader already waits for (`D_i <= now`) is never held, so pacing makes no token late that was
not late before; and without banking nothing is held longer than `Pace.max_hold_s`.
"""

# ruff: noqa: FURB136, PLR1730 - a call of min or max takes as long as a line of this, and it is done for every token

from __future__ import annotations

from collections import deque
from math import exp

from disco.events import Delta, DeltaKind
from disco.playback.gate import Gate
from disco.playback.pace import Pace
from disco.playback.queued_items import (
    MAX_CHARS_PER_TOKEN,
    Item,
    part_of,
    take_back,
    take_back_items,
    weight_of,
    word_is_whole,
)
from disco.playback.text_boundaries import CAP_CHARS, continues, next_cut

__all__ = ["Playback"]

_LEAD_S = 0.01  # before the reader's deadline, because a timer of a busy event loop rings late
_FRAME_S = 1 / 60  # a screen shows no more often; spares wake-ups while a burst drains
_EWMA_SPAN_S = 1.0  # memory of the arrival rate
_PRIOR_SPAN_S = 0.03  # how long the rate is believed to have been r_c before the first token
_AHEAD = 1.1  # how much faster than it arrives text is let go, so that a hold once made wears off
_TEXT = DeltaKind.TEXT
_UNKNOWN = float("-inf")
_NEVER = float("inf")


class Playback:
    """Queue between generation and the reader. `pace` None: everything is passed on at once, untouched.

    The rate is `max(pace.tps, 1.1·EWMA of arrivals, backlog/max_hold_s)`; while `banking` it is exactly `pace.tps`,
    and under a `tempo` exactly that. The first text leaves at once (of a delta over 64 characters, its first word).
    Words leave whole: an unfinished last word waits for its end, until the reader reaches it or `max_hold_s` is over.
    Deltas that are not text are never held once the text before them has left, and never overtake it. Nothing passes
    the `gate`.

    `now` must not go backwards between calls.
    """

    # Mutable: everything below. Token counts are `weight`s (see `weight_of`), floats.
    __slots__ = (
        "_banking", "_burst_tps", "_due_from_at", "_due_tokens", "_end_by", "_ended", "_ewma_span_s",
        "_ewma_tokens", "_frame_at", "_gate", "_last_push_at", "_last_text", "_nothing_before_at",
        "_queue", "_rate_tps", "_raw_queue", "_run_chars", "_seen_at", "_slowest_tps", "_steady",
        "_tempo", "_text_started_at", "_token_s", "_tokens_pushed", "_tokens_released", "_unbanked_at",
        "pace", "pushed_chars", "released_chars",
    )  # fmt: skip

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace
        self.pushed_chars = self.released_chars = 0
        self._raw_queue: list[Delta] = []  # used without a pace
        self._queue: deque[Item] = deque()  # used with one
        self._banking = self._steady = False
        self._tempo: float | None = None
        self._gate: Gate | None = None
        self._ended = False
        self._end_by = _NEVER
        self._nothing_before_at = _UNKNOWN  # a `next_at` that still holds
        self._tokens_pushed = self._tokens_released = self._last_push_at = 0.0
        self._text_started_at = _UNKNOWN
        self._last_text = ""
        self._run_chars = 0
        # The head is due `_due_tokens` at the present rate after `_due_from_at`, when the word before it was.
        self._due_from_at = self._frame_at = self._seen_at = self._unbanked_at = _UNKNOWN
        self._due_tokens = self._burst_tps = 0.0
        self._token_s = 1.0 / pace.tps if pace is not None else 0.0
        self._rate_tps = self._slowest_tps = pace.tps if pace is not None else _NEVER
        self._ewma_span_s = _PRIOR_SPAN_S
        self._ewma_tokens = _PRIOR_SPAN_S * (pace.tps if pace is not None else 0.0)

    def push(self, now: float, delta: Delta) -> None:
        """Take one delta from generation, at `now`.

        Raises:
            ValueError: after `end`.
        """
        if self._ended:
            raise ValueError("push() after end(): the answer is complete")
        if self._gate is not None:
            self._seen_at = now
            part, kept_chars = self._gate.before(delta, self.pushed_chars)
            self.pushed_chars += kept_chars
            if part is None:
                return
            delta = part
        pace = self.pace
        if pace is None:
            if delta.kind is _TEXT:
                self.pushed_chars += len(delta.text)
            self._raw_queue.append(delta)
            return
        self._seen_at = now
        self._nothing_before_at = _UNKNOWN
        queue = self._queue
        text = delta.text
        chars = len(text)
        if delta.kind is not _TEXT or not chars:
            self._last_text = ""
            queue.append(Item(delta, now, 0, 0.0, False))
            return
        tokens = delta.tokens
        weight = float(tokens) if chars <= MAX_CHARS_PER_TOKEN * tokens else weight_of(delta, chars)
        # A word that brings its space along glues to nothing.
        glued = text[0] != " " and self._is_glued(text)
        if glued:
            # Flags and conjuncts look back a few characters, which a one-character delta does not have.
            self._last_text = (self._last_text + text)[-CAP_CHARS:]
        else:
            self._run_chars = chars
            self._last_text = text
        # With nothing there to show but an unfinished word, time that passed unused earns no burst.
        idle = not queue or not word_is_whole(queue)
        if idle:
            self._burst_tps = 0.0
        backlog = self._tokens_pushed = self._tokens_pushed + weight
        self.pushed_chars += chars
        if self._text_started_at == _UNKNOWN:
            self._text_started_at = now
        else:
            span_s = now - self._last_push_at
            if span_s < 0.0:
                span_s = 0.0
            kept = exp(-span_s / _EWMA_SPAN_S)
            self._ewma_span_s = self._ewma_span_s * kept + span_s
            self._ewma_tokens = self._ewma_tokens * kept + weight
        self._last_push_at = now
        # Kept until the queue is empty, so that a burst drains evenly rather than ever slower.
        burst_tps = (backlog - self._tokens_released) / pace.max_hold_s
        if burst_tps > self._burst_tps:
            self._burst_tps = burst_tps
        self._change_rate(now, idle)
        queue.append(Item(delta, now, chars, weight, glued))

    def _is_glued(self, text: str) -> bool:
        """Whether `text` goes on with the word before it; counts the characters of a word that does."""
        if not self._last_text or not continues(self._last_text, text):
            return False
        self._run_chars += len(text)
        return not (self._run_chars > CAP_CHARS and text[0].isalnum() and self._last_text[-1].isalnum())

    def _change_rate(self, now: float, idle: bool) -> None:  # noqa: FBT001 - called for every token
        """Set the rate anew: what is due by now stays due, what is left is due at the new rate."""
        due_at = self._due_from_at + self._due_tokens / self._rate_tps
        if due_at > now:
            self._due_from_at, self._due_tokens = now, (due_at - now) * self._rate_tps
        else:
            self._due_from_at, self._due_tokens = (now if idle else due_at), 0.0
        rate_tps = self._slowest_tps
        if not self._steady:
            arrivals_tps = _AHEAD * self._ewma_tokens / self._ewma_span_s
            if arrivals_tps > rate_tps:
                rate_tps = arrivals_tps
            if self._burst_tps > rate_tps:
                rate_tps = self._burst_tps
        self._rate_tps = rate_tps

    @property
    def next_at(self) -> float | None:
        """When to call `release` next, absolute seconds, perhaps in the past. None: nothing waits but for the gate."""
        if self.pace is None:
            return _UNKNOWN if self._raw_queue else None
        queue = self._queue
        if not queue:
            return None
        if self._nothing_before_at == _UNKNOWN:
            if not queue[0].chars:
                return queue[0].arrived_at
            seen_at = self._seen_at
            self.release(_UNKNOWN)  # too early for any text: it only finds out until when
            self._seen_at = seen_at
        return self._nothing_before_at

    def release(self, now: float) -> list[Delta]:
        """What the reader gets at `now`, in order; after a late call everything that has fallen due.

        A delta that leaves whole is the object that was pushed; see `part_of` for what a split one carries.
        """
        pace = self.pace
        if pace is None:
            out, self._raw_queue = self._raw_queue, []
            self.released_chars = self.pushed_chars - (0 if self._gate is None else self._gate.chars)
            return out
        self._seen_at = now
        queue = self._queue
        out = []
        if self._nothing_before_at > now or not queue:
            return out
        wait_for_frame = self._frame_at > now
        inside_word = False  # the rest of a word leaves with its beginning
        while queue:
            item = queue[0]
            chars = item.chars
            start = offset = item.offset
            while offset < chars:
                # When the head's next word is due on the schedule, and when it must leave at the latest.
                due_at = self._due_from_at + self._due_tokens / self._rate_tps
                arrived_at = item.arrived_at
                if self.released_chars == 0:
                    due_at = latest_at = arrived_at
                elif self._ended:
                    latest_at = self._end_by
                else:
                    latest_at = self._text_started_at + self._tokens_released * self._token_s - _LEAD_S
                    if not self._steady:
                        held_from_at = self._unbanked_at if self._unbanked_at > arrived_at else arrived_at
                        if held_from_at + pace.max_hold_s < latest_at:
                            latest_at = held_from_at + pace.max_hold_s
                    if latest_at < arrived_at:
                        latest_at = arrived_at
                if due_at > latest_at:
                    due_at = latest_at
                if latest_at > now and not inside_word:
                    # The second item being the beginning of a word is what it nearly always is.
                    whole = (len(queue) > 1 and not queue[1].glued) or self._ended or word_is_whole(queue)
                    if wait_for_frame or due_at > now or not whole:
                        if whole:
                            if due_at < self._frame_at:
                                due_at = self._frame_at
                            if due_at < latest_at:
                                latest_at = due_at
                        self._nothing_before_at = latest_at
                        break
                cut = item.cut
                if self.released_chars == 0 and chars <= CAP_CHARS:
                    cut = chars
                weight = item.weight * (cut - offset) / chars
                self._due_from_at, self._due_tokens = due_at, weight
                self._tokens_released += weight
                self.released_chars += cut - offset
                item.offset = offset = cut
                self._frame_at = now + _FRAME_S
                wait_for_frame = inside_word = False
                if cut < chars:
                    item.cut = next_cut(item.delta.text, cut)
            if offset > start:
                delta = item.delta
                out.append(delta if offset - start == chars else part_of(delta, start, offset, ids=True))
            elif not chars:
                out.append(item.delta)
            if offset < chars:
                return out
            queue.popleft()
            inside_word = bool(queue) and queue[0].glued
        self._nothing_before_at = _UNKNOWN
        self._tokens_released = self._tokens_pushed  # no rounding left over from shares of deltas
        return out

    def retract(self, position: int) -> list[Delta]:
        """Take back everything unreleased after character `position` of the answer, in order.

        Positions count the characters of text deltas pushed and not retracted; what is pushed next stands
        at `position`. Deltas without text that follow `position` are taken back, too. A delta that is
        split loses `raw` and `ids`.

        Raises:
            ValueError: when the reader already has text beyond `position`.
        """
        if position < self.released_chars:
            raise ValueError(f"cannot retract to {position}: {self.released_chars} characters are released")
        taken: list[Delta] = []
        if self._gate is not None:
            taken, self.pushed_chars = self._gate.take_back(self.pushed_chars, position)
            if self._gate.behind:
                return taken[::-1]
        if self.pace is None:
            more, self.pushed_chars = take_back(self._raw_queue, self.pushed_chars, position)
        else:
            queue = self._queue
            more, self.pushed_chars, weight = take_back_items(queue, self.pushed_chars, position)
            self._nothing_before_at = _UNKNOWN
            self._tokens_pushed -= weight
            self._last_text = queue[-1].delta.text if queue else ""
            self._run_chars = len(self._last_text)
        return [*taken, *more][::-1]

    def end(self, now: float) -> None:
        """No more comes: the rest leaves at once, what is behind the gate as soon as that is lifted. Idempotent."""
        if self._ended:
            return
        self._ended = True
        self._end_by = now
        self._nothing_before_at = _UNKNOWN
        self._due_from_at, self._due_tokens = now, 0.0

    @property
    def banking(self) -> bool:
        """While True, text leaves at exactly `pace.tps`, to bank for a hand-over. The session sets it."""
        return self._banking

    @banking.setter
    def banking(self, value: bool) -> None:
        self._banking = value
        self._steer()

    @property
    def tempo(self) -> float | None:
        """Tokens per second at which exactly text leaves, set from outside while a hand-over is awaited; None: none.

        Never slower than `pace.tps`; a token that the reader already waits for leaves at once. Without a pace it
        changes nothing. What is not positive and finite is refused (ValueError).
        """
        return self._tempo

    @tempo.setter
    def tempo(self, value: float | None) -> None:
        if value is not None and not 0 < value < _NEVER:
            raise ValueError(f"tempo must be positive and finite, not {value}; None for none")
        self._tempo = value
        self._steer()

    def _steer(self) -> None:
        """Follow `banking` and `tempo`: either makes the rate a given one and suspends the longest hold."""
        self._nothing_before_at = _UNKNOWN
        if self.pace is None:
            return
        steady = self._banking or self._tempo is not None
        if self._steady and not steady:
            # What was banked drains within the hold from here on, not in one go.
            self._unbanked_at = self._seen_at
            self._burst_tps = (self._tokens_pushed - self._tokens_released) / self.pace.max_hold_s
        self._steady = steady
        self._slowest_tps = max(self.pace.tps, self._tempo or 0.0)
        if self._queue:
            self._change_rate(self._seen_at, False)

    @property
    def gate(self) -> int | None:
        """No character of the answer from this position on leaves, whatever is due; None: no gate.

        What else stands there or behind waits, too. It divides a word that it falls into, so it belongs where text may
        be cut. To the pace, what waits behind it arrives when it is let through; the reader's clock starts with what
        passes first. `end` does not lift it: a session does that first, or its answer ends undelivered.
        """
        return None if self._gate is None else self._gate.position

    @gate.setter
    def gate(self, value: int | None) -> None:
        chars = self.pushed_chars
        waiting: list[Delta] = []
        if self._gate is not None:
            waiting = self._gate.behind
            self.pushed_chars -= self._gate.chars
            self._gate = None
        if value is not None:
            if value <= self.pushed_chars and self.next_at is not None:
                waiting = [*self.retract(max(value, self.released_chars)), *waiting]
            self._gate = Gate(value)
        ended, self._ended = self._ended, False  # what waited may still come
        for pushed, delta in enumerate(waiting, 1):
            self.push(self._seen_at, delta)
            if self._gate is not None and self._gate.behind:  # so is all that follows
                self._gate.behind += waiting[pushed:]
                self._gate.chars += chars - self.pushed_chars
                self.pushed_chars = chars
                break
        self._ended = ended

    @property
    def banked_tokens(self) -> float:
        """Tokens pushed and not yet released."""
        behind = 0.0 if self._gate is None else self._gate.tokens
        if self.pace is None:
            return sum(delta.tokens for delta in self._raw_queue if delta.kind is _TEXT) + behind
        return self._tokens_pushed - self._tokens_released + behind

    def slack_s(self, now: float) -> float:
        """Time until the reader has read all that was pushed: `D_N - now` with N tokens pushed.

        That is when the next token, a target's first, becomes due. Negative when the reader already waits;
        0 without a pace and before the first text.
        """
        if self._text_started_at == _UNKNOWN:
            return 0.0
        tokens = self._tokens_pushed + (0.0 if self._gate is None else self._gate.tokens)
        return self._text_started_at + tokens * self._token_s - now
