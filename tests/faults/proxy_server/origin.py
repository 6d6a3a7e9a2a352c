"""A server that writes one known text, and continues any beginning of it: what stands healthy behind the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from faults.proxy_server.http_parts import Event, event_of, read_body, read_head
from scripted_server import chunk, stream
from stream_server import listening

from disco.endpoints.simulation.simulated_text import tokenise

TEXT = (
    "Das Meer 🌊 ist größer als jede Karte — 海は広い and it keeps its own time. "
    "Wer früh hinausfährt, sieht 🐋🐋 und kehrt müde zurück; naïve Träume… bleiben. "
    "Кто слушает волны, тот знает: ничто не потеряно 🏝️ und nichts kommt zweimal."
)
"""The answer: one to four bytes a character, so that a cut in the wrong place shows."""


@contextlib.contextmanager
def origin_server() -> Iterator[str]:
    """Serve `TEXT` on a loopback port, from a thread of its own; its base_url."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        body = json.loads(b"".join([data async for data in read_body(reader, head)]))
        writer.writelines(stream(*(event.data for event in answer_events(TEXT[len(begun_by(body)) :]))))

    with listening(serve) as port:
        yield f"http://127.0.0.1:{port}/v1"


def begun_by(body: Any) -> str:
    """The beginning of an answer that a request asks to continue."""
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" else ""


def answer_events(text: str) -> list[Event]:
    """A whole answer, one event a token."""
    chunks = [chunk("", role="assistant"), *map(chunk, tokenise(text)), chunk(finish="stop")]
    # Servers that write UTF-8 as it is are the ones whose characters can be cut.
    data = [json.dumps(body, ensure_ascii=False) for body in chunks]
    return [event_of(f"data: {each}\n\n".encode()) for each in [*data, "[DONE]"]]
