"""What an attached program and the server say to each other: one order in JSON, and the events as lines of JSON.

A line is a list: its name, its content, and the usage so far. Pickle is not used, so what comes can be wrong but can
never run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, Literal

import openai
from pydantic import BaseModel, ConfigDict

from disco.endpoints.contract import Event
from disco.errors import (
    BusyError,
    ConfigurationError,
    ContextLengthError,
    EndpointFailure,
    FailureKind,
    IncompleteAnswerError,
    LocalModelError,
    ModelFileError,
    NoEndpointError,
)
from disco.events import Delta, DeltaKind, Ended, Progress, Started, ToolCallDelta, Usage
from disco.request import Prefix, Request

__all__ = ["ANSWERS", "HELLO", "Order", "event_line", "failure_line", "order_of", "read_line"]

HELLO: Final = "/v1/disco/device"
ANSWERS: Final = "/v1/disco/device/answers"

# Errors whose message is complete; any other type arrives as a LocalModelError.
_ERRORS: dict[str, Callable[[str], Exception]] = {
    error.__name__: error
    for error in (
        *(BusyError, ConfigurationError, ContextLengthError, IncompleteAnswerError, LocalModelError),
        ModelFileError,
    )
}


class Order(BaseModel):
    """What an attached program asks for: `Endpoint.open`, as data, which the server checks (`checked_order`).

    Attributes:
        messages, params, classes, cap: those of the request.
        prefix: the answer so far.
        wants: what disco asks for besides the text.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1] = 1
    messages: list[dict[str, Any]]
    params: dict[str, Any] = {}
    classes: list[Any] = []
    cap: int | None = None
    prefix: dict[str, Any] = {}
    wants: list[Any] = []


def order_of(request: Request, prefix: Prefix, wants: frozenset[str]) -> bytes:
    """Return the order for a request.

    Raises:
        TypeError, ValueError: the request holds a value that JSON cannot represent.
    """
    order = {
        "version": 1,
        "messages": [dict(message) for message in request.messages],
        "params": dict(request.params),
        "classes": list(request.classes),
        "cap": request.cap,
        "prefix": {one.name: getattr(prefix, one.name) for one in fields(prefix)},
        "wants": sorted(wants),
    }
    return json.dumps(order, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def event_line(event: Event, usage: Usage) -> bytes:
    """Return an event of an attempt as a line."""
    if isinstance(event, list):
        return _line("deltas", [_delta_fields(delta) for delta in event], usage)
    if isinstance(event, Started):
        return _line("started", event.cached_tokens, usage)
    if isinstance(event, Progress):
        return _line("progress", [event.tokens_done, event.tokens_total, event.prefill_tps], usage)
    if isinstance(event, Ended):
        return _line("ended", event.finish_reason, event.usage or usage)
    raise TypeError(f"an attached program has no use for {type(event).__name__}")


def failure_line(failure: EndpointFailure, usage: Usage) -> bytes:
    """Return the failure of an attempt as a line."""
    error = failure.error
    content: dict[str, Any] = {
        "kind": failure.kind.value,
        "type": type(error).__name__,
        "message": error.message if isinstance(error, openai.APIError) else str(error),
        "retry_after_s": failure.retry_after_s,
        "may_retry": failure.may_retry,
    }
    if isinstance(error, NoEndpointError):
        content |= {"code": error.code, "param": error.param}
    return _line("failed", content, usage)


def read_line(line: bytes) -> tuple[Event | EndpointFailure | None, Usage]:
    """Return the event, or the failure, and the usage so far; None for an end that the server gave without a reason.

    Raises:
        ValueError: the line is not of this protocol.
    """
    try:
        document = json.loads(line)
        if isinstance(document, dict) and "error" in document:
            return None, Usage()
        name, content, used = document
        prompt, completion, cached = used
        usage = Usage(int(prompt), int(completion), int(cached))
        return _event(name, content, usage), usage
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("a line breaks the protocol") from error


def _line(name: str, content: Any, usage: Usage) -> bytes:
    used = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    return json.dumps([name, content, used], separators=(",", ":")).encode("ascii") + b"\n"


def _event(name: str, content: Any, usage: Usage) -> Event | EndpointFailure:
    if name == "deltas":
        return [_delta_of(one) for one in content]
    if name == "started":
        return Started(int(content))
    if name == "progress":
        done, total, tps = content
        return Progress(int(done), int(total), float(tps))
    if name == "ended":
        return Ended(str(content), usage)
    if name == "failed":
        return _failure(content)
    raise ValueError("a line has an unknown name")


def _delta_fields(delta: Delta) -> dict[str, Any]:
    """Return the fields of a delta, leaving out usual ones: there may be a delta for every token."""
    content: dict[str, Any] = {"text": delta.text, "tokens": delta.tokens}
    if delta.kind is not DeltaKind.TEXT:
        content["kind"] = delta.kind.value
    for name in ("ids", "logprobs", "logp", "label_scores"):
        if (value := getattr(delta, name)) is not None:
            content[name] = value
    if delta.reasoning:
        content["reasoning"] = delta.reasoning
    if delta.refusal:
        content["refusal"] = True
    if delta.tool_calls:
        content["tool_calls"] = [asdict(one) for one in delta.tool_calls]
    return content


def _delta_of(content: Any) -> Delta:
    several = {
        name: tuple(content[name])
        for name in ("ids", "logp", "label_scores")
        if content.get(name) is not None
    }
    return Delta(
        str(content["text"]),
        int(content["tokens"]),
        DeltaKind(content.get("kind", DeltaKind.TEXT)),
        logprobs=content.get("logprobs"),
        reasoning=str(content.get("reasoning", "")),
        refusal=bool(content.get("refusal")),
        tool_calls=tuple(ToolCallDelta(**one) for one in content.get("tool_calls", ())),
        **several,
    )


def _failure(content: Any) -> EndpointFailure:
    name, message = content["type"], str(content["message"])
    if name == NoEndpointError.__name__:
        error: Exception = NoEndpointError(message, code=content["code"], param=content["param"])
    else:
        error = _ERRORS.get(name, LocalModelError)(message)
    return EndpointFailure(
        FailureKind(content["kind"]),
        error,
        retry_after_s=content.get("retry_after_s"),
        may_retry=content.get("may_retry"),
    )
