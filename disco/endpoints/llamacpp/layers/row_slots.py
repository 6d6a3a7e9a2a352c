"""The slots of the cloud's layers: which device's sequence has which, and whose is taken when others need one.

A slot whose cache holds NaN is not used again before all caches are overwritten: what a mask hides is multiplied by
zero, and zero times NaN is NaN, so the next device in that slot would get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from disco.endpoints.llamacpp.layers.chunk import Sequence

__all__ = ["Caches", "RowSlots"]


class Caches(Protocol):
    """What is needed of the model; see `StateModel`."""

    slots: int
    context_tokens: int

    def cut(self, slot: int, length: int, /) -> None:
        """Keep the first positions of a slot."""

    def forget(self) -> None:
        """Overwrite all caches."""


class RowSlots:
    """All slots. Mutable.

    Args:
        model: has the caches.
        idle_s: for how long a sequence for which nothing is asked keeps its slot while others wait, s.

    Attributes:
        all: the sequence of each slot; None: it is free, or spoiled.
    """

    def __init__(self, model: Caches, idle_s: float) -> None:
        self._model = model
        self._idle_s = idle_s
        self.all: list[Sequence | None] = [None] * model.slots
        self._spoiled: set[int] = set()  # their caches hold NaN

    @property
    def busy(self) -> int:
        """How many sequences have a slot."""
        return sum(one is not None for one in self.all)

    def seat(self, sequence: Sequence) -> bool:
        """Give a sequence a free slot; return whether there was one. Neighbours can be computed together."""
        for number, holder in enumerate(self.all):
            if holder is None and number not in self._spoiled:
                self._model.cut(number, 0)
                sequence.slot, self.all[number] = number, sequence
                return True
        return False

    def shorten(self, sequence: Sequence, length: int) -> None:
        """Keep at most the first positions of a sequence."""
        if sequence.slot is not None and length < sequence.have:
            self._model.cut(sequence.slot, length)
            sequence.have = length

    def free(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """Take a sequence's slot from it, if it has one; `spoiled`: what is in its cache harms others."""
        if sequence.slot is not None:
            self.all[sequence.slot] = None
            if spoiled:
                self._spoiled.add(sequence.slot)
        sequence.slot, sequence.have = None, 0

    def oldest(self, now: float) -> Sequence | None:
        """Return the sequence to forget for the sake of others: without a connection, or else idle longest."""
        idle = [one for one in self.all if one is not None and self.idle_at(one) <= now]
        return min(idle, key=lambda one: (one.session.reply is not None, one.heard_s), default=None)

    def idle_at(self, sequence: Sequence) -> float:
        """Return from when on a sequence may be forgotten for the sake of others."""
        if sequence.chunks:
            return float("inf")
        return sequence.heard_s if sequence.session.reply is None else sequence.heard_s + self._idle_s

    @property
    def next_idle(self) -> float:
        """When the next sequence may be forgotten for the sake of others; infinite where none may be."""
        return min((self.idle_at(one) for one in self.all if one is not None), default=float("inf"))

    def clean(self) -> bool:
        """Overwrite all caches if some are spoiled, and return whether. Nobody has anything then."""
        if not self._spoiled:
            return False
        for one in self.all:
            if one is not None:
                self.free(one)
        self._model.forget()
        self._spoiled.clear()
        return True

    def room(self) -> Callable[[int], int]:
        """Return how many rows more a slot can hold, by its number; 0 for a spoiled one."""

        def of(number: int) -> int:
            if number in self._spoiled:
                return 0
            one = self.all[number]
            if one is None:
                return self._model.context_tokens
            at = one.chunks[0].next_at if one.chunks else one.have
            return self._model.context_tokens - min(at, one.have)

        return of
