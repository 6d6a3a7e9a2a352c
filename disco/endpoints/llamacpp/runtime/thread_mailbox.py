"""Hands items from one worker thread to a task in an event loop, with one wake-up per burst."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
from anyio.lowlevel import current_token

__all__ = ["Mailbox"]


def _scheduler() -> Callable[[Callable[[], None]], Any]:
    """Return the function by which a thread runs a callback soon in the current event loop, without waiting for it."""
    native: Any = current_token().native_token
    schedule = getattr(native, "call_soon_threadsafe", None)  # asyncio's loop; else trio's token
    return native.run_sync_soon if schedule is None else schedule  # type: ignore[no-any-return]


class Mailbox:
    """A queue from a thread to a task, made in the task's event loop.

    The queue needs no limit of its own: an answer is never longer than the model's context. Mutable: `_items`,
    `_waking`, `_event`, `closed`, `abandoned`. The order of the steps in `put` and `_wake` makes it safe without a
    lock: an item is in the queue before the flag is read, and the flag is cleared before the queue is emptied.
    """

    def __init__(self) -> None:
        self._schedule = _scheduler()
        self._items: deque[Any] = deque()
        self._waking = False
        self._event = anyio.Event()
        self.closed = False
        self.abandoned = False  # the event loop is gone

    def put(self, item: Any) -> None:
        """Add an item; from any thread, never blocks, never raises."""
        self._items.append(item)
        self._notify()

    def close(self) -> None:
        """Mark that no further item will come; from any thread."""
        self.closed = True
        self._notify()

    def _notify(self) -> None:
        if self._waking:
            return
        self._waking = True
        try:
            self._schedule(self._wake)
        except RuntimeError:  # asyncio: loop closed; trio: RunFinishedError
            self.abandoned = True

    def _wake(self) -> None:
        self._waking = False
        self._event.set()

    async def take(self) -> list[Any]:
        """Return all items that have arrived; waits for the first. Empty once closed and emptied."""
        while True:
            # Read before the queue, so that items put before the close are not missed.
            closed = self.closed
            if self._items:
                items = []
                while self._items:
                    items.append(self._items.popleft())
                return items
            if closed:
                return []
            await self._next_wake()

    async def wait_closed(self) -> None:
        """Wait until `close` was called."""
        while not self.closed:
            await self._next_wake()

    async def _next_wake(self) -> None:
        if self._event.is_set():
            self._event = anyio.Event()
            if self._items or self.closed:
                return
        await self._event.wait()
