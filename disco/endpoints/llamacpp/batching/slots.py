"""The sequences of a model: what their caches hold, and which answer has which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

__all__ = ["Holder", "Slot", "Slots", "shared_length"]

_LOSS_COUNTS: Final = 0.5


class Holder(Protocol):
    """An answer that has a slot.

    Attributes:
        slot: which.
        idle_since: since when it asks for nothing; None while it does.
        hold_s: how long it keeps the slot then although others wait, s.
    """

    slot: Slot | None
    idle_since: float | None
    hold_s: float


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence. Mutable.

    Attributes:
        number: of the sequence.
        ids: the tokens in its cache, in order.
        holder: the answer that has it; None: free, and the cache is what the last one left.
        left_at: when the last one left it.
    """

    number: int
    ids: list[int] = field(default_factory=list, repr=False)
    holder: Holder | None = None
    left_at: float = float("-inf")


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two lists have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing slices is much faster than comparing tokens
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Slots:
    """All sequences of a model. Mutable.

    An answer that asks for nothing keeps its slot until others wait for one, and then for its `hold_s`.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self.all = [Slot(number) for number in range(count)]

    def take(self, holder: Holder, ids: Sequence[int], now: float) -> Slot | None:
        """Give an answer a slot: the best of the free ones, else the one that an idle answer need not have any more.

        Returns:
            The slot; None where all are held.
        """
        if any(slot.holder is None for slot in self.all):
            slot = self.best(ids)
        else:
            slot = min(self.all, key=_free_at)
            if _free_at(slot) > now:
                return None
            self.release(slot, now)
        slot.holder, holder.slot = holder, slot
        return slot

    def best(self, ids: Sequence[int]) -> Slot:
        """Return the free slot that is best for an answer: that left longest, unless it goes on from another's cache.

        It does so where it has more to gain by what both begin with than is lost of the rest, which counts half: nobody
        may ever ask for it. So a short question leaves the cache of a long conversation alone.
        """
        free = [slot for slot in self.all if slot.holder is None] or self.all

        def gain(slot: Slot) -> float:
            shared = shared_length(slot.ids, ids)
            return shared - _LOSS_COUNTS * (len(slot.ids) - shared)

        best = max(free, key=lambda slot: (gain(slot), -slot.number))
        return best if gain(best) > 0 else min(free, key=lambda slot: (slot.left_at, slot.number))

    def release(self, slot: Slot, now: float) -> None:
        """Take a slot from its answer; its cache stays."""
        if slot.holder is not None:
            slot.holder.slot = None
        slot.holder, slot.left_at = None, now

    @property
    def next_idle(self) -> float:
        """When the next slot can be taken from an idle answer; infinite where none can."""
        return min(map(_free_at, self.all), default=inf)

    @property
    def held(self) -> int:
        """How many slots are held."""
        return sum(slot.holder is not None for slot in self.all)

    def free(self, now: float) -> int:
        """Return how many slots a new answer could have at once."""
        return sum(slot.holder is None or _free_at(slot) <= now for slot in self.all)

    def room(self, context_tokens: int) -> Callable[[int], int]:
        """Return how many tokens more a sequence can hold, by its number."""
        return lambda number: context_tokens - len(self.all[number].ids)


def _free_at(slot: Slot) -> float:
    """Return when a slot can be taken from its answer."""
    holder = slot.holder
    since = None if holder is None else holder.idle_since
    return inf if holder is None or since is None else since + holder.hold_s
