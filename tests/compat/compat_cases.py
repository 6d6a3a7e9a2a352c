"""What the compatibility modules ask, of whom, in which way, and what the real server of these tests cannot do.

A case is written once, as an async function. Around a synchronous client `got`, `items`, `next_of` and `entered` call
and iterate where they would await: it blocks the test's own loop, in which nothing else has to run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream
from openai.lib.streaming.chat import AsyncChatCompletionStream, ChatCompletionStream
from pydantic import BaseModel

from disco import AsyncDisco, Disco

SEA = [{"role": "user", "content": "Tell me about the sea."}]
KEY = "test-key"
SHORT = "What is 2+2?"  # answered in eleven tokens
ASKED = {"messages": SEA, "max_tokens": 8, "temperature": 0.0, "seed": 3}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
ASKS_WEATHER = {"role": "user", "content": "How is the weather in Rome?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


class Mood(BaseModel):
    """A structure that even a very small model can fill in."""

    happy: bool


@dataclass(frozen=True)
class Side:
    """A client, and the endpoint that answers first behind it.

    Attributes:
        name: "plain" (the openai package alone), "server" or "device" (disco, and the endpoint that answers first).
        is_async: which of the two clients.
        model: the server's.
        settings: for the client's constructor.
        lacks: what cannot be had from it, with the reason.
    """

    name: str
    is_async: bool
    model: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    lacks: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def asked(self) -> dict[str, Any]:
        return {"model": self.model, **ASKED}

    @property
    def classes(self) -> tuple[type, type, type]:
        """The SDK's client, stream, and stream helper."""
        if self.is_async:
            return AsyncOpenAI, AsyncStream, AsyncChatCompletionStream
        return OpenAI, Stream, ChatCompletionStream

    def connect(self, **more: Any) -> Any:
        """A new client."""
        plain, ours = (AsyncOpenAI, AsyncDisco) if self.is_async else (OpenAI, Disco)
        return (plain if self.name == "plain" else ours)(**{**self.settings, **more})

    def needs(self, what: str) -> None:
        """Skip the test where this cannot be had."""
        if what in self.lacks:
            pytest.skip(f"llama-cpp-python's server {self.lacks[what]}")


# Of llama-cpp-python 0.3.36. With disco in front the device steps in where the server refuses.
IGNORED = {"max_completion_tokens": "ignores max_completion_tokens and would fill its context"}
BREAKS_OFF = {"long prompts": "breaks off the stream where the prompt is too long, and gives no reason"}
LACKS: dict[str, dict[str, str]] = {
    "plain": {
        **IGNORED,
        "content parts": "refuses a list of content parts",
        "developer": "refuses the role 'developer'",
        "json_schema": "refuses response_format json_schema",
        "null content": "refuses null as the content of an assistant's message",
        "usage": "sends no usage in a stream",
        "responses": "has no /v1/responses",
    },
    "server": {**IGNORED, **BREAKS_OFF},
    "device": {},
}


async def got(result: Any) -> Any:
    """What a call gives, awaited where it has to be."""
    return await result if inspect.isawaitable(result) else result


async def items(source: Any) -> list[Any]:
    """All that is left in an iterator of either kind."""
    return [item async for item in source] if hasattr(source, "__aiter__") else list(source)


async def next_of(source: Any) -> Any:
    """The next item of an iterator of either kind; None at its end."""
    return await anext(source, None) if hasattr(source, "__anext__") else next(source, None)


@contextlib.asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


def text_of(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def check_completion(answer: Any) -> None:
    """A complete `chat.completion` as the API makes it, cut at eight tokens."""
    (choice,) = answer.choices
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert isinstance(answer.created, int)
    assert answer.model
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert isinstance(choice.message.content, str)
    assert choice.message.tool_calls is None
    assert choice.message.refusal is None
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.completion_tokens == 8
    assert usage.prompt_tokens > 5
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    same = type(answer).model_validate_json(answer.model_dump_json())
    assert same.choices == answer.choices
    assert answer.to_dict()["choices"][0]["message"]["content"] == choice.message.content


def check_stream(chunks: list[Any]) -> None:
    """Chunks of one stream without usage, cut at eight tokens."""
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({(c.id, c.model, c.created) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks].count("length") == 1
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(c.usage is None for c in chunks)
    for chunk in chunks:
        assert type(chunk).model_validate_json(chunk.model_dump_json()).id == chunk.id


def merged_calls(chunks: list[Any]) -> list[tuple[str, str]]:
    """Name and arguments of the tool calls in a stream, as an application joins them."""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        for piece in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            name, arguments = calls.setdefault(piece.index, ["", ""])
            calls[piece.index] = [
                name or piece.function.name or "",
                arguments + (piece.function.arguments or ""),
            ]
    return [(name, arguments) for name, arguments in calls.values()]
