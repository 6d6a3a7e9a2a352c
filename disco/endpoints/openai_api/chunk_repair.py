"""The JSON inside an event: checked, repaired where servers deviate from the API, and taken apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from disco.endpoints.openai_api.sse import ErrorData, PerhapsErrorData
from disco.events import Delta, DeltaKind, ToolCallDelta, Usage

__all__ = [
    "Halves",
    "MalformedChunkError",
    "ServerReportedError",
    "as_chunk",
    "divided",
    "document_as_event",
    "finish_only",
    "has_notes",
    "is_bare",
    "json_object",
    "log_probabilities",
    "logprob_entries",
    "may_count",
    "mended_choice",
    "parts_of",
    "presentable",
    "reason_in",
    "reported_error",
    "says_something",
    "text_beside_parts",
    "usage_from",
    "usage_in",
    "with_greatest",
    "without_finish",
]


class MalformedChunkError(ValueError):
    """An event's data is not JSON, or is JSON of another shape."""


class ServerReportedError(Exception):
    """The stream carried an error object.

    Attributes:
        body: the error object.
        event: the event `response.failed` that carried it, where the server was asked by `/responses`.
        by_shape: only its fields, or its event's name, show that it is one. The SDK passes over it.
    """

    def __init__(self, body: object, event: object = None, *, by_shape: bool = False) -> None:
        super().__init__("error object in stream")
        self.body = body
        self.event = event
        self.by_shape = by_shape


def json_object(data: bytes, *, in_choices: bool = True) -> dict[str, Any] | None:
    """Return data as a JSON object, which is empty for `null`; None for `[DONE]`.

    `in_choices`: an error in a choice is raised, too.

    Raises:
        MalformedChunkError: it is no JSON object.
        ServerReportedError: it is an error, or holds one; see `reported_error`.
    """
    if data.lstrip().startswith(b"[DONE]"):
        return None
    is_named = isinstance(data, ErrorData)
    is_sure = is_named and not isinstance(data, PerhapsErrorData)
    try:
        body = _DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        if is_named:
            raise ServerReportedError(data.decode("utf-8", "replace")) from None
        raise MalformedChunkError("data that is not JSON") from error
    reported = reported_error(body, in_choices=in_choices)
    if reported is None and isinstance(body, dict) and body.get("detail") and "choices" not in body:
        reported = {"message": body["detail"], **body}  # FastAPI, where it is no answer's beginning
    is_chunk = isinstance(body, dict) and bool(body.get("choices"))
    if is_sure or reported is not None or (is_named and not is_chunk):
        by_shape = isinstance(body, dict) and not (is_sure or is_chunk or body.get("error"))
        raise ServerReportedError(body if reported is None else reported, by_shape=by_shape)
    if body is None:
        return {}  # some servers show by a null that they live
    if not isinstance(body, dict):
        raise MalformedChunkError("JSON that is not an object")
    return body


