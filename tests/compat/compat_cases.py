"""Asking a client of either kind, and what an answer of it looks like.

A case is written once, as an async function. Around a synchronous client `got`, `items`, `next_of` and `entered` call
and iterate where they would await: it blocks the test's own loop, in which nothing else has to run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

SEA = [{"role": "user", "content": "Tell me about the sea."}]


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
    message, usage = choice.message, answer.usage
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, choice.index, choice.finish_reason) == ("chat.completion", 0, "length")
    assert isinstance(answer.created, int)
    assert answer.model
    assert isinstance(message.content, str)
    assert (message.role, message.tool_calls, message.refusal) == ("assistant", None, None)
    assert choice.logprobs is None
    assert (usage.completion_tokens, usage.total_tokens) == (8, usage.prompt_tokens + 8)
    assert usage.prompt_tokens > 5
    assert type(answer).model_validate_json(answer.model_dump_json()).choices == answer.choices
    assert answer.to_dict()["choices"][0]["message"]["content"] == message.content


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
