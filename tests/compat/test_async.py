"""One application, three runs: `openai.AsyncOpenAI` on the real server, `AsyncDisco` with either side answering."""

from __future__ import annotations

import copy
import json

import anyio
import httpx2
import openai
import pytest
from compat_cases import (
    ASKS_WEATHER,
    CALL,
    NAMED,
    RESULT,
    SEA,
    SHORT,
    WEATHER,
    Mood,
    check_completion,
    check_stream,
    merged_calls,
    text_of,
)
from openai import AsyncOpenAI, AsyncStream
from openai.lib.streaming.chat import AsyncChatCompletionStream
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response

from disco import AsyncDisco

pytestmark = pytest.mark.anyio


def connect(side, **more) -> AsyncOpenAI:
    kind = AsyncOpenAI if side.name == "plain" else AsyncDisco
    return kind(**{**side.settings, **more})


@pytest.fixture
async def client(side):
    async with connect(side) as made:
        yield made


# ---------------------------------------------------------------------- create


async def test_a_completion(client, side):
    assert isinstance(client, AsyncOpenAI)
    answer = await client.chat.completions.create(**side.asked)
    assert isinstance(answer, ChatCompletion)
    check_completion(answer)
    assert answer._request_id is None or isinstance(answer._request_id, str)
    assert copy.deepcopy(answer).choices == answer.choices


async def test_a_stream_says_the_same(client, side):
    whole = await client.chat.completions.create(**side.asked)
    stream = await client.chat.completions.create(stream=True, **side.asked)
    assert isinstance(stream, AsyncStream)
    chunks = [chunk async for chunk in stream]
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    check_stream(chunks)
    assert text_of(chunks) == whole.choices[0].message.content


async def test_a_stream_keeps_the_protocol_of_iterators(client, side):
    async with await client.chat.completions.create(stream=True, **side.asked) as stream:
        assert isinstance(stream, AsyncStream)
        first = await anext(stream)
        again = [chunk async for chunk in stream]  # goes on where the first one ended
        assert first.id == again[0].id
        check_stream([first, *again])
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert [chunk async for chunk in stream] == []
        assert isinstance(stream.response, httpx2.Response)
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    await stream.close()
    assert stream.response.is_closed


async def test_usage_in_a_stream(client, side):
    side.needs("usage")
    stream = await client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **side.asked
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    check_stream(chunks[:-1])


async def test_closing_in_mid_stream_frees_the_model(client, side):
    stream = await client.chat.completions.create(stream=True, **{**side.asked, "max_tokens": 900})
    async for _ in stream:
        break
    await stream.close()
    with anyio.fail_after(20):
        check_completion(await client.chat.completions.create(**side.asked))


async def test_several_at_once(client, side):
    expected = (await client.chat.completions.create(**side.asked)).choices[0].message.content
    said = []

    async def ask() -> None:
        stream = await client.chat.completions.create(stream=True, **side.asked)
        said.append(text_of([chunk async for chunk in stream]))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
    assert said == [expected] * 3


# ---------------------------------------------------------------------- parameters


async def test_stop(client, side):
    for stop in (" ", [" ", "\n"]):
        answer = await client.chat.completions.create(**{**side.asked, "stop": stop})
        assert answer.choices[0].finish_reason == "stop"
        assert " " not in answer.choices[0].message.content


async def test_the_same_seed_gives_the_same_text(client, side):
    asked = {**side.asked, "temperature": 1.0, "seed": 5}
    texts = [
        (await client.chat.completions.create(**asked)).choices[0].message.content,
        (await client.chat.completions.create(**asked)).choices[0].message.content,
        text_of([c async for c in await client.chat.completions.create(stream=True, **asked)]),
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_under_either_name(client, side, name):
    side.needs(name)
    answer = await client.chat.completions.create(
        model=side.model, messages=SEA, temperature=0.0, **{name: 4}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4


async def test_log_probabilities(client, side):
    asked = {**side.asked, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    whole = await client.chat.completions.create(**asked)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == whole.choices[0].message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in entries)
    chunks = [c async for c in await client.chat.completions.create(stream=True, **asked)]
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert sum(len(found.content) for found in streamed) == 4


async def test_several_choices_are_the_servers(client, side):
    """This server gives one whatever it is asked; the point is that the request goes there and comes back."""
    answer = await client.chat.completions.create(n=2, **side.asked)
    assert isinstance(answer, ChatCompletion)
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    stream = await client.chat.completions.create(n=2, stream=True, **side.asked)
    assert text_of([chunk async for chunk in stream])


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions(client, side, role):
    side.needs(role)
    messages = [{"role": role, "content": "Be brief."}, *SEA]
    check_completion(await client.chat.completions.create(**{**side.asked, "messages": messages}))


async def test_messages_of_the_sdks_own_types_and_any_iterable(client, side):
    first = await client.chat.completions.create(**side.asked)
    talk = [*SEA, first.choices[0].message, {"role": "user", "content": "More."}]
    answer = await client.chat.completions.create(**{**side.asked, "messages": iter(talk)})
    check_completion(answer)
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens


async def test_content_in_parts(client, side):
    side.needs("content parts")
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "about the sea."}]
    messages = [{"role": "user", "content": parts}]
    check_completion(await client.chat.completions.create(**{**side.asked, "messages": messages}))


