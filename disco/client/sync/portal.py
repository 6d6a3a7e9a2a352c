"""An event loop in a thread of its own, for callers that have none: scripts, threads, notebooks."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["Portal"]

T = TypeVar("T")


class Portal:
    """Starts with the first call, ends with `close`, the owner's end, or the process's. Safe from any thread.

    Mutable: all fields, under `_lock`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None

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
        return self._portal is not None

    def close(self) -> None:
        """End the loop and everything in it; the next `run` starts a new one. Idempotent."""
        with self._lock:
            portal, thread = self._portal, self._thread
            self._portal = self._thread = None
        if portal is not None and thread is not None:
            _stop(portal)
            if thread is not threading.current_thread():
                thread.join()

    def _open(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                opened: list[BlockingPortal] = []
                ready = threading.Event()
                # A daemon: a program that forgets to close its client must still be able to end.
                self._thread = threading.Thread(
                    target=anyio.run, args=(_main, opened, ready), name="disco-loop", daemon=True
                )
                self._thread.start()
                ready.wait()
                self._portal = opened[0]
                weakref.finalize(self, _stop, self._portal)
            return self._portal


async def _main(opened: list[BlockingPortal], ready: threading.Event) -> None:
    async with BlockingPortal() as portal:
        opened.append(portal)
        ready.set()
        await portal.sleep_until_stopped()


def _stop(portal: BlockingPortal) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended already
        portal.start_task_soon(portal.stop, True)
