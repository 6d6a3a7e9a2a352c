"""A server in a process of its own, whose answers are prepared bytes."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
Answer = Callable[[bytes, Any], AsyncIterator[bytes]]
"""Gives what is written, of a request's head (in lower case) and its JSON body; None where it has none."""


def piece(data: bytes) -> bytes:
    """One piece of a chunked body; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(body: dict[str, object] | None, name: str | None = None) -> bytes:
    """A server-sent event as one piece; None: `[DONE]`."""
    data = b"[DONE]" if body is None else json.dumps(body, separators=(",", ":")).encode()
    return piece((b"event: %s\n" % name.encode() if name else b"") + b"data: " + data + b"\n\n")


def document(body: dict[str, object]) -> bytes:
    """A whole response."""
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(data) + data


@contextmanager
def serving(make: Callable[..., Answer], *given: object) -> Iterator[str]:
    """A server in a process of its own, which answers as `make(*given)` does; yields its base_url."""
    context = multiprocessing.get_context("spawn")
    port_from, port_to = context.Pipe(duplex=False)
    server = context.Process(target=_run, args=(make, given, port_to), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{port_from.recv()}/v1"
    finally:
        server.terminate()
        server.join(5)


def _run(make: Callable[..., Answer], given: tuple[object, ...], port_to: Any) -> None:
    asyncio.run(_serve(make(*given), port_to))


async def _serve(answer: Answer, port_to: Any) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
                body = json.loads(await reader.readexactly(int(length[0].split(b":")[1]))) if length else None
                async for data in answer(head, body):
                    writer.write(data)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=2048)
    port_to.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()
