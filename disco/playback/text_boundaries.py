r"""Where text may be cut: whole graphemes always, whole words where the script has them.

Graphemes follow the rules of UAX #29 that matter in written answers, from `unicodedata` alone: CR LF,
controls, combining and spacing marks, variation selectors, emoji modifiers and tags, joined emoji (ZWJ),
flags (pairs of regional indicators), Hangul syllables, and Indic conjuncts (a virama joins the consonant
after it). Approximate: prepended marks (a dozen rare Arabic and Indic signs) are left out, and a ZWJ joins
any symbol, not only pictographs.

A word is a run without whitespace. In scripts without spaces between words (Han, kana, Thai, Lao, Tibetan,
Burmese, Khmer), and among emoji, every grapheme is a word of its own. A run of more than `CAP_CHARS` characters
(base64, a long URL) may be cut between any two graphemes.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["CAP_CHARS", "continues", "ends_open", "last_word_start", "next_cut"]

CAP_CHARS = 64
"""Longest run, in characters, that waits for a word's end."""

_ZWJ = "\u200d"
# Ideographs and kana: each is a complete word. Full-width forms and CJK punctuation belong here, too.
_STANDALONE = (
    "\u3001-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
)
# Scripts with marks after the letter, and symbols that a selector, modifier or joiner may follow.
_GROWING = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff\ufe0f\u200d"
)
_UNSPACED = re.compile(f"[{_STANDALONE}{_GROWING}]")
_STANDALONE_END = re.compile(f"[{_STANDALONE}]")
_PIECE = re.compile(
    rf"\s{{0,{CAP_CHARS}}}(?:[{_STANDALONE}{_GROWING}]|[^\s{_STANDALONE}{_GROWING}]{{1,{CAP_CHARS}}})?"
)
_REST_IS_SPACE = re.compile(r"\s+\Z")
# Punctuation inside words: don't, l’eau, snake_case, well-known.
_INSIDE_WORDS = frozenset("'’_-\u2010\u2011")


def _extends(char: str) -> bool:
    """True when `char` belongs to the grapheme before it (Extend, SpacingMark or ZWJ)."""
    if char < "\u0300":
        return False
    return (
        unicodedata.category(char) in {"Mn", "Me", "Mc"}
        or char in "\u200c\u200d\uff9e\uff9f"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
    )


def _hangul(char: str) -> str:
    """Return the Hangul syllable type: L, V, T, LV, LVT, or empty."""
    if "\u1100" <= char <= "\u115f" or "\ua960" <= char <= "\ua97c":
        return "L"
    if "\u1160" <= char <= "\u11a7" or "\ud7b0" <= char <= "\ud7c6":
        return "V"
    if "\u11a8" <= char <= "\u11ff" or "\ud7cb" <= char <= "\ud7fb":
        return "T"
    if "\uac00" <= char <= "\ud7a3":
        return "LVT" if (ord(char) - 0xAC00) % 28 else "LV"
    return ""


_HANGUL_JOINS = {
    "L": frozenset({"L", "V", "LV", "LVT"}),
    "V": frozenset({"V", "T"}),
    "LV": frozenset({"V", "T"}),
    "T": frozenset({"T"}),
    "LVT": frozenset({"T"}),
}


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def is_grapheme_boundary(text: str, index: int) -> bool:
    """True when `text` may be cut before `text[index]` without splitting a grapheme."""
    if index <= 0 or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if unicodedata.category(before) in {"Cc", "Zl", "Zp"} or unicodedata.category(after) in {
        "Cc",
        "Zl",
        "Zp",
    }:
        return True
    if _extends(after):
        return False
    if before == _ZWJ:
        return unicodedata.category(after) != "So"
    if unicodedata.combining(before) == 9 and unicodedata.category(after) == "Lo":
        return False
    if _is_regional(before) and _is_regional(after):
        first = index - 1
        while first > 0 and _is_regional(text[first - 1]):
            first -= 1
        return (index - first) % 2 == 0
    return _hangul(after) not in _HANGUL_JOINS.get(_hangul(before), ())


def _boundary_at_or_before(text: str, index: int) -> int:
    while not is_grapheme_boundary(text, index):
        index -= 1
    return index


def _boundary_at_or_after(text: str, index: int) -> int:
    while not is_grapheme_boundary(text, index):
        index += 1
    return index


def _open_run_start(text: str) -> int:
    """Return the start of the last word, after the whitespace before it; `len(text)` if the text ends in whitespace.

    The search goes back at most `CAP_CHARS` characters; for a longer word, the start of the last grapheme is returned.
    """
    end = len(text)
    for index in range(end - 1, max(end - CAP_CHARS, 0) - 1, -1):
        char = text[index]
        if char.isspace():
            return index + 1
        if _UNSPACED.match(char):
            after = _boundary_at_or_after(text, index + 1)
            return after if after < end else _boundary_at_or_before(text, end - 1)
    return 0 if end <= CAP_CHARS else _boundary_at_or_before(text, end - 1)


def last_word_start(text: str) -> int:
    """Return the position of a cut: the start of the whitespace before the last word, which may be incomplete.

    `text[:i]` is kept. Whitespace at the end follows a complete word, and only the whitespace is removed:
    `"foo bar "` gives 7. The position is 0 when there is one word only. In text without spaces, and in runs longer
    than `CAP_CHARS`, the last grapheme is removed. The position is never inside a grapheme.
    """
    if not text:
        return 0
    start = _open_run_start(text)
    kept = len(text[:start].rstrip())
    # Whitespace right before a combining mark is one grapheme with the mark: the cut must not divide it.
    return _boundary_at_or_before(text, kept)


def ends_open(text: str) -> bool:
    """Whether the next text may still belong to the last word or grapheme of `text`."""
    if not text:
        return False
    last = text[-1]
    if last.isalnum():
        return not _STANDALONE_END.match(last)
    if last in _INSIDE_WORDS:
        return True
    if last.isspace():
        return False
    # Other punctuation ends a word; marks, joiners and symbols may grow.
    return not unicodedata.category(last).startswith("P")


def next_cut(text: str, start: int) -> int:
    """Return the end of the first word of `text[start:]`, with the whitespace before it; `start < len(text)`.

    Whitespace at the end of `text` belongs to the word before it, so that `"word "` is one piece.
    """
    found = _PIECE.match(text, start)
    end = found.end() if found else start + 1
    if end >= len(text):
        return end
    end = _boundary_at_or_after(text, end)
    return len(text) if _REST_IS_SPACE.match(text, end) else end


def continues(before: str, after: str) -> bool:
    """Whether a cut between two neighbouring pieces falls inside a word or grapheme."""
    if not before or not after:
        return False
    left, right = before[-1], after[0]
    if left.isspace() or right.isspace():
        return left == "\r" and right == "\n"
    if left.isascii() and right.isascii():
        return True
    # The check of a flag, a conjunct or a joined emoji needs a few characters before the cut.
    if not is_grapheme_boundary(before[-CAP_CHARS:] + right, min(len(before), CAP_CHARS)):
        return True
    return not (_UNSPACED.match(left) or _UNSPACED.match(right))
