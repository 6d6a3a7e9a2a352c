"""Maps every exception of the SDK, the transport or the server's stream to one `EndpointFailure`.

The table below is the whole mapping. The caller sees the same exception object or type as without disco. The session
learns the kind of failure and how long the server asked for no requests.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx2
import openai

from disco.endpoints.openai_api.refused.account import account_sent
from disco.endpoints.openai_api.refused.whose_fault import SAID_WITHIN, kind_of_refusal
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError

__all__ = [
    "FAILED_EVENT",
    "failure_from",
    "garbage",
    "incomplete",
    "kind_of_status",
    "kind_of_transport",
    "redact",
    "retry_after_s",
    "sent_secrets",
    "stream_error",
    "without_secrets",
    "wrap_transport",
]

# Checked in this order; the first class that matches decides. Status codes come after `code` and message.
_BY_TYPE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (openai.AuthenticationError, FailureKind.ACCOUNT),
    (openai.PermissionDeniedError, FailureKind.ACCOUNT),
    (openai.RateLimitError, FailureKind.RATE_LIMIT),
    (openai.ConflictError, FailureKind.SERVER),
    (openai.InternalServerError, FailureKind.SERVER),
    (openai.APITimeoutError, FailureKind.TIMEOUT),
    (IncompleteAnswerError, FailureKind.INCOMPLETE),
    (openai.APIConnectionError, FailureKind.CONNECTION),
    (openai.APIResponseValidationError, FailureKind.GARBAGE),
)
_BY_STATUS: Mapping[int, FailureKind] = {
    **dict.fromkeys((400, 422), FailureKind.BAD_REQUEST),
    # 402: no credit; 407: a proxy's password; 451: not in this country
    **dict.fromkeys((401, 402, 403, 407, 451), FailureKind.ACCOUNT),
    **dict.fromkeys((408, 409, 425), FailureKind.SERVER),
    413: FailureKind.CONTEXT_LENGTH,
    429: FailureKind.RATE_LIMIT,
}
_CONTEXT_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
)
_CONTEXT_MESSAGE = re.compile(
    r"maximum context length|context (?:length|window|size)[^.]{0,40}(?:exceed|too|larger|limit)"
    r"|context (?:length|window|size)[^.]{0,40}not enough|greater than the context (?:length|window|size)"
    r"|exceeds?[^.]{0,40}context|prompt is too long|input is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_RATE_CODES = frozenset({"rate_limit_exceeded", "rate_limit_error", "overloaded_error"})
_REFUSED = frozenset({FailureKind.ACCOUNT, FailureKind.MODEL})

_SHORTEST_SECRET = 8  # a shorter "key" (local servers accept anything) would remove ordinary words
_SECRET_NAME = re.compile(r"auth|key|token|secret|password|cookie|signature", re.IGNORECASE)
_QUOTED = 16  # characters in common with the prompt; a shorter match may be chance


def failure_from(
    error: Exception, *, name: str, secrets: tuple[str, ...] = (), prompt: object = None
) -> EndpointFailure:
    """Classify `error`, an exception of `openai` or of the transport.

    Args:
        error: what was raised.
        name: the endpoint's, for messages made here.
        secrets: see `redact`.
        prompt: see `redact`.
    """
    if isinstance(error, httpx2.HTTPError | httpx2.StreamError):
        error = wrap_transport(error, None)
    if not isinstance(error, openai.OpenAIError):
        # The SDK does not wrap a few low-level errors (TLS, end of stream in a handshake).
        wrapped = openai.APIConnectionError(
            message=f"Endpoint {name!r} failed with {type(error).__name__}.", request=_no_request()
        )
        wrapped.__cause__ = error
        error = wrapped
    headers = error.response.headers if isinstance(error, openai.APIStatusError) else None
    kind = kind_of(error, prompt)  # before redaction: the prompt may contain the words that show the kind
    redact(error, secrets, prompt)
    asks = headers.get("x-should-retry", "") if headers else ""
    says = {"true": True, "false": False}.get(asks)
    account = account_sent(error.request) if kind in _REFUSED and isinstance(error, openai.APIError) else None
    wait_s = retry_after_s(headers)
    return EndpointFailure(kind, error, retry_after_s=wait_s, may_retry=says, account=account)


def kind_of(error: openai.OpenAIError, prompt: object = None) -> FailureKind:
    """Return the kind of failure that an `openai` exception stands for.

    Args:
        error: the exception.
        prompt: see `redact`. What the server quotes of it does not make a fault of the account's or the model's: a
            caller could otherwise keep a server from all others for minutes.
    """
    if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
        fields, message = _fields(error), _message(error)
        codes = {fields.get("code", ""), fields.get("type", "")}
        if codes & _CONTEXT_CODES:
            return FailureKind.CONTEXT_LENGTH
        if codes & _FILTER_CODES:
            return FailureKind.CONTENT_FILTER
        status = getattr(error, "status_code", None)
        if status in (None, 400, 413, 422) and _CONTEXT_MESSAGE.search(message):
            return FailureKind.CONTEXT_LENGTH
        refused = kind_of_refusal(status, fields, _without_quotations(message[:SAID_WITHIN], prompt))
        if refused is not None:
            return refused
        if status is None and codes & _RATE_CODES:
            return FailureKind.RATE_LIMIT
        if status is None and fields.get("code", "").isdecimal():  # OpenRouter, in the middle of a stream
            kind = kind_of_status(int(fields["code"]))
            return kind if kind in _REFUSED or kind is FailureKind.RATE_LIMIT else FailureKind.SERVER
    for kind_type, kind in _BY_TYPE:
        if isinstance(error, kind_type):
            return kind
    if isinstance(error, openai.APIStatusError):
        return kind_of_status(error.status_code)
    return FailureKind.SERVER


def kind_of_status(status: int) -> FailureKind:
    """Return the kind of failure that an HTTP status stands for where nothing else is known.

    Below 500, what is not listed is a status that such an API does not give (404: another path, 405, 410, 498): it is
    the fault of what answers there.
    """
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    return FailureKind.GARBAGE if status < 500 else FailureKind.SERVER


def kind_of_transport(error: BaseException) -> FailureKind:
    """Return the kind of failure that an exception of the transport, or of reading what it brought, stands for."""
    if "Timeout" in type(error).__name__:  # of either HTTP package
        return FailureKind.TIMEOUT
    return FailureKind.GARBAGE if isinstance(error, ValueError) else FailureKind.CONNECTION


def wrap_transport(error: Exception, request: httpx2.Request | None) -> openai.OpenAIError:
    """Return what the SDK would have raised for an exception of the transport while a body is read."""
    request = request if request is not None else _no_request()
    wrapped: openai.OpenAIError
    if isinstance(error, httpx2.TimeoutException):
        wrapped = openai.APITimeoutError(request=request)
    else:
        wrapped = openai.APIConnectionError(request=request)
    wrapped.__cause__ = error
    return wrapped


FAILED_EVENT = "_failed_event"
"""The attribute of an error that holds the event `response.failed`; it is removed before the error is raised."""


def stream_error(body: object, request: httpx2.Request, event: object = None) -> openai.APIError:
    """Return the exception that the SDK raises for an error object in the middle of a stream.

    Args:
        body: the error object.
        request: the request that was sent.
        event: see `ServerReportedError`.
    """
    message = body.get("message") if isinstance(body, Mapping) else None
    if not message or not isinstance(message, str):
        message = "An error occurred during streaming"
    error = openai.APIError(message=message, request=request, body=body)
    if event is not None:
        setattr(error, FAILED_EVENT, event)
    return error


def garbage(what: str, response: httpx2.Response, *, name: str) -> EndpointFailure:
    """Return the failure for an answer that breaks the protocol; `what` says how, without quoting it."""
    error = openai.APIResponseValidationError(
        response,
        None,
        message=f"Endpoint {name!r} {what}. Check that its base_url ends where the API begins.",
    )
    return EndpointFailure(FailureKind.GARBAGE, error)


def incomplete(name: str) -> EndpointFailure:
    """Return the failure for a stream that ended without a finish reason."""
    error = IncompleteAnswerError(f"Endpoint {name!r} ended its stream without a finish reason.")
    return EndpointFailure(FailureKind.INCOMPLETE, error)


def retry_after_s(headers: Mapping[str, str] | None, *, now: float | None = None) -> float | None:
    """Return the seconds that the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as HTTP date.

    Args:
        headers: the response's, with case-insensitive names.
        now: wall clock, seconds since the epoch; None reads the clock.
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