def reported_error(body: object, *, in_choices: bool = True) -> object:
    """Return the error that a chunk or a whole body reports; None where it reports none.

    As the SDK does, an `error` that is null, empty or false is none. Servers also put it into a choice (OpenRouter),
    into a list (Gemini), or send nothing else (vLLM). A code that stands beside the error is added to it. Without an
    `error`, and where there are no choices, the other fields may show that there is one.
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
    if choices := body.get("choices"):
        listed = choices if isinstance(choices, list) and in_choices else []
        return next(
            (c["error"] for c in listed if isinstance(c, dict) and says_something(c.get("error"))), None
        )
    codes = (body.get("code"), body.get("status"), body.get("status_code"))
    kind = body.get("type")
    is_error = (
        "error" in (body.get("object"), kind, body.get("status"))
        or bool(body.get("errors"))
        or any(type(code) is int and 400 <= code < 600 for code in codes)
        or (isinstance(kind, str) and kind.endswith(("Error", "Exception")) and bool(body.get("message")))
    )
    return body if is_error else _error_within(body)


def _error_within(body: dict[str, Any]) -> object:
    """Return the error in a field of a provider's own; None where there is none.

    That is one that is named so (Bedrock), a code that is not 0 (MiniMax), or, in a chunk, an `error` (Groq).
    """
    for name, value in body.items():
        if not isinstance(value, dict):
            continue
        if name.endswith("Exception") and value:
            return {"type": name, **value}
        code = value.get("status_code") if name == "base_resp" else None
        if type(code) is int and code:
            return {"message": value.get("status_msg"), "code": code}
        if "choices" in body and says_something(value.get("error")):
            return value["error"]
    return None


def says_something(error: object) -> bool:
    """Whether what stands under `error` in a choice is one: some servers write an empty one beside every text."""
    if isinstance(error, dict):
        return any(map(says_something, error.values()))
    return bool(error) and not (isinstance(error, str) and error.strip().lower() in _NOTHING)


def reason_in(value: object) -> str | None:
    """Return a finish reason; None for what is none, such as a number or an empty text, and for words that say so."""
    if not isinstance(value, str) or value.strip().lower() in (*_NOTHING, "finish_reason_unspecified"):
        return None
    return well_formed(value)


_NOTHING = ("", "none", "null")  # DashScope; Python's `str(None)`; Gemini has a word of its own


def presentable(body: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return the JSON in `data` without what no model could be made of, or could be written as JSON again.

    That are halves of characters, a name that the SDK's `construct` takes for an argument of its own, and more levels
    than pydantic writes. The texts of its choices keep their halves, which may be made whole.

    Raises:
        MalformedChunkError: it has too many levels.
    """
    is_odd = any(mark in data for mark in _ODD) or data.count(b"[") + data.count(b"{") > _MOST_LEVELS
    if not is_odd:
        return body
    choices = body.pop("choices", None)
    return {**_presentable(body), "choices": _presentable(choices, texts=False)}


_ODD = (b"\\ud", b"\\uD", b"\xed", b"_fields_set")
_MOST_LEVELS = 200


def _presentable(value: Any, level: int = 0, *, texts: bool = True) -> Any:
    if level > _MOST_LEVELS:
        raise MalformedChunkError("JSON of too many levels")
    if isinstance(value, dict):
        return {
            well_formed(name): _presentable(item, level + 1, texts=texts)
            for name, item in value.items()
            if name != "_fields_set"
        }
    if isinstance(value, list):
        return [_presentable(item, level + 1, texts=texts) for item in value]
    return well_formed(value) if texts and isinstance(value, str) else value


def document_as_event(body: object) -> bytes | None:
    """Return a completion that came as one document as the event of one chunk; None for any other document.

    Some servers, and nearly all mocks, answer so although a stream was asked for.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(choices, list) or not choices:
        return None
    if not all(isinstance(choice, dict) for choice in choices):
        return None
    made = [as_chunk(choice) for choice in choices]
    return json.dumps({**body, "object": "chat.completion.chunk", "choices": made}).encode()


def as_chunk(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the choice of a document, which has a message, as that of a chunk; any other as it is."""
    message = choice.get("message")
    if not isinstance(message, dict) or isinstance(choice.get("delta"), dict):
        return choice
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        calls = [{**call, "index": at} for at, call in enumerate(calls) if isinstance(call, dict)]
        message = {**message, "tool_calls": calls}
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": message}


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
    if isinstance(content, list | dict) and not _is_text(content):
        pass  # an image, a reference: as the SDK, hand it on
    elif isinstance(content, list | dict):  # typed parts, as in messages
        delta["content"] = _text_of(content, "text")
        if (thoughts := _text_of(content, "thinking")) and not any(map(delta.get, _REASONING)):
            delta["reasoning_content"] = thoughts
    elif isinstance(content, int | float) and not isinstance(content, bool):
        delta["content"] = json.dumps(content)  # the SDK hands the number on, which applications show
    else:
        delta["content"] = content if isinstance(content, str) else None
    return {
        **Halves().joined({name: value for name, value in choice.items() if name != "delta"}, 0, ends=True),
        "delta": halves.joined(delta, where, ends=reason is not None),
        "index": where,
        "finish_reason": reason,
    }


