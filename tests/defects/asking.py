"""Clients, presets and questions of these tests: the public API, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
from faults.in_memory import RESET, SILENCE, MemoryServer, Reply, continuing, spoken
from faults.lab import Answer

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

__all__ = [
    "MODEL",
    "RESET",
    "SILENCE",
    "MemoryServer",
    "Reply",
    "ask",
    "client",
    "continuing",
    "device",
    "preset",
    "prose",
    "question",
    "spoken",
    "streamed",
    "text_of",
    "whole",
]

MODEL = "gpt-4o-mini"


def preset(
    policy: str, *, order: str | None = None, pace_tps: float | str = "off", rate: float = 0.0
) -> Preset:
    """A policy; `order` of a move, None for no moves; `rate` is the device's price, free by default."""
    migration = {"enabled": False} if order is None else {"enabled": True, "order": order}
    return Preset(
        name="defects",
        dispatch={"policy": policy},
        cost={"exchange_rate": rate},
        playback={"pace_tps": pace_tps},
        migration=migration,
    )


def device(**profile: Any) -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(**profile), place="device")


def client(server: MemoryServer | None = None, **more: Any) -> AsyncDisco:
    """A client of a server in memory (or of none), which asks once."""
    settings: dict[str, Any] = {"max_retries": 0, "price": (0.15, 0.60)}
    if server is not None:
        settings.update(
            base_url=server.base_url,
            api_key="secret-key-1234",
            continuation="trailing",
            http_client=httpx2.AsyncClient(transport=server),
        )
    return AsyncDisco(**{**settings, **more})


def question(words: int = 5, about: str = "sea") -> list[dict[str, str]]:
    """A prompt of so many words, like no other one from its first word on where `about` differs."""
    return [{"role": "user", "content": " ".join([about] + ["wave"] * (words - 1))}]


async def whole(asker: AsyncDisco, messages: Sequence[Any] | None = None, **disco: Any) -> Any:
    """A complete answer; `disco` are the request's own options."""
    return await asker.chat.completions.create(
        model=MODEL, messages=messages or question(), extra_body={"disco": disco} if disco else None
    )


async def streamed(asker: AsyncDisco, messages: Sequence[Any] | None = None, **disco: Any) -> Any:
    """A stream, to be read with `text_of`."""
    return await asker.chat.completions.create(
        model=MODEL,
        messages=messages or question(),
        stream=True,
        extra_body={"disco": disco} if disco else None,
    )


async def text_of(stream: Any) -> str:
    async with stream as chunks:
        return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])


async def ask(
    asker: AsyncDisco, messages: Sequence[Any] | None = None, *, stream: bool = True, **disco: Any
) -> Answer:
    """An answer read to its end, whole or as a stream."""
    if not stream:
        got = await whole(asker, messages, **disco)
        return Answer(got.choices[0].message.content, got.route)
    chunks = await streamed(asker, messages, **disco)
    return Answer(await text_of(chunks), chunks.route)


def prose(words: int) -> list[str]:
    """So many different words, each with its space before it."""
    return [f" word{i}" for i in range(words)]
