"""Asking a client of either kind: around a synchronous one these call and iterate where they would await."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

SEA = [{"role": "user", "content": "Tell me about the sea."}]


async def got(result: Any) -> Any:
    """What a call gives, awaited where it has to be."""
    return await result if inspect.isawaitable(result) else result


async def items(source: Any) -> list[Any]:
    """All that is left in an iterator of either kind."""
    return [item async for item in source] if hasattr(source, "__aiter__") else list(source)


@contextlib.asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value
