"""The gate: a position in the answer that nothing passes. What is behind the gate waits here, without a pace."""

from __future__ import annotations

from disco.events import Delta, DeltaKind
from disco.playback.queued_items import part_of, take_back, weight_of

__all__ = ["Gate"]

_TEXT = DeltaKind.TEXT


class Gate:
    """A gate with the deltas that wait behind it. Mutable: `behind` and `chars`.

    Attributes:
        position: the first character that may not leave; deltas without text at this position may not, either.
        behind: the deltas that wait, in order.
        chars: how many characters of text wait.
    """

    __slots__ = ("behind", "chars", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.behind: list[Delta] = []
        self.chars = 0

    def before(self, delta: Delta, at: int) -> tuple[Delta | None, int]:
        """Return the part of a delta that may leave (None: no part), and how many of its characters are kept here.

        `at`: the position in the answer at which the delta begins.
        """
        chars = len(delta.text) if delta.kind is _TEXT else 0
        room = self.position - at
        if room > 0 and chars <= room:
            return delta, 0
        head = None
        if room > 0:
            head, delta = part_of(delta, 0, room, ids=True), part_of(delta, room, chars, ids=True)
            chars -= room
        self.behind.append(delta)
        self.chars += chars
        return head, chars

    def take_back(self, end: int, position: int) -> tuple[list[Delta], int]:
        """Take back what waits after `position`; see `queued_items.take_back`."""
        taken, left = take_back(self.behind, end, position)
        self.chars -= end - left
        return taken, left

    @property
    def tokens(self) -> float:
        """The text that waits, in tokens as the pace counts them."""
        return sum(weight_of(d, len(d.text)) for d in self.behind if d.kind is _TEXT)
