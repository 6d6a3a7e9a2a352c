"""Every failure has its kind, keeps its exception, and tells no secrets."""

from __future__ import annotations

import httpx2
import openai
import pytest

from disco.endpoints.openai_api.error_mapping import failure_from, redact, retry_after_s, stream_error
from disco.errors import FailureKind, IncompleteAnswerError

REQUEST = httpx2.Request("POST", "http://x/v1/chat/completions")


def status_error(status: int, body: object = None, **headers: str) -> openai.APIStatusError:
    client = openai.AsyncOpenAI(api_key="none")
    response = httpx2.Response(
        status, request=REQUEST, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    return client._make_status_error_from_response(response)


def body(message: str = "m", code: str | None = None, type_: str | None = None) -> dict:
    return {"error": {"message": message, "code": code, "type": type_}}


KINDS = {
    FailureKind.AUTHENTICATION: [status_error(401), status_error(403)],
    FailureKind.BAD_REQUEST: [
        *map(status_error, (400, 404, 422)),
        status_error(400, body("unknown parameter")),
    ],
    FailureKind.RATE_LIMIT: [
        status_error(429),
        stream_error({"message": "x", "code": "rate_limit_exceeded"}, REQUEST),
    ],
    FailureKind.SERVER: [
        *map(status_error, (408, 409, 425, 500, 503)),
        stream_error({"message": "x", "code": "server_error"}, REQUEST),
        stream_error("no object at all", REQUEST),
    ],
    FailureKind.CONTEXT_LENGTH: [
        status_error(413),
        status_error(400, body(code="context_length_exceeded")),
        status_error(400, body("This model's maximum context length is 8 tokens.")),
        status_error(400, body("prompt is too long: 9 > 8")),
        stream_error({"message": "prompt is too long: 9 > 8"}, REQUEST),
    ],
    FailureKind.CONTENT_FILTER: [status_error(400, body(code="content_filter"))],
    FailureKind.TIMEOUT: [openai.APITimeoutError(request=REQUEST)],
    FailureKind.CONNECTION: [openai.APIConnectionError(request=REQUEST)],
    FailureKind.INCOMPLETE: [IncompleteAnswerError("x")],
}


@pytest.mark.parametrize(("kind", "error"), [(k, error) for k, errors in KINDS.items() for error in errors])
def test_kind(kind, error):
    failure = failure_from(error, name="server")
    assert failure.kind is kind
    assert failure.error is error


@pytest.mark.parametrize(
    ("error", "type_", "kind"),
    [
        (httpx2.ConnectError("x"), openai.APIConnectionError, FailureKind.CONNECTION),
        (httpx2.ConnectTimeout("x"), openai.APITimeoutError, FailureKind.TIMEOUT),
        (OSError("tls"), openai.APIConnectionError, FailureKind.CONNECTION),
    ],
)
def test_transport_errors_become_what_the_sdk_would_raise(error, type_, kind):
    failure = failure_from(error, name="server")
    assert type(failure.error) is type_
    assert failure.kind is kind
    assert failure.error.__cause__ is error


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_retry_after(headers, expected):
    assert retry_after_s(headers, now=40.0) == expected


def test_keys_do_not_stay_in_errors():
    key = "sk-secret-0123456789"
    error = status_error(401, body(f"Incorrect API key provided: {key}."))
    failure = failure_from(error, name="server", secrets=(key,))
    assert key not in f"{failure.error} {failure.error!r} {failure.error.body}"
    assert isinstance(failure.error, openai.AuthenticationError)


def test_short_placeholder_keys_do_not_blank_words():
    error = status_error(400, body("no such thing"))
    assert "no such thing" in str(redact(error, ("no", "")))
