"""An application of the SDK, with either side behind it: it meets the SDK's types and its protocol.

What the sides can do beyond that is tested with each of them.
"""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import httpx2
import openai
import pytest
from compat.compat_cases import SEA, entered, got, items
from openai.lib.streaming.chat import AsyncChatCompletionStream, ChatCompletionStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ASYNC = (AsyncDisco, openai.AsyncOpenAI, openai.AsyncStream, AsyncChatCompletionStream)
SYNC = (Disco, openai.OpenAI, openai.Stream, ChatCompletionStream)


class Mood(BaseModel):
    """A structure that even a very small model can fill in."""

    happy: bool


# The synchronous client takes the same way to both sides.
@pytest.fixture(
    params=[(ASYNC, "server"), (ASYNC, "device"), (SYNC, "server")], ids=["server", "device", "sync"]
)
async def side(request, llama_server, thread_model):
    """A client, the SDK's classes that its own are, and the usual question."""
    (make, *sdk), name = request.param
    settings = {
        "base_url": llama_server.base_url,
        "api_key": "test-key",
        "local": thread_model,
        "policy": Preset(dispatch={"policy": f"{name}_only"}, playback={"pace_tps": 5.0}),
        "continuation": Continuation(method="completions", template=str(llama_server.gguf)),
    }
    asked = {"model": llama_server.model, "messages": SEA, "max_tokens": 8, "temperature": 0.0, "seed": 3}
    async with entered(make(**settings)) as client:
        yield SimpleNamespace(client=client, sdk=sdk, asked=asked, chat=client.chat.completions)


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def check_completion(answer):
    """A complete `chat.completion` as the API makes it, cut at eight tokens."""
    (choice,) = answer.choices
    message, usage = choice.message, answer.usage
    assert isinstance(answer, ChatCompletion)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, choice.index, choice.finish_reason) == ("chat.completion", 0, "length")
    assert [type(answer.created), type(answer.model), type(message.content)] == [int, str, str]
    assert (message.role, message.tool_calls, message.refusal) == ("assistant", None, None)
    assert choice.logprobs is None
    assert (usage.completion_tokens, usage.total_tokens) == (8, usage.prompt_tokens + 8)
    assert usage.prompt_tokens > 5
    assert type(answer).model_validate_json(answer.model_dump_json()).choices == answer.choices
    assert answer.to_dict()["choices"][0]["message"]["content"] == message.content


def check_stream(chunks):
    """Chunks of one stream without usage, cut at eight tokens."""
    assert {(type(c), c.object) for c in chunks} == {(ChatCompletionChunk, "chat.completion.chunk")}
    assert len({(c.id, c.model, c.created) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [c.choices[0].finish_reason for c in chunks]
    assert (reasons.count("length"), reasons[-1]) == (1, "length")
    assert all(c.usage is None for c in chunks)


async def test_a_completion_and_a_stream_that_says_the_same(side):
    assert isinstance(side.client, side.sdk[0])
    answer = await got(side.chat.create(**side.asked))
    check_completion(answer)
    assert copy.deepcopy(answer).choices == answer.choices
    usage = {"stream_options": {"include_usage": True}}
    async with entered(await got(side.chat.create(**side.asked, stream=True, **usage))) as stream:
        assert isinstance(stream, side.sdk[1])
        *chunks, last = await items(stream)
        assert await items(stream) == []
        assert isinstance(stream.response, httpx2.Response)
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    await got(stream.close())
    assert stream.response.is_closed
    assert (last.choices, last.usage.completion_tokens) == ([], 8)
    check_stream(chunks)
    assert text_of(chunks) == answer.choices[0].message.content
    # Messages of the SDK's own types, and any iterable.
    messages = iter([*SEA, answer.choices[0].message, {"role": "user", "content": "More."}])
    more = await got(side.chat.create(**{**side.asked, "messages": messages}))
    check_completion(more)
    assert more.usage.prompt_tokens > answer.usage.prompt_tokens


async def test_log_probabilities(side):
    asked = {**side.asked, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await got(side.chat.create(**asked))).choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in entries)
    chunks = await items(await got(side.chat.create(**asked, stream=True)))
    assert sum(len(c.choices[0].logprobs.content) for c in chunks if c.choices[0].logprobs) == 4


async def test_parse(side):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        await got(side.chat.parse(**side.asked))
    check_completion(caught.value.completion)
    # This server refuses response_format json_schema, the device then steps in.
    asked = {**side.asked, "max_tokens": 60, "response_format": Mood}
    parsed = await got(side.chat.parse(**asked))
    async with entered(side.chat.stream(**asked)) as stream:
        assert isinstance(stream, side.sdk[2])
        events = await items(stream)
        final = await got(stream.get_final_completion())
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    said = "".join(event.delta for event in events if event.type == "content.delta")
    assert (kinds[-1], events[-1].content) == ("content.done", said)
    for whole in (parsed, final):
        assert isinstance(whole, ParsedChatCompletion)
        assert whole.choices[0].message.content == said
        assert whole.choices[0].message.parsed == Mood.model_validate_json(said)


async def test_responses_of_http(side):
    raw = await got(side.chat.with_raw_response.create(**side.asked))
    assert (raw.status_code, raw.http_version, raw.method, raw.retries_taken) == (200, "HTTP/1.1", "POST", 0)
    assert raw.headers["content-type"] == "application/json"
    assert str(raw.url).endswith("/v1/chat/completions")
    assert raw.elapsed.total_seconds() > 0
    answer = raw.parse()
    assert isinstance(answer, ChatCompletion)
    assert answer.route is raw.route
    check_completion(answer)
    said = answer.choices[0].message.content
    assert json.loads(raw.text)["choices"][0]["message"]["content"] == said
    raw = await got(side.client.with_raw_response.chat.completions.create(stream=True, **side.asked))
    stream = raw.parse()
    assert isinstance(stream, side.sdk[1])
    chunks = await items(stream)
    check_stream(chunks)
    assert text_of(chunks) == said
    async with entered(side.chat.with_streaming_response.create(**side.asked)) as response:
        assert json.loads(b"".join(await items(response.iter_bytes())))["object"] == "chat.completion"
        assert response.status_code == 200
    async with entered(side.chat.with_streaming_response.create(**side.asked, stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in await items(response.iter_lines()) if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"
    check_stream([ChatCompletionChunk.model_validate_json(line[5:]) for line in lines[:-1]])


async def test_what_python_itself_would_refuse(side):
    for wrong in ({"model": None}, {"messages": None}, {"max_token": 5}, {"response_format": Mood}):
        asked = {name: value for name, value in {**side.asked, **wrong}.items() if value is not None}
        for more in ({}, {"stream": True}):
            with pytest.raises(TypeError):
                await got(side.chat.create(**asked, **more))


async def test_responses(side):
    asked = {"model": side.asked["model"], "input": "What is 2+2?", "temperature": 0.0}  # eleven tokens
    answer = await got(side.client.responses.create(**asked))
    assert isinstance(answer, Response)
    events = await items(await got(side.client.responses.create(stream=True, **asked)))
    assert events[-1].type == "response.completed"
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    async with entered(side.client.responses.stream(**asked)) as stream:
        final = await got(stream.get_final_response())
    # The server's answers move to the device, which goes on with the item that the server has begun.
    assert said
    assert answer.output_text == said == events[-1].response.output_text == final.output_text
