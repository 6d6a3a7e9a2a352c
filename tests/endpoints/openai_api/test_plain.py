"""What is sent is what the SDK sends, to the byte; of an error's body only the beginning is read."""

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

from disco import AsyncDisco
from disco.endpoints.openai_api.sdk_client import MAX_ERROR_BYTES, PlainClient

CLOCKS = httpx2.Timeout(None, connect=5.0)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def both(**more) -> tuple[openai.AsyncOpenAI, PlainClient]:
    more = {"api_key": "sk-0123456789", "base_url": "http://h.example:81/v1", **more}
    return openai.AsyncOpenAI(**more), PlainClient(**more)


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
    flood = [head.encode(), *[piece(b'{"error": "' + b"x" * 65_000) for _ in range(400)], RESET]
    async with (
        scripted_server(flood) as server,
        AsyncDisco(base_url=server.base_url, api_key="sk-0123456789", max_retries=0) as client,
    ):
        with anyio.fail_after(60), pytest.raises(openai.APIError) as raised:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}])
        assert len(json.dumps(raised.value.body or "")) <= 2 * MAX_ERROR_BYTES
        assert isinstance(raised.value, openai.APIStatusError | openai.APIResponseValidationError)
