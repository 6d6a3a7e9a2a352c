"""Maps every exception of the SDK, the transport or the server's stream to one `EndpointFailure`.

The table below is the whole mapping. The caller sees the same exception object or type as without disco. The session
learns the kind of failure and how long the server asked for no requests.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx2
import openai

from disco.endpoints.openai_api.refused.account import account_sent
from disco.endpoints.openai_api.refused.redacted import redact, without_quotations
from disco.endpoints.openai_api.refused.said import said_by
from disco.endpoints.openai_api.refused.too_long import is_too_long
from disco.endpoints.openai_api.refused.whose_fault import SAID_WITHIN, kind_of_refusal
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, UnreadableAnswerError

__all__ = [
    "FAILED_EVENT",
    "NO_REASON",
    "failure_from",
    "garbage",
    "incomplete",
    "kind_of_status",
    "kind_of_transport",
    "retry_after_s",
    "stream_error",
    "wrap_transport",
    "wrap_unreadable",
]

# Of the SDK's classes that stand for no status; the first that matches decides.
_BY_TYPE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (openai.APITimeoutError, FailureKind.TIMEOUT),
    (IncompleteAnswerError, FailureKind.INCOMPLETE),
    (UnreadableAnswerError, FailureKind.GARBAGE),
    (openai.APIConnectionError, FailureKind.CONNECTION),
    (openai.APIResponseValidationError, FailureKind.GARBAGE),
)
_BY_STATUS: Mapping[int, FailureKind] = {
    **dict.fromkeys((400, 422), FailureKind.BAD_REQUEST),
    # 402: no credit; 407: a proxy's password; 451: not in this country
    **dict.fromkeys((401, 402, 403, 407, 451), FailureKind.ACCOUNT),
    # 424: the model failed (Hugging Face, Databricks); 499: cancelled on its way (Google, proxies)
    **dict.fromkeys((408, 409, 423, 424, 425, 499), FailureKind.SERVER),
    413: FailureKind.CONTEXT_LENGTH,
    **dict.fromkeys((420, 429, 498), FailureKind.RATE_LIMIT),  # 498: Groq has no capacity
}
_FILTER_CODES = frozenset(
    {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt"}
)
# Of an error in a stream, which has no status, or at one that blames the request: Bedrock's, those that OpenRouter
# passes on.
_RATE_CODES = frozenset(
    {
        *("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "overloaded_error"),
        *("resource_exhausted", "throttlingexception"),
    }
)
NO_REASON = "ended its stream without a finish reason"
_REFUSED = frozenset({FailureKind.ACCOUNT, FailureKind.MODEL})


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
    for kind_type, kind in _BY_TYPE:
        if isinstance(error, kind_type):
            return kind
    if not isinstance(error, openai.APIError):
        return FailureKind.SERVER
    said = said_by(error)
    if is_too_long(said):
        return FailureKind.CONTEXT_LENGTH
    if said.codes & _FILTER_CODES:
        return FailureKind.CONTENT_FILTER
    words = "\n".join(text[:SAID_WITHIN] for text in said.words)
    refused = kind_of_refusal(said, without_quotations(words, prompt))
    if refused is not None:
        return refused
    if said.status in (None, 400, 422) and said.codes & _RATE_CODES:
        return FailureKind.RATE_LIMIT
    return FailureKind.SERVER if said.status is None else kind_of_status(said.status)


def kind_of_status(status: int) -> FailureKind:
    """Return the kind of failure that an HTTP status stands for where nothing else is known.

    Below 500, what is not listed is a status that such an API does not give (404: another path, 405, 410): it is the
    fault of what answers there.
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


def wrap_transport(error: BaseException, request: httpx2.Request | None) -> openai.APIConnectionError:
    """Return what the SDK would have raised for an exception of the transport while a body is read."""
    is_late = kind_of_transport(error) is FailureKind.TIMEOUT
    kind = openai.APITimeoutError if is_late else openai.APIConnectionError
    wrapped = kind(request=request if request is not None else _no_request())
    wrapped.__cause__ = error
    return wrapped


def wrap_unreadable(error: BaseException) -> BaseException:
    """Return an `OpenAIError` for Python's own errors, which the SDK raises about what is no JSON or no UTF-8."""
    if not isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return error
    why = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
    return UnreadableAnswerError(
        f"The server has sent what is no JSON ({why}). Check that its base_url ends where the API begins."
    )


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


def incomplete(name: str, lacks: str = NO_REASON) -> EndpointFailure:
    """Return the failure for a stream that is no whole answer; `lacks` says why."""
    error = IncompleteAnswerError(f"Endpoint {name!r} {lacks}.")
    return EndpointFailure(FailureKind.INCOMPLETE, error)


def retry_after_s(headers: Mapping[str, str] | None, *, now: float | None = None) -> float | None:
    """Return the seconds that the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as HTTP date.

    None where it asks for none, or for a time that has passed, as when its clock is behind: then the client backs off.

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
        wait_s = date.timestamp() - (time.time() if now is None else now)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return wait_s if wait_s > 0 else None


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _no_request() -> httpx2.Request:
    # The openai exception types require a request; here none had been built yet.
    return httpx2.Request("POST", "disco://server/chat/completions")
