"""The events of an attempt as OpenAI's chunks: how a host of a local model writes them, and how its client reads them.

The deltas in the verdicts of a verify server have the same form, in one object (`coded`).

A chunk has OpenAI's own fields, so that any client can read the answer. What these do not hold is in the field `disco`,
which a request asks for by having such a field itself. A chunk with no choices holds nothing else:

    {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": null}], "disco": {"ids": [31], "used": …}}
    {"choices": [], "disco": {"started": 12}}                     `Started`, with the cached tokens
    {"choices": [], "disco": {"progress": [64, 410, 812.5]}}      `Progress`
    {"choices": [], "disco": {"parked": [-0.5], "number": 3}}     `Parked`, behind the third text that it was given
    {"choices": [], "disco": {"ended": "parked"}}                 `Ended`
    {"error": {"message": "…", "code": "…", "disco": {"kind": "context_length", "type": "ContextLengthError", …}}}

Any of them may also say what the attempt has done so far, where that has changed: `used`, its usage (prompt, completion
and cached tokens; where others did part of it also the tokens of drafts, and each payer's share); `traffic`, the bytes
that it sent and received; `speculation`, the numbers of a `SpeculationReport`, with the windows that are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

import httpx2
import openai

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
from disco.events import Delta, DeltaKind, SpeculationReport, ToolCallDelta, Usage
from disco.request import Prefix

__all__ = [
    "choice_of",
    "coded",
    "delta_of",
    "error_fields",
    "extras_of",
    "failure_in",
    "prefix_fields",
    "speculation_fields",
    "speculation_of",
    "status_of",
    "usage_of",
    "used",
]

# Errors whose message is complete; any other type arrives as a LocalModelError.
_ERRORS: Final[Mapping[str, Callable[[str], Exception]]] = {
    error.__name__: error
    for error in (
        *(
            BusyError,
            ConfigurationError,
            ContextLengthError,
            IncompleteAnswerError,
            LocalModelError,
            ModelFileError,
        ),
    )
}
# The SDK's, of a server that the host has asked in its turn.
_OF_STATUS: Final[Mapping[str, type[openai.APIStatusError]]] = {
    error.__name__: error
    for error in (
        openai.APIStatusError,
        openai.AuthenticationError,
        openai.BadRequestError,
        openai.ConflictError,
        openai.InternalServerError,
        openai.NotFoundError,
        openai.PermissionDeniedError,
        openai.RateLimitError,
        openai.UnprocessableEntityError,
    )
}
_STATUS: Final = {
    FailureKind.BAD_REQUEST: 400,
    FailureKind.CONTEXT_LENGTH: 400,
    FailureKind.UNSERVED: 400,
    FailureKind.CONTENT_FILTER: 400,
    FailureKind.RATE_LIMIT: 429,
    FailureKind.CRASHED: 503,
}

_NO_REQUEST: Final = httpx2.Request("POST", "disco://host")  # the SDK's errors need one


def choice_of(delta: Delta) -> dict[str, Any]:
    """Return a delta as the only choice of a chunk."""
    return {"index": 0, "finish_reason": None, **_content_of(delta)}


def coded(delta: Delta) -> dict[str, Any]:
    """Return a delta as one object, which `delta_of` takes as both of its arguments."""
    return {**_content_of(delta), **extras_of(delta)}


def _content_of(delta: Delta) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if delta.tool_calls:
        content["tool_calls"] = [_call(piece) for piece in delta.tool_calls]
    elif delta.kind is DeltaKind.REASONING:
        content["reasoning_content"] = delta.reasoning
    elif delta.refusal:
        content["refusal"] = delta.text
    elif delta.kind is not DeltaKind.ROLE:
        content["content"] = delta.text
    return {"delta": content} if delta.logprobs is None else {"delta": content, "logprobs": delta.logprobs}


def extras_of(delta: Delta) -> dict[str, Any]:
    """Return what a delta holds that its choice does not, without what is usual: there may be one for every token."""
    extras: dict[str, Any] = {}
    if delta.tokens != 1:
        extras["tokens"] = delta.tokens
    for name in ("ids", "logp", "label_scores"):
        if (value := getattr(delta, name)) is not None:
            extras[name] = value
    return extras


def delta_of(choice: Mapping[str, Any], extras: Mapping[str, Any]) -> Delta:
    """Return the delta of a choice and of what stood beside it."""
    content = choice["delta"]
    delta = Delta("", int(extras.get("tokens", 1)), DeltaKind.ROLE, logprobs=choice.get("logprobs"))
    for name in ("ids", "logp", "label_scores"):
        if extras.get(name) is not None:
            setattr(delta, name, tuple(extras[name]))
    if calls := content.get("tool_calls"):
        delta.kind, delta.tool_calls = DeltaKind.TOOL, tuple(map(_piece, calls))
    elif (reasoning := content.get("reasoning_content")) is not None:
        delta.kind, delta.reasoning = DeltaKind.REASONING, str(reasoning)
    elif (refusal := content.get("refusal")) is not None:
        delta.kind, delta.text, delta.refusal = DeltaKind.TEXT, str(refusal), True
    elif (written := content.get("content")) is not None:
        delta.kind, delta.text = DeltaKind.TEXT, str(written)
    return delta


def _call(piece: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": piece.arguments}
    call: dict[str, Any] = {"index": piece.index, "function": function}
    if piece.name is not None:
        function["name"] = piece.name
    if piece.id is not None:
        call |= {"id": piece.id, "type": "function"}
    return call


def _piece(call: Mapping[str, Any]) -> ToolCallDelta:
    function = call["function"]
    return ToolCallDelta(int(call["index"]), function["arguments"], call.get("id"), function.get("name"))


def used(usage: Usage) -> list[Any]:
    """Return the usage of an answer."""
    counts: list[Any] = [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]
    if usage.shares or any(usage.drafted):
        counts += [list(usage.drafted), [[name, used(share)] for name, share in usage.shares]]
    return counts


def usage_of(content: Any) -> Usage:
    """Return the usage that `used` made this of."""
    prompt, completion, cached, *more = content
    usage = Usage(int(prompt), int(completion), int(cached))
    if not more:
        return usage
    read, written, known = more[0]
    shares = tuple((str(name), usage_of(share)) for name, share in more[1])
    return replace(usage, drafted=(int(read), int(written), int(known)), shares=shares)


def speculation_fields(report: SpeculationReport, told: int) -> dict[str, Any]:
    """Return a report whose first `told` windows are known already. Its times are on the sender's clock."""
    return {**asdict(report), "timed_windows": report.timed_windows[told:]}


