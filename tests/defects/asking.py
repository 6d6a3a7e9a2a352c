"""Clients, presets and questions in virtual time: the public API on servers in memory and simulated devices."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import httpx2
from faults.in_memory import MemoryServer
from faults.lab import Answer

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

__all__ = ["MODEL", "ask", "client", "create", "device", "preset", "prose", "question", "text_of", "tried"]

MODEL = "gpt-4o-mini"


def preset(
    policy: str, *, order: str | None = None, pace_tps: float | str = "off", rate: float = 0.0, **more: Any
) -> Preset:
    """A policy and its options; `order` of a move, None for no moves; `rate`: 0 makes the device free."""
    migration = {"enabled": False} if order is None else {"enabled": True, "order": order}
    parts = {"playback": {"pace_tps": pace_tps}, "migration": migration}
    return Preset(name="defects", dispatch={"policy": policy, **more}, cost={"exchange_rate": rate}, **parts)


def device(**profile: Any) -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(**profile), place="device")


def client(server: MemoryServer | None = None, **more: Any) -> AsyncDisco:
    """A client of a server in memory (or of none), which asks once."""
    settings: dict[str, Any] = {"max_retries": 0, "price": (0.15, 0.60)}
    if server is not None:
        http = httpx2.AsyncClient(transport=server)
        settings.update(base_url=server.base_url, api_key="secret-key-1234", http_client=http)
        settings["continuation"] = "trailing"
    return AsyncDisco(**{**settings, **more})


def question(words: int = 5, about: str = "sea") -> list[dict[str, str]]:
    """A prompt of so many words, like no other one from its first word on where `about` differs."""
    return [{"role": "user", "content": " ".join([about] + ["wave"] * (words - 1))}]


def create(
    asker: Any, messages: Sequence[Any] | None = None, *, disco: dict[str, Any] | None = None, **params: Any
) -> Awaitable[Any]:
    """A request; `disco` are its own options."""
    extra = {"extra_body": {"disco": disco}} if disco else {}
    asked = {"model": MODEL, "messages": messages or question(), **extra, **params}
    return asker.chat.completions.create(**asked)


async def text_of(stream: Any) -> str:
    async with stream as chunks:
        return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])


async def ask(
    asker: AsyncDisco, messages: Sequence[Any] | None = None, *, stream: bool = True, **disco: Any
) -> Answer:
    """An answer read to its end, whole or as a stream."""
    got = await create(asker, messages, stream=stream, disco=disco)
    return Answer(await text_of(got) if stream else got.choices[0].message.content, got.route)


def tried(answer: Any) -> list[tuple[str, str | None]]:
    """The attempts of an answer, an error or a stream: their endpoints and what they failed of."""
    return [(t.endpoint, t.failure) for t in answer.route.attempts]


def prose(words: int) -> list[str]:
    """So many different words, each with its space before it."""
    return [f" word{i}" for i in range(words)]
