"""What is seen of an answer: a chunk, a completion or a response of the SDK's, as an application reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import openai

__all__ = ["Seen", "add_chunk", "add_response", "add_whole"]


@dataclass
class Seen:
    """What an application can see of an answer, and what its servers can.

    Attributes:
        text, reasoning, refusal, calls, finish, usage: of the answer; what came before an error, too.
        more: fields of other kinds.
        error: the class of what was raised, by name; None: nothing.
        is_ours: an `OpenAIError`, as an application expects.
        kinds: its classes, the SDK's among them.
        status: of an error with a response.
        complaints: what the event loop was told of that nobody awaited, and errors of its own that disco logged.
        opened: the stream, which the application closes.
        requests: how many the row's own server was sent for this.
        wait_s: until the end, in seconds of the wall's clock.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[tuple[Any, Any, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[Any, ...] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    is_ours: bool = True
    kinds: tuple[str, ...] = ()
    status: int | None = None
    says: str = ""
    complaints: list[str] = field(default_factory=list)
    opened: Any = None
    requests: int = 0
    wait_s: float = 0.0

    def answer(self) -> dict[str, Any]:
        """All that is the answer."""
        names = ("text", "reasoning", "refusal", "calls", "finish", "usage", "more")
        return {name: getattr(self, name) for name in names}

    def failed(self, error: BaseException) -> None:
        self.error = type(error).__name__
        self.is_ours = isinstance(error, openai.OpenAIError)
        self.kinds = tuple(k.__name__ for k in type(error).__mro__)
        self.status = getattr(error, "status_code", None)
        self.says = " ".join(str(error).split())[:200]


def _text(value: Any) -> str:
    if value is None or value is False:  # no application shows it
        return ""
    return value if isinstance(value, str) else json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.to_dict() if isinstance(value, openai.BaseModel) else value


def _usage(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    cached = getattr(getattr(value, "prompt_tokens_details", None), "cached_tokens", None)
    return (
        getattr(value, "prompt_tokens", None),
        getattr(value, "completion_tokens", None),
        getattr(value, "total_tokens", None),
        cached,
    )


_OF_A_MESSAGE = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "role", "parsed")


def _beside(seen: Seen, message: Any) -> None:
    """Fields that are neither text nor calls, joined as lists and texts where they come in pieces."""
    for name, value in {**vars(message), **(message.model_extra or {})}.items():
        if name in _OF_A_MESSAGE or value in (None, [], ""):
            continue
        plain, old = _plain(value), seen.more.get(name)
        both = isinstance(old, (list, str)) and type(old) is type(plain)
        seen.more[name] = old + plain if both else plain


def add_chunk(seen: Seen, piece: Any) -> None:
    """Add a chunk, as applications do."""
    if getattr(piece, "usage", None) is not None:
        seen.usage = _usage(piece.usage)
    for choice in getattr(piece, "choices", None) or []:
        seen.finish = seen.finish or getattr(choice, "finish_reason", None)
        delta = getattr(choice, "delta", None)
        if delta is None:
            continue
        if getattr(choice, "index", 0):
            more = f"text of choice {choice.index}"
            seen.more[more] = seen.more.get(more, "") + _text(getattr(delta, "content", None))
            continue
        seen.text += _text(getattr(delta, "content", None))
        seen.refusal += _text(getattr(delta, "refusal", None))
        seen.reasoning += _text(
            getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        )
        if getattr(choice, "logprobs", None) is not None:
            tokens = getattr(choice.logprobs, "content", None) or []
            seen.more["logprobs"] = seen.more.get("logprobs", 0) + len(tokens)
        _beside(seen, delta)
        for call in getattr(delta, "tool_calls", None) or []:
            _add_call(seen, call)


def _called(call: Any) -> tuple[Any, str]:
    """The name and the arguments of a call, or of a piece of one."""
    function = getattr(call, "function", None) or getattr(call, "custom", None)
    if isinstance(function, dict):
        return function.get("name"), _text(function.get("arguments", function.get("input")))
    return getattr(function, "name", None), _text(
        getattr(function, "arguments", getattr(function, "input", None))
    )


def _add_call(seen: Seen, call: Any) -> None:
    """Calls of a stream: a piece with another id begins another call; one without an id continues by its index."""
    name, text = _called(call)
    at = getattr(call, "index", None)
    known = seen.more.setdefault("_calls at", [])
    places = [i for i, (index, made) in enumerate(known) if (made == call.id if call.id else index == at)]
    if not places:
        if not call.id and known and not isinstance(at, int):
            places = [len(known) - 1]
        else:
            known.append((at, call.id))
            seen.calls.append((call.id or None, name, text))
            return
    old = seen.calls[places[-1]]
    seen.calls[places[-1]] = (old[0], old[1] or name, (old[2] or "") + text)


def add_whole(seen: Seen, completion: Any) -> None:
    if isinstance(completion, str):  # of another kind than JSON, the SDK gives the body
        return
    seen.usage = _usage(completion.usage)
    for choice in completion.choices or []:
        message = getattr(choice, "message", None)
        if message is None:
            continue
        if choice.index:
            seen.more[f"text of choice {choice.index}"] = _text(message.content)
            continue
        seen.finish = seen.finish or getattr(choice, "finish_reason", None)
        seen.text += _text(message.content)
        seen.refusal += _text(getattr(message, "refusal", None))
        seen.reasoning += _text(
            getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
        )
        if getattr(choice, "logprobs", None) is not None:
            seen.more["logprobs"] = len(getattr(choice.logprobs, "content", None) or [])
        _beside(seen, message)
        for call in message.tool_calls or []:
            seen.calls.append((getattr(call, "id", None) or None, *_called(call)))


def add_response(seen: Seen, response: Any) -> None:
    for item in response.output or []:
        if item.type == "message":
            for part in item.content or []:
                seen.text += _text(getattr(part, "text", None))
                seen.refusal += _text(getattr(part, "refusal", None))
        elif item.type == "function_call":
            seen.calls.append((item.call_id or None, item.name, item.arguments))
        elif item.type == "reasoning":
            parts = [*(item.summary or []), *(getattr(item, "content", None) or [])]
            seen.reasoning += "".join(_text(getattr(p, "text", None)) for p in parts)
    usage = response.usage
    if usage is not None:
        cached = getattr(getattr(usage, "input_tokens_details", None), "cached_tokens", None)
        seen.usage = (usage.input_tokens, usage.output_tokens, usage.total_tokens, cached)
    seen.finish = {"completed": "stop"}.get(response.status, response.status)
    if response.status == "incomplete":
        seen.finish = getattr(response.incomplete_details, "reason", None)