def speculation_of(content: Mapping[str, Any], earlier: SpeculationReport | None) -> SpeculationReport:
    """Return the report that `speculation_fields` made this of, with the windows of the one before it."""
    windows = tuple((int(drafted), int(rounds)) for drafted, rounds in content["windows"])
    timed = tuple(
        (float(sent_s), float(judged_s), int(drafted), int(right))
        for sent_s, judged_s, drafted, right in content["timed_windows"]
    )
    before = () if earlier is None else earlier.timed_windows
    return SpeculationReport(**{**content, "windows": windows, "timed_windows": (*before, *timed)})


def prefix_fields(prefix: Prefix) -> dict[str, Any]:
    """Return the fields of a prefix that have other than their usual values: what `checked_prefix` reads."""
    values = {one.name: (getattr(prefix, one.name), one.default) for one in fields(prefix)}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {name: list(value) if name == "ids" else value for name, value in changed.items()}


def error_fields(failure: EndpointFailure) -> dict[str, Any]:
    """Return a failure as an error object of the API."""
    error = failure.error
    status = status_of(failure)
    code = getattr(error, "code", None)
    content: dict[str, Any] = {
        "message": error.message if isinstance(error, openai.APIError) else str(error),
        "type": "invalid_request_error" if status == 400 else "server_error",
        "param": getattr(error, "param", None),
        "code": code if code is not None else failure.kind.value,
    }
    extras: dict[str, Any] = {"kind": failure.kind.value, "type": type(error).__name__}
    if isinstance(error, NoEndpointError):
        extras["code"] = code
    if type(error).__name__ in _OF_STATUS and isinstance(error, openai.APIStatusError):
        extras["status"], extras["body"] = error.status_code, error.body
    for name in ("retry_after_s", "may_retry"):
        if (value := getattr(failure, name)) is not None:
            extras[name] = value
    return {**content, "disco": extras}


def status_of(failure: EndpointFailure) -> int:
    """Return the HTTP status for a failure."""
    return _STATUS.get(failure.kind, 500)


def failure_in(error: object) -> EndpointFailure | None:
    """Return the failure that an error object of the API tells of; None where no host has made it."""
    if not isinstance(error, Mapping) or not isinstance(extras := error.get("disco"), Mapping):
        return None
    name, message = extras.get("type"), str(error.get("message"))
    try:
        kind = FailureKind(str(extras.get("kind")))
    except ValueError:
        return None
    if name == NoEndpointError.__name__:
        made: Exception = NoEndpointError(message, code=str(extras.get("code")), param=error.get("param"))
    elif name == ContextLengthError.__name__:
        made = ContextLengthError(message, param=str(error.get("param")))
    elif name in _OF_STATUS:
        response = httpx2.Response(int(extras["status"]), request=_NO_REQUEST)
        made = _OF_STATUS[str(name)](message, response=response, body=extras.get("body"))
    elif name == openai.APIConnectionError.__name__:
        made = openai.APIConnectionError(message=message, request=_NO_REQUEST)
    elif name == openai.APITimeoutError.__name__:
        made = openai.APITimeoutError(_NO_REQUEST)
    else:
        made = _ERRORS.get(str(name), LocalModelError)(message)
    return EndpointFailure(
        kind, made, retry_after_s=extras.get("retry_after_s"), may_retry=extras.get("may_retry")
    )
