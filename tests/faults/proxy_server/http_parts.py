"""As much HTTP and server-sent events as a proxy needs that must know where it is in an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import NamedTuple


class Head(NamedTuple):
    """A request's or response's first line and its fields, names in lower case."""

    line: str
    fields: dict[str, str]


class Event(NamedTuple):
    """One server-sent event: its bytes, its text, whether it carries a finish reason, or is `[DONE]`."""

    data: bytes
    content: str = ""
    finishes: bool = False
    done: bool = False


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Raises `asyncio.IncompleteReadError` when the other side has closed before it."""
    block = await reader.readuntil(b"\r\n\r\n")
    line, *rest = block.decode("latin-1").strip().split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in rest)}
    return Head(line, fields)


async def read_body(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The body as it comes, without its framing; raises `asyncio.IncompleteReadError` where it was cut off."""
    if head.fields.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in head.fields:
        yield await reader.readexactly(int(head.fields["content-length"]))
    else:
        while data := await reader.read(65536):
            yield data


async def events(body: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The body's events as they come."""
    rest = b""
    async for data in body:
        rest = (rest + data).replace(b"\r\n", b"\n")
        while b"\n\n" in rest:
            block, _, rest = rest.partition(b"\n\n")
            yield event_of(block + b"\n\n")
    if rest:
        yield event_of(rest)


def event_of(block: bytes) -> Event:
    data = b"\n".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
    if data == b"[DONE]":
        return Event(block, done=True)
    try:
        choice = json.loads(data)["choices"][0]
    except (ValueError, LookupError, TypeError):
        return Event(block)
    content = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
    return Event(block, content, choice.get("finish_reason") is not None)
