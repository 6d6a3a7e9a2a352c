"""Playback of packets that are known in advance: the arithmetic of `Playback`, without its objects.

If a driver in virtual time knows what an endpoint will write, and only the reader's pace matters between the packets,
`play_stretch` takes many of them at once. It leaves the playback in the same state as `push` and `release` packet by
packet, to the last bit (a property test compares them). What depends on the text (which pieces continue the word
before them, which leave a word open) is computed once per text, by `Playback` itself.
"""

# ruff: noqa: FURB136, PLR1730 - as in `buffer`: executed for every token
# ruff: noqa: SLF001 - this module works on the private state of `Playback`

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf

from disco.events import Delta, DeltaKind
from disco.playback.arrival_rate import MEMORY_S
from disco.playback.buffer import (
    _AHEAD,
    _FRAME_S,
    _LEAD_S,
    _UNKNOWN,
    Playback,
)
from disco.playback.pace import Pace
from disco.playback.queued_items import Item
from disco.playback.text_boundaries import CAP_CHARS, continues

__all__ = ["Asking", "Pieces", "Stretch", "play_stretch"]


_PLAIN, _CLOSING = 1, 2


def _kind(item: Item) -> int:
    if item.weight != 1.0 or item.open == item.glued:
        return 0
    return _PLAIN if item.open else _CLOSING


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text in pieces, with playback's properties of each piece. Columns of equal length; read only.

    Attributes:
        deltas: the pieces.
        texts: their texts.
        tokens: tokens of each piece, as its delta counts them.
        weights: tokens of each piece, as playback counts them.
        chars: characters of each piece.
        glued: whether the piece continues the word of the piece before it.
        open: whether the next piece may continue the last word of this one.
        kinds: `_PLAIN` for an open word of its own that counts one token (most pieces); `_CLOSING` for the end of a
            word, of one token (most punctuation marks); 0 for others.
        ends: characters up to the end of each piece, after a 0.
        runs: characters so far of the word that the piece belongs to.
    """

    deltas: list[Delta]
    texts: list[str]
    tokens: list[int]
    weights: list[float]
    chars: list[int]
    glued: list[bool]
    open: list[bool]
    kinds: list[int]
    ends: list[int]
    runs: list[int]

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Pieces | None:
        """Analyse a text; return None if a piece holds more than one word, or something other than text."""
        if any(delta.kind is not DeltaKind.TEXT or not delta.text for delta in deltas):
            return None
        trial = Playback(Pace(1.0))
        runs = []
        for delta in deltas:
            trial.push(0.0, delta)
            runs.append(trial._run_chars)
        items = list(trial._queue)
        if any(item.cut < item.chars for item in items):
            return None
        return cls(
            deltas=list(deltas),
            texts=[delta.text for delta in deltas],
            tokens=[delta.tokens for delta in deltas],
            weights=[item.weight for item in items],
            chars=[item.chars for item in items],
            glued=[item.glued for item in items],
            open=[item.open for item in items],
            kinds=[_kind(item) for item in items],
            ends=list(accumulate((item.chars for item in items), initial=0)),
            runs=runs,
        )


def _item(pieces: Pieces, piece: int, arrived_at: float) -> Item:
    """Return a piece as an item of a queue, with the known properties of its text."""
    item = Item.__new__(Item)
    item.delta = pieces.deltas[piece]
    item.arrived_at = arrived_at
    item.chars = item.cut = pieces.chars[piece]
    item.weight = pieces.weights[piece]
    item.glued = pieces.glued[piece]
    item.offset = 0
    item.open = pieces.open[piece]
    return item


@dataclass(slots=True)
class Asking:
    """A question that is asked at packets: may the stretch go on? Asking also sets `banking` to its current value.

    Attributes:
        may_go_on: called with the number of pieces taken, this one included, and `Playback.slack_s` then.
        every_s: least time between two questions, s.
        next_at: time of the next question, s; mutable.
    """

    may_go_on: Callable[[int, float], bool]
    every_s: float
    next_at: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """The result of a stretch.

    Attributes:
        taken: how many packets were taken.
        queued: texts that waited before the stretch, and left during it.
        released_at: time when each piece left, s: those of `queued`, then the taken ones, in order.
        next_at: `Playback.next_at`, or `inf`.
    """

    taken: int
    queued: list[Delta]
    released_at: list[float]
    next_at: float


def play_stretch(
    playback: Playback,
    pieces: Pieces,
    first: int,
    times: list[float],
    asking: Asking | None = None,
) -> Stretch | None:
    """Push the pieces from `first` on at their times, and release at every `next_at`.

    Args:
        playback: its state is advanced to that after the last piece taken.
        pieces: the text.
        first: the first piece to push; it begins a word.
        times: when to push the first piece and those after it, s; not decreasing, none before the playback's last call.
        asking: may end the stretch before a piece; None: nothing is asked.

    Returns:
        The result. None if the stretch cannot be played at once, and nothing was done: no pace by words, nothing shown,
        a gate, a tempo or a reserve, the answer has ended, or the queue has more than whole pieces.
    """
    pace = playback.pace
    if pace is None or pace.release != "word" or playback._ended:
        return None
    held = playback._reserve_s or playback.gate is not None or playback.tempo is not None
    if held or playback.released_chars == 0 or pieces.glued[first]:
        return None
    text, before = pieces.texts[first], playback._last_text
    # The text before the first piece is not the one in `pieces`.
    if text[0] != " " and before and continues(before, text):
        return None
    queue = playback._queue
    for item in queue:
        if item.offset or item.cut != item.chars or not item.chars:
            return None

    # The waiting pieces come before the new ones, in the same columns.
    waiting = len(queue)
    arrived = [item.arrived_at for item in queue]
    weights = [item.weight for item in queue]
    glued = [item.glued for item in queue]
    open_ = [item.open for item in queue]
    end = first + len(times)
    arrived += times
    weights += pieces.weights[first:end]
    glued += pieces.glued[first:end]
    open_ += pieces.open[first:end]
    kinds = [0] * waiting + pieces.kinds[first:end]
    shift = first - waiting  # piece `j + shift` of the text is column j here

    tps, hold_s, token_s = pace.tps, pace.max_hold_s, playback._token_s
    banking = playback._banking
    pushed, gone = playback._tokens_pushed, playback._tokens_released
    begun_at, unbanked_at = playback._text_started_at, playback._unbanked_at
    arrivals = playback._arrivals
    last_push_at, seen_at = arrivals.last_at or 0.0, playback._seen_at
    due_from_at, due_tokens = playback._due_from_at, playback._due_tokens
    burst_tps, rate_tps, frame_at = playback._burst_tps, playback._rate_tps, playback._frame_at
    span_sum_s, tokens_sum = arrivals.span_s, arrivals.tokens
    soonest = playback.next_at
    next_at = inf if soonest is None else soonest
    known_until = playback._nothing_before_at

    span_s, kept = 0.0, 1.0  # the latest gap between two pieces, and its decay factor for the rate's average
    one_tps, two_tps = 1.0 / hold_s, 2.0 / hold_s  # the rate that one and two waiting tokens demand
    least_of_one_tps = one_tps if one_tps > tps else tps
    least_of_two_tps = two_tps if two_tps > tps else tps
    free = not banking and asking is None
    head, tail, stop = 0, waiting, len(arrived)
    out: list[float] = []
    leave = out.append
    while True:
        if tail == stop:
            break
        now = arrived[tail]
        if (
            free
            and next_at >= now
            and gone % 1.0 == 0.0
            and (head == tail or (tail - head == 1 and open_[head] and pushed - gone == 1.0))
        ):
            # Nothing waits, or one word that may go on. A steady source settles down to this state, whether it is
            # faster than the reader (each word leaves when the next comes) or slower (each leaves when it comes).
            waits = head < tail
            read_at = -inf  # when the reader needs the next token, as of an earlier token: it only grows
            due_at = due_from_at + due_tokens / rate_tps
            for tail in range(head + waits, stop):
                now, kind = arrived[tail], kinds[tail]
                if waits:
                    if due_at > now or frame_at > now or next_at < now or not kind:
                        break
                    gone += 1.0
                    leave(now)
                    frame_at = now + _FRAME_S
                    due_tokens = 1.0
                    burst_tps, lowest_tps = two_tps, least_of_two_tps
                elif kind == _PLAIN:
                    due_tokens = (due_at - now) * rate_tps if due_at > now else 0.0
                    burst_tps, lowest_tps = one_tps, least_of_one_tps
                    waits = True
                else:
                    break
                if now - last_push_at != span_s:  # a steady source has the same gap again and again
                    span_s = now - last_push_at
                    kept = exp(-span_s / MEMORY_S)
                span_sum_s = span_sum_s * kept + span_s
                tokens_sum = tokens_sum * kept + 1.0
                last_push_at = due_from_at = now
                rate_tps = _AHEAD * tokens_sum / span_sum_s
                if rate_tps < lowest_tps:
                    rate_tps = lowest_tps
                due_at = now + due_tokens / rate_tps
                next_at = now + hold_s
                if next_at >= read_at:
                    read_at = begun_at + gone * token_s - _LEAD_S
                    if read_at < next_at:
                        next_at = read_at
                # The piece ends the word that has left, or the reader waits for it.
                if next_at <= now or kind == _CLOSING:
                    if next_at < now:
                        next_at = now
                    due_from_at = due_at if due_at < next_at else next_at
                    due_tokens = 1.0
                    due_at = due_from_at + 1.0 / rate_tps
                    gone += 1.0
                    leave(now)
                    frame_at = now + _FRAME_S
                    waits = False
                    next_at = inf
            else:
                tail = stop
            if last_push_at > seen_at:
                seen_at = last_push_at
            if waits:
                head, pushed, known_until = tail - 1, gone + 1.0, next_at
            else:
                head, pushed, known_until = tail, gone, _UNKNOWN
            if tail == stop:
                break
        if next_at < now:
            now = next_at
        else:
            weight = weights[tail]
            if asking is not None and now >= asking.next_at:
                slack_s = begun_at + (pushed + weight) * token_s - now
                if not asking.may_go_on(tail + 1 - waiting, slack_s):
                    break
                asking.next_at = now + asking.every_s
                asked = True
            else:
                asked = False
            # push
            if head == tail:
                idle = True
            elif tail - head == 1:
                idle = open_[head]
            else:
                idle = glued[head + 1] and open_[tail - 1] and all(glued[head + 1 : tail])
            if idle:
                burst_tps = 0.0
            pushed += weight
            if now - last_push_at != span_s:
                span_s = now - last_push_at
                if span_s < 0.0:
                    span_s = 0.0
                kept = exp(-span_s / MEMORY_S)
            span_sum_s = span_sum_s * kept + span_s
            tokens_sum = tokens_sum * kept + weight
            last_push_at = now
            backlog_tps = (pushed - gone) / hold_s
            if backlog_tps > burst_tps:
                burst_tps = backlog_tps
            due_at = due_from_at + due_tokens / rate_tps
            if due_at > now:
                due_from_at, due_tokens = now, (due_at - now) * rate_tps
            else:
                due_from_at, due_tokens = (now if idle else due_at), 0.0
            rate_tps = tps
            if not banking:
                arrivals_tps = _AHEAD * tokens_sum / span_sum_s
                if arrivals_tps > rate_tps:
                    rate_tps = arrivals_tps
                if burst_tps > rate_tps:
                    rate_tps = burst_tps
            tail += 1
            if asked:  # `banking` was set: the rate is set again, to its current value
                due_at = due_from_at + due_tokens / rate_tps
                if due_at > now:
                    due_from_at, due_tokens = now, (due_at - now) * rate_tps
                else:
                    due_from_at, due_tokens = due_at, 0.0
        # release
        wait_for_frame = frame_at > now
        inside_word = False
        while head < tail:
            due_at = due_from_at + due_tokens / rate_tps
            arrived_at = arrived[head]
            latest_at = begun_at + gone * token_s - _LEAD_S
            if not banking:
                held_at = (unbanked_at if unbanked_at > arrived_at else arrived_at) + hold_s
                if held_at < latest_at:
                    latest_at = held_at
            if latest_at < arrived_at:
                latest_at = arrived_at
            if due_at > latest_at:
                due_at = latest_at
            if latest_at > now and not inside_word:
                if tail - head == 1:
                    whole = not open_[head]
                else:
                    whole = not (glued[head + 1] and open_[tail - 1] and all(glued[head + 1 : tail]))
                if wait_for_frame or due_at > now or not whole:
                    next_at = latest_at
                    if whole:
                        ready_at = due_at if due_at > frame_at else frame_at
                        if ready_at < next_at:
                            next_at = ready_at
                    if tail == stop or next_at >= arrived[tail]:
                        known_until = next_at
                        break
                    now = next_at  # no packet comes before: the head leaves then
            weight = weights[head]
            due_from_at, due_tokens = due_at, weight
            gone += weight
            leave(now)
            frame_at = now + _FRAME_S
            wait_for_frame = False
            head += 1
            inside_word = head < tail and glued[head]
        else:
            next_at, known_until = inf, _UNKNOWN
            gone = pushed
        seen_at = now

    taken = tail - waiting
    queued = [queue.popleft().delta for _ in range(min(head, waiting))]
    playback.released_chars += sum([len(delta.text) for delta in queued])
    if head > waiting:
        playback.released_chars += pieces.ends[head + shift] - pieces.ends[first]
    if taken:
        playback.pushed_chars += pieces.ends[first + taken] - pieces.ends[first]
        for column in range(max(head, waiting), tail):
            queue.append(_item(pieces, column + shift, arrived[column]))
        # The word that the last piece belongs to, up to the length that `Playback` looks at.
        last = start = tail - 1 + shift
        while pieces.glued[start]:
            start -= 1
        word = pieces.texts[last]
        playback._last_text = "".join(pieces.texts[start : last + 1])[-CAP_CHARS:] if start < last else word
        playback._run_chars = pieces.runs[last]
        arrivals.last_at = last_push_at
    playback._tokens_pushed, playback._tokens_released = pushed, gone
    playback._due_from_at, playback._due_tokens = due_from_at, due_tokens
    playback._burst_tps, playback._rate_tps, playback._frame_at = burst_tps, rate_tps, frame_at
    arrivals.span_s, arrivals.tokens = span_sum_s, tokens_sum
    playback._seen_at, playback._nothing_before_at = seen_at, known_until
    return Stretch(taken, queued, out, next_at)
