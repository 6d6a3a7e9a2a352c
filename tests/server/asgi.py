"""The application without a socket: one request in, what it sends out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from serving import Answer

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import make_app


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
        return left.pop(0) if left else await anyio.sleep_forever()

    return receive


async def ask(
    app: Any,
    path: str,
    body: Any = None,
    receive: Any = None,
    method: str = "",
    query: bytes = b"",
    **headers: str,
) -> Answer:
    """One request, a POST if it has a body (JSON or bytes), and its whole answer."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    fields = {"host": "localhost", **headers}
    scope = {"type": "http", "root_path": "", "query_string": query, "method": method, "path": path}
    scope["headers"] = [(k.lower().encode(), v.encode("latin-1")) for k, v in fields.items()]
    await app(scope, receive or pieces(part(data, more=False)), send)
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))


@contextlib.contextmanager
def asking(made: AsyncDisco | None = None, **options: Any) -> Iterator[Any]:
    """`ask` of the application on a simulated device, in a loop of its own; its `client`, `portal` and `verifier`."""
    client = made or simulated()
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(client):
        app = make_app(client, **options)

        def asked(*given: Any, **more: Any) -> Answer:
            return portal.call(lambda: ask(app, *given, **more))

        asked.client, asked.portal, asked.verifier = client, portal, options.get("verifier")
        yield asked
