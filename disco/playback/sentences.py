"""Finds where sentences end: rules for scripts with and without spaces, abbreviations, initials and decimals.

Both ends of a mask must find the same sentences, in any version of any other package: a mask names units by their
number. So these rules are our own. They are conservative: where a full stop may belong to an abbreviation, the
sentence goes on.
"""

from __future__ import annotations

import re

__all__ = ["last_sentence_end", "sentence_ends"]

_CLOSING = "\"'”’»)\\]}」』）】〉》"

# A full stop ends a sentence before a space; the marks of scripts without spaces end it anywhere. The marks of Arabic,
# Urdu, Hindi, Burmese, Khmer, Armenian and Ethiopic texts stand before a space.
_CANDIDATE = re.compile(
    rf"[.!?…؟۔।॥။។։።]+[{_CLOSING}]*(?=\s)|[。！？｡]+[{_CLOSING}]*|(?P<line>\n)",
)
_BLANK = re.compile(r"[^\S\n]*\n")
# What may begin a line of its own: a bullet, an enumerator, a heading, a quotation.
_MARKER = re.compile(
    r"[^\S\n]*(?:[-*+•‣◦–—][^\S\n]|\(?\d{1,3}[.)][^\S\n]|[A-Za-z][)][^\S\n]|\#{1,6}[^\S\n]|>)"
)
_ENUMERATOR = re.compile(r"(?:^|\n)[^\S\n]*\(?(?:\d{1,3}|[A-Za-z])$")
_WORD_BEFORE = re.compile(r"[^\W_](?:[\w.]*[^\W_])?$")
_NEXT = re.compile(r"[\s\"'“‘«(\[{„]*")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")

# A full stop behind these does not end a sentence. Those that often end one ("etc.", "Inc.", "a.m.") are left out.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms mx dr prof st mt ft rev hon gen col lt sgt capt cmdr adm maj gov sen rep pres supt messrs mme mlle
    vs viz cf e.g i.e eg ie ca approx fig figs eq eqs sec secs ch chap vol vols pp ed eds al est dept univ
    jan feb mar apr jun jul aug sep sept oct nov dec
    z.b d.h u.a o.ä bzw nr bd abs vgl hr hrn fr frl geb gest inkl evtl ggf
    sra srta ud uds pág págs núm art dña
    """.split()  # noqa: SIM905 - easier to read than a list of quoted words
)
_BEFORE_NUMBERS = frozenset("no nos p pp s n nr art fig eq sec ch vol núm pág".split())  # noqa: SIM905
_MONTHS = frozenset(
    """
    january february march april may june july august september october november december
    januar februar märz mai juni juli oktober dezember jahrhundert
    """.split()  # noqa: SIM905
)
_WORD = re.compile(r"\w*")
_HARD_WRAP = 50  # a line of at least this many characters without an end mark may go on in the next line


def sentence_ends(text: str) -> list[int]:
    """Return the positions at which sentences end, ascending; the white space behind a sentence belongs to it.

    A blank line ends a sentence, and so does the end of a line that no sentence runs across. The last position is the
    length of the text, unless the text is empty.
    """
    ends: list[int] = []
    for found in _CANDIDATE.finditer(text):
        at = found.end()
        if ends and at <= ends[-1]:
            continue
        if found["line"] is not None:
            if not _line_ends(text, found.start()):
                continue
        elif found[0][0] in ".…" and not _full_stop_ends(text, found.start(), at):
            continue
        ends.append(_space_end(text, at))
    if text and (not ends or ends[-1] < len(text)):
        ends.append(len(text))
    return ends


def last_sentence_end(text: str) -> int:
    """Return the position behind the last sentence of a text that goes on; 0 if there is none.

    What follows is taken for the beginning of a sentence. So a full stop counts once a space follows. Line breaks
    belong to the sentence before them, spaces do not.
    """
    ends = sentence_ends(text + "A")
    whole = text[: ends[-2]] if len(ends) > 1 else ""
    end = len(whole.rstrip())
    return max(end, whole.rfind("\n", end) + 1)


def _space_end(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _line_ends(text: str, at: int) -> bool:
    """Return whether a sentence ends at this line break."""
    following = at + 1
    if _BLANK.match(text, following) or _MARKER.match(text, following):
        return True
    start = text.rfind("\n", 0, at) + 1
    line = text[start:at].rstrip()
    begins = text[_NEXT.match(text, following).end() :][:1] if following < len(text) else ""  # type: ignore[union-attr]
    if begins.islower():
        return False
    return len(line) < _HARD_WRAP or line.endswith(":")


def _full_stop_ends(text: str, stop: int, behind: int) -> bool:
    """Return whether a sentence ends at the full stop at `stop`, whose closing quotes end at `behind`."""
    start = _NEXT.match(text, behind).end()  # type: ignore[union-attr] # it matches the empty text
    begins = text[start : start + 1]
    if begins.islower():
        return False
    before = text[max(0, stop - 24) : stop]
    if behind - stop > 1:  # an ellipsis, or a quotation mark behind the full stop
        return True
    if _ENUMERATOR.search(before) and (stop <= 24 or "\n" in before):
        return False
    word_found = _WORD_BEFORE.search(before)
    if word_found is None:
        return True
    word = word_found[0].lower()
    if word in _ABBREVIATIONS or (word in _BEFORE_NUMBERS and begins.isdigit()):
        return False
    if word.isdigit() and len(word) <= 2:  # an ordinal before a month: "3. Oktober"
        following = _WORD.match(text, start)
        return following is None or following[0].lower() not in _MONTHS
    return not (_INITIALS.fullmatch(word) and word_found[0][-1].isupper())
