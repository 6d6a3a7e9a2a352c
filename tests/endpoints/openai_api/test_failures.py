"""Every failure has its kind and keeps its exception; `tests/security/test_redaction.py` has what it must not tell."""

from __future__ import annotations

import httpx2
import openai
import pytest

from disco.endpoints.openai_api.error_mapping import failure_from, retry_after_s, stream_error
from disco.errors import FailureKind as Kind
from disco.errors import IncompleteAnswerError

REQUEST = httpx2.Request("POST", "http://x/v1/chat/completions")


def status(number: int, message: str | None = None, code: str | None = None) -> openai.APIStatusError:
    body = {"error": {"message": message, "code": code, "type": None}} if message or code else None
    response = httpx2.Response(number, request=REQUEST, json=body)
    return openai.AsyncOpenAI(api_key="none")._make_status_error_from_response(response)


def streamed(message: str, code: str | None = None) -> openai.APIError:
    return stream_error({"message": message, "code": code}, REQUEST)


# What the usual statuses are is in `tests/client/test_bad_server.py`.
KINDS = [
    (Kind.BAD_REQUEST, status(400, "unknown parameter")),
    (Kind.RATE_LIMIT, streamed("x", "rate_limit_exceeded")),
    (Kind.SERVER, status(425)),
    (Kind.SERVER, streamed("x", "server_error")),
    (Kind.SERVER, stream_error("no object at all", REQUEST)),
    (Kind.CONTEXT_LENGTH, status(400, "prompt is too long: 9 > 8")),
    (Kind.CONTEXT_LENGTH, status(400, "This model's maximum context length is 8 tokens.")),
    (Kind.CONTEXT_LENGTH, streamed("prompt is too long: 9 > 8")),
    (Kind.TIMEOUT, openai.APITimeoutError(request=REQUEST)),
    (Kind.INCOMPLETE, IncompleteAnswerError("x")),
]


def test_kind_and_what_the_sdk_would_raise():
    for kind, error in KINDS:
        failure = failure_from(error, name="server")
        assert (failure.kind, failure.error) == (kind, error)
    for error, type_, kind in (
        (httpx2.ConnectError("x"), openai.APIConnectionError, Kind.CONNECTION),
        (httpx2.ConnectTimeout("x"), openai.APITimeoutError, Kind.TIMEOUT),
        (OSError("tls"), openai.APIConnectionError, Kind.CONNECTION),
    ):
        failure = failure_from(error, name="server")
        assert (type(failure.error), failure.kind, failure.error.__cause__) == (type_, kind, error)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        *(({"retry-after": odd}, None) for odd in ("soon", "-3", "nan")),
        ({}, None),
        (None, None),
    ],
)
def test_retry_after(headers, expected):
    assert retry_after_s(headers, now=40.0) == expected