def _is_text(content: object) -> bool:
    """Return whether the parts of a content are text and thoughts only, as far as one can know."""
    if isinstance(content, list):
        return all(map(_is_text, content))
    if not isinstance(content, dict) or "text" in content or "thinking" in content:
        return True
    return not content or any(word in str(content.get("type", "text")) for word in ("text", "think"))


def _text_of(value: object, name: str) -> str:
    """Return the text in a value that should be one: a text, or parts with a text under `name`."""
    if isinstance(value, str):
        return value if name == "text" else ""
    if isinstance(value, dict):
        inner = value.get(name)
        if inner is None and name == "text":
            inner = value.get("value") or value.get("content")
        return inner if isinstance(inner, str) else _text_of(inner, "text")
    return "".join(_text_of(part, name) for part in value) if isinstance(value, list) else ""


def text_beside_parts(chunk: Any) -> str:
    """Return the text in a chunk's content where that is parts of which some are no text; empty for any other."""
    choices = getattr(chunk, "choices", None)
    content = getattr(getattr(choices[0], "delta", None), "content", None) if choices else None
    return "" if isinstance(content, str) else _text_of(content, "text")


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
            return _presentable(value)
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


_OPAQUE = ("tool_calls", "function_call", "audio", "images")
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
            parts.append((Delta(text, 0 if parts else 1, refusal=name == "refusal"), (name,)))
    opaque = tuple(name for name in _OPAQUE if getattr(delta, name, None))
    content: Any = delta.content
    if content and not isinstance(content, str):
        opaque = ("content", *opaque)  # parts that are not only text
    if opaque:
        part = Delta("", 0 if parts else 1, DeltaKind.TOOL, tool_calls=_tool_calls(delta))
        parts.append((part, opaque))
    return parts or [(Delta("", 0, DeltaKind.ROLE), ())]


def _reasoning_text(given: Mapping[str, Any]) -> str:
    """Return the reasoning text of a delta; servers that give it under several names repeat the same text."""
    for value in given.values():
        if text := _text_of(value, "text") or _text_of(value, "summary"):
            return well_formed(text)
    return ""


def _tool_calls(delta: Any) -> tuple[ToolCallDelta, ...]:
    """Return the pieces of a delta's calls; the single function call of the older API is the first call."""
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    pieces = [
        _call_piece(
            index if type(index := getattr(call, "index", None)) is int else place,
            getattr(call, "function", None),
            call,
        )
        for place, call in enumerate(calls)
        if getattr(call, "function", None) is not None or _only_begins(call)
    ]
    if not pieces and delta.function_call is not None:
        pieces.append(_call_piece(0, delta.function_call, None))
    return tuple(pieces)


def _only_begins(call: Any) -> bool:
    """Whether a piece has a function call's id and nothing else yet."""
    return bool(getattr(call, "id", None)) and getattr(call, "type", None) == "function"


def _call_piece(index: int, function: Any, call: Any) -> ToolCallDelta:
    given = (getattr(function, "arguments", None), getattr(call, "id", None), getattr(function, "name", None))
    if isinstance(given[0], dict | list):
        given = (json.dumps(given[0]), *given[1:])
    if type(given[1]) is int:
        given = (given[0], str(given[1]), given[2])
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


_CONTENT = ("content", "refusal", *_OPAQUE, *_REASONING)


def has_notes(delta: Any) -> bool:
    """Return True for a delta without content that has fields of a provider's own."""
    return is_bare(delta) and any((delta.model_extra or {}).values())