def redact(error: Exception, secrets: Iterable[str] = (), prompt: object = None) -> Exception:
    """Remove confidential text from an `openai` exception, in place: servers quote what they receive.

    Secrets are removed from message and body. Quotations of the prompt are removed from the message, which is printed
    and logged.

    Args:
        error: any exception; only the SDK's are changed.
        secrets: the API key, and similar strings. Those that the request itself carried (`sent_secrets`) are added.
        prompt: the request's body, or its confidential part: any nesting of dicts and lists.
    """
    if isinstance(error, openai.APIError):
        known = [*secrets, *sent_secrets(error.request)]

        def clean(text: str) -> str:
            return _without_quotations(without_secrets(text, known), prompt)

        if error.__suppress_context__:
            error.__context__ = None  # contains the whole URL, which may hold a password
        error.args = tuple(clean(item) if isinstance(item, str) else item for item in error.args)
        error.message = clean(error.message)
        error.body = without_secrets(error.body, known)
    return error


def sent_secrets(request: httpx2.Request) -> Iterator[str]:
    """Return the credentials that a request carried: in its headers, and in its URL."""
    for name, value in request.headers.multi_items():
        if _SECRET_NAME.search(name):
            yield value
            yield value.partition(" ")[2]  # without "Bearer"
    for name, value in request.url.params.multi_items():
        if _SECRET_NAME.search(name):
            yield value
    yield request.url.password


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of JSON data with "[key]" in place of every secret."""
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):  # one secret may contain another
            if len(secret) >= _SHORTEST_SECRET:
                for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
                    value = value.replace(form, "[key]")
        return value
    if isinstance(value, Mapping):
        return {name: without_secrets(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, secrets) for item in value]
    return value


def _without_quotations(message: str, prompt: object) -> str:
    """Return `message` with "[prompt]" in place of its quotations of `prompt`.

    Every quotation of `2 * _QUOTED - 1` characters is found, and often a shorter one. The search looks for every
    `_QUOTED`th piece of the message: a prompt may be megabytes long, a message is short.
    """
    for text in _texts(prompt):
        at = 0
        while at + _QUOTED <= len(message):
            found = text.find(message[at : at + _QUOTED])
            if found < 0:
                at += _QUOTED
                continue
            start, begin = at, found
            while start and begin and message[start - 1] == text[begin - 1]:
                start, begin = start - 1, begin - 1
            end, stop = at + _QUOTED, found + _QUOTED
            while end < len(message) and stop < len(text) and message[end] == text[stop]:
                end, stop = end + 1, stop + 1
            message = f"{message[:start]}[prompt]{message[end:]}"
            at = start + len("[prompt]")
    return message


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= _QUOTED:
            yield value
            escaped = json.dumps(value)[1:-1]
            if escaped != value:
                yield escaped
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for item in value:
            yield from _texts(item)


def _fields(error: openai.APIError) -> dict[str, str]:
    """Return what an error says of itself in fields, those of its body and those that the SDK reads, as text."""
    body = _own_body(error)
    given = body if isinstance(body, Mapping) else {}
    found = {name: given.get(name) for name in ("code", "type", "status", "error_code", "param")}
    found |= {name: said for name in ("code", "type", "param") if (said := getattr(error, name, None))}
    return {name: str(said) for name, said in found.items() if isinstance(said, str | int)}


def _message(error: openai.APIError) -> str:
    body = _own_body(error)
    said = body.get("message") if isinstance(body, Mapping) else body
    return said if isinstance(said, str) else error.message


def _own_body(error: openai.APIError) -> object:
    """Return the error object in a response's body, or its text; Gemini puts it into a list."""
    body: Any = error.body
    if isinstance(body, list) and body and isinstance(body[0], Mapping):
        body = body[0].get("error", body[0])
    return body


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _no_request() -> httpx2.Request:
    # The openai exception types require a request; here none had been built yet.
    return httpx2.Request("POST", "disco://server/chat/completions")
