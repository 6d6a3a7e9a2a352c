"""Virtual time: a heap of planned events."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["EventHeap"]


class EventHeap:
    """Events in order of time. Mutable.

    Attributes:
        now: the time of the last event, s.
        planned: how many events have been planned.
    """

    __slots__ = ("_heap", "now", "planned")

    def __init__(self) -> None:
        self.now = 0.0
        self.planned = 0
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []

    def schedule(self, at_s: float, action: Callable[[float, Any], None], subject: Any) -> None:
        """Plan `action(at_s, subject)`. Of events at one time, the first planned comes first."""
        self.planned += 1
        heappush(self._heap, (at_s, self.planned, action, subject))

    def run(self, until_s: float = float("inf"), after: Callable[[], None] | None = None) -> None:
        """Run until nothing is left to happen, or until a time; `after` is called behind each event."""
        heap = self._heap
        while heap:
            at_s, _, action, subject = heappop(heap)
            if at_s > until_s:
                self.now = until_s
                return
            self.now = at_s
            action(at_s, subject)
            if after is not None:
                after()
