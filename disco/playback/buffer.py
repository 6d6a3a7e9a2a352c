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
from dataclasses import dataclass
from math import exp, isfinite

from disco.events import Delta, DeltaKind
from disco.playback.boundaries import CAP_CHARS, continues, ends_open, next_cut

__all__ = ["Pace", "Playback"]

_LEAD_S = 0.01  # before the reader's deadline, because a timer of a busy event loop rings late
_FRAME_S = 1 / 60  # a screen shows no more often; spares wake-ups while a burst drains
_EWMA_SPAN_S = 1.0  # memory of the arrival rate
_PRIOR_SPAN_S = 0.03  # how long the rate is believed to have been r_c before the first token
_AHEAD = 1.1  # how much faster than it arrives text is let go, so that a hold once made wears off
_CHARS_PER_TOKEN = 4.0
_MAX_CHARS_PER_TOKEN = 16  # more per token than this: the server does not count its tokens
_TEXT = DeltaKind.TEXT
_UNKNOWN = float("-inf")


@dataclass(frozen=True, slots=True)
class Pace:
    """How text is let go.

    Attributes:
        tps: reading pace r_c, in tokens/s; the slowest that text is ever shown when there is some.
        max_hold_s: the longest that anything waits while nothing is banked for a hand-over.
        floor_tps: slowest rate while nothing is banked, where the screen should run ahead of the reader.
        drain_s: time in which the rest is shown once the answer has ended; 0 shows it at once.
    """

    tps: float
    max_hold_s: float = 0.3
    floor_tps: float = 0.0
    drain_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.tps > 0 and isfinite(self.tps)):
            raise ValueError(f"tps must be positive and finite, not {self.tps}; use pace None for no pacing")
        if not self.max_hold_s > 0:
            raise ValueError(
                f"max_hold_s must be positive, not {self.max_hold_s}; use pace None for no pacing"
            )
        if not (self.floor_tps >= 0 and self.drain_s >= 0):
            raise ValueError("floor_tps and drain_s must not be negative")


class _Item:
    """A queued delta; `offset` of its `chars` characters have been released, `cut` is the next word's end."""

    __slots__ = ("arrived_at", "chars", "cut", "delta", "glued", "offset", "open", "weight")

    def __init__(self, delta: Delta, arrived_at: float, chars: int, weight: float, glued: bool) -> None:  # noqa: FBT001
        text = delta.text
        self.delta = delta
        self.arrived_at = arrived_at
        self.chars = chars
        self.weight = weight
        self.glued = glued
        self.offset = 0
        if chars > 1 and text.isascii():
            # One ASCII word with a space before it, which most deltas are, ends where its text ends.
            word = text[1:].isalnum() and chars <= CAP_CHARS
            self.cut = chars if word else next_cut(text, 0)
            self.open = word or ends_open(text)
        else:
            self.cut = next_cut(text, 0) if chars else 0
            self.open = ends_open(text)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _weight(delta: Delta, chars: int) -> float:
    """Tokens that a text counts for; estimated from its length where the server does not count."""
    if chars > _MAX_CHARS_PER_TOKEN * max(delta.tokens, 1):
        return chars / _CHARS_PER_TOKEN
    return float(delta.tokens)


def _part(delta: Delta, start: int, end: int, *, ids: bool) -> Delta:
    """Characters `start` to `end` of a delta.

    Tokens are shared out in proportion to characters, rounded so that the parts' sum is the delta's; `ids`
    (all of them) go to the part that completes the delta, logprobs to the first, `raw` to none.
    """
    chars = len(delta.text)
    return Delta(
        delta.text[start:end],
        tokens=delta.tokens * end // chars - delta.tokens * start // chars,
        kind=delta.kind,
        ids=delta.ids if ids and end == chars else None,
        logprobs=delta.logprobs if start == 0 else None,
    )


