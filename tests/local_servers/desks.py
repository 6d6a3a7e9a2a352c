"""Helpers for tests of local servers."""

from __future__ import annotations

from typing import Any

import pytest

from disco.events import Ended

__all__ = ["KINDS", "at_every_desk", "collected"]

KINDS = ("ollama", "lmstudio", "llama-cpp-python", "llama-server")


def at_every_desk(usual: Any, other: Any, *, at: str) -> list[Any]:
    """(desk, variant), for `parametrize`: the usual variant with every server, the other one with `at`.

    Its lines are the same with all of them; the slow run takes the rest.
    """
    return [
        pytest.param(
            kind, one, id=f"{kind}-{one}", marks=pytest.mark.slow if one is other and kind != at else ()
        )
        for kind in KINDS
        for one in (usual, other)
    ]


async def collected(attempt: Any) -> tuple[list[Any], str, Ended | None]:
    """Everything an attempt yields, its text, and how it ended (None where it was closed)."""
    async with attempt:
        events: list[Any] = [event async for event in attempt]
    text = "".join(d.text for event in events if isinstance(event, list) for d in event)
    ended = events[-1] if events and isinstance(events[-1], Ended) else None
    return events, text, ended