def is_bare(delta: Any) -> bool:
    """Return True for a delta without content of any kind."""
    return not any(getattr(delta, name, None) for name in _CONTENT)


def _changed(chunk: ChatCompletionChunk, change: Callable[[Any], dict[str, Any]]) -> ChatCompletionChunk:
    """Return a copy of a chunk with `change` of each choice applied; the original stays unchanged."""
    choices = [choice.model_copy(update=change(choice)) for choice in chunk.choices]
    return chunk.model_copy(update={"choices": choices})


def divided(chunk: ChatCompletionChunk, parts: list[tuple[str, ...]]) -> list[ChatCompletionChunk]:
    """Return a chunk of one choice as one for each of `parts`, which are fields of its content.

    The first has all the rest, so that nothing is said twice; the last has the usage.
    """
    delta = chunk.choices[0].delta.model_dump(exclude_unset=True, warnings=False)
    part_of = {name: number for number, fields in enumerate(parts) for name in fields}
    made = []
    for number, fields in enumerate(parts):
        kept = {name: value for name, value in delta.items() if part_of.get(name, 0) == number}
        choice = chunk.choices[0].model_copy(update={"delta": ChoiceDelta.construct(**kept)})
        if number > 0:
            _without_extra(choice)
            if choice.logprobs is not None:
                choice.logprobs = None
        usage = {} if fields is parts[-1] else {"usage": None}
        made.append(chunk.model_copy(update={"choices": [choice], **usage}))
    return made


