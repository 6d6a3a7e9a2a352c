"""The JSON inside an event: checked, mended where servers differ, and taken apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.openai_api.sse import ErrorData
from disco.events import DeltaKind, Usage

__all__ = [
    "MalformedChunkError",
    "ServerReportedError",
    "finish_only",
    "is_bare",
    "json_object",
    "mended_choice",
    "only",
    "parts_of",
    "usage_from",
    "well_formed",
    "without_finish",
]


class MalformedChunkError(ValueError):
    """An event's data is not JSON, or JSON of another shape."""


class ServerReportedError(Exception):
    """The stream carried an error object.

    Attributes:
        body: the error object.
    """

    def __init__(self, body: object) -> None:
        super().__init__("error object in stream")
        self.body = body


def json_object(data: bytes) -> dict[str, Any] | None:
    """Data as a JSON object, or None for `[DONE]`."""
    if data.startswith(b"[DONE]"):
        return None
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedChunkError("data that is not JSON") from error
    if isinstance(data, ErrorData):
        raise ServerReportedError(body.get("error", body) if isinstance(body, dict) else body)
    if not isinstance(body, dict):
        raise MalformedChunkError("JSON that is not an object")
    if body.get("error"):
        raise ServerReportedError(body["error"])
    return body


def mended_choice(choice: dict[str, Any], index: int) -> dict[str, Any]:
    """A choice with everything a `Choice` needs, whatever the server left out."""
    delta = choice.get("delta")
    delta = dict(delta) if isinstance(delta, dict) else {}
    content = delta.get("content")
    if isinstance(content, list):  # typed parts, as in messages
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    delta["content"] = well_formed(content) if isinstance(content, str) else None
    where = choice.get("index")
    reason = choice.get("finish_reason")
    return {
        **choice,
        "delta": delta,
        "index": where if isinstance(where, int) else index,
        "finish_reason": str(reason) if reason is not None else None,
    }


def well_formed(text: str) -> str:
    """Text without lone surrogates, which JSON can smuggle in and UTF-8 cannot hold."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


def parts_of(chunk: ChatCompletionChunk) -> list[tuple[DeltaKind, str, tuple[str, ...]]]:
    """What a delta carries, in the order it is to be shown: (kind, text, fields)."""
    delta = chunk.choices[0].delta
    extra = delta.model_extra or {}
    parts: list[tuple[DeltaKind, str, tuple[str, ...]]] = []
    reasoning = tuple(name for name in _REASONING if extra.get(name))
    if reasoning:
        parts.append((DeltaKind.REASONING, "", reasoning))
    if delta.content:
        parts.append((DeltaKind.TEXT, delta.content, ("content",)))
    if delta.refusal:
        parts.append((DeltaKind.TEXT, delta.refusal, ("refusal",)))
    opaque = tuple(name for name in ("tool_calls", "function_call", "audio") if getattr(delta, name, None))
    if opaque:
        parts.append((DeltaKind.TOOL, "", opaque))
    return parts or [(DeltaKind.ROLE, "", ())]


_CONTENT = ("content", "refusal", "tool_calls", "function_call", "audio", *_REASONING)


def is_bare(delta: Any) -> bool:
    """True for a delta without content of any kind."""
    return not any(getattr(delta, name, None) for name in _CONTENT)


def _changed(chunk: ChatCompletionChunk, change: Callable[[Any], dict[str, Any]]) -> ChatCompletionChunk:
    """A copy of a chunk with `change` of each choice applied; the original stays as it was."""
    choices = [choice.model_copy(update=change(choice)) for choice in chunk.choices]
    return chunk.model_copy(update={"choices": choices})


def only(chunk: ChatCompletionChunk, fields: tuple[str, ...], *, with_usage: bool) -> ChatCompletionChunk:
    """A copy whose delta keeps only `fields` of the content."""

    def change(choice: Any) -> dict[str, Any]:
        kept = {n: v for n, v in choice.delta.model_dump().items() if n not in _CONTENT or n in fields}
        rebuilt = type(choice.delta).construct(**kept)
        return {"delta": rebuilt}

    copy = _changed(chunk, change)
    return copy if with_usage else copy.model_copy(update={"usage": None})


def finish_only(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """A copy with the finish reason and without content."""
    return _changed(chunk, lambda choice: {"delta": type(choice.delta).construct(), "logprobs": None})


def without_finish(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """A copy with the content and without finish reason and usage."""
    return _changed(chunk, lambda _: {"finish_reason": None}).model_copy(update={"usage": None})


def usage_from(usage: CompletionUsage) -> Usage:
    """The vendor's counts as ours; counts it leaves out are 0."""
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        prompt_tokens=int(getattr(usage, "prompt_tokens", None) or 0),
        completion_tokens=int(getattr(usage, "completion_tokens", None) or 0),
        cached_tokens=int(getattr(details, "cached_tokens", None) or 0),
    )
