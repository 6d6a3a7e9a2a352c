"""The buffer between generation and the reader, and the pace at which it releases text.

The caller passes `now` (seconds of one monotonic clock): no clock, no task, no I/O.

There are two schedules. The *reader's deadline* of token i is `D_i = t_0 + i/r_c`, with t_0 the time of the first text
and r_c = `Pace.tps`. The *screen cadence* is the schedule of the pacer: the next word is due `tokens/rate` after the
word before it was due. Text leaves at the earlier of the two. This guarantees two things. A token that the reader
already waits for (`D_i <= now`) is never held, so pacing makes no token late that was not late before. And without
banking, a tempo or a reserve, nothing is held longer than `Pace.max_hold_s`.
"""

# ruff: noqa: FURB136, PLR1730 - this code runs for every token, and a call of min or max takes as long as a line of it

from __future__ import annotations

from collections import deque

from disco.events import Delta, DeltaKind
from disco.playback.arrival_rate import ArrivalRate
from disco.playback.gate import Gate
from disco.playback.pace import Pace
from disco.playback.queued_items import (
    MAX_CHARS_PER_TOKEN,
    Item,
    part_of,
    take_back,
    take_back_items,
    weight_after,
    weight_of,
    word_is_whole,
)
from disco.playback.text_boundaries import CAP_CHARS, continues, next_cut

__all__ = ["Playback"]

_LEAD_S = 0.01  # release this long before the reader's deadline: timers of a busy event loop fire late
_FRAME_S = 1 / 60  # one frame of a screen; fewer wake-ups while a burst drains
_AHEAD = 1.1  # text is released this many times faster than it arrives, so that the backlog shrinks
_MOST_AHEAD = 1.5  # with a reserve, text is released at most this many times faster than it arrives
_TEXT = DeltaKind.TEXT
_UNKNOWN = float("-inf")
_NEVER = float("inf")


