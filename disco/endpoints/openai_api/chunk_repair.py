"""The JSON inside an event: checked, repaired where servers deviate from the API, and taken apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from openai.types.chat import ChatCompletionChunk

from disco.endpoints.openai_api.sse import ErrorData
from disco.events import Delta, DeltaKind, ToolCallDelta, Usage

__all__ = [
    "Halves",
    "MalformedChunkError",
    "ServerReportedError",
    "document_as_event",
    "finish_only",
    "is_bare",
    "json_object",
    "log_probabilities",
    "logprob_entries",
    "mended_choice",
    "only",
    "parts_of",
    "reason_in",
    "reported_error",
    "usage_from",
    "without_finish",
]


class MalformedChunkError(ValueError):
    """An event's data is not JSON, or is JSON of another shape."""


class ServerReportedError(Exception):
    """The stream carried an error object.

    Attributes:
        body: the error object.
        event: the event `response.failed` that carried it, where the server was asked by `/responses`.
    """

    def __init__(self, body: object, event: object = None) -> None:
        super().__init__("error object in stream")
        self.body = body
        self.event = event


def json_object(data: bytes) -> dict[str, Any] | None:
    """Return data as a JSON object, or None for `[DONE]`.

    Raises:
        MalformedChunkError: it is no JSON object.
        ServerReportedError: it is an error, or holds one; see `reported_error`.
    """
    if data.lstrip().startswith(b"[DONE]"):
        return None
    is_error = isinstance(data, ErrorData)
    try:
        body = _DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        if is_error:
            raise ServerReportedError(data.decode("utf-8", "replace")) from None
        raise MalformedChunkError("data that is not JSON") from error
    reported = reported_error(body)
    if reported is None and isinstance(body, dict) and body.get("detail") and "choices" not in body:
        reported = {"message": body["detail"], **body}  # FastAPI, where it is no answer's beginning
    if is_error or reported is not None:
        raise ServerReportedError(body if reported is None else reported)
    if not isinstance(body, dict):
        raise MalformedChunkError("JSON that is not an object")
    return body


def reported_error(body: object) -> object:
    """Return the error that a chunk or a whole body reports; None where it reports none.

    As the SDK does, an `error` that is null, empty or false is none. Servers also put it into a choice (OpenRouter),
    into a list (Gemini), or send nothing else (vLLM). A code that stands beside the error is added to it.
    """
    if isinstance(body, list):
        return reported_error(body[0]) if body and isinstance(body[0], dict) else None
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if error:
        beside = {name: body[name] for name in ("code", "type", "status", "param") if body.get(name)}
        if isinstance(error, dict):
            return {**beside, **error}
        if isinstance(error, str):
            return {"message": error, **beside} if beside else error
        return error if isinstance(error, list) else body
    if "choices" in body:
        choices = body["choices"]
        listed = choices if isinstance(choices, list) else []
        return next((c["error"] for c in listed if isinstance(c, dict) and c.get("error")), None)
    codes = (body.get("code"), body.get("status"), body.get("status_code"))
    is_error = (
        "error" in (body.get("object"), body.get("type"), body.get("status"))
        or bool(body.get("errors"))
        or any(type(code) is int and 400 <= code < 600 for code in codes)
    )
    return body if is_error else None


def reason_in(value: object) -> str | None:
    """Return a finish reason; None for what is none, such as an empty text, a number, or "null" (DashScope)."""
    return value if isinstance(value, str) and value.strip() and value != "null" else None


