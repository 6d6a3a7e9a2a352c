"""A server that writes one known text, and continues any beginning of it: what stands healthy behind the proxy.

It speaks the protocol and nothing else: head, role chunk, one chunk a token, finish reason, `[DONE]`. It continues a
trailing assistant message and never sends an answer to a request that it could not read whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from faults.proxy_server.http_parts import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    Event,
    Head,
    chunked,
    read_body,
    read_head,
)
from scripted_server import chunk
from stream_server import listening

from disco.endpoints.simulation.simulated_text import tokenise

__all__ = ["TEXT", "Origin", "answer_events", "begun_by", "origin_server"]

TEXT = (
    "Das Meer 🌊 ist größer als jede Karte — 海は広い and it keeps its own time. "
    "Wer früh hinausfährt, sieht 🐋🐋 und kehrt müde zurück; naïve Träume… bleiben. "
    "Кто слушает волны, тот знает: ничто не потеряно 🏝️ und nichts kommt zweimal."
)
"""The answer: one to four bytes a character, so that a cut in the wrong place shows."""


@dataclass
class Origin:
    """Where it listens, and what it was asked.

    Attributes:
        base_url: for an OpenAI client.
        bodies: the requests that were read whole.
        broken: how many requests were cut off.
        token_s: seconds between two tokens.
    """

    base_url: str
    bodies: list[Any] = field(default_factory=list)
    broken: int = 0
    token_s: float = 0.0


@contextlib.contextmanager
def origin_server(text: str = TEXT, *, token_s: float = 0.0) -> Iterator[Origin]:
    """Serve `text` on a loopback port, from a thread of its own."""
    origin = Origin("", token_s=token_s)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await read_head(reader)) is not None:
                await _answer(origin, text, head, reader, writer)
                if head.fields.get("connection") == "close":
                    break
        except asyncio.IncompleteReadError:
            origin.broken += 1

    with listening(serve) as port:
        origin.base_url = f"http://127.0.0.1:{port}/v1"
        yield origin


async def _answer(
    origin: Origin, text: str, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if head.line.startswith("GET"):
        await _document(writer, 200, {"object": "list", "data": []})
        return
    read = b"".join([data async for data in read_body(reader, head)])
    try:
        body = json.loads(read)
    except ValueError:
        await _document(
            writer, 400, {"error": {"message": "This is no JSON.", "type": "invalid_request_error"}}
        )
        return
    origin.bodies.append(body)
    begun = begun_by(body)
    if not text.startswith(begun):
        await _document(writer, 400, {"error": {"message": "This is no beginning of the text."}})
        return
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + CHUNKED_HEAD + b"\r\n")
    for event in answer_events(text[len(begun) :]):
        if event.content and origin.token_s:
            await asyncio.sleep(origin.token_s)
        if event.content and reader.at_eof():
            raise ConnectionError  # who closes their side has left: uvicorn sees it so, too
        writer.write(chunked(event.data))
        await writer.drain()
    writer.write(LAST_CHUNK)
    await writer.drain()


def begun_by(body: Any) -> str:
    """The beginning of an answer that a request asks to continue."""
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" else ""


def answer_events(text: str) -> list[Event]:
    """A whole answer, one event a token."""
    return [
        _event(chunk("", role="assistant")),
        *(_event(chunk(piece), content=piece) for piece in tokenise(text)),
        _event(chunk(finish="stop"), finishes=True),
        Event(b"data: [DONE]\n\n", done=True),
    ]


def _event(body: Any, **what: Any) -> Event:
    # Servers that write UTF-8 as it is are the ones whose characters can be cut.
    return Event(b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n", **what)


async def _document(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