async def test_json_objects(client, side):
    answer = await client.chat.completions.create(
        **{**side.asked, "max_tokens": 60}, response_format={"type": "json_object"}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


async def test_a_json_schema(client, side):
    side.needs("json_schema")
    schema = {
        "name": "mood",
        "strict": True,
        "schema": {**Mood.model_json_schema(), "additionalProperties": False},
    }
    answer = await client.chat.completions.create(
        **{**side.asked, "max_tokens": 60}, response_format={"type": "json_schema", "json_schema": schema}
    )
    assert Mood.model_validate_json(answer.choices[0].message.content)


async def test_a_named_tool_is_called(client, side):
    asked = {**side.asked, "max_tokens": 60, "tools": [WEATHER], "tool_choice": NAMED}
    answer = await client.chat.completions.create(**asked)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert call.id
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    chunks = [c async for c in await client.chat.completions.create(stream=True, **asked)]
    ((name, arguments),) = merged_calls(chunks)
    assert (name, json.loads(arguments)) == ("weather", json.loads(call.function.arguments))


@pytest.mark.parametrize("content", ["", None], ids=["empty content", "null content"])
async def test_the_result_of_a_tool_is_sent_back(client, side, content):
    if content is None:
        side.needs("null content")
    messages = [ASKS_WEATHER, {"role": "assistant", "content": content, "tool_calls": [CALL]}, RESULT]
    answer = await client.chat.completions.create(
        model=side.model, messages=messages, tools=[WEATHER], temperature=0.0, max_tokens=60
    )
    (choice,) = answer.choices
    assert choice.message.content or choice.message.tool_calls


# ---------------------------------------------------------------------- helpers


async def test_the_stream_helper_and_its_events(client, side):
    asked = {**side.asked, "max_tokens": 20, "stop": "mysterious"}
    expected = (await client.chat.completions.create(**asked)).choices[0].message.content
    async with client.chat.completions.stream(**asked) as stream:
        assert isinstance(stream, AsyncChatCompletionStream)
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    assert kinds[-1] == "content.done"
    assert "".join(e.delta for e in events if e.type == "content.delta") == expected
    assert events[-1].content == expected
    assert isinstance(final, ParsedChatCompletion)
    assert final.choices[0].message.content == expected
    assert final.choices[0].finish_reason == "stop"


async def test_the_stream_helper_is_left_early(client, side):
    asked = {**side.asked, "max_tokens": 900}
    async with client.chat.completions.stream(**asked) as stream:
        async for event in stream:
            if event.type == "content.delta":
                break
        assert stream.current_completion_snapshot.choices[0].message.content
    with anyio.fail_after(20):
        check_completion(await client.chat.completions.create(**side.asked))


async def test_parse(client, side):
    side.needs("json_schema")
    asked = {**side.asked, "max_tokens": 60, "response_format": Mood}
    parsed = await client.chat.completions.parse(**asked)
    assert isinstance(parsed, ParsedChatCompletion)
    assert isinstance(parsed.choices[0].message.parsed, Mood)
    async with client.chat.completions.stream(**asked) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


async def test_parse_of_a_cut_answer(client, side):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        await client.chat.completions.parse(**side.asked)
    check_completion(caught.value.completion)


async def test_raw_responses(client, side):
    expected = (await client.chat.completions.create(**side.asked)).choices[0].message.content
    raw = await client.chat.completions.with_raw_response.create(**side.asked)
    assert (raw.status_code, raw.http_version) == (200, "HTTP/1.1")
    assert raw.headers["content-type"] == "application/json"
    assert raw.method == "POST"
    assert str(raw.url).endswith("/v1/chat/completions")
    assert raw.elapsed.total_seconds() > 0
    assert raw.retries_taken == 0
    assert json.loads(raw.text)["choices"][0]["message"]["content"] == expected
    answer = raw.parse()
    assert type(answer) is ChatCompletion
    check_completion(answer)
    raw = await client.with_raw_response.chat.completions.create(stream=True, **side.asked)
    stream = raw.parse()
    assert isinstance(stream, AsyncStream)
    chunks = [chunk async for chunk in stream]
    check_stream(chunks)
    assert text_of(chunks) == expected


async def test_streamed_responses(client, side):
    completions = client.chat.completions.with_streaming_response
    async with completions.create(**side.asked) as response:
        assert response.status_code == 200
        check_completion(await response.parse())
    async with completions.create(**side.asked) as response:
        assert (await response.json())["object"] == "chat.completion"
    async with completions.create(**side.asked) as response:
        assert json.loads(b"".join([part async for part in response.iter_bytes()]))["usage"]
    async with completions.create(stream=True, **side.asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.iter_lines() if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"
    check_stream([ChatCompletionChunk.model_validate_json(line[5:]) for line in lines[:-1]])


async def test_copies(client, side):
    for changed in (
        client.copy(),
        client.with_options(timeout=50, max_retries=1),
        client.with_options(default_headers={"X-Own": "1"}, default_query={"own": "1"}),
    ):
        assert type(changed) is type(client)
        assert changed.base_url == client.base_url
        check_completion(await changed.chat.completions.create(**side.asked))
    assert client.with_options(timeout=50).timeout == 50
    assert client.with_options(max_retries=1).max_retries == 1


async def test_what_the_request_adds(client, side):
    answer = await client.chat.completions.create(
        **side.asked,
        extra_headers={"X-Own": "1"},
        extra_query={"own": "1"},
        extra_body={"min_p": 0.01},
        timeout=60,
    )
    check_completion(answer)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout(client, side, stream):
    patient = client.with_options(max_retries=0)
    asked = {**side.asked, "messages": [{"role": "user", "content": "sea " * 400}], "stream": stream}
    if side.name != "plain":  # the other side would answer in time
        asked["extra_body"] = {"disco": {"policy": "private"}} if side.name == "device" else None
        patient = patient if side.name == "device" else connect(side, local=None, max_retries=0)
    with pytest.raises(openai.APITimeoutError):  # noqa: PT012 - this server's headers come before its text
        answer = await patient.chat.completions.create(**asked, timeout=0.02)
        _ = [chunk async for chunk in answer]


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": None},
        {"messages": None},
        {"max_token": 5},
        {"response_format": Mood},
    ],
    ids=str,
)
async def test_a_call_that_python_itself_would_refuse(client, side, wrong):
    asked = {name: value for name, value in {**side.asked, **wrong}.items() if value is not None}
    with pytest.raises(TypeError):
        await client.chat.completions.create(**asked)
    with pytest.raises(TypeError):
        await client.chat.completions.create(**asked, stream=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": "hot"},
        {"max_tokens": "few"},
        {"messages": "the sea"},
        {"messages": [{"role": "user", "content": 5}]},
    ],
    ids=str,
)
async def test_a_request_that_nobody_understands(client, side, wrong):
    """This server says 500 where the API says 400."""
    hurried = client.with_options(max_retries=0)
    with pytest.raises(openai.APIStatusError) as caught:
        await hurried.chat.completions.create(**{**side.asked, **wrong})
    assert caught.value.status_code in (400, 500)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


