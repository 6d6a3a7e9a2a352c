"""Playback for a voice: text leaves by whole sentences, each as one delta, because a speech engine speaks them whole.

The listener hears at the pace, whatever has left before. So a sentence leaves as soon as it is complete: the engine can
prepare it while the one before is spoken. What has left cannot be taken back, though. While text is banked for a
migration or a judge, a sentence leaves only `LEAD_S` before the listener reaches it.

An incomplete sentence leaves in parts where the listener would wait for its end: up to its last clause `LEAD_S` before
there is nothing left to speak (the first one at once), up to its last word after a silence of `Pace.max_hold_s`.
"""

from __future__ import annotations

import itertools
from typing import Final

from disco.events import Delta, DeltaKind
from disco.playback.buffer import Playback
from disco.playback.pace import Pace
from disco.playback.queued_items import part_of
from disco.playback.spoken_pieces import LONGEST_CHARS, clause_end, ends_in_fence, piece_ends, word_end

__all__ = ["LEAD_S", "SentencePlayback", "playback_for"]

LEAD_S: Final = 1.0
"""A speech engine needs about so long to prepare a sentence, s."""

_AHEAD_CHARS: Final = 64  # of the text that follows, enough to tell whether a sentence ends before it
_READ_CHARS: Final = LONGEST_CHARS + _AHEAD_CHARS
_AT_ONCE = float("-inf")
_NEVER = float("inf")
_EMPTY: Final = (DeltaKind.ROLE, DeltaKind.TEXT)  # without text, these may come inside a sentence


def playback_for(pace: Pace | None) -> Playback:
    """Return the buffer for a pace: by words or by sentences, as the pace says; None: nothing is held."""
    return SentencePlayback(pace) if pace is not None and pace.release == "sentence" else Playback(pace)


