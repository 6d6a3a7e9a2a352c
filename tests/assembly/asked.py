"""The same answer of a server in memory, by every way in: with the SDK alone and with disco's clients and server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import httpx2
import moved_clock
import openai
from defects.asking import device, preset
from faults.in_memory import MemoryServer, Reply
from openai.lib.streaming.chat import ChatCompletionStreamState
from scripted_server import sse

from disco import AsyncDisco, Backup
from disco.server import make_app

__all__ = [
    "FORMS",
    "MESSAGES",
    "SETUPS",
    "TOOLS",
    "asked",
    "calls_of",
    "document",
    "events",
    "in_virtual_time",
]

MESSAGES = [{"role": "user", "content": "Which time is it?"}]
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("f", "g")]


def events(*chunks: Any, done: bool = True) -> Callable[[Any], Reply]:
    """A server of chat completions that streams, whatever it is asked."""
    reply = Reply([sse(*chunks, done=done)])
    return lambda _: reply


def document(body: Any) -> Callable[[Any], Reply]:
    """A server that answers with one JSON document, whatever it is asked."""
    reply = Reply([json.dumps(body).encode()], headers={"content-type": "application/json"})
    return lambda _: reply


def in_virtual_time(main: Callable[[], Any]) -> Any:
    name, options = moved_clock.virtual("asyncio")
    return anyio.run(main, backend=name, backend_options=options)


# ---------------------------------------------------------------------- set-ups


def _settings(server: MemoryServer, **more: Any) -> dict[str, Any]:
    http = httpx2.AsyncClient(transport=server)
    return {
        "base_url": server.base_url,
        "api_key": "secret-key-1234",
        "http_client": http,
        "max_retries": 0,
        **more,
    }


@contextlib.asynccontextmanager
async def _sdk(server: MemoryServer) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(**_settings(server)) as client:
        yield client


@contextlib.asynccontextmanager
async def _alone(server: MemoryServer) -> AsyncIterator[Any]:
    async with AsyncDisco(**_settings(server)) as client:
        yield client


@contextlib.asynccontextmanager
async def _backed(server: MemoryServer) -> AsyncIterator[Any]:
    """Two servers; the second says the same."""
    again = server.also(*server.replies[1001])
    http = httpx2.AsyncClient(transport=server)
    backup = Backup(base_url=again, api_key="another-key-1234", model="m", http_client=http)
    async with AsyncDisco(**_settings(server, backups=[backup])) as client:
        yield client


@contextlib.asynccontextmanager
async def _beside(server: MemoryServer, pace_tps: float | str = "off") -> AsyncIterator[Any]:
    """A local model beside the server, which takes over where it may."""
    policy = preset("server_only", pace_tps=pace_tps)
    more = {"local": device(answer="Here."), "policy": policy, "continuation": "trailing"}
    async with AsyncDisco(**_settings(server, **more)) as client:
        yield client


@contextlib.asynccontextmanager
async def _served(server: MemoryServer) -> AsyncIterator[Any]:
    """The SDK in front of `disco serve` with two servers."""
    async with _backed(server) as behind:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app(behind)))
        given = {"base_url": "http://localhost/v1", "api_key": "k", "http_client": http, "max_retries": 0}
        async with openai.AsyncOpenAI(**given) as client:
            yield client


SETUPS: dict[str, Any] = {
    "sdk": _sdk,
    "alone": _alone,
    "backed": _backed,
    "beside": _beside,
    "paced": partial(_beside, pace_tps=12.0),
    "served": _served,
}

# ---------------------------------------------------------------------- forms


async def _whole(client: Any, **asked: Any) -> Any:
    return await client.chat.completions.create(**asked)


async def _parsed(client: Any, **asked: Any) -> Any:
    asked.pop("tools", None)  # it takes strict ones only
    return await client.chat.completions.parse(**asked)


async def _chunks(client: Any, **asked: Any) -> Any:
    async with await client.chat.completions.create(**asked, stream=True) as chunks:
        return [chunk async for chunk in chunks]


async def _streamed(client: Any, **asked: Any) -> Any:
    """The chunks, added up as applications do it, with the SDK's accumulator."""
    state = ChatCompletionStreamState()
    async with await client.chat.completions.create(**asked, stream=True) as chunks:
        async for chunk in chunks:
            state.handle_chunk(chunk)
    return state.get_final_completion()


async def _helped(client: Any, **asked: Any) -> Any:
    async with client.chat.completions.stream(**asked) as stream:
        return await stream.get_final_completion()


def _as_response(asked: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in asked.items() if k == "model"}
    tools = [{"type": "function", **tool["function"]} for tool in asked.get("tools", ())]
    return {**rest, "input": "Which time is it?", **({"tools": tools} if tools else {})}


async def _response(client: Any, **asked: Any) -> Any:
    return await client.responses.create(**_as_response(asked))


async def _response_helped(client: Any, **asked: Any) -> Any:
    async with client.responses.stream(**_as_response(asked)) as stream:
        return await stream.get_final_response()


FORMS: dict[str, Any] = {
    "whole": _whole,
    "parsed": _parsed,
    "chunks": _chunks,
    "streamed": _streamed,
    "helped": _helped,
    "response": _response,
    "response_helped": _response_helped,
}


async def asked(setup: str, form: str, *replies: Any, **more: Any) -> Any:
    """The answer; of a `MemoryServer` that gives these replies."""
    server = MemoryServer(*replies)
    with anyio.fail_after(3600):
        async with SETUPS[setup](server) as client:
            return await FORMS[form](client, model="m", messages=MESSAGES, **more)


def calls_of(answer: Any) -> Sequence[tuple[Any, Any, Any]]:
    """Id, name and arguments of each call, in either API."""
    if hasattr(answer, "output"):
        made = [item for item in answer.output if item.type == "function_call"]
        return [(item.call_id, item.name, item.arguments) for item in made]
    made = answer.choices[0].message.tool_calls or []
    return [(call.id, call.function.name, call.function.arguments) for call in made]
