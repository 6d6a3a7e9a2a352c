"""HTTP for the servers of quirks: a loopback port, in a thread of its own, that notices when a client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, TypeVar

from faults.proxy_server.http_parts import CHUNKED_HEAD, LAST_CHUNK, chunked, read_body, read_head
from quirks.writers import Written
from stream_server import listening

__all__ = ["DONE", "Document", "Events", "QuirkServer", "chunk", "event", "running", "usage"]

Document = tuple[int, Any]
"""A status, and the JSON of the body (text, where it is a str)."""

Events = AsyncGenerator[bytes, None]
"""The bytes of an event stream, as they come."""

DONE = b"data: [DONE]\n\n"


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def chunk(made: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """A chunk with one choice; `made` is the same in all of an answer, `more` stands beside the delta."""
    choice = {"index": 0, "delta": delta, **more, "finish_reason": finish}
    return event({**made, "object": "chat.completion.chunk", "created": 1, "choices": [choice]})


def usage(made: Mapping[str, Any], body: Mapping[str, Any], last: Written) -> bytes:
    """The chunk that says what was used, where the request wants it."""
    if not (body.get("stream_options") or {}).get("include_usage"):
        return b""
    read, wrote = last.prompt_tokens, last.completion_tokens
    counts = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    return event({**made, "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": counts})


class QuirkServer(ABC):
    """One server; what it answers is its subclass's.

    Attributes:
        base_url: for an OpenAI client.
        asked: the paths it was asked for, in order.
        bodies: of the POST requests that were read whole, likewise, with their paths.
        left: answers whose client went away before they ended.
        now: answers it is writing.
    """

    def __init__(self) -> None:
        self.base_url = ""
        self.asked: list[str] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.left = 0
        self.now = 0

    @property
    def chats(self) -> list[dict[str, Any]]:
        """The chat requests."""
        return [body for path, body in self.bodies if path == "/v1/chat/completions"]

    @abstractmethod
    async def answer(self, method: str, path: str, body: dict[str, Any]) -> Document | Events:
        """What it answers."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        while (head := await read_head(reader)) is not None:
            method, path, _ = head.line.split(" ")
            read = b""
            if head.length:
                read = b"".join([data async for data in read_body(reader, head)])
            self.asked.append(path)
            body = json.loads(read) if read else {}
            if method == "POST":
                self.bodies.append((path, body))
            answering = asyncio.create_task(self._respond(method, path, body, writer))
            # Nothing comes while an answer is written, unless the client leaves.
            leaving = asyncio.create_task(reader.read(1))
            try:
                await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    self.left += 1
                    break
                answering.result()
            finally:
                for task in (answering, leaving):
                    task.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _respond(
        self, method: str, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        self.now += 1
        try:
            found = await self.answer(method, path, body)
            if isinstance(found, tuple):
                status, content = found
                kind = "text/plain" if isinstance(content, str) else "application/json"
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                await writer.drain()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + CHUNKED_HEAD + b"\r\n")
            async with contextlib.aclosing(found) as events:
                async for data in events:
                    if data:
                        writer.write(chunked(data))
                        await writer.drain()
            writer.write(LAST_CHUNK)
            await writer.drain()
        finally:
            self.now -= 1


Server = TypeVar("Server", bound=QuirkServer)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """`server`, listening on a free loopback port."""
    with listening(server.serve) as port:
        server.base_url = f"http://127.0.0.1:{port}/v1"
        yield server
