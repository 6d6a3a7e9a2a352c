"""How texts repeat, which tells an echo from an answer that repeats itself. Pure functions.

All lengths are in characters. The cost is linear in the text; where nothing repeats, it is one search for 16
characters.
"""

from __future__ import annotations

__all__ = ["MIN_CHARS", "border_chars", "common_chars", "overlap_chars", "repeats_itself"]

MIN_CHARS = 16
"""Shorter repetitions are no evidence: "The" may begin the next sentence as well."""


def repeats_itself(text: str) -> bool:
    """Return True when `text` could, by its own repetition, be followed by itself.

    That is so when `text` is written twice or more (its smallest period is at most half its length), or when its end
    is the same as its beginning (a border of `MIN_CHARS` or more). A longer border means a shorter period.
    """
    enough = min(MIN_CHARS, (len(text) + 1) // 2)
    if not enough or text.find(text[:enough], 1) < 0:
        return False
    return border_chars(text) >= enough


def border_chars(text: str) -> int:
    """Return the length of the longest proper beginning of `text` that is also its end."""
    return _borders(text)[-1] if text else 0


def overlap_chars(before: str, after: str) -> int:
    """Return the length of the longest beginning of `after` that is an end of `before`; 0 below `MIN_CHARS`."""
    if len(after) < MIN_CHARS or after[:MIN_CHARS] not in before:
        return 0
    pattern = after[: len(before)]
    borders = _borders(pattern)
    matched = 0
    for char in before:
        while matched and (matched == len(pattern) or pattern[matched] != char):
            matched = borders[matched - 1]
        if pattern[matched] == char:
            matched += 1
    return matched if matched >= MIN_CHARS else 0


def common_chars(one: str, other: str) -> int:
    """Return the length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing slices is faster than comparing characters
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _borders(text: str) -> list[int]:
    """Return, for each beginning of `text` (index: its length less one), the length of its longest border."""
    borders = [0] * len(text)
    length = 0
    for at in range(1, len(text)):
        char = text[at]
        while length and text[length] != char:
            length = borders[length - 1]
        if text[length] == char:
            length += 1
        borders[at] = length
    return borders