class SentencePlayback(Playback):
    """A `Playback` with a pace that releases sentences. The listener's clock starts when the first piece leaves."""

    # Mutable: everything below.
    __slots__ = ("_in_fence", "_next", "_spoken_until_at")

    def __init__(self, pace: Pace) -> None:
        super().__init__(pace)
        self._next: tuple[float, int] | None = (
            None  # the next piece: when it leaves, and its characters; None: unknown
        )
        self._in_fence = False  # whether what has left ends in a fenced block
        self._spoken_until_at = _AT_ONCE  # when the listener has heard all that has left

    def push(self, now: float, delta: Delta) -> None:
        """Take `delta` from generation at `now`, s; see `Playback.push`."""
        super().push(now, delta)
        self._next = None
        if self.released_chars == 0 and self._tokens_pushed > 0:
            self._text_started_at = now  # the listener begins no earlier than now

    def retract(self, position: int) -> list[Delta]:
        """Take back everything unreleased after character `position` of the answer; see `Playback.retract`."""
        self._next = None
        return super().retract(position)

    def end(self, now: float) -> None:
        """End the input at `now`, s; the rest leaves by sentences, too, all of them now."""
        self._next = None
        super().end(now)

    def _steer(self) -> None:
        self._next = None
        super()._steer()

    @property
    def next_at(self) -> float | None:
        """See `Playback.next_at`; `inf` where only more text can complete a piece."""
        if not self._queue:
            return None
        return self._due()[0]

    def release(self, now: float) -> list[Delta]:
        """Return what the listener gets at `now`, s, in order: one delta for each sentence or part of one."""
        self._seen_at = now
        out: list[Delta] = []
        while self._queue:
            due_at, chars = self._due()
            if due_at > now:
                break
            out += self._take(chars, now)
        return out

    def _due(self) -> tuple[float, int]:
        if self._next is None:
            self._next = self._find()
        return self._next

    def _find(self) -> tuple[float, int]:
        """Return when the next piece leaves, and how many characters it has; 0: the head, which is no text."""
        queue, pace = self._queue, self.pace
        assert pace is not None
        if not queue[0].chars:
            return queue[0].arrived_at, 0
        parts, chars, is_all, behind = [], 0, self._ended, self._gate and self._gate.behind
        for item in queue:
            if chars > _READ_CHARS:  # of a long queue, only the beginning is read for each piece
                is_all, behind = False, None
                break
            if not item.chars and item.delta.kind not in _EMPTY:
                is_all = True
                break
            parts.append(item.delta.text[item.offset :])
            chars += len(parts[-1])
        text = "".join(parts)
        ahead = "" if is_all or not behind else "".join(d.text for d in behind)[:_AHEAD_CHARS]
        ends = piece_ends(text, ahead, in_fence=self._in_fence, is_all=is_all)
        if ends and ends[0] <= LONGEST_CHARS:
            is_last = is_all and not text[ends[0] :].strip()
            return self._complete_at, len(text) if is_last else self._whole_items(ends[0])
        head = text[:LONGEST_CHARS]
        clause, word = (end_of(head, in_fence=self._in_fence) for end_of in (clause_end, word_end))
        if len(text) > LONGEST_CHARS:
            return self._complete_at, self._whole_items(clause or word or LONGEST_CHARS)
        if clause:
            at = _AT_ONCE if self.released_chars == 0 else self._spoken_until_at - LEAD_S
            return at, self._whole_items(clause)
        if word:
            dry_at = queue[0].arrived_at if self.released_chars == 0 else self._spoken_until_at
            return dry_at + pace.max_hold_s, self._whole_items(word)
        return _NEVER, 0

    def _whole_items(self, chars: int) -> int:
        """Return where to cut so that a token's space before a word stays with the word; `chars` if nowhere else."""
        end = 0
        for item in self._queue:
            start, end = end, end + item.chars - item.offset
            if end >= chars:
                behind = item.delta.text[item.offset : item.offset + chars - start]
                return start if end > chars and start and not behind.strip() else chars
        return chars

    @property
    def _complete_at(self) -> float:
        """When the piece at the head leaves if it is complete."""
        if self._ended:
            return self._end_by
        if self.released_chars == 0 or not self._steady:
            return _AT_ONCE
        return self._spoken_until_at - LEAD_S

    def _take(self, chars: int, now: float) -> list[Delta]:
        """Take a piece from the head of the queue: one delta, and behind it the empty ones that came inside it.

        Two where it holds both text and a refusal.
        """
        queue = self._queue
        self._next = None
        if not chars:
            return [queue.popleft().delta]
        if self.released_chars == 0:
            self._text_started_at = now
        taken: list[Delta] = []
        empty: list[Delta] = []
        left, weight = chars, 0.0
        while left:
            item = queue[0]
            if not item.chars:
                empty.append(queue.popleft().delta)
                continue
            start, end = item.offset, min(item.chars, item.offset + left)
            delta = item.delta
            taken.append(delta if end - start == item.chars else part_of(delta, start, end, ids=True))
            weight += item.weight * (end - start) / item.chars
            item.offset = end
            left -= end - start
            if end == item.chars:
                queue.popleft()
        self.released_chars += chars
        self._tokens_released += weight
        # After a silence the voice goes on with the piece that ended it.
        self._spoken_until_at = max(self._spoken_until_at, now) + weight * self._token_s
        if not queue:
            self._tokens_released = self._tokens_pushed  # no rounding left over from shares of deltas
        pieces = [joined(list(run)) for _, run in itertools.groupby(taken, lambda delta: delta.refusal)]
        text = "".join(piece.text for piece in pieces)
        self._in_fence = ends_in_fence(text, in_fence=self._in_fence)
        return [*pieces, *empty]


def joined(deltas: list[Delta]) -> Delta:
    """Return text deltas of one kind as one.

    It has the `raw` of the first, whose text a client replaces, and all token ids.
    """
    if len(deltas) == 1:
        return deltas[0]
    ids: tuple[int, ...] | None = ()
    for delta in deltas:
        ids = None if ids is None or delta.ids is None else ids + delta.ids
    text, tokens = "".join(delta.text for delta in deltas), sum(delta.tokens for delta in deltas)
    return Delta(text, tokens=tokens, ids=ids, raw=deltas[0].raw, refusal=deltas[0].refusal)
