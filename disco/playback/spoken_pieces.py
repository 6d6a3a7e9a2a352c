"""Where the text of an answer that is still written may be cut for a voice: whole sentences, else clauses, else words.

Pure functions of the text that waits. A fenced block of code is one piece: nothing in it is a sentence.
"""

from __future__ import annotations

import re
from typing import Final

from disco.playback.sentences import sentence_ends
from disco.playback.text_boundaries import last_word_start

__all__ = ["LONGEST_CHARS", "clause_end", "ends_in_fence", "piece_ends", "word_end"]

LONGEST_CHARS: Final = 400
"""A piece of more characters than this is cut where it can be: about 25 seconds of speech."""

LEAST_CLAUSE: Final = 24
"""The first part of a sentence goes ahead of the rest from this length on, in letters: about 1.5 seconds of speech."""

# Within a list it is indented, by any number of spaces. Code within a line ("```x = 1```") has more backticks behind.
_FENCE = re.compile(r"^[^\S\n]*(?:```+[^`\n]*|~~~[^\n]*)\n", re.MULTILINE)
_BEGUN_FENCE = re.compile(r"^[^\S\n]*(?:```+[^`\n]*|~~~[^\n]*)\Z", re.MULTILINE)  # its line is not complete
_CLAUSE_END = re.compile(r"[,;:–—](?=\s)|[，、；：]")
_BEHIND = re.compile(r"[\s\"'“‘«(\[{„]*")
# "3. Oktober" goes on, "3. Options" does not: that depends on the whole word behind it.
_ORDINAL = re.compile(r"(?:^|\W)\d{1,2}\.\s*$")


def piece_ends(text: str, ahead: str = "", *, in_fence: bool = False, is_all: bool = False) -> list[int]:
    """Return the positions at which complete pieces of a text end, ascending; white space belongs to the piece before.

    Args:
        text: what waits, from the end of the piece before on.
        ahead: what follows it and may not leave yet; it only helps to tell where a sentence ends.
        in_fence: whether the text begins in a fenced block.
        is_all: whether nothing follows; then the last position is the end of the text.
    """
    whole, ends, at = text + ahead, set[int](), 0
    for fence in _FENCE.finditer(whole):
        start = fence.start()
        if in_fence:
            ends.add(_behind_space(whole, fence.end()))
        elif start > at:
            ends.update(at + end for end in sentence_ends(whole[at:start]))
        at, in_fence = (fence.end() if in_fence else start), not in_fence
    if not in_fence:
        begun = None if is_all else _BEGUN_FENCE.search(whole, at)
        prose = whole[at : None if begun is None else begun.start()]
        is_closed = is_all or begun is not None
        ends.update(at + end for end in sentence_ends(prose) if is_closed or _is_certain(prose, end))
    size = len(text)
    # Behind the last letter of the text, only white space may be missing from its piece.
    found = {min(end, size) for end in ends if end <= size or not whole[size:end].strip()}
    if not is_all and not ahead:
        found.discard(size)
    if is_all and size:
        found.add(size)
    return sorted(end for end in found if text[:end].strip() or (is_all and end == size > 0))


def _is_certain(prose: str, end: int) -> bool:
    """Return whether a sentence ends there whatever comes next."""
    behind = _BEHIND.match(prose, end).end()  # type: ignore[union-attr] # it matches the empty text
    if behind >= len(prose):
        return False
    return not (_ORDINAL.search(prose, 0, end) and prose[behind:].isalpha())


def _behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def ends_in_fence(text: str, *, in_fence: bool) -> bool:
    """Return whether a fenced block is open behind a text."""
    # The line break behind the last fence may belong to the text that follows.
    return in_fence ^ (len(_FENCE.findall(text + "\n")) % 2 == 1)


def clause_end(text: str, *, in_fence: bool = False) -> int:
    """Return the end of the last clause of a text that is long enough to be spoken alone; 0 if there is none."""
    end = 0
    if in_fence or _FENCE.search(text):
        return end
    for found in _CLAUSE_END.finditer(text):
        at = found.end()
        if at < len(text) and _letters(text[:at]) >= LEAST_CLAUSE:
            end = _behind_space(text, at)
    return end


def _letters(text: str) -> int:
    """Return the length of a text as the ear counts it: a character of Chinese, Japanese or Korean is a syllable."""
    return sum(3 if char >= "\u2e80" else 1 for char in text)


def word_end(text: str, *, in_fence: bool = False) -> int:
    """Return the end of the last complete word, with the white space behind it; 0 if there is none.

    In a fenced block, that of the last complete line.
    """
    if in_fence or _FENCE.search(text):
        return text.rfind("\n") + 1
    end = last_word_start(text)
    return _behind_space(text, end) if end else 0
