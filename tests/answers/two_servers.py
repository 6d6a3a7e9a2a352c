"""A client of two servers in memory: one whose answer is none, and `good`, which always answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from faults.in_memory import MemoryServer, Replies, Reply, spoken
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup

__all__ = ["GOOD", "MODEL", "TOOLS", "Told", "called", "document", "good", "stub", "told", "two"]

MODEL = "gpt-4o-mini"
GOOD = "The Rhine is long."
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
_JSON = {"content-type": "application/json"}


def good() -> Reply:
    return spoken(["The ", "Rhine ", "is ", "long."])


def document(message: dict[str, Any], finish: str | None = "stop") -> Reply:
    """A whole body with this message."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return Reply([json.dumps(body).encode()], headers=_JSON)


def stub(*deltas: dict[str, Any], finish: str | None = None, end: Any = None, usage: Any = None) -> Reply:
    """These deltas; then a finish reason and `[DONE]`, or `end`: bytes, or how the connection fails."""
    said = [sse(chunk(**delta), done=False) for delta in deltas]
    if finish is not None:
        last = {**chunk(finish=finish), **({"usage": usage} if usage else {})}
        return Reply([*said, sse(last)])
    return Reply([*said, *([] if end is None else [end])])


def called(
    arguments: str | None, *, index: int = 0, call_id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """A delta with a piece of a call; with its name where it begins."""
    function: dict[str, Any] = {} if arguments is None else {"arguments": arguments}
    call: dict[str, Any] = {"index": index, "function": function}
    if name is not None:
        function["name"] = name
        call |= {"id": call_id or f"call_{index}", "type": "function"}
    return {"tool_calls": [call]}


@dataclass
class Told:
    """What a reader had: its text, its calls' arguments by index, the finish reason, or the error."""

    text: str = ""
    calls: dict[int, str] | None = None
    finish: str | None = None
    error: Any = None
    route: Any = None

    @property
    def tried(self) -> list[tuple[str, str | None]]:
        route = self.error.route if self.route is None else self.route
        return [(a.endpoint, a.failure) for a in route.attempts]


async def told(client: AsyncDisco, *, stream: bool, **asked: Any) -> Told:
    """Ask, and read all of the answer."""
    got = Told(calls={})
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Rhine?"}], **asked}
    try:
        answer = await client.chat.completions.create(**asked, stream=stream)
        if not stream:
            choice = answer.choices[0]
            got.text, got.finish = choice.message.content or "", choice.finish_reason
            calls = choice.message.tool_calls or []
            got.calls = {i: call.function.arguments for i, call in enumerate(calls)}
            got.route = answer.route
            return got
        async for each in answer:
            for choice in each.choices:
                got.text += choice.delta.content or ""
                got.finish = choice.finish_reason or got.finish
                for call in choice.delta.tool_calls or []:
                    got.calls[call.index] = got.calls.get(call.index, "") + (call.function.arguments or "")
        got.route = answer.route
    except Exception as error:  # noqa: BLE001 - a test looks at it
        got.error = error
    return got


def two(
    first: Reply | Sequence[Reply], second: Replies, *, continuation: str = "none", **more: Any
) -> tuple[AsyncDisco, MemoryServer]:
    """A client of `first`, with `second` behind it, and what both were asked; `continuation`: that of both."""
    server = MemoryServer(*([first] if isinstance(first, Reply) else first))
    alike: dict[str, Any] = {"price": (1, 1), "continuation": continuation}
    backup = Backup(
        base_url=server.also(second),
        http_client=httpx2.AsyncClient(transport=server),
        name="good",
        model="m",
        api_key="secret-key-5678",
        **alike,
    )
    settings: dict[str, Any] = {
        "base_url": server.base_url,
        "http_client": httpx2.AsyncClient(transport=server),
        "api_key": "secret-key-1234",
        "backups": [backup],
    }
    return AsyncDisco(**{**alike, **settings, **more}), server
