"""Drawn streams of deltas, and what is read off one."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from disco.events import Delta, DeltaKind
from disco.playback import Pace

READING = 4.8
LEAD_S = 0.01  # text leaves so long before the reader's deadline: a timer rings late
FAMILY = "👨‍👩‍👧"
PIECES = st.sampled_from(
    [
        "a", " ", " word", "word ", "\r", "\n", "你", "好。", "👨", "\u200d", "👩", "🇩", "🇪", "e", "\u0301",
        "x" * 70, "two words", " a longer piece of text, with\nlines", "", "สวัสดี", "{", '"key":',
        "SGVsbG8gd29ybGQ=",
    ]
)  # fmt: skip
TEXT = st.builds(
    Delta,
    st.lists(PIECES, max_size=4).map("".join),
    tokens=st.integers(0, 9),
    ids=st.none() | st.just((1, 2)),
)
OTHERS = st.sampled_from([DeltaKind.TOOL, DeltaKind.ROLE, DeltaKind.REASONING]).map(
    lambda kind: Delta("", kind=kind)
)
DELTAS = TEXT | OTHERS
PACES = st.none() | st.builds(
    Pace, tps=st.sampled_from([1.0, READING, 25.0, 75.0]), max_hold_s=st.sampled_from([0.05, 0.3])
)


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(d.text for d in deltas)


def places(deltas: Iterable[Delta]) -> list[tuple[int, DeltaKind]]:
    """Where what is not text stands."""
    at, found = 0, []
    for delta in deltas:
        at += len(delta.text)
        if delta.kind is not DeltaKind.TEXT:
            found.append((at, delta.kind))
    return found