class Playback:
    """Queue between generation and the reader. `pace` None: everything is passed on at once, unchanged.

    The rate is `max(pace.tps, 1.1·EWMA of arrivals, backlog/max_hold_s)`. While `banking`, the rate is exactly
    `pace.tps`, with a `tempo` exactly the tempo; `keep_reserve` sets another rule. The first text leaves at once (of a
    delta over 64 characters, its first word). Words leave whole: an unfinished last word waits for its end, until the
    reader reaches it or `max_hold_s` has passed. Deltas that are not text leave as soon as the text before them has
    left, and never before it. Nothing passes the `gate`.

    `now` must not go backwards between calls.
    """

    # Mutable: everything below. Token counts are `weight`s (see `weight_of`), floats.
    __slots__ = (
        "_arrivals", "_banking", "_burst_tps", "_due_from_at", "_due_tokens", "_end_by", "_ended",
        "_frame_at", "_gate", "_last_text", "_levels", "_nothing_before_at", "_queue", "_rate_tps", "_raw_queue",
        "_reserve_s", "_run_chars", "_seen_at", "_slowest_tps", "_steady", "_tempo", "_text_started_at",
        "_token_s", "_tokens_pushed", "_tokens_released", "_unbanked_at",
        "pace", "pushed_chars", "released_chars",
    )  # fmt: skip

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace
        self.pushed_chars = self.released_chars = 0
        self._raw_queue: list[Delta] = []  # used without a pace
        self._queue: deque[Item] = deque()  # used with a pace
        self._banking = self._levels = self._steady = self._ended = False
        self._tempo: float | None = None
        self._gate: Gate | None = None
        self._end_by = _NEVER
        self._nothing_before_at = _UNKNOWN  # a `next_at` that is still valid
        self._last_text, self._run_chars = "", 0
        # `_due_from_at`: when the word before the queue's head was due. The head is due `_due_tokens` later.
        self._due_from_at = self._frame_at = self._seen_at = _UNKNOWN
        self._unbanked_at = self._text_started_at = _UNKNOWN
        self._due_tokens = self._burst_tps = self._reserve_s = 0.0
        self._tokens_pushed = self._tokens_released = 0.0
        self._token_s = 1.0 / pace.tps if pace is not None else 0.0
        self._rate_tps = self._slowest_tps = pace.tps if pace is not None else _NEVER
        self._arrivals = ArrivalRate(pace.tps if pace is not None else 0.0)

    def push(self, now: float, delta: Delta) -> None:
        """Take one delta from generation, at `now`, s.

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
        # A text that starts with a space does not continue the word before it.
        glued = text[0] != " " and self._is_glued(text)
        if glued:
            # Checks for flags and conjuncts need a few earlier characters, which a one-character delta does not have.
            self._last_text = (self._last_text + text)[-CAP_CHARS:]
        else:
            self._run_chars = chars
            self._last_text = text
        # While only an unfinished word is queued, the time that passes does not allow a burst later.
        idle = not queue or not word_is_whole(queue)
        if idle:
            self._burst_tps = 0.0
        backlog = self._tokens_pushed = self._tokens_pushed + weight
        self.pushed_chars += chars
        if self._text_started_at == _UNKNOWN:
            self._text_started_at = now
        self._arrivals.add(now, weight)
        # Kept until the queue is empty, so that a burst drains at an even rate and not more and more slowly.
        burst_tps = (backlog - self._tokens_released) / pace.max_hold_s
        self._burst_tps = burst_tps if burst_tps > self._burst_tps else self._burst_tps
        self._change_rate(now, idle)
        queue.append(Item(delta, now, chars, weight, glued))

    def _is_glued(self, text: str) -> bool:
        """Whether `text` continues the word before it; if so, its characters are added to the word's length."""
        if not self._last_text or not continues(self._last_text, text):
            return False
        self._run_chars += len(text)
        return not (self._run_chars > CAP_CHARS and text[0].isalnum() and self._last_text[-1].isalnum())

    def _change_rate(self, now: float, idle: bool) -> None:  # noqa: FBT001 - called for every token
        """Compute the rate again: text that is due by now stays due, the rest becomes due at the new rate."""
        due_at = self._due_from_at + self._due_tokens / self._rate_tps
        if due_at > now:
            self._due_from_at, self._due_tokens = now, (due_at - now) * self._rate_tps
        else:
            self._due_from_at, self._due_tokens = (now if idle else due_at), 0.0
        rate_tps = self._slowest_tps
        if not self._steady:
            arrivals_tps = _AHEAD * self._arrivals.tokens / self._arrivals.span_s
            rate_tps = arrivals_tps if arrivals_tps > rate_tps else rate_tps
            rate_tps = self._burst_tps if self._burst_tps > rate_tps else rate_tps
        elif self._levels:
            rate_tps = self._level_tps()
        self._rate_tps = rate_tps

    def _level_tps(self) -> float:
        """Return the rate at which the text in hand comes nearer to the reserve, tokens/s; no slower than the pace."""
        in_hand = (self._tokens_pushed - self._tokens_released) * self._token_s / self._reserve_s
        return max(self._slowest_tps, self._arrivals.tps * min(in_hand, _MOST_AHEAD))

    @property
    def next_at(self) -> float | None:
        """When to call `release` next, absolute seconds, perhaps in the past. None: nothing waits before the gate."""
        if self.pace is None:
            return _UNKNOWN if self._raw_queue else None
        queue = self._queue
        if not queue:
            return None
        if self._nothing_before_at == _UNKNOWN:
            if not queue[0].chars:
                return queue[0].arrived_at
            seen_at = self._seen_at
            self.release(_UNKNOWN)  # too early for any text: the call only sets `_nothing_before_at`
            self._seen_at = seen_at
        return self._nothing_before_at

    def release(self, now: float) -> list[Delta]:
        """Return what the reader gets at `now`, s, in order; a late call returns everything that has become due.

        A delta that leaves whole is the object that was pushed; see `part_of` for the contents of a split one.
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
                    latest_at = arrived_at if latest_at < arrived_at else latest_at
                due_at = latest_at if due_at > latest_at else due_at
                if latest_at > now and not inside_word:
                    # Checked first: the second item nearly always begins a new word.
                    whole = (len(queue) > 1 and not queue[1].glued) or self._ended or word_is_whole(queue)
                    if wait_for_frame or due_at > now or not whole:
                        if whole:
                            due_at = self._frame_at if due_at < self._frame_at else due_at
                            latest_at = due_at if due_at < latest_at else latest_at
                        self._nothing_before_at = latest_at
                        break
                cut = chars if self.released_chars == 0 and chars <= CAP_CHARS else item.cut
                weight = item.weight * (cut - offset) / chars
                self._due_from_at, self._due_tokens = due_at, weight
                self._tokens_released += weight
                if self._levels:
                    self._rate_tps = self._level_tps()
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
        """Take back everything unreleased after character `position` of the answer, and return it in order.

        Positions count the characters of text deltas pushed and not retracted; the next delta pushed begins
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
        """End the input at `now`, s: the rest leaves at once, text behind the gate once that is lifted. Idempotent."""
        if self._ended:
            return
        self._ended, self._end_by = True, now
        self._nothing_before_at = _UNKNOWN
        self._due_from_at, self._due_tokens = now, 0.0

    @property
    def banking(self) -> bool:
        """While True, text leaves at exactly `pace.tps`, to bank text for a migration. The session sets it."""
        return self._banking

    @banking.setter
    def banking(self, value: bool) -> None:
        self._banking = value
        self._steer()

    @property
    def tempo(self) -> float | None:
        """The exact rate at which text leaves, tokens/s, set from outside while a migration is awaited; None: none.

        Text never leaves more slowly than `pace.tps`, and a token that the reader already waits for leaves at once.
        Without a pace, the tempo has no effect. A value that is not positive and finite raises ValueError.
        """
        return self._tempo

    @tempo.setter
    def tempo(self, value: float | None) -> None:
        if value is not None and not 0 < value < _NEVER:
            raise ValueError(f"tempo must be positive and finite, not {value}; use None for no tempo")
        self._tempo = value
        self._steer()

    def keep_reserve(self, reserve_s: float) -> None:
        """From now on keep text in hand for `reserve_s` seconds of reading, so that uneven arrivals leave evenly.

        The rate is then `max(pace.tps, EWMA of arrivals · min(text in hand/reserve, 1.5))`, and `max_hold_s` is
        suspended. `banking` and `tempo` come first. A reserve that is not positive and finite raises ValueError.
        """
        if not 0 < reserve_s < _NEVER:
            raise ValueError(f"the reserve must be positive and finite, not {reserve_s}")
        self._reserve_s = reserve_s
        self._steer()

    def _steer(self) -> None:
        """Apply `banking`, `tempo` and `reserve_s`: each of them sets the rate and suspends `max_hold_s`."""
        self._nothing_before_at = _UNKNOWN
        if self.pace is None:
            return
        fixed = self._banking or self._tempo is not None
        self._levels = self._reserve_s > 0 and not fixed
        steady = fixed or self._levels
        if self._steady and not steady:
            # The banked text drains within `max_hold_s` from now on, not all at once.
            self._unbanked_at = self._seen_at
            self._burst_tps = (self._tokens_pushed - self._tokens_released) / self.pace.max_hold_s
        self._steady = steady
        self._slowest_tps = max(self.pace.tps, self._tempo or 0.0)
        if self._queue:
            self._change_rate(self._seen_at, False)

    @property
    def gate(self) -> int | None:
        """The position from which on no character of the answer leaves, even if it is due; None: no gate.

        Deltas without text at this position or after it wait, too. A gate inside a word divides the word, so set it
        where text may be cut. For the pace, text behind the gate arrives when the gate is lifted; the reader's clock
        starts with the first text that passes. `end` does not lift the gate: the session must lift it before the
        end, or the rest of the answer is not delivered.
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
        ended, self._ended = self._ended, False  # allow the pushes of what has waited behind the gate
        for pushed, delta in enumerate(waiting, 1):
            self.push(self._seen_at, delta)
            if self._gate is not None and self._gate.behind:  # then all that follows is behind the gate, too
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

    def tokens_after(self, position: int) -> float:
        """Return how many tokens, pushed and not yet released, follow character `position` of the answer."""
        behind, chars = (0.0, 0) if self._gate is None else (self._gate.tokens, self._gate.chars)
        return weight_after(self._queue, self.pushed_chars - chars, position) + behind

    def slack_s(self, now: float) -> float:
        """Return the time until the reader has read all that was pushed: `D_N - now` with N tokens pushed, s.

        Then the next token, such as a target's first one, is due. Negative when the reader waits; 0 before the text.
        """
        if self._text_started_at == _UNKNOWN:
            return 0.0
        tokens = self._tokens_pushed + (0.0 if self._gate is None else self._gate.tokens)
        return self._text_started_at + tokens * self._token_s - now