def finish_only(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """Return a copy with the finish reason and without content."""
    copy = _changed(chunk, lambda choice: {"delta": type(choice.delta).construct(), "logprobs": None})
    for made, choice in zip(copy.choices, chunk.choices, strict=True):
        made.__pydantic_fields_set__ = choice.model_fields_set.copy()
    return copy


def without_finish(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """Return a copy with the content and without what `finish_only` has."""
    copy = _changed(chunk, lambda _: {"finish_reason": None}).model_copy(update={"usage": None})
    for choice in copy.choices:
        _without_extra(choice)
    return copy


def _without_extra(model: Any) -> None:
    model.__pydantic_fields_set__ -= (model.model_extra or {}).keys()
    model.__pydantic_extra__ = {}


_MOST_TOKENS = 10**9  # longer than any context; a larger figure is taken for an error


# Names of one count, in the order in which they are looked for: the API's, those of its responses, Anthropic's,
# Bedrock's, Gemini's, Cohere's, DeepSeek's, Moonshot's and OpenRouter's. With a dot: within an object.
_PROMPT = (
    *("prompt_tokens", "input_tokens", "inputTokens", "inputTokenCount", "promptTokenCount"),
    "billed_units.input_tokens",
)
_COMPLETION = (
    *("completion_tokens", "output_tokens", "outputTokens", "outputTokenCount", "candidatesTokenCount"),
    "billed_units.output_tokens",
)
_TOTAL = ("total_tokens", "totalTokens", "totalTokenCount")
_REASONING_COUNT = (
    *("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"),
    *("reasoning_tokens", "thoughtsTokenCount"),
)
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_CACHED_WITHIN = (
    *(
        f"{of}.{name}"
        for of in _DETAILS
        for name in ("cached_tokens", "cache_read_tokens", "cached_content_tokens")
    ),
    *("prompt_cache_hit_tokens", "cached_tokens", "cachedContentTokenCount"),
)
_CACHED_BESIDE = ("cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount")
_WRITES_WITHIN = tuple(
    f"{of}.{name}"
    for of in _DETAILS
    for name in ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
)
_WRITES_BESIDE = ("cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount")


# Where a chunk has its counts, besides in its choices (Moonshot): the API's place, Gemini's, Groq's and Bedrock's.
_PLACES = ("usage", "usageMetadata", "x_groq.usage", "amazon-bedrock-invocationMetrics")
_MAY_COUNT = frozenset(place.partition(".")[0] for place in _PLACES)


def may_count(chunk: ChatCompletionChunk) -> bool:
    """Whether `usage_in` may find something: a quick look, for each chunk."""
    if chunk.usage is not None or not _MAY_COUNT.isdisjoint(chunk.__pydantic_extra__ or ()):
        return True
    return bool(chunk.choices) and "usage" in (chunk.choices[0].__pydantic_extra__ or ())


def usage_in(chunk: object) -> Usage | None:
    """Return what a chunk counts, wherever its server puts it; None where it counts nothing."""
    choices = _field(chunk, "choices")
    given = [_within(chunk, place) for place in _PLACES]
    given += [_field(choice, "usage") for choice in (choices if isinstance(choices, list) else ())]
    found: Usage | None = None
    for usage in given:
        if usage is not None and (counted := usage_from(usage)) is not None:
            found = with_greatest(found, counted)
    return found


def with_greatest(old: Usage | None, new: Usage) -> Usage:
    """Return the greater of two counts of each kind: an answer's counts grow, and a later one may lack the prompt."""
    if old is None:
        return new
    prompt, completion, cached, cache_writes = map(
        max,
        *(
            (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.cache_write_tokens)
            for usage in (old, new)
        ),
    )
    return Usage(prompt, completion, cached, cache_write_tokens=min(cache_writes, prompt - cached))


def usage_from(usage: object) -> Usage | None:
    """Return what a server counts as what it bills; None where neither prompt nor answer is counted.

    Providers count in two ways what `Usage` counts in one. Tokens read from a cache or written into it are a part of
    the prompt, or (Anthropic, Bedrock) come on top of it: they do where they are more than the prompt, where the total
    says so, and where they are named so and no total contradicts. Reasoning is a part of the answer, or (xAI, Gemini)
    comes on top of it: it does where it is more than the answer, and where the total leaves room for it.

    A missing count is 0, and so is an invalid one: servers send negative numbers, text and other values. A price that a
    server names itself (OpenRouter's `cost`) is not looked at.
    """
    prompt, completion, total = _first(usage, _PROMPT), _first(usage, _COMPLETION), _first(usage, _TOTAL)
    read, written = _first(usage, _CACHED_WITHIN), _first(usage, _WRITES_WITHIN)
    is_within = bool(read or written)
    read, written = read or _first(usage, _CACHED_BESIDE), written or _first(usage, _WRITES_BESIDE)
    if not (prompt or completion or read or written):
        return None
    is_named_beside = not is_within and bool(read or written)
    if (
        read + written > prompt
        or (is_named_beside and (not total or not _first(usage, _PROMPT[:1])))
        or total == prompt + completion + read + written
    ):
        prompt += read + written
    prompt = prompt or max(0, total - completion)
    reasoning = _first(usage, _REASONING_COUNT)
    if total > prompt + completion:
        completion = total - prompt
    elif reasoning > completion:
        completion += reasoning
    return Usage(prompt, completion, read, cache_write_tokens=written)


def _first(usage: object, names: tuple[str, ...]) -> int:
    """Return the first count that is given under one of these names; 0 where none is."""
    for name in names:
        if count := _count(_within(usage, name)):
            return count
    return 0


def _within(model: object, name: str) -> Any:
    """Return a field; with a dot in its name, that of an object within."""
    of, _, inner = name.rpartition(".")
    return _field(_field(model, of) if of else model, inner)


def _field(model: object, name: str) -> Any:
    if isinstance(model, dict):
        return model.get(name)
    # `getattr` takes fifteen times as long for a field that a model of the SDK lacks, as it does most of these.
    fields = getattr(model, "__dict__", None) or {}
    return fields[name] if name in fields else (getattr(model, "__pydantic_extra__", None) or {}).get(name)


def _count(value: object) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= _MOST_TOKENS else 0
