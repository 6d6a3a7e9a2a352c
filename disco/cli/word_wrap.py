"""Break text that comes in pieces into the lines of a terminal, between words.

A line of prose breaks behind a space, or between two signs of a script without spaces, at the last place before the
edge of the window. A word that is longer than the window is cut at its edge. Lines of code between fences (three
backticks or tildes) are not broken: the terminal wraps them at its edge, so that they are copied from it as they were
written.

Where lines break depends only on the text and the width, not on how the text was divided into pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from rich.cells import get_character_cell_size

from disco.playback.text_boundaries import continues, is_grapheme_boundary

__all__ = ["Line", "WordWrap", "cells", "printable", "wrapped"]

# A model's answer is not trusted: its escape sequences must not reach the terminal. Half of a surrogate pair cannot be
# written to it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# What does not begin, and what does not end, a line of Chinese or Japanese.
_NOT_FIRST = frozenset("、。，．・：；？！ー）」』】〕〉》〟’”…‥々ぁぃぅぇぉっゃゅょァィゥェォッャュョ")
_NOT_LAST = frozenset("（「『【〔〈《〝‘“")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_LEAST_COLUMNS = 2  # the width of one sign of Chinese
_TAB = "    "


def printable(text: str) -> str:
    """Return the text without control characters, line breaks and tabs excepted, and with "�" for half a character."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))


def cells(text: str) -> int:
    """Return the width of a text in columns of a terminal, which is the sum of its characters' widths."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it stands on the terminal.

    Attributes:
        pieces: (text, mark) pairs; together they are the line with all its spaces, without the line break.
        breaks: whether the text itself breaks here; else the line has reached the edge, or is still being written.
    """

    pieces: tuple[tuple[str, str], ...]
    breaks: bool = False

    @property
    def text(self) -> str:
        """The line's text."""
        return "".join(text for text, _ in self.pieces)

    def first(self, chars: int) -> tuple[tuple[str, str], ...]:
        """Return the pieces of the first characters of the line."""
        out = []
        for text, mark in self.pieces:
            if chars > 0:
                out.append((text[:chars], mark))
            chars -= len(text)
        return tuple(out)

    def visible(self, columns: int) -> tuple[tuple[str, str], ...]:
        """Return the pieces without the spaces at the end where not all of them fit into so many columns."""
        text = self.text
        return self.pieces if cells(text) <= columns else self.first(len(text.rstrip(" ")))


class WordWrap:
    """Text in, lines out. Each character keeps its mark, such as the name of its writer. Mutable: all."""

    __slots__ = ("_fence", "_marks", "_text")

    def __init__(self) -> None:
        self._text = ""  # of the line that is being written
        self._marks: list[str] = []  # of each of its characters
        self._fence = ""  # the fence above, while its block of code is open

    @property
    def current(self) -> Line:
        """The line that is being written."""
        return self._line(len(self._text), breaks=False)

    @property
    def settled_chars(self) -> int:
        """How many characters of the current line stay in it, whatever comes: all but its last word."""
        text = self._text
        if self._is_code(text):
            return len(text)
        return next((at for at in range(len(text), 0, -1) if text[at - 1] == " " or self._may_break(at)), 0)

    def add(self, text: str, mark: str, columns: int) -> list[Line]:
        """Add a piece of text.

        Args:
            text: with line breaks and without other control characters; a tab becomes four spaces.
            mark: what its characters are marked with.
            columns: the width of the window, which may be another one at each call; it counts as 2 at least.

        Returns:
            The lines that are complete now.
        """
        columns = max(columns, _LEAST_COLUMNS)
        lines = []
        for number, part in enumerate(text.replace("\t", _TAB).split("\n")):
            if number:
                lines.append(self._line(len(self._text), breaks=True))
                self._end_of_line()
            self._text += part
            self._marks += [mark] * len(part)
            while (cut := self._cut(columns)) is not None:
                lines.append(self._line(cut, breaks=False))
                self._text = self._text[cut:]
                del self._marks[:cut]
        return lines

    def _line(self, chars: int, *, breaks: bool) -> Line:
        groups = groupby(zip(self._text[:chars], self._marks[:chars], strict=True), key=lambda pair: pair[1])
        return Line(tuple(("".join(c for c, _ in pairs), mark) for mark, pairs in groups), breaks)

    def _end_of_line(self) -> None:
        fence = _FENCE.match(self._text)
        if fence is not None:
            sign, behind = fence[1], self._text[fence.end() :].strip()
            if not self._fence:
                self._fence = sign if "`" not in behind or sign[0] == "~" else ""
            elif sign.startswith(self._fence) and not behind:
                self._fence = ""
        self._text = ""
        self._marks.clear()

    def _is_code(self, text: str) -> bool:
        return bool(self._fence) or _FENCE.match(text) is not None

    def _cut(self, columns: int) -> int | None:
        """Return how many characters of the current line become a line of their own; None: it fits."""
        text, width = self._text, 0
        if text.isascii() and len(text) <= columns:
            return None
        for at, char in enumerate(text):
            width += get_character_cell_size(char)
            if width > columns and char != " " and not self._is_code(text[: at + 1]):
                return self._last_break(at)
        return None

    def _last_break(self, at: int) -> int:
        """Return where to break a line whose character at `at` does not fit any more; never 0."""
        for before in range(at, 0, -1):
            if self._text[before - 1] == " " or self._may_break(before):
                return before
        edge = at
        while edge and not is_grapheme_boundary(self._text, edge):
            edge -= 1
        return edge or max(at, 1)  # one sign that is wider than the window is cut, too

    def _may_break(self, at: int) -> bool:
        """Whether a line may break before this character, which follows no space."""
        text = self._text
        if at >= len(text) or text[at] == " " or text[at] in _NOT_FIRST or text[at - 1] in _NOT_LAST:
            return False
        return not (text[at].isspace() or text[at - 1].isspace() or continues(text[:at], text[at]))


def wrapped(text: str, columns: int) -> str:
    """Return a whole text with line breaks between its words.

    Where a word is longer than a line, such as a path, the text stays as it is: the terminal wraps it, and it can be
    copied.
    """
    if max(map(cells, text.split()), default=0) > columns:
        return text
    wrap = WordWrap()
    lines = [*wrap.add(text, "", columns), wrap.current]
    return "\n".join(line.text.rstrip(" ") if not line.breaks else line.text for line in lines)
