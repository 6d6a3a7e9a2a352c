"""What is sent is what the SDK sends, to the byte; every failure has its kind and keeps its exception."""

from __future__ import annotations

import json

import anyio
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import by_turns
from openai._models import FinalRequestOptions
from scripted_server import RESET, piece, scripted_server

from disco import AsyncDisco, Timeouts
from disco.endpoints.openai_api.error_mapping import failure_from, retry_after_s, stream_error
from disco.endpoints.openai_api.sdk_client import MAX_ERROR_BYTES, PlainClient
from disco.errors import FailureKind as Kind
from disco.errors import IncompleteAnswerError

CLOCKS = httpx2.Timeout(None, connect=5.0)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def both(**more) -> tuple[openai.AsyncOpenAI, PlainClient]:
    more = {"api_key": "sk-0123456789", "base_url": "http://h.example:81/v1", **more}
    return openai.AsyncOpenAI(**more), PlainClient(reads_environment=True, **more)


def options(**given) -> FinalRequestOptions:
    usual = {"method": "post", "url": "/chat/completions", "json_data": {"model": "m"}, "timeout": CLOCKS}
    return FinalRequestOptions.construct(**{**usual, "max_retries": 0, **given})


def parts(request: httpx2.Request):
    return request.method, request.url, sorted(request.headers.raw), request.read(), request.extensions


def assert_same(sdk: openai.AsyncOpenAI, plain: PlainClient, *asked: FinalRequestOptions) -> None:
    for each in asked:
        assert parts(plain._build_request(each)) == parts(sdk._build_request(each))


SDK, PLAIN = both()


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=3))
def test_every_body_is_sent_as_the_sdk_sends_it(body):
    assert_same(SDK, PLAIN, options(), options(json_data=body))
    (kept,) = PLAIN._kept.values()  # so it was made of an earlier one,
    assert kept.content == b""  # without its prompt


def test_what_differs_in_more_than_its_body_is_put_together_by_the_sdk():
    for other in (
        {"url": "/completions"},
        {"timeout": httpx2.Timeout(None, connect=1.0)},
        {"timeout": 3.0},
        {"headers": {"X-Own": "1"}},
        {"headers": {"Authorization": openai.Omit()}},
        {"params": {"a": "b"}},
        {"extra_json": {"more": 1}},
        {"json_data": [1, 2]},
        {"method": "get", "url": "/models", "json_data": None},
        {"security": {"bearer_auth": True}},
    ):
        assert_same(*both(), options(), options(**other), options(), options(**other))


def test_what_the_client_says_for_all_requests():
    sdk, plain = both(default_headers={"x-all": "1"}, default_query={"v": "2"}, organization="o", project="p")
    assert_same(sdk, plain, options(), options())
    for client in (sdk, plain):
        client.api_key = "sk-another-key"
        client._client.headers["x-later"] = "yes"
        client._client.cookies.set("session", "1", domain="h.example")
    for retries in (0, 0, 1, 1):
        mine = plain._build_request(options(), retries_taken=retries)
        assert parts(mine) == parts(sdk._build_request(options(), retries_taken=retries))
        assert {"x-later", "cookie"} <= set(mine.headers)


@pytest.mark.real
@pytest.mark.anyio
@pytest.mark.parametrize(("status", "anyio_backend"), by_turns(["500 Oops", "200 OK"]))
async def test_an_endless_error_is_not_read_to_its_end(status, anyio_backend):
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    flood = [head.encode(), *[piece(b'{"error": "' + b"x" * 10**6) for _ in range(80)], RESET]
    async with (
        scripted_server(flood) as server,
        # With clocks of its own; without them the SDK asks, which reads all of it.
        AsyncDisco(
            base_url=server.base_url, api_key="sk-0123456789", max_retries=0, timeouts=Timeouts()
        ) as client,
    ):
        with anyio.fail_after(60), pytest.raises(openai.APIError) as raised:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}])
        assert len(json.dumps(raised.value.body or "")) <= 2 * MAX_ERROR_BYTES
        assert isinstance(raised.value, openai.APIStatusError | openai.APIResponseValidationError)


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
    for error in (httpx2.ConnectError("x"), httpx2.ConnectTimeout("x"), OSError("tls")):
        late = isinstance(error, httpx2.ConnectTimeout)
        failure = failure_from(error, name="server")
        assert failure.kind is (Kind.TIMEOUT if late else Kind.CONNECTION)
        assert type(failure.error) is (openai.APITimeoutError if late else openai.APIConnectionError)
        assert failure.error.__cause__ is error


def test_retry_after():
    for headers, expected in (
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, None),  # it has passed: back off
        ({"retry-after": "Mon, 01 Jan 99999999999 00:00:00 GMT"}, None),
        *(({"retry-after": odd}, None) for odd in ("soon", "-3", "0", "nan")),
        *((nothing, None) for nothing in ({}, None)),
    ):
        assert retry_after_s(headers, now=40.0) == expected
