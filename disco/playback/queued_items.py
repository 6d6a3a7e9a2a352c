"""Queued deltas: their weight in tokens, and how a delta is divided."""

from __future__ import annotations

from collections import deque

from disco.events import Delta, DeltaKind
from disco.playback.text_boundaries import CAP_CHARS, ends_open, next_cut

__all__ = [
    "MAX_CHARS_PER_TOKEN",
    "Item",
    "part_of",
    "take_back",
    "take_back_items",
    "weight_after",
    "weight_of",
    "word_is_whole",
]

MAX_CHARS_PER_TOKEN = 16
"""A delta with more characters per token than this is one long token, or the server does not count: `weight_of`."""

_CHARS_PER_TOKEN = 4.0
_TEXT = DeltaKind.TEXT


class Item:
    """A queued delta; `offset` of its `chars` characters have been released, `cut` is the next word's end.

    `glued`: the item continues the word before it. `open`: the next text may still belong to the item's last word.
    """

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
            # Most deltas are one ASCII word with a space before it: the word ends where the text ends.
            word = text[1:].isalnum() and chars <= CAP_CHARS
            self.cut = chars if word else next_cut(text, 0)
            self.open = word or ends_open(text)
        else:
            self.cut = next_cut(text, 0) if chars else 0
            self.open = ends_open(text)


def word_is_whole(queue: deque[Item]) -> bool:
    """Whether the word at the head of the queue is complete, so that no later text can continue it."""
    last = queue[0]
    if last.cut < last.chars:
        return True
    if len(queue) > 1:
        items = iter(queue)
        next(items)
        for item in items:
            if not item.glued or item.cut < item.chars:
                return True
            last = item
    return not last.open


def weight_of(delta: Delta, chars: int) -> float:
    """Return the number of tokens of a delta; estimated from its length where the server does not count.

    Vocabularies have single tokens with more characters: long words, rules of dashes, indents. Held back for as long as
    several tokens take to read, one of them would leave a gap.
    """
    if chars <= MAX_CHARS_PER_TOKEN * max(delta.tokens, 1):
        return float(delta.tokens)
    one_word = chars <= CAP_CHARS and delta.text.isascii() and len(delta.text.split()) <= 1
    return max(float(delta.tokens), 1.0) if one_word else chars / _CHARS_PER_TOKEN


def part_of(delta: Delta, start: int, end: int, *, ids: bool) -> Delta:
    """Return characters `start` to `end` of a delta, as a delta.

    Tokens are divided in proportion to characters, rounded so that the parts' sum is the delta's. All `ids` go to the
    part that completes the delta, logprobs and `raw` to the first part.
    """
    chars = len(delta.text)
    return Delta(
        delta.text[start:end],
        tokens=delta.tokens * end // chars - delta.tokens * start // chars,
        kind=delta.kind,
        ids=delta.ids if ids and end == chars else None,
        raw=delta.raw if start == 0 else None,
        logprobs=delta.logprobs if start == 0 else None,
        refusal=delta.refusal,
    )


def take_back(deltas: list[Delta], end: int, position: int) -> tuple[list[Delta], int]:
    """Remove what follows `position` from the end of `deltas`, whose last character is before `end`.

    Returns:
        The removed deltas, the last one first; and the position at which `deltas` end now.
    """
    taken: list[Delta] = []
    while deltas:
        delta = deltas[-1]
        chars = len(delta.text) if delta.kind is _TEXT else 0
        start = end - chars
        if start < position and end <= position:
            break
        deltas.pop()
        if start < position:
            kept = position - start
            deltas.append(part_of(delta, 0, kept, ids=False))
            taken.append(part_of(delta, kept, chars, ids=False))
            return taken, position
        taken.append(delta)
        end = start
    return taken, end


def weight_after(queue: deque[Item], end: int, position: int) -> float:
    """Return the weight, in tokens, of what follows `position` in a queue of items whose text ends at `end`."""
    weight = 0.0
    for item in reversed(queue):
        chars = item.chars - item.offset
        behind = min(chars, end - position)
        if behind <= 0:
            break
        weight += item.weight * behind / item.chars
        end -= chars
    return weight


def take_back_items(queue: deque[Item], end: int, position: int) -> tuple[list[Delta], int, float]:
    """Remove what follows `position` from a queue of items, some of whose text may have been released.

    Returns:
        The removed deltas, the last one first; the position at which the queue ends now; and the weight of what was
        removed, in tokens.
    """
    taken: list[Delta] = []
    weight = 0.0
    while queue:
        item = queue[-1]
        start = end - (item.chars - item.offset)
        if start < position and end <= position:
            break
        queue.pop()
        delta = item.delta
        keep = item.offset + max(position - start, 0)
        if item.chars:
            weight += item.weight * (item.chars - keep) / item.chars
        end -= item.chars - keep
        taken.append(delta if keep == 0 else part_of(delta, keep, item.chars, ids=False))
        if keep > item.offset:
            head = part_of(delta, item.offset, keep, ids=False)
            kept_weight = item.weight * (keep - item.offset) / item.chars
            queue.append(Item(head, item.arrived_at, keep - item.offset, kept_weight, item.glued))
            break
        if start < position:
            break
    return taken, end, weight
