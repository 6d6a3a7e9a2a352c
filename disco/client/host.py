"""The parent of all background work of one client.

A stream handed to an application must go on reading, pacing and migrating while the application is busy
elsewhere, so its tasks cannot live inside the application's `await`s, and `AsyncOpenAI` (which we are) may
be used without `async with`. So each client owns one task that owns one task group; every session runs
in there, and closing the client ends them all. This is the only place that starts a task outside a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

__all__ = ["Host"]


class Host:
    """Lazily started owner of a task group, one per event loop. Mutable: all fields."""

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup | None = None
        self._token: object = None
        self._stop: anyio.Event | None = None
        self._stopped: anyio.Event | None = None
        self._task: Any = None

    async def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run `function(*args)` in the background; it must not raise."""
        if self._group is None or self._token != anyio.lowlevel.current_token():
            await self._open()
        assert self._group is not None
        self._group.start_soon(function, *args)

    async def aclose(self) -> None:
        """Cancel everything that runs and wait until it has ended. Idempotent."""
        if self._stop is None or self._stopped is None:
            return
        if self._token == anyio.lowlevel.current_token():
            self._stop.set()
            await self._stopped.wait()
        self._group = self._stop = self._stopped = self._task = None

    async def _open(self) -> None:
        # A client may outlive its event loop (several asyncio.run in a row); the old loop's tasks have
        # ended with it, so a new loop simply gets a new group.
        self._token = anyio.lowlevel.current_token()
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        ready = anyio.Event()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio, so trio
            import trio  # noqa: PLC0415 - only where it is what runs

            trio.lowlevel.spawn_system_task(self._main, ready, self._stop, self._stopped)
        else:
            main = self._main(ready, self._stop, self._stopped)
            self._task = loop.create_task(main, name="disco-host")
        await ready.wait()

    async def _main(self, ready: anyio.Event, stop: anyio.Event, stopped: anyio.Event) -> None:
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                ready.set()
                await stop.wait()
                group.cancel_scope.cancel()
        finally:
            stopped.set()
