"""A device that many sessions share: it works on a limited number of answers, and unloads its model when idle."""

from __future__ import annotations

import math
from collections import deque
from math import inf
from typing import Protocol

__all__ = ["DeviceWorker", "SharedDevice"]

_NEW_WEIGHT = 0.3  # of the newest answer in `turn_s`, as in a live client's statistics


class DeviceWorker(Protocol):
    """An attempt on the device. A prefill that the device keeps may serve the next attempt of the same player."""

    @property
    def player(self) -> object:
        """The player that the attempt belongs to."""
        ...

    def begin(self, at: float) -> None:
        """Begin to work at time `at`: a slot is free."""
        ...

    def forget(self) -> None:
        """Drop the kept prefill of the attempt: another attempt needs the slot."""
        ...


class SharedDevice:
    """A queue in virtual time: first come, first served.

    Args:
        slots: how many attempts the device works on at once; None: any number.
        load_s: time to load the model.
        idle_unload_s: the model is unloaded after this time without work, s, and is not loaded at the beginning; None:
            the model is always loaded.
        overlap_s: an attempt has its slot only until its first token, and begins so long before it gets it, but not
            before it came, s: see `Station.overlap_s`. A client does not see such a queue. None: until its end.
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
        "overlap_s",
        "slots",
        "turn_s",
    )

    def __init__(
        self,
        *,
        slots: int | None,
        load_s: float = 0.0,
        idle_unload_s: float | None = None,
        overlap_s: float | None = None,
    ) -> None:
        self.slots = slots
        self.overlap_s = overlap_s
        self.load_s = load_s
        self.idle_unload_s = idle_unload_s
        self.turn_s = 0.0  # how long an answer occupies a slot, as a live client learns it; 0: not known yet
        self._working: dict[DeviceWorker, float] = {}  # since when
        self._waiting: deque[DeviceWorker] = deque()
        # Attempts whose prefill is still held by idle slots, oldest first.
        self._kept: deque[DeviceWorker] = deque()
        self._idle_since_at = -inf
        self._ready_at = -inf

    def is_cold(self, now: float) -> bool:
        """Return whether the model would have to be loaded now."""
        return (
            self.idle_unload_s is not None
            and not self._working
            and now - self._idle_since_at > self.idle_unload_s
        )

    @property
    def queue_s(self) -> float:
        """How long a client expects an attempt that comes now to wait for its turn, s."""
        if self.slots is None or self.overlap_s is not None or len(self._working) < self.slots:
            return 0.0
        return math.ceil((len(self._waiting) + 1) / self.slots) * self.turn_s

    def enter(self, worker: DeviceWorker, now: float) -> None:
        """Let the attempt begin now, or when its turn comes."""
        if self.slots is not None and len(self._working) >= self.slots:
            self._waiting.append(worker)
        else:
            self._begin(worker, now)

    def leave(self, worker: DeviceWorker, now: float, *, keeps: bool) -> None:
        """Take out an attempt that has stopped, or that no longer waits.

        Args:
            worker: an attempt that entered before.
            now: the time.
            keeps: the attempt's prefill stays until the slot is needed.
        """
        if worker not in self._working:
            self._waiting.remove(worker)
            return
        busy_s = max(0.0, now - self._working.pop(worker))
        self.turn_s += (_NEW_WEIGHT if self.turn_s else 1.0) * (busy_s - self.turn_s)
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
        at = max(now, self._ready_at)
        self._working[worker] = at
        worker.begin(at)
        if self.slots is not None and self._kept:
            # A player that goes on from its kept prefill works in the same slot.
            self._kept = deque(kept for kept in self._kept if kept.player is not worker.player)
            self._forget(len(self._kept) + len(self._working) - self.slots)

    def _forget(self, workers: int) -> None:
        for _ in range(min(max(workers, 0), len(self._kept))):
            self._kept.popleft().forget()
