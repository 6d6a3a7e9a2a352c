"""The application without a socket: one request in, what it sends out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile


def simulated(gap_s: float = 0.001, tokens: int = 4, **more: Any) -> AsyncDisco:
    """A client with a simulated device and no server."""
    device = SimulatedEndpoint("device", SimulatedProfile(gap_s=gap_s, answer_tokens=tokens), place="device")
    return AsyncDisco(**{"local": device, "policy": "private", **more})


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def pieces(*messages: dict[str, Any], every_s: float = 0.0) -> Callable[[], Any]:
    """A `receive` that gives these, one every so many seconds, and then waits for ever."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        await anyio.sleep(every_s)
        if left:
            return left.pop(0)
        return await anyio.sleep_forever()

    return receive


def scope(path: str, method: str = "POST", headers: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, Any]:
    fixed = {"type": "http", "root_path": "", "query_string": b""}
    return {**fixed, "method": method, "path": path, "headers": [(b"host", b"localhost"), *headers]}


async def ask(app: Any, path: str, body: Any, receive: Any = None) -> tuple[int, Any]:
    """Status, and the body as JSON (of an event stream: of its last event but [DONE])."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    method = "GET" if body is None else "POST"
    await app(scope(path, method), receive or pieces(part(json.dumps(body).encode(), more=False)), send)
    text = b"".join(message.get("body", b"") for message in sent[1:])
    if dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream"):
        text = text.removesuffix(b"data: [DONE]\n\n").rstrip(b"\n").rpartition(b"data: ")[2]
    return sent[0]["status"], json.loads(text)
