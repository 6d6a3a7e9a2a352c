"""Work that goes on beside a block of code, until the block is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

__all__ = ["alongside", "repeatedly"]


@asynccontextmanager
async def repeatedly(act: Callable[[], None], every_s: float) -> AsyncIterator[None]:
    """Act now, and again and again until the block is left."""

    async def go_on() -> None:
        while True:
            act()
            await anyio.sleep(every_s)

    async with alongside(go_on):
        yield


@asynccontextmanager
async def alongside(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do the work in a task of its own until the block is left."""
    error: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