def document_as_event(body: object) -> bytes | None:
    """Return a completion that came as one document as the event of one chunk; None for any other document.

    Some servers, and nearly all mocks, answer so although a stream was asked for.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(choices, list) or not choices:
        return None
    made = []
    for choice in choices:
        if not isinstance(choice, dict):
            return None
        message = choice.get("message")
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            if isinstance(calls, list):
                calls = [{"index": at, **call} for at, call in enumerate(calls) if isinstance(call, dict)]
                message = {**message, "tool_calls": calls}
            rest = {name: value for name, value in choice.items() if name != "message"}
            made.append({**rest, "delta": message})
        else:
            made.append(choice)
    return json.dumps({**body, "object": "chat.completion.chunk", "choices": made}).encode()


def _integer(digits: str) -> int | float:
    """Parse an integer; return infinity for one that is longer than Python reads."""
    return int(digits) if len(digits) <= _MOST_DIGITS else math.inf


_MOST_DIGITS = 640  # the smallest value that `sys.set_int_max_str_digits` takes
_DECODER = json.JSONDecoder(parse_int=_integer)  # once: building one takes as long as parsing an event


def mended_choice(choice: dict[str, Any], index: int, halves: Halves) -> dict[str, Any]:
    """Return a choice with every field that `Choice` needs, including those that the server omitted.

    Its texts hold whole characters only.

    Args:
        choice: as the server wrote it.
        index: the choice's position in the chunk.
        halves: first halves of characters that earlier chunks began.
    """
    where = choice.get("index")
    where = where if isinstance(where, int) else index
    reason = reason_in(choice.get("finish_reason"))
    delta = choice.get("delta")
    delta = dict(delta) if isinstance(delta, dict) else {}
    content = delta.get("content")
    if isinstance(content, list):  # typed parts, as in messages
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    delta["content"] = content if isinstance(content, str) else None
    return {
        **Halves().joined({name: value for name, value in choice.items() if name != "delta"}, 0, ends=True),
        "delta": halves.joined(delta, where, ends=reason is not None),
        "index": where,
        "finish_reason": reason,
    }


class Halves:
    """First halves of characters whose second halves are still to come.

    Servers that count text in units of 16 bits (as JavaScript does) may split a character that takes two units, with
    each half in a chunk of its own. Mutable: `_held`, the half that each text ended with, by its place in the answer.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], str] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def joined(self, delta: dict[str, Any], choice: int, *, ends: bool) -> dict[str, Any]:
        """Return a delta whose texts begin with the halves held back before; a half at a text's end is held back.

        Args:
            delta: JSON.
            choice: the answer that the delta continues.
            ends: the delta is that answer's last. Nothing more is held back: a half that is left is replaced.
        """
        if ends and self._held:
            left = {place[1]: "" for place in self._held if place[0] == choice and len(place) == 2}
            delta = {**left, **{name: value for name, value in delta.items() if value is not None}}
        joined = {name: self._walk(value, (choice, name), ends=ends) for name, value in delta.items()}
        if ends:
            self._held = {place: half for place, half in self._held.items() if place[0] != choice}
        return joined

    def _walk(self, value: Any, place: tuple[Any, ...], *, ends: bool) -> Any:
        if isinstance(value, str):
            text = self._held.pop(place, "") + value
            if not ends and "\ud800" <= text[-1:] <= "\udbff":
                self._held[place] = text[-1]
                text = text[:-1]
            return well_formed(text)
        if len(place) > _DEPTH:
            return value
        if isinstance(value, dict):
            return {name: self._walk(item, (*place, name), ends=ends) for name, item in value.items()}
        if isinstance(value, list):
            return [
                self._walk(item, (*place, _number_of(item, at)), ends=ends) for at, item in enumerate(value)
            ]
        return value


_DEPTH = 8  # levels of a choice's JSON; the API uses half of that


def _number_of(item: object, at: int) -> int:
    """Return which of several items of a kind, such as calls, this piece belongs to."""
    number = item.get("index") if isinstance(item, dict) else None
    return number if isinstance(number, int) else at


def well_formed(text: str) -> str:
    """Return text without lone surrogates, which JSON can contain and UTF-8 cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


def parts_of(chunk: ChatCompletionChunk) -> list[tuple[Delta, tuple[str, ...]]]:
    """Return what a chunk carries, in the order to show it: each a delta without `raw`, and its fields in the chunk.

    A chunk is one token unless the server reports more; its further parts are not counted again.
    """
    delta = chunk.choices[0].delta
    extra = delta.model_extra or {}
    parts: list[tuple[Delta, tuple[str, ...]]] = []
    reasoning = {name: extra[name] for name in _REASONING if extra.get(name)}
    if reasoning:
        part = Delta("", 1, DeltaKind.REASONING, reasoning=_reasoning_text(reasoning))
        parts.append((part, tuple(reasoning)))
    for name in ("content", "refusal"):
        text = getattr(delta, name)
        if text and isinstance(text, str):
            parts.append((Delta(text, 0 if parts else 1), (name,)))
    opaque = tuple(name for name in ("tool_calls", "function_call", "audio") if getattr(delta, name, None))
    if opaque:
        part = Delta("", 0 if parts else 1, DeltaKind.TOOL, tool_calls=_tool_calls(delta))
        parts.append((part, opaque))
    return parts or [(Delta("", 0, DeltaKind.ROLE), ())]


def _reasoning_text(given: Mapping[str, Any]) -> str:
    """Return the reasoning text of a delta; servers that give it under several names repeat the same text."""
    for value in given.values():
        if isinstance(value, str):
            return well_formed(value)
    details = given.get("reasoning_details")
    parts = details if isinstance(details, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _tool_calls(delta: Any) -> tuple[ToolCallDelta, ...]:
    """Return the pieces of a delta's calls; the single function call of the older API is the first call."""
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    pieces = [
        _call_piece(
            index if type(index := getattr(call, "index", None)) is int else place, call.function, call
        )
        for place, call in enumerate(calls)
        if getattr(call, "function", None) is not None
    ]
    if not pieces and delta.function_call is not None:
        pieces.append(_call_piece(0, delta.function_call, None))
    return tuple(pieces)


