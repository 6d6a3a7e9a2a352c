"""Helpers for tests of local servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from disco import LocalServer
from disco.endpoints.local_server import LocalServerEndpoint


@contextlib.asynccontextmanager
async def endpoint_at(address: str, **more: Any) -> AsyncIterator[LocalServerEndpoint]:
    """The endpoint of `local=address`."""
    made = LocalServer.at(address)
    endpoint = LocalServer(base_url=made.base_url, model=made.model, **more).endpoint()
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


async def collected(attempt: Any) -> tuple[list[Any], str]:
    """Everything an attempt yields, and its text."""
    async with attempt:
        events: list[Any] = [event async for event in attempt]
    return events, "".join(d.text for event in events if isinstance(event, list) for d in event)
