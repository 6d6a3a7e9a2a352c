"""The parent of all background work of one client, and of an endpoint whose attempts consist of several tasks.

A stream returned to an application must go on reading, pacing and migrating while the application does
other work, so its tasks cannot live inside the application's `await`s. `AsyncOpenAI`, the base class, may also
be used without `async with`. So each client owns one task that owns one task group. Every session runs in that
group, and closing the client ends them all. No other place starts a task outside a group.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

__all__ = ["BackgroundTasks", "keep_interrupts_out"]


class BackgroundTasks:
    """Owner of a task group, one per event loop, started at first use. Mutable: `_main`."""

    def __init__(self) -> None:
        self._main: _Main | None = None

    async def begin(self) -> None:
        """Make ready to run tasks in this event loop. Then `start` does not wait, so nothing can cancel it."""
        main = self._main
        # A client may outlive its event loop (several asyncio.run in a row). The old loop's tasks ended with
        # that loop, so a new loop gets a new group.
        if main is None or main.over or main.token != anyio.lowlevel.current_token():
            main = self._main = _Main()
            main.begin()
        if not main.ready.is_set():  # waiting on a set event would cost a turn of the loop
            await main.ready.wait()  # concurrent callers wait for the same group

    async def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run `function(*args)` in the background. The function must not raise."""
        await self.begin()
        self.start_soon(function, *args)

    @property
    def is_open(self) -> bool:
        """Whether `start_soon` may be called: background tasks run in this event loop, and are not being ended."""
        main = self._main
        return main is not None and not main.over and main.token == anyio.lowlevel.current_token()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run `function(*args)` in the background, started by another background task. See `start`, `is_open`."""
        assert self._main is not None
        keep_interrupts_out(function)
        self._main.group.start_soon(function, *args)

    async def aclose(self) -> None:
        """Cancel every background task and wait until all have ended. Idempotent."""
        main = self._main
        if main is None:
            return
        if main.token == anyio.lowlevel.current_token():
            main.stop.set()
            await main.stopped.wait()
        if self._main is main:
            self._main = None


class _Main:
    """The task in one event loop that owns the group. Mutable: `group`, `over`, `_task`."""

    def __init__(self) -> None:
        self.token = anyio.lowlevel.current_token()
        self.ready, self.stop, self.stopped = anyio.Event(), anyio.Event(), anyio.Event()
        self.over = False  # the group accepts no more tasks
        self.group: anyio.abc.TaskGroup
        self._task: Any = None

    def begin(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio, so trio
            import trio  # noqa: PLC0415 - only needed when trio runs

            trio.lowlevel.spawn_system_task(self._run)
        else:
            self._task = loop.create_task(self._run(), name="disco-host")

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self.group:
                self.ready.set()
                await self.stop.wait()
                self.over = True
                self.group.cancel_scope.cancel()
        finally:
            self.over = True
            self.ready.set()
            self.stopped.set()


def keep_interrupts_out(function: Callable[..., object]) -> None:
    """Make Ctrl-C reach the application's own task, not the task that runs `function`.

    Trio raises KeyboardInterrupt in the task that runs when the signal comes. Here that would end a
    system task, and trio would report an internal error.
    """
    trio = sys.modules.get("trio")
    # Under asyncio, trio is also imported if it is installed: the HTTP client does that.
    if trio is not None and trio.lowlevel.in_trio_run():
        trio.lowlevel.enable_ki_protection(function)
