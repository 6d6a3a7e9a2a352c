"""What is as large as an image in base64: it is read in a session, too. `test_ends` has the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from faults.in_memory import MemoryServer, Reply
from scripted_server import chunk, sse

from disco import AsyncDisco

pytestmark = pytest.mark.anyio

MIB = 2**20
EVENTS, JSON = {"content-type": "text/event-stream"}, {"content-type": "application/json"}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "A picture, please."}]}
WAYS: dict[str, dict[str, Any]] = {"one server": {}, "a session": {"budget": {"usd": 100.0, "per": "day"}}}
USAGE = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}


def reads(body: bytes) -> list[bytes]:
    return [body[at : at + 65_536] for at in range(0, len(body), 65_536)]


def pictured(size: int) -> dict[str, Any]:
    """A delta, or a message, with an image."""
    return {
        "content": "Here.",
        "images": [{"type": "image_url", "image_url": {"url": "data:," + "A" * size}}],
    }


def drawn(size: int) -> Iterator[dict[str, Any]]:
    """The events of a response that has drawn an image."""
    item = {"type": "image_generation_call", "id": "i", "status": "completed", "result": "A" * size}
    frame = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
    frame |= {"parallel_tool_calls": True, "tool_choice": "auto"}
    yield {"type": "response.created", "response": {**frame, "status": "in_progress"}}
    yield {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**item, "result": None, "status": "generating"},
    }
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    whole = {**frame, "status": "completed", "output": [item], "usage": {**USAGE, **DETAILS}}
    yield {"type": "response.completed", "response": whole}


def asker(way: str, reply: Reply) -> AsyncDisco:
    server = MemoryServer(reply)
    http = httpx2.AsyncClient(transport=server)
    return AsyncDisco(base_url=server.base_url, api_key="key", price=(1, 1), http_client=http, **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
async def test_an_image_in_one_delta(way):
    reply = Reply(reads(sse(chunk(**pictured(9 * MIB)), chunk(finish="stop"))), 200, EVENTS)
    async with asker(way, reply) as client:
        stream = await client.chat.completions.create(**ASKED, stream=True)
        deltas = [choice.delta async for each in stream for choice in each.choices]
    images = [image for delta in deltas for image in getattr(delta, "images", None) or ()]
    assert [len(image["image_url"]["url"]) for image in images] == [9 * MIB + len("data:,")]


@pytest.mark.parametrize("way", WAYS)
async def test_an_image_in_one_document(way):
    choice = {"index": 0, "message": {"role": "assistant", **pictured(9 * MIB)}, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    async with asker(way, Reply(reads(json.dumps(body).encode()), 200, JSON)) as client:
        whole = await client.chat.completions.create(**ASKED)
    (image,) = whole.choices[0].message.images
    assert len(image["image_url"]["url"]) > 9 * MIB


@pytest.mark.parametrize("way", WAYS)
async def test_an_image_in_one_event_of_a_response(way):
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(drawn(9 * MIB))]
    body = b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in numbered)
    async with asker(way, Reply(reads(body), 200, EVENTS)) as client:
        stream = await client.responses.create(model="m", input="A picture, please.", stream=True)
        last = [event async for event in stream][-1]
    assert len(last.response.output[0].result) == 9 * MIB
