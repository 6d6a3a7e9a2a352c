"""The sequences of a model: what their caches hold, and which answer has which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Holder", "Slot", "Slots", "shared_length"]


class Holder(Protocol):
    """An answer that has a slot."""

    slot: Slot | None
    idle_since: float | None


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

    Args:
        count: how many there are.
        hold_s: how long an answer that asks for nothing keeps its slot while others wait, s.
    """

    def __init__(self, count: int, hold_s: float) -> None:
        self.all = [Slot(number) for number in range(count)]
        self._hold_s = hold_s

    def take(self, holder: Holder, ids: Sequence[int], now: float) -> Slot | None:
        """Give an answer a slot: the free one whose cache has most of `ids`, else that of the answer idle longest.

        Returns:
            The slot; None where all are held.
        """
        free = [slot for slot in self.all if slot.holder is None]
        if free:
            slot = max(free, key=lambda one: (shared_length(one.ids, ids), -one.left_at, -one.number))
        else:
            idle = [slot for slot in self.all if self._since(slot) + self._hold_s <= now]
            if not idle:
                return None
            slot = min(idle, key=self._since)
            self.release(slot, now)
        slot.holder, holder.slot = holder, slot
        return slot

    def release(self, slot: Slot, now: float) -> None:
        """Take a slot from its answer; its cache stays."""
        if slot.holder is not None:
            slot.holder.slot = None
        slot.holder, slot.left_at = None, now

    @property
    def next_idle(self) -> float:
        """When the next slot can be taken from an idle answer; infinite where none can."""
        return min(map(self._since, self.all), default=float("inf")) + self._hold_s

    @property
    def held(self) -> int:
        """How many slots are held."""
        return sum(slot.holder is not None for slot in self.all)

    @staticmethod
    def _since(slot: Slot) -> float:
        since = None if slot.holder is None else slot.holder.idle_since
        return float("inf") if since is None else since

    def room(self, context_tokens: int) -> Callable[[int], int]:
        """Return how many tokens more a sequence can hold, by its number."""
        return lambda number: context_tokens - len(self.all[number].ids)
