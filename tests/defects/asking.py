"""Clients, presets and servers of these tests: the public API, in virtual time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import trio.testing
from scripted_server import chunk, sse

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

MODEL = "gpt-4o-mini"
SILENCE = math.inf
RESET = "reset"
Step = bytes | float | str


def virtually(function: Callable[..., Any], *arguments: object) -> Any:
    """Run an async function in virtual time; what it fails with is raised without its exception groups."""
    return with_clock(trio.testing.MockClock(autojump_threshold=0), function, *arguments)


def with_clock(clock: trio.testing.MockClock, function: Callable[..., Any], *arguments: object) -> Any:
    """`virtually`, on a clock that a test moves, too."""
    try:
        return anyio.run(function, *arguments, backend="trio", backend_options={"clock": clock})
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


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


def client(server: Server | None = None, **more: Any) -> AsyncDisco:
    """A client of a scripted server (or of none), which asks once."""
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


def prose(words: int) -> list[str]:
    """So many different words, each with its space before it."""
    return [f" word{i}" for i in range(words)]


def spoken(pieces: Sequence[str], *, first_s: float = 0.0, gap_s: float = 0.0, finish: str = "stop") -> Reply:
    """What a server says, piece by piece in time."""
    steps: list[Step] = [first_s]
    for i, text in enumerate(pieces):
        if i:
            steps.append(gap_s)
        steps.append(sse(chunk(text), done=False))
    return Reply([*steps, sse(chunk(finish=finish))])


@dataclass
class Reply:
    """One response: pieces of its body, seconds between them, `SILENCE` for ever, or `RESET`."""

    steps: Sequence[Step]
    status: int = 200
    content_type: str = "text/event-stream"


def continuing(text: str) -> Callable[[Any], Reply]:
    """The rest of `text`, word by word, after whatever of it a request's last message quotes as the answer so far."""

    def reply(body: Any) -> Reply:
        last = body["messages"][-1]
        begun = last["content"] if last["role"] == "assistant" else ""
        assert text.startswith(begun)
        return spoken(re.findall(r"\s*\S+", text[len(begun) :]))

    return reply


class Server(httpx2.AsyncBaseTransport):
    """A server without a socket, so that no data is ever on its way while the virtual clock looks for work.

    Plays the next reply for each request, the last one for all further ones. Mutable: `requests` (JSON bodies),
    `left`, the replies at other addresses.
    """

    base_url = "http://127.0.0.1:1001/v1"

    def __init__(self, *replies: Reply | Callable[[Any], Reply]) -> None:
        self.requests: list[Any] = []
        self.replies: dict[int, list[Reply | Callable[[Any], Reply]]] = {1001: list(replies)}

    def also(self, *replies: Reply) -> str:
        """Replies at another address, which is returned."""
        port = 1001 + len(self.replies)
        self.replies[port] = list(replies)
        return f"http://127.0.0.1:{port}/v1"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(json.loads(await request.aread()))
        left = self.replies[request.url.port]
        reply = left.pop(0) if len(left) > 1 else left[0]
        if not isinstance(reply, Reply):
            reply = reply(self.requests[-1])
        headers = {"content-type": reply.content_type}
        return httpx2.Response(reply.status, headers=headers, stream=_Body(reply.steps), request=request)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            if isinstance(step, bytes):
                await anyio.lowlevel.checkpoint()
                yield step
            elif step == RESET:
                raise httpx2.ReadError("reset")
            else:
                await anyio.sleep(step)
