"""An event loop in a thread of its own, for callers that have none: scripts, threads, notebooks.

The loop is reached through anyio's `BlockingPortal`. It is not started with `anyio.from_thread.start_blocking_portal`
(nor with `BlockingPortalProvider`, which calls it): that is a context manager, which waits for its thread whenever it
is left. A client that was never closed is left by the garbage collector or by the interpreter's exit. There a wait
can be one for a lock that the waiting thread itself holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["Portal"]

T = TypeVar("T")


class Portal:
    """Starts with the first call, ends with `close`, the owner's end, or the process's. Safe from any thread.

    Mutable: `_loop`, under `_lock`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await `function(*args)` in the loop; an interrupted wait (Ctrl-C) cancels it there too."""
        future = self._open().start_task_soon(function, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the loop runs."""
        return self._loop is not None

    def close(self) -> None:
        """End the loop and everything in it; the next `run` starts a new one. Idempotent."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
            if loop.thread is not threading.current_thread():
                loop.thread.join()

    def _open(self) -> BlockingPortal:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
                weakref.finalize(self, self._loop.stop)
            return self._loop.portal


class _Loop:
    """A running event loop, its thread, and the way into it."""

    def __init__(self) -> None:
        opened: Future[tuple[BlockingPortal, Callable[[], object]]] = Future()
        # A daemon: a program that forgets to close its client must still be able to end.
        self.thread = threading.Thread(target=anyio.run, args=(_main, opened), name="disco-loop", daemon=True)
        self.thread.start()
        self.portal, self._stop_soon = opened.result()

    def stop(self) -> None:
        """Cancel everything in the loop and have it end; does not wait. From any thread, the loop's own too."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._stop_soon()


async def _main(opened: Future[tuple[BlockingPortal, Callable[[], object]]]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with BlockingPortal() as portal:
        opened.set_result((portal, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        await portal.stop(cancel_remaining=True)
