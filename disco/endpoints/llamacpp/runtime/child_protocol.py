"""The messages between the process with the model and the one that started it: JSON, one message a line.

A message is a list: its name, its content, and from the model's side the job's usage so far. Pickle is not used, so
data from the pipe can be wrong but can never run code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import openai

from disco.endpoints.drafter import Drafted
from disco.endpoints.llamacpp.output.delta_fields import delta_fields, delta_of
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.speed_benchmark import DecodeRate, Measurement, PrefillTime
from disco.endpoints.llamacpp.tool_calls.tool_request import Function, Tools
from disco.errors import (
    ConfigurationError,
    ContextLengthError,
    EndpointFailure,
    FailureKind,
    IncompleteAnswerError,
    LocalModelError,
    ModelFileError,
    NoEndpointError,
)
from disco.events import Delta, Ended, Parked, Started, Usage
from disco.request import Prefix

__all__ = ["pack", "pack_item", "unpack", "unpack_item", "unpack_prefix", "unpack_sampling"]

# Errors whose message is complete; any other type arrives as a LocalModelError.
_ERRORS: dict[str, Callable[[str], Exception]] = {
    error.__name__: error
    for error in (
        ConfigurationError,
        ContextLengthError,
        IncompleteAnswerError,
        LocalModelError,
        ModelFileError,
    )
}


def pack(name: str, content: Any = None, usage: Usage | None = None) -> bytes:
    """Return a message as one line.

    Raises:
        TypeError, ValueError: the message holds a value that JSON cannot represent.
    """
    used = None if usage is None else (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    line = json.dumps([name, content, used], default=_plain, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


def unpack(line: bytes) -> tuple[str, Any, Usage | None]:
    """Return name, content and usage of a line.

    Raises:
        ValueError: the line is no message.
    """
    name, content, used = json.loads(line)
    return name, content, None if used is None else Usage(*used)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot represent {type(value).__name__}")


def pack_item(item: Any, usage: Usage | None) -> bytes:
    """Return the line for an item that a job hands over (see `Job.mail`)."""
    if isinstance(item, Delta):
        return pack("delta", delta_fields(item), usage)
    if isinstance(item, Started):
        return pack("started", item.cached_tokens, usage)
    if isinstance(item, Parked):
        return pack("parked", item.logp, usage)
    if isinstance(item, Ended):
        return pack("ended", item.finish_reason, usage)
    if isinstance(item, EndpointFailure):
        return pack("failed", _failure_content(item), usage)
    if isinstance(item, Drafted):
        return pack("drafted", item, usage)
    if isinstance(item, Measurement):
        return pack("measured", item)
    return pack("step", item)


def unpack_item(name: str, content: Any, usage: Usage | None) -> Any:
    """Return the item that the job handed over.

    Raises:
        ValueError: the name is not one of the protocol's.
    """
    if name == "delta":
        return delta_of(content)
    if name == "started":
        return Started(content)
    if name == "parked":
        return Parked(usage or Usage(), tuple(content))
    if name == "ended":
        return Ended(content, usage)
    if name == "failed":
        return _failure(content)
    if name == "drafted":
        return Drafted(content["number"], tuple(content["ids"]), content["took_s"], content["read_tokens"])
    if name == "measured":
        return _measurement(content)
    if name == "step":
        return tuple(content)
    raise ValueError(f"unknown message {name!r}")


def _failure_content(failure: EndpointFailure) -> dict[str, Any]:
    error = failure.error
    message = error.message if isinstance(error, openai.APIError) else str(error)
    content: dict[str, Any] = {"kind": failure.kind, "type": type(error).__name__, "message": message}
    if isinstance(error, NoEndpointError):
        content |= {"code": error.code, "param": error.param}
    return content


def _failure(content: Any) -> EndpointFailure:
    name, message = content["type"], content["message"]
    if name == NoEndpointError.__name__:
        error: Exception = NoEndpointError(message, code=content["code"], param=content["param"])
    else:
        error = _ERRORS.get(name, LocalModelError)(message)
    return EndpointFailure(FailureKind(content["kind"]), error)


def _measurement(content: Any) -> Measurement:
    prefill = tuple(PrefillTime(**one) for one in content.pop("prefill"))
    decode = tuple(DecodeRate(**one) for one in content.pop("decode"))
    return Measurement(prefill=prefill, decode=decode, **content)


def unpack_prefix(content: Any) -> Prefix:
    """Return the prefix in an order."""
    ids = content.pop("ids")
    return Prefix(ids=None if ids is None else tuple(ids), **content)


def unpack_sampling(content: Any) -> Sampling:
    """Return the sampling parameters in an order."""
    tools = content.pop("tools")
    if tools is not None:
        tools = Tools(callable=[Function(**one) for one in tools.pop("callable")], **tools)
    stop = tuple(content.pop("stop"))
    return Sampling(tools=tools, stop=stop, **content)