def _call_piece(index: int, function: Any, call: Any) -> ToolCallDelta:
    given = (getattr(function, "arguments", None), getattr(call, "id", None), getattr(function, "name", None))
    arguments, call_id, name = (value if isinstance(value, str) else None for value in given)
    return ToolCallDelta(index, arguments or "", call_id, name)


def logprob_entries(logprobs: Any) -> list[Any]:
    """Return the entries of a choice's `logprobs`, one a token, for its content or for its refusal."""
    for name in ("content", "refusal"):
        entries = getattr(logprobs, name, None)
        if entries and isinstance(entries, list):
            return entries
    return []


def log_probabilities(values: list[Any]) -> tuple[float, ...] | None:
    """Return the log probabilities as numbers; None where there are none, or where one is no number."""
    known = values and all(type(value) in (int, float) and math.isfinite(value) for value in values)
    return tuple(map(float, values)) if known else None


_CONTENT = ("content", "refusal", "tool_calls", "function_call", "audio", *_REASONING)


def is_bare(delta: Any) -> bool:
    """Return True for a delta without content of any kind."""
    return not any(getattr(delta, name, None) for name in _CONTENT)


def _changed(chunk: ChatCompletionChunk, change: Callable[[Any], dict[str, Any]]) -> ChatCompletionChunk:
    """Return a copy of a chunk with `change` of each choice applied; the original stays unchanged."""
    choices = [choice.model_copy(update=change(choice)) for choice in chunk.choices]
    return chunk.model_copy(update={"choices": choices})


def only(chunk: ChatCompletionChunk, fields: tuple[str, ...], *, with_usage: bool) -> ChatCompletionChunk:
    """Return a copy whose delta keeps only `fields` of the content."""

    def change(choice: Any) -> dict[str, Any]:
        kept = {n: v for n, v in choice.delta.model_dump().items() if n not in _CONTENT or n in fields}
        rebuilt = type(choice.delta).construct(**kept)
        return {"delta": rebuilt}

    copy = _changed(chunk, change)
    return copy if with_usage else copy.model_copy(update={"usage": None})


def finish_only(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """Return a copy with the finish reason and without content."""
    return _changed(chunk, lambda choice: {"delta": type(choice.delta).construct(), "logprobs": None})


def without_finish(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """Return a copy with the content and without finish reason and usage."""
    return _changed(chunk, lambda _: {"finish_reason": None}).model_copy(update={"usage": None})


_MOST_TOKENS = 10**9  # longer than any context; a larger figure is taken for an error


def usage_from(usage: object) -> Usage | None:
    """Return the vendor's counts as `Usage`; None where neither prompt nor answer is counted.

    A missing count is 0, and so is an invalid one: servers send negative numbers, text and other values.
    """
    prompt_tokens, completion_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if not (prompt_tokens or completion_tokens):
        return None
    cached_tokens = _count(_field(usage, "prompt_tokens_details"), "cached_tokens")
    return Usage(prompt_tokens, completion_tokens, cached_tokens)


def _field(model: object, name: str) -> Any:
    return model.get(name) if isinstance(model, Mapping) else getattr(model, name, None)


def _count(model: object, name: str) -> int:
    value = _field(model, name)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= _MOST_TOKENS else 0
