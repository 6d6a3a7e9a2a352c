"""Cuts a text into units that are kept or left out as a whole: sentences, and what is no prose."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from disco.dispatch.request_features import estimate_tokens
from disco.playback.sentences import sentence_ends
from disco.refine.structure import structured_spans

__all__ = ["UNIT_TOKENS", "Unit", "split_units"]

UNIT_TOKENS: Final = 64
"""Most tokens of a unit of prose, by estimate. A longer sentence is cut, at a clause if there is one."""

_CLAUSE = re.compile(r"[;:,，、；：—–]\s*")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a text. The units of a text, joined, are the text.

    Attributes:
        text: with the white space behind it.
        fixed: it is no prose (code, JSON, a table, examples) and is never left out.
        tokens: its length by estimate.
    """

    text: str = field(repr=False)
    fixed: bool
    tokens: float


def split_units(text: str) -> list[Unit]:
    """Cut a text into units; joined they are the text, byte for byte. An empty text has none."""
    units: list[Unit] = []
    at = 0
    for start, end in structured_spans(text):
        units += _prose(text[at:start])
        units.append(_unit(text[start:end], fixed=True))
        at = end
    units += _prose(text[at:])
    return units


def _unit(text: str, *, fixed: bool) -> Unit:
    return Unit(text, fixed, estimate_tokens(text))


def _prose(text: str) -> list[Unit]:
    units: list[Unit] = []
    start = 0
    for end in sentence_ends(text):
        unit = _unit(text[start:end], fixed=False)
        units += _cut(unit) if unit.tokens > UNIT_TOKENS else (unit,)
        start = end
    return units


def _cut(unit: Unit) -> list[Unit]:
    """Cut a long sentence in the middle, at a clause, else at a space, else between characters, until it fits."""
    if unit.tokens <= UNIT_TOKENS or len(unit.text) < 2:
        return [unit]
    text = unit.text
    for separator in (_CLAUSE, _SPACE):
        # A cut near an end would leave the long part as long as it was.
        places = [
            found.end() for found in separator.finditer(text, len(text) // 5, len(text) - len(text) // 5)
        ]
        places = [place for place in places if 0 < place < len(text)]
        if places:
            at = min(places, key=lambda place: abs(2 * place - len(text)))
            break
    else:
        at = len(text) // 2
        while at > 1 and unicodedata.combining(text[at]):
            at -= 1
    left, right = _unit(text[:at], fixed=False), _unit(text[at:], fixed=False)
    return [*_cut(left), *_cut(right)]
