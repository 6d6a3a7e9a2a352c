"""Whatever the body of an error is, the error is the SDK's, short enough to print, and as quick as any other."""

from __future__ import annotations

import json
import time

import httpx2
import openai
import pytest
from defects.asking import client as asking
from defects.asking import create, preset
from faults.in_memory import MemoryServer, Reply
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disco import Backup

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
LONGEST = 5000  # characters of a message


def reply(data: bytes, status: int) -> Reply:
    return Reply([data[at : at + 1_000_000] for at in range(0, len(data), 1_000_000)], status, JSON)


async def sdks(data: bytes, status: int) -> openai.OpenAIError:
    """What the SDK raises by itself."""
    server = MemoryServer(reply(data, status))
    http = httpx2.AsyncClient(transport=server)
    async with openai.AsyncOpenAI(
        base_url=server.base_url, api_key="k", http_client=http, max_retries=0
    ) as one:
        with pytest.raises(openai.OpenAIError) as caught:
            await create(one)
    return caught.value


async def ours(data: bytes, status: int, *, stream: bool, with_backup: bool) -> openai.OpenAIError:
    """What disco raises, where another endpoint gives the same answer or none is there."""
    server = MemoryServer(reply(data, status))
    more = {"preset": preset("server_only")}
    if with_backup:
        http = httpx2.AsyncClient(transport=server)
        at = {"base_url": server.also(reply(data, status)), "api_key": "another-secret-5678", "model": "m"}
        more["backups"] = [Backup(**at, price=(1.0, 1.0), http_client=http, continuation="none")]
    async with asking(server, **more) as one:
        with pytest.raises(openai.OpenAIError) as caught:
            await create(one, stream=stream, disco={"deadline_s": 60.0})
    return caught.value


BODIES = {
    "empty": b"",
    "null": b"null",
    "a number": b"1e999",
    "a text": b'"No."',
    "true": b'{"error": true}',
    "a list": b"[1, [2, {}]]",
    "lists for fields": b'{"error": {"message": ["a"], "code": {"x": 1}, "type": [1], "param": 2}}',
    "not a number": b'{"error": {"message": "No.", "n": NaN, "all": [Infinity, -Infinity, {"x": NaN}]}}',
    "half a character": b'{"error": {"message": "\\ud83d"}}',
    "no utf-8": b'{"error": {"message": "\xff\xfe\xc3"}}',
    "binary": bytes(range(256)) * 300,
    "half a document": b'{"error": {"message": "No',
    "nested 600 deep": b'{"error": {"message": "No.", "x": ' + b"[" * 600 + b"]" * 600 + b"}}",
    "nested 100,000 deep": b'{"error": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
    "nested as texts": json.dumps(
        {"error": {"message": json.dumps({"message": json.dumps("x" * 900)})}}
    ).encode(),
    "long numbers": b'{"error": {"code": ' + b"9" * 4000 + b', "message": "No."}}',
    "longer numbers": b'{"error": {"code": ' + b"9" * 40_000 + b', "message": "No."}}',
    "60 KB of text": json.dumps({"error": {"message": "word " * 12_000}}).encode(),
    "10 MB": json.dumps({"error": {"message": "x" * 10_000_000}}).encode(),
    "10 MB of fields": json.dumps({"error": {"message": "No.", "all": list(range(1_500_000))}}).encode(),
    "much to read": json.dumps(
        {"error": {"message": "prompt 1 1 (1) " * 3000, "errors": ["max " * 900] * 9}}
    ).encode(),
}


@pytest.mark.parametrize("data", BODIES.values(), ids=BODIES)
async def test_odd_bodies(data):
    for status in (400, 401, 404, 413, 418, 422, 429, 500, 529):
        like = await sdks(data, status)
        for with_backup in (False, True):
            error = await ours(data, status, stream=status % 2 == 0, with_backup=with_backup)
            assert type(error) is type(like)
            assert error.status_code == status
            if with_backup:
                assert len(str(error)) <= LONGEST
                json.dumps(error.body, allow_nan=False)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "type", "param", "detail", "errors", "metadata", "raw", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(body=ANY | st.binary(max_size=60), status=st.integers(400, 599))
async def test_any_body_makes_the_error_that_the_sdk_makes_of_it(body, status):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    like = await sdks(data, status)
    error = await ours(data, status, stream=False, with_backup=True)
    assert type(error) is type(like)
    if isinstance(like, openai.APIStatusError) and type(like) is type(error):
        assert error.status_code == like.status_code
        assert error.message.startswith(like.message[:40]) or "[prompt]" in error.message
    in_stream = Reply(
        [b"data: " + json.dumps({"error": body if not isinstance(body, bytes) else "x"}).encode() + b"\n\n"]
    )
    async with asking(
        MemoryServer(in_stream), preset=preset("server_only"), budget={"usd": 1.0, "per": "day"}
    ) as one:
        with pytest.raises(openai.OpenAIError):
            await create(one, disco={"deadline_s": 5.0})


@pytest.mark.parametrize("size", [2_000_000, 8_000_000])
@pytest.mark.parametrize("message", ["words", "quotation", "escapes"])
async def test_a_long_prompt_and_a_long_error_do_not_stop_the_program(size, message):
    """It took 24 seconds for the shorter prompt. Compared with the SDK, which has to send and read the same."""
    prompt = ("The sea is wide, and nobody knows how deep. " * (size // 44 + 1))[:size]
    messages = [{"role": "user", "content": prompt + "It is my secret that pebbles can be counted."}]
    said = {
        "words": "It may be that none of these words are of the prompt: " + "abc defg hij " * 4800,
        "quotation": "Bad: 'secret that pebbles can be counted.' " + prompt[:60_000],
        "escapes": '\\n\\"\\u00e9' * 6000,
    }[message]
    data = json.dumps({"error": {"message": said}}).encode()
    server = MemoryServer(reply(data, 400))
    begun = time.process_time()
    async with asking(server, preset=preset("server_only"), budget={"usd": 100.0, "per": "day"}) as one:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(one, messages)
    assert time.process_time() - begun < 2.0
    assert len(str(caught.value)) <= LONGEST
    assert "pebbles" not in str(caught.value)
    assert "nobody knows" not in str(caught.value)
    if message == "words":
        assert "none of these words are" in str(caught.value)
