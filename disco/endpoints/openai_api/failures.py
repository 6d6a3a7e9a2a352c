"""From whatever the SDK, the transport or the server's stream raised to one `EndpointFailure`.

The table is the whole of it: the exception the caller would have seen stays the same object or type, and
the session learns the kind of failure and how long the server asked to be left alone.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx2
import openai

from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError

__all__ = [
    "failure_from",
    "garbage",
    "incomplete",
    "redact",
    "retry_after_s",
    "stream_error",
    "wrap_transport",
]

# Checked in this order; the first class that fits decides. Status codes come after `code` and message.
_BY_TYPE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (openai.AuthenticationError, FailureKind.AUTHENTICATION),
    (openai.PermissionDeniedError, FailureKind.AUTHENTICATION),
    (openai.RateLimitError, FailureKind.RATE_LIMIT),
    (openai.ConflictError, FailureKind.SERVER),
    (openai.InternalServerError, FailureKind.SERVER),
    (openai.APITimeoutError, FailureKind.TIMEOUT),
    (IncompleteAnswerError, FailureKind.INCOMPLETE),
    (openai.APIConnectionError, FailureKind.CONNECTION),
    (openai.APIResponseValidationError, FailureKind.GARBAGE),
)
_BY_STATUS: Mapping[int, FailureKind] = {
    401: FailureKind.AUTHENTICATION,
    403: FailureKind.AUTHENTICATION,
    408: FailureKind.SERVER,
    409: FailureKind.SERVER,
    413: FailureKind.CONTEXT_LENGTH,
    425: FailureKind.SERVER,
    429: FailureKind.RATE_LIMIT,
}
_CONTEXT_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
)
_CONTEXT_MESSAGE = re.compile(
    r"maximum context length|context (?:length|window|size)[^.]{0,40}(?:exceed|too|larger|limit)"
    r"|exceeds?[^.]{0,40}context|prompt is too long|input is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_RATE_CODES = frozenset({"rate_limit_exceeded", "rate_limit_error", "insufficient_quota", "overloaded_error"})


def failure_from(error: Exception, *, name: str, secrets: tuple[str, ...] = ()) -> EndpointFailure:
    """Classify `error`, an `openai` exception or one of the transport's.

    Args:
        error: what was raised.
        name: the endpoint's, for messages made here.
        secrets: strings that must not stay in the exception's message or body, such as the API key.
    """
    error = redact(error, secrets)
    if isinstance(error, httpx2.HTTPError | httpx2.StreamError):
        error = wrap_transport(error, None)
    if not isinstance(error, openai.OpenAIError):
        # The SDK lets a few low-level errors through (TLS, end of stream in a handshake).
        wrapped = openai.APIConnectionError(
            message=f"Endpoint {name!r} failed with {type(error).__name__}.", request=_no_request()
        )
        wrapped.__cause__ = error
        error = wrapped
    headers = error.response.headers if isinstance(error, openai.APIStatusError) else None
    return EndpointFailure(kind_of(error), error, retry_after_s=retry_after_s(headers))


def kind_of(error: openai.OpenAIError) -> FailureKind:
    """The kind of failure an `openai` exception stands for."""
    if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
        codes = {str(error.code or ""), str(getattr(error, "type", None) or "")}
        if codes & _CONTEXT_CODES:
            return FailureKind.CONTEXT_LENGTH
        if codes & _FILTER_CODES:
            return FailureKind.CONTENT_FILTER
        status = getattr(error, "status_code", None)
        if status in (None, 400, 413, 422) and _CONTEXT_MESSAGE.search(_message(error)):
            return FailureKind.CONTEXT_LENGTH
        if status is None and codes & _RATE_CODES:
            return FailureKind.RATE_LIMIT
    for kind_type, kind in _BY_TYPE:
        if isinstance(error, kind_type):
            return kind
    if isinstance(error, openai.APIStatusError):
        known = _BY_STATUS.get(error.status_code)
        if known is not None:
            return known
        return FailureKind.BAD_REQUEST if error.status_code < 500 else FailureKind.SERVER
    return FailureKind.SERVER


def wrap_transport(error: Exception, request: httpx2.Request | None) -> openai.OpenAIError:
    """What the SDK would have raised for an exception of the transport's, while a body is read."""
    request = request if request is not None else _no_request()
    wrapped: openai.OpenAIError
    if isinstance(error, httpx2.TimeoutException):
        wrapped = openai.APITimeoutError(request=request)
    else:
        wrapped = openai.APIConnectionError(request=request)
    wrapped.__cause__ = error
    return wrapped


def stream_error(body: object, request: httpx2.Request) -> openai.APIError:
    """The exception the SDK raises for an error object in the middle of a stream."""
    message = body.get("message") if isinstance(body, Mapping) else None
    if not message or not isinstance(message, str):
        message = "An error occurred during streaming"
    return openai.APIError(message=message, request=request, body=body)


def garbage(what: str, response: httpx2.Response, *, name: str) -> EndpointFailure:
    """The server's answer is not the protocol; `what` says how, without quoting it."""
    error = openai.APIResponseValidationError(
        response,
        None,
        message=f"Endpoint {name!r} {what}. Check that its base_url ends where the API begins.",
    )
    return EndpointFailure(FailureKind.GARBAGE, error)


def incomplete(name: str) -> EndpointFailure:
    """The stream ended without a finish reason."""
    error = IncompleteAnswerError(f"Endpoint {name!r} ended its stream without a finish reason.")
    return EndpointFailure(FailureKind.INCOMPLETE, error)


def retry_after_s(headers: Mapping[str, str] | None, *, now: float | None = None) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, or `Retry-After` as seconds or HTTP date.

    Args:
        headers: the response's, with case-insensitive names.
        now: wall clock in seconds since the epoch; None reads it.
    """
    if headers is None:
        return None
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def redact(error: Exception, secrets: tuple[str, ...]) -> Exception:
    """Take `secrets` out of the message and body of an `openai` exception, in place: servers quote keys."""
    for secret in secrets:
        # A short "key" (local servers take anything) would blank out ordinary words.
        if len(secret) < 8 or secret not in f"{error} {getattr(error, 'body', '')}":
            continue
        error.args = tuple(_without(argument, secret) for argument in error.args)
        if isinstance(error, openai.APIError):
            error.message = error.message.replace(secret, "[key]")
            error.body = _without(error.body, secret)
    return error


def _without(value: object, secret: str) -> object:
    if isinstance(value, str):
        return value.replace(secret, "[key]")
    if isinstance(value, Mapping):
        return {name: _without(item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [_without(item, secret) for item in value]
    return value


def _message(error: openai.APIError) -> str:
    if isinstance(error.body, Mapping) and isinstance(error.body.get("message"), str):
        return str(error.body["message"])
    return error.message


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _no_request() -> httpx2.Request:
    # The openai exception types require one; here none had been built yet.
    return httpx2.Request("POST", "disco://server/chat/completions")
