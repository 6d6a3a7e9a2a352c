"""One application, three runs: of the SDK's client on the real server, and of disco's with either side.

What the sides can do beyond that is tested with each of them; here it is the SDK's types and its protocol.
"""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import httpx2
import openai
import pytest
from compat_cases import SEA, check_completion, check_stream, entered, got, items, next_of, text_of
from openai.lib.streaming.chat import AsyncChatCompletionStream, ChatCompletionStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SDK = {
    "async": (openai.AsyncOpenAI, openai.AsyncStream, AsyncChatCompletionStream),
    "sync": (openai.OpenAI, openai.Stream, ChatCompletionStream),
}
# Every case on all sides with the asynchronous client; the synchronous one takes the same way there.
SIDES = [("async", "plain"), ("async", "server"), ("async", "device"), ("sync", "server")]
SLOW_SIDES = [pytest.param(("sync", name), marks=pytest.mark.slow) for name in ("plain", "device")]


class Mood(BaseModel):
    """A structure that even a very small model can fill in."""

    happy: bool


@pytest.fixture(params=[*SIDES, *SLOW_SIDES], ids="-".join)
def side(request, llama_server, thread_model):
    """A client, and the endpoint that answers first behind it: "plain" is the openai package alone."""
    kind, name = request.param
    settings = {"base_url": llama_server.base_url, "api_key": "test-key"}
    if name == "plain":
        make = SDK[kind][0]
    else:
        make = AsyncDisco if kind == "async" else Disco
        settings |= {
            "local": thread_model,
            "policy": Preset(dispatch={"policy": f"{name}_only"}, playback={"pace_tps": 5.0}),
            "continuation": Continuation(method="completions", template=str(llama_server.gguf)),
        }
    asked = {"model": llama_server.model, "messages": SEA, "max_tokens": 8, "temperature": 0.0, "seed": 3}
    return SimpleNamespace(name=name, sdk=SDK[kind], asked=asked, connect=lambda: make(**settings))


@pytest.fixture
async def client(side):
    async with entered(side.connect()) as made:
        yield made


@pytest.fixture
def ask(client, side):
    """`create` with the usual question, and more."""
    return lambda **more: got(client.chat.completions.create(**{**side.asked, **more}))


async def test_a_completion_and_a_stream_that_says_the_same(client, side, ask):
    assert isinstance(client, side.sdk[0])
    answer = await ask()
    assert isinstance(answer, ChatCompletion)
    check_completion(answer)
    assert answer._request_id is None or isinstance(answer._request_id, str)
    assert copy.deepcopy(answer).choices == answer.choices
    usage = (
        {} if side.name == "plain" else {"stream_options": {"include_usage": True}}
    )  # this server sends none
    async with entered(await ask(stream=True, **usage)) as stream:
        assert isinstance(stream, side.sdk[1])
        chunks = [await next_of(stream)]
        chunks += await items(stream)  # goes on where the first one ended
        assert await next_of(stream) is None
        assert await items(stream) == []
        assert isinstance(stream.response, httpx2.Response)
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    await got(stream.close())
    assert stream.response.is_closed
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    if usage:
        *chunks, last = chunks
        assert (last.choices, last.usage.completion_tokens) == ([], 8)
    check_stream(chunks)
    assert text_of(chunks) == answer.choices[0].message.content
    # Messages of the SDK's own types, and any iterable.
    more = await ask(messages=iter([*SEA, answer.choices[0].message, {"role": "user", "content": "More."}]))
    check_completion(more)
    assert more.usage.prompt_tokens > answer.usage.prompt_tokens


async def test_log_probabilities(ask):
    asked = {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await ask(**asked)).choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in entries)
    chunks = await items(await ask(stream=True, **asked))
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert sum(len(found.content) for found in streamed) == 4


async def test_parse(client, side):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        await got(client.chat.completions.parse(**side.asked))
    check_completion(caught.value.completion)
    if side.name == "plain":
        return  # this server refuses response_format json_schema, the device then steps in
    asked = {**side.asked, "max_tokens": 60, "response_format": Mood}
    parsed = await got(client.chat.completions.parse(**asked))
    assert isinstance(parsed, ParsedChatCompletion)
    assert isinstance(parsed.choices[0].message.parsed, Mood)
    async with entered(client.chat.completions.stream(**asked)) as stream:
        assert isinstance(stream, side.sdk[2])
        events = await items(stream)
        final = await got(stream.get_final_completion())
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    said = "".join(event.delta for event in events if event.type == "content.delta")
    assert (kinds[-1], events[-1].content) == ("content.done", said)
    assert isinstance(final, ParsedChatCompletion)
    assert final.choices[0].message.content == parsed.choices[0].message.content == said
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


async def test_responses_of_http(client, side):
    raw = await got(client.chat.completions.with_raw_response.create(**side.asked))
    assert (raw.status_code, raw.http_version) == (200, "HTTP/1.1")
    assert raw.headers["content-type"] == "application/json"
    assert (raw.method, raw.retries_taken) == ("POST", 0)
    assert str(raw.url).endswith("/v1/chat/completions")
    assert raw.elapsed.total_seconds() > 0
    answer = raw.parse()
    assert type(answer) is ChatCompletion
    check_completion(answer)
    said = answer.choices[0].message.content
    assert json.loads(raw.text)["choices"][0]["message"]["content"] == said
    raw = await got(client.with_raw_response.chat.completions.create(stream=True, **side.asked))
    stream = raw.parse()
    assert isinstance(stream, side.sdk[1])
    chunks = await items(stream)
    check_stream(chunks)
    assert text_of(chunks) == said
    streaming = client.chat.completions.with_streaming_response
    async with entered(streaming.create(**side.asked)) as response:
        assert response.status_code == 200
        check_completion(await got(response.parse()))
    async with entered(streaming.create(**side.asked)) as response:
        assert json.loads(b"".join(await items(response.iter_bytes())))["object"] == "chat.completion"
    async with entered(streaming.create(**side.asked, stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in await items(response.iter_lines()) if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"
    check_stream([ChatCompletionChunk.model_validate_json(line[5:]) for line in lines[:-1]])


async def test_what_python_itself_would_refuse(client, side):
    for wrong in ({"model": None}, {"messages": None}, {"max_token": 5}, {"response_format": Mood}):
        asked = {name: value for name, value in {**side.asked, **wrong}.items() if value is not None}
        for more in ({}, {"stream": True}):
            with pytest.raises(TypeError):
                await got(client.chat.completions.create(**asked, **more))


async def test_responses(client, side):
    if side.name == "plain":
        pytest.skip("llama-cpp-python's server has no /v1/responses")
    asked = {"model": side.asked["model"], "input": "What is 2+2?", "temperature": 0.0}  # eleven tokens
    answer = await got(client.responses.create(**asked))
    assert isinstance(answer, Response)
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage.output_tokens > 1
    events = await items(await got(client.responses.create(stream=True, **asked)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    async with entered(client.responses.stream(**asked)) as stream:
        final = await got(stream.get_final_response())
    assert answer.output_text == events[-1].response.output_text == final.output_text
