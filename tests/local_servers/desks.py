"""Helpers for tests of local servers."""

from __future__ import annotations

from typing import Any

from disco.events import Ended

__all__ = ["collected"]


async def collected(attempt: Any) -> tuple[list[Any], str, Ended | None]:
    """Everything an attempt yields, its text, and how it ended (None where it was closed)."""
    async with attempt:
        events: list[Any] = [event async for event in attempt]
    text = "".join(d.text for event in events if isinstance(event, list) for d in event)
    ended = events[-1] if events and isinstance(events[-1], Ended) else None
    return events, text, ended
