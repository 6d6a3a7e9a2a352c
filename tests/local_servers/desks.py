"""Helpers for tests of local servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from disco import LocalServer
from disco.endpoints.local_server import LocalServerEndpoint
from disco.events import Ended

__all__ = ["KINDS", "Desk", "collected", "desks_by_turns", "endpoint_at"]

KINDS = ("ollama", "lmstudio", "llama-cpp-python", "llama-server")


@dataclass(frozen=True)
class Desk:
    """One of the servers.

    Attributes:
        kind: which.
        base_url, model: where it is, and what it calls its model.
        gguf: the file of its model.
    """

    kind: str
    base_url: str
    model: str
    gguf: str

    @property
    def address(self) -> str:
        """For `local=`."""
        return f"{self.base_url}#{self.model}"


def desks_by_turns(variants: Iterable[Any]) -> list[Any]:
    """(desk, variant), for `parametrize`: each server takes one of the variants; the slow run takes the rest."""
    variants = list(variants)
    return [
        pytest.param(
            kind,
            variant,
            id=f"{kind}-{number}",
            marks=pytest.mark.slow if (place - number) % len(variants) else (),
        )
        for place, kind in enumerate(KINDS)
        for number, variant in enumerate(variants)
    ]


@contextlib.asynccontextmanager
async def endpoint_at(address: str, **more: Any) -> AsyncIterator[LocalServerEndpoint]:
    """The endpoint of `local=address`."""
    made = LocalServer.at(address)
    endpoint = LocalServer(base_url=made.base_url, model=made.model, **more).endpoint()
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


async def collected(attempt: Any) -> tuple[list[Any], str, Ended | None]:
    """Everything an attempt yields, its text, and how it ended (None where it was closed)."""
    async with attempt:
        events: list[Any] = [event async for event in attempt]
    text = "".join(d.text for event in events if isinstance(event, list) for d in event)
    ended = events[-1] if events and isinstance(events[-1], Ended) else None
    return events, text, ended