async def test_a_prompt_that_is_too_long(client, side):
    side.needs("long prompts")
    asked = {**side.asked, "messages": [{"role": "user", "content": "word " * 5000}]}
    if side.name == "device":  # the server is longer than it says, too
        asked["extra_body"] = {"disco": {"local_only": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**asked)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


async def test_a_wrong_key(side, locked_server):
    alone = {} if side.name == "plain" else {"policy": "balanced", "local": None}
    settings = {"base_url": locked_server.base_url, "api_key": "wrong-key", **alone}
    async with connect(side, **settings) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(**side.asked)
        assert caught.value.status_code == 401
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        right = client.with_options(api_key="right-key")
        check_completion(await right.chat.completions.create(**side.asked))


async def test_nobody_listens(side):
    alone = {} if side.name == "plain" else {"policy": "balanced", "local": None}
    async with connect(side, base_url="http://127.0.0.1:9/v1", max_retries=0, **alone) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(**side.asked)


# ---------------------------------------------------------------------- other resources


async def test_models(client, side):
    page = await client.models.list()
    assert side.model in [model.id for model in page.data]
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == [model.id for model in page.data]
    assert all(isinstance(model, Model) for model in listed)
    assert page.has_next_page() is False


async def test_completions(client, side):
    asked = {"model": side.model, "prompt": "The sea", "max_tokens": 4, "temperature": 0.0}
    answer = await client.completions.create(**asked)
    assert isinstance(answer, Completion)
    stream = await client.completions.create(stream=True, **asked)
    text = "".join([part.choices[0].text async for part in stream])
    assert text == answer.choices[0].text


async def test_embeddings_and_files_are_the_servers(client, side):
    hurried = client.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError, match="embedding=True"):
        assert not isinstance(await hurried.embeddings.create(model="m", input="x"), CreateEmbeddingResponse)
    with pytest.raises(openai.NotFoundError):
        await hurried.files.list()


async def test_responses(client, side):
    side.needs("responses")
    asked = {"model": side.model, "input": SHORT, "temperature": 0.0}
    answer = await client.responses.create(**asked)
    assert isinstance(answer, Response)
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage.output_tokens > 1
    events = [event async for event in await client.responses.create(stream=True, **asked)]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == answer.output_text
    raw = await client.responses.with_raw_response.create(**asked)
    assert raw.parse().output_text == answer.output_text
    async with client.responses.stream(**asked) as stream:
        final = await stream.get_final_response()
    assert final.output_text == answer.output_text


async def test_responses_are_cut_and_parsed(client, side):
    side.needs("responses")
    side.needs("max_completion_tokens")
    asked = {"model": side.model, "input": "Tell me about the sea.", "temperature": 0.0}
    cut = await client.responses.create(max_output_tokens=16, **asked)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 16
    parsed = await client.responses.parse(text_format=Mood, max_output_tokens=60, **asked)
    assert isinstance(parsed.output_parsed, Mood)
