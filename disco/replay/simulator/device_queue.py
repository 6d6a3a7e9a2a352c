"""A device that many sessions share: so many answers at once, the others wait; a model that is unloaded when idle."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Protocol

__all__ = ["DeviceWorker", "SharedDevice"]


class DeviceWorker(Protocol):
    """An attempt, as the device sees it; what is kept of one is there for the next of the same player."""

    @property
    def player(self) -> object:
        """Whose it is."""
        ...

    def begin(self, at: float) -> None:
        """It is its turn: it begins to work at `at`."""
        ...

    def forget(self) -> None:
        """Another one's work takes the place of what was kept of it."""
        ...


class SharedDevice:
    """First come, first served, in virtual time.

    Args:
        slots: how many attempts are worked on at once; None: any number.
        load_s: time to load the model.
        idle_unload_s: the model is unloaded after that long without work, and is not loaded in the beginning; None:
            it is always loaded.
    """

    # Mutable: everything that begins with an underscore.
    __slots__ = (
        "_idle_since_at",
        "_kept",
        "_ready_at",
        "_waiting",
        "_working",
        "idle_unload_s",
        "load_s",
        "slots",
    )

    def __init__(self, *, slots: int | None, load_s: float = 0.0, idle_unload_s: float | None = None) -> None:
        self.slots = slots
        self.load_s = load_s
        self.idle_unload_s = idle_unload_s
        self._working: set[DeviceWorker] = set()
        self._waiting: deque[DeviceWorker] = deque()
        self._kept: deque[DeviceWorker] = (
            deque()
        )  # whose prefill the slots that do not work still hold, oldest first
        self._idle_since_at = -inf
        self._ready_at = -inf

    def is_cold(self, now: float) -> bool:
        """Whether the model would have to be loaded now."""
        return (
            self.idle_unload_s is not None
            and not self._working
            and now - self._idle_since_at > self.idle_unload_s
        )

    def enter(self, worker: DeviceWorker, now: float) -> None:
        """Let it begin now, or when its turn comes."""
        if self.slots is not None and len(self._working) >= self.slots:
            self._waiting.append(worker)
        else:
            self._begin(worker, now)

    def leave(self, worker: DeviceWorker, now: float, *, keeps: bool) -> None:
        """It has stopped, or does not want to wait any longer.

        Args:
            worker: who entered.
            now: the time.
            keeps: what it has prefilled stays until the slot is needed.
        """
        if worker not in self._working:
            self._waiting.remove(worker)
            return
        self._working.remove(worker)
        if keeps:
            self._kept.append(worker)
        if self._waiting:
            self._begin(self._waiting.popleft(), now)
        elif not self._working:
            self._idle_since_at = now

    def _begin(self, worker: DeviceWorker, now: float) -> None:
        if self.is_cold(now):
            self._ready_at = now + self.load_s
            self._forget(len(self._kept))
        self._working.add(worker)
        worker.begin(max(now, self._ready_at))
        if self.slots is not None and self._kept:
            # Whoever goes on from what was kept for it works in that very slot.
            self._kept = deque(kept for kept in self._kept if kept.player is not worker.player)
            self._forget(len(self._kept) + len(self._working) - self.slots)

    def _forget(self, workers: int) -> None:
        for _ in range(min(max(workers, 0), len(self._kept))):
            self._kept.popleft().forget()
