"""An event loop in a thread of its own, for callers that have none: scripts, threads, notebooks.

The loop is reached through anyio's `BlockingPortal`. It is not started with `anyio.from_thread.start_blocking_portal`
(nor with `BlockingPortalProvider`, which calls it): that is a context manager, and its exit always waits for the
thread. If a client was never closed, the garbage collector or the interpreter's shutdown would run that exit. The
wait could then deadlock on a lock that the waiting thread itself holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
    """Starts with the first call. Ends with `close`, with its owner or with the process. Safe from any thread.

    A child process that was forked gets a loop of its own. Mutable: `_loop`, under `_lock`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        _PORTALS.add(self)

    def forget(self) -> None:
        """Begin anew in a forked child, which has no thread but the one that forked."""
        self._lock, self._loop = threading.Lock(), None

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await `function(*args)` in the loop. Interrupting the wait (Ctrl-C) cancels the call in the loop too."""
        portal, left = self._open(), Future[None]()
        future: Future[T] | None = None
        try:
            # An interrupt may come before this returns, when the call already runs: only `left` reaches it then.
            future = portal.start_task_soon(_until, left, function, args)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                left.set_result(None)
            raise

    @property
    def is_open(self) -> bool:
        """Whether the loop runs."""
        return self._loop is not None

    def close(self) -> None:
        """End the loop and all its tasks; the next `run` starts a new loop. Idempotent."""
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


_PORTALS: weakref.WeakSet[Portal] = weakref.WeakSet()


def _after_fork() -> None:
    for portal in list(_PORTALS):
        portal.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _until(left: Future[None], function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    """Await `function(*args)`, and cancel it when `left` is done, which says that the caller no longer waits."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        left.add_done_callback(lambda _: loop.call_soon_threadsafe(scope.cancel))
        return await function(*args)
    raise RuntimeError("a call that was left has no result")


class _Loop:
    """A running event loop, its thread, and its portal."""

    def __init__(self) -> None:
        opened: Future[tuple[BlockingPortal, Callable[[], object]]] = Future()
        # A daemon thread: a program must be able to exit without closing its client.
        self.thread = threading.Thread(target=anyio.run, args=(_main, opened), name="disco-loop", daemon=True)
        self.thread.start()
        self.portal, self._stop_soon = opened.result()

    def stop(self) -> None:
        """Cancel all tasks in the loop and end it. Does not wait. Callable from any thread, also the loop's own."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._stop_soon()


async def _main(opened: Future[tuple[BlockingPortal, Callable[[], object]]]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with BlockingPortal() as portal:
        opened.set_result((portal, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        await portal.stop(cancel_remaining=True)
