"""The words of a time line: durations, and what its kinds of spans are called."""

from __future__ import annotations

import math
from typing import Final

from disco.record.model import SpanKind

__all__ = ["SPAN_WORDS", "mark_label", "printable", "seconds", "tick_step"]

SPAN_WORDS: Final = {
    SpanKind.DELAYED: "planned for later",
    SpanKind.QUEUED: "waits for its turn, or loads its model",
    SpanKind.READING: "no token yet: connects, reads the prompt",
    SpanKind.HOLDING: "has read the prompt and keeps it",
    SpanKind.WRITING: "writes the answer",
    SpanKind.HIDDEN: "writes what is not in the answer",
    SpanKind.PAUSED: "paused at the cut",
    SpanKind.SILENT: "silent until it failed",
}


def seconds(value: float) -> str:
    """Return a time, s, to what matters of it."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def printable(text: str) -> str:
    """Return a text without control characters: a record may come from anywhere, and names in it are anybody's."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )


def mark_label(place: int) -> str:
    """Return the label of a mark by its place from 0: 1 to 9, then letters; one character."""
    return "123456789abcdefghijklmnopqrstuvwxyz"[place] if place < 35 else "+"


_SHORTEST_S: Final = 1e-9


def tick_step(total_s: float, most: int) -> float:
    """Return the distance of ticks of an axis, s: 1, 2 or 5 times a power of ten, so that there are at most `most`."""
    step = 10.0 ** math.floor(math.log10(total_s / most)) if total_s > _SHORTEST_S else 1.0
    return next((step * times for times in (1, 2, 5, 10) if total_s / (step * times) <= most), step * 10)