class Playback:
    """Queue between generation and the reader. `pace` None: everything is passed on at once, untouched.

    Without banking the rate is `max(pace.tps, pace.floor_tps, 1.1·EWMA of arrivals, backlog/max_hold_s)`;
    while `banking` it is exactly `pace.tps`. The first text leaves at once (of a delta over 64 characters,
    its first word). Words leave whole: an unfinished last word waits for its end, until the reader reaches it
    or `max_hold_s` is over. Deltas that are not text are never held once the text before them has left, and
    never overtake it.

    `now` must not go backwards between calls.
    """

    # Mutable: everything below. Token counts are `weight`s (see `_weight`), floats.
    __slots__ = (
        "_banking",
        "_burst_tps",
        "_due_from_at",
        "_due_tokens",
        "_end_by",
        "_ended",
        "_ewma_span_s",
        "_ewma_tokens",
        "_frame_at",
        "_last_push_at",
        "_last_text",
        "_nothing_before_at",
        "_queue",
        "_rate_tps",
        "_raw_queue",
        "_run_chars",
        "_seen_at",
        "_text_started_at",
        "_token_s",
        "_tokens_pushed",
        "_tokens_released",
        "_unbanked_at",
        "pace",
        "pushed_chars",
        "released_chars",
    )

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace
        self.pushed_chars = 0
        self.released_chars = 0
        self._raw_queue: list[Delta] = []  # used without a pace
        self._queue: deque[_Item] = deque()  # used with one
        self._banking = False
        self._ended = False
        self._end_by = float("inf")
        self._nothing_before_at = _UNKNOWN  # a `next_at` that still holds
        self._tokens_pushed = 0.0
        self._tokens_released = 0.0
        self._text_started_at = _UNKNOWN
        self._last_push_at = 0.0
        self._last_text = ""
        self._run_chars = 0
        # The head is due `_due_tokens` at the present rate after `_due_from_at`, when the word before it was.
        self._due_from_at = float("-inf")
        self._due_tokens = 0.0
        self._burst_tps = 0.0
        self._frame_at = float("-inf")
        self._seen_at = float("-inf")
        self._unbanked_at = float("-inf")
        self._token_s = 1.0 / pace.tps if pace is not None else 0.0
        self._rate_tps = pace.tps if pace is not None else float("inf")
        self._ewma_span_s = _PRIOR_SPAN_S
        self._ewma_tokens = _PRIOR_SPAN_S * (pace.tps if pace is not None else 0.0)

    def push(self, now: float, delta: Delta) -> None:
        """Take one delta from generation, at `now`.

        Raises:
            ValueError: after `end`.
        """
        pace = self.pace
        if pace is None:
            if delta.kind is _TEXT:
                self.pushed_chars += len(delta.text)
            self._raw_queue.append(delta)
            return
        if self._ended:
            raise ValueError("push() after end(): the answer is complete")
        self._seen_at = now
        self._nothing_before_at = _UNKNOWN
        queue = self._queue
        text = delta.text
        chars = len(text)
        if delta.kind is not _TEXT or not chars:
            self._last_text = ""
            queue.append(_Item(delta, now, 0, 0.0, False))
            return
        tokens = delta.tokens
        weight = float(tokens) if chars <= _MAX_CHARS_PER_TOKEN * tokens else _weight(delta, chars)
        # A word that brings its space along glues to nothing.
        glued = text[0] != " " and self._is_glued(text)
        if glued:
            # Flags and conjuncts look back a few characters, which a one-character delta does not have.
            self._last_text = (self._last_text + text)[-CAP_CHARS:]
        else:
            self._run_chars = chars
            self._last_text = text
        # With nothing there to show but an unfinished word, time that passed unused earns no burst.
        idle = not queue or not self._word_is_whole()
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
        self._change_rate(now, pace, idle)
        queue.append(_Item(delta, now, chars, weight, glued))

    def _is_glued(self, text: str) -> bool:
        """Whether `text` goes on with the word before it; counts the characters of a word that does."""
        if not self._last_text or not continues(self._last_text, text):
            return False
        self._run_chars += len(text)
        return not (self._run_chars > CAP_CHARS and text[0].isalnum() and self._last_text[-1].isalnum())

    @property
    def _due_at(self) -> float:
        return self._due_from_at + self._due_tokens / self._rate_tps

    def _change_rate(self, now: float, pace: Pace, idle: bool) -> None:  # noqa: FBT001 - called for every token
        """Set the rate anew: what is due by now stays due, what is left is due at the new rate."""
        due_at = self._due_from_at + self._due_tokens / self._rate_tps
        if due_at > now:
            self._due_from_at, self._due_tokens = now, (due_at - now) * self._rate_tps
        else:
            self._due_from_at, self._due_tokens = (now if idle else due_at), 0.0
        rate_tps = pace.tps
        if not self._banking or self._ended:
            arrivals_tps = _AHEAD * self._ewma_tokens / self._ewma_span_s
            if pace.floor_tps > rate_tps:
                rate_tps = pace.floor_tps
            if arrivals_tps > rate_tps:
                rate_tps = arrivals_tps
            if self._burst_tps > rate_tps:
                rate_tps = self._burst_tps
        self._rate_tps = rate_tps

    def _word_is_whole(self) -> bool:
        """True when the word at the head of the queue is known to end where the queue has it end."""
        queue = self._queue
        last = queue[0]
        if last.cut < last.chars or self._ended:
            return True
        if len(queue) > 1:
            items = iter(queue)
            next(items)
            for item in items:
                if not item.glued or item.cut < item.chars:
                    return True
                last = item
        return not last.open

    @property
    def next_at(self) -> float | None:
        """When to call `release` next, in absolute seconds; may lie in the past. None: nothing waits."""
        if self.pace is None:
            return float("-inf") if self._raw_queue else None
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

        A delta that leaves whole is the object that was pushed; see `_part` for what a split one carries.
        """
        pace = self.pace
        if pace is None:
            out = self._raw_queue
            if out:
                self._raw_queue = []
                self.released_chars = self.pushed_chars
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
                    if not self._banking:
                        held_from_at = self._unbanked_at if self._unbanked_at > arrived_at else arrived_at
                        if held_from_at + pace.max_hold_s < latest_at:
                            latest_at = held_from_at + pace.max_hold_s
                    if latest_at < arrived_at:
                        latest_at = arrived_at
                if due_at > latest_at:
                    due_at = latest_at
                if latest_at > now and not inside_word:
                    # The second item being the beginning of a word is what it nearly always is.
                    whole = (len(queue) > 1 and not queue[1].glued) or self._word_is_whole()
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
                out.append(delta if offset - start == chars else _part(delta, start, offset, ids=True))
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
        if self.pace is None:
            while self._raw_queue:
                delta = self._raw_queue[-1]
                chars = len(delta.text) if delta.kind is _TEXT else 0
                start = self.pushed_chars - chars
                if start < position and self.pushed_chars <= position:
                    break
                self._raw_queue.pop()
                if start < position:
                    kept = position - start
                    self._raw_queue.append(_part(delta, 0, kept, ids=False))
                    taken.append(_part(delta, kept, chars, ids=False))
                    self.pushed_chars = position
                    break
                taken.append(delta)
                self.pushed_chars = start
            return taken[::-1]
        self._nothing_before_at = _UNKNOWN
        queue = self._queue
        while queue:
            item = queue[-1]
            start = self.pushed_chars - (item.chars - item.offset)
            if start < position and self.pushed_chars <= position:
                break
            queue.pop()
            delta = item.delta
            keep = item.offset + max(position - start, 0)
            if item.chars:
                self._tokens_pushed -= item.weight * (item.chars - keep) / item.chars
            self.pushed_chars -= item.chars - keep
            taken.append(delta if keep == 0 else _part(delta, keep, item.chars, ids=False))
            if keep > item.offset:
                head = _part(delta, item.offset, keep, ids=False)
                weight = item.weight * (keep - item.offset) / item.chars
                queue.append(_Item(head, item.arrived_at, keep - item.offset, weight, item.glued))
                break
            if start < position:
                break
        self._last_text = queue[-1].delta.text if queue else ""
        self._run_chars = len(self._last_text)
        return taken[::-1]

    def end(self, now: float) -> None:
        """No more comes: the rest leaves at once, or evenly within `pace.drain_s`. Idempotent."""
        if self._ended:
            return
        self._ended = True
        if self.pace is None:
            return
        self._nothing_before_at = _UNKNOWN
        self._end_by = now + self.pace.drain_s
        self._due_from_at, self._due_tokens = now, 0.0
        if self.pace.drain_s > 0:
            self._burst_tps = self.banked_tokens / self.pace.drain_s
        self._change_rate(now, self.pace, False)

    @property
    def banking(self) -> bool:
        """While True, text leaves at exactly `pace.tps`, to bank for a hand-over. The session sets it."""
        return self._banking

    @banking.setter
    def banking(self, value: bool) -> None:
        if self._banking and not value and self.pace is not None:
            # What was banked drains within the hold from here on, not in one go.
            self._unbanked_at = self._seen_at
            self._burst_tps = self.banked_tokens / self.pace.max_hold_s
        self._banking = value
        self._nothing_before_at = _UNKNOWN
        if self.pace is not None and self._queue:
            self._change_rate(self._seen_at, self.pace, False)

    @property
    def banked_tokens(self) -> float:
        """Tokens pushed and not yet released."""
        if self.pace is None:
            return float(sum(delta.tokens for delta in self._raw_queue if delta.kind is _TEXT))
        return self._tokens_pushed - self._tokens_released

    @property
    def pending_bytes(self) -> int:
        """UTF-8 bytes of text pushed and not yet released."""
        if self.pace is None:
            return sum(_bytes(delta.text) for delta in self._raw_queue)
        return sum(_bytes(item.delta.text[item.offset :]) for item in self._queue if item.chars)

    def slack_s(self, now: float) -> float:
        """Time until the reader has read all that was pushed: `D_N - now` with N tokens pushed.

        That is when the next token, a target's first, becomes due. Negative when the reader already waits;
        0 without a pace and before the first text.
        """
        if self._text_started_at == _UNKNOWN:
            return 0.0
        return self._text_started_at + self._tokens_pushed * self._token_s - now

    def screen_slack_s(self, now: float) -> float:
        """The same on the screen's clock: how long text keeps appearing at r_c if nothing more is pushed.

        Shorter than `slack_s` by what is on the screen and not yet read; never negative.
        """
        if self.pace is None or self._text_started_at == _UNKNOWN:
            return 0.0
        due_at = max(min(self._due_at, self._text_started_at + self._tokens_released * self._token_s), now)
        return due_at + (self._tokens_pushed - self._tokens_released) * self._token_s - now
