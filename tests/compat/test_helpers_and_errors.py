"""As `test_create`, of what stands around it: the SDK's helpers, HTTP responses, copies, errors, other resources."""

from __future__ import annotations

import json

import anyio
import openai
import pytest
from compat_cases import (
    SHORT,
    Mood,
    check_completion,
    check_stream,
    entered,
    got,
    items,
    next_of,
    text_of,
)
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response

pytestmark = [pytest.mark.real, pytest.mark.anyio]


async def test_the_stream_helper_and_its_events(client, side, ask):
    asked = {**side.asked, "max_tokens": 20, "stop": "mysterious"}
    expected = (await ask(**asked)).choices[0].message.content
    async with entered(client.chat.completions.stream(**asked)) as stream:
        assert isinstance(stream, side.classes[2])
        events = await items(stream)
        final = await got(stream.get_final_completion())
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    assert kinds[-1] == "content.done"
    assert "".join(e.delta for e in events if e.type == "content.delta") == expected
    assert events[-1].content == expected
    assert isinstance(final, ParsedChatCompletion)
    assert final.choices[0].message.content == expected
    assert final.choices[0].finish_reason == "stop"


async def test_the_stream_helper_is_left_early(client, side):
    async with entered(client.chat.completions.stream(**{**side.asked, "max_tokens": 900})) as stream:
        while (await next_of(stream)).type != "content.delta":
            pass
        assert stream.current_completion_snapshot.choices[0].message.content
    hurried = client.with_options(timeout=20, max_retries=0)
    with anyio.fail_after(20):
        check_completion(await got(hurried.chat.completions.create(**side.asked)))


async def test_parse(client, side):
    side.needs("json_schema")
    asked = {**side.asked, "max_tokens": 60, "response_format": Mood}
    parsed = await got(client.chat.completions.parse(**asked))
    assert isinstance(parsed, ParsedChatCompletion)
    assert isinstance(parsed.choices[0].message.parsed, Mood)
    async with entered(client.chat.completions.stream(**asked)) as stream:
        final = await got(stream.get_final_completion())
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


async def test_parse_of_a_cut_answer(client, side):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        await got(client.chat.completions.parse(**side.asked))
    check_completion(caught.value.completion)


async def test_raw_responses(client, side, ask):
    expected = (await ask()).choices[0].message.content
    raw = await got(client.chat.completions.with_raw_response.create(**side.asked))
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
    raw = await got(client.with_raw_response.chat.completions.create(stream=True, **side.asked))
    stream = raw.parse()
    assert isinstance(stream, side.classes[1])
    chunks = await items(stream)
    check_stream(chunks)
    assert text_of(chunks) == expected


async def test_streamed_responses(client, side):
    def opened(**more):
        return entered(client.chat.completions.with_streaming_response.create(**side.asked, **more))

    async with opened() as response:
        assert response.status_code == 200
        check_completion(await got(response.parse()))
    async with opened() as response:
        assert (await got(response.json()))["object"] == "chat.completion"
    async with opened() as response:
        assert json.loads(b"".join(await items(response.iter_bytes())))["usage"]
    async with opened(stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in await items(response.iter_lines()) if line.startswith("data:")]
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
        check_completion(await got(changed.chat.completions.create(**side.asked)))
    assert client.with_options(timeout=50).timeout == 50
    assert client.with_options(max_retries=1).max_retries == 1


async def test_what_the_request_adds(ask):
    more = {"extra_headers": {"X-Own": "1"}, "extra_query": {"own": "1"}, "extra_body": {"min_p": 0.01}}
    check_completion(await ask(timeout=60, **more))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout(client, side, stream):
    patient = client.with_options(max_retries=0)
    asked = {**side.asked, "messages": [{"role": "user", "content": "sea " * 400}], "stream": stream}
    if side.name == "device":  # the other side would answer in time
        asked["extra_body"] = {"disco": {"policy": "private"}}
    elif side.name == "server":
        patient = side.connect(local=None, max_retries=0)
    with pytest.raises(openai.APITimeoutError):  # noqa: PT012 - this server's headers come before its text
        answer = await got(patient.chat.completions.create(**asked, timeout=0.02))
        await items(answer)


@pytest.mark.parametrize(
    "wrong", [{"model": None}, {"messages": None}, {"max_token": 5}, {"response_format": Mood}], ids=str
)
async def test_a_call_that_python_itself_would_refuse(client, side, wrong):
    asked = {name: value for name, value in {**side.asked, **wrong}.items() if value is not None}
    for more in ({}, {"stream": True}):
        with pytest.raises(TypeError):
            await got(client.chat.completions.create(**asked, **more))


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
        await got(hurried.chat.completions.create(**{**side.asked, **wrong}))
    assert caught.value.status_code in (400, 500)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


async def test_a_prompt_that_is_too_long(side, ask):
    side.needs("long prompts")
    asked = {"messages": [{"role": "user", "content": "word " * 5000}]}
    if side.name == "device":  # the server is longer than it says, too
        asked["extra_body"] = {"disco": {"local_only": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(**asked)
    assert "2048" in str(caught.value)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def alone(side) -> dict[str, object]:
    return {} if side.name == "plain" else {"policy": "balanced", "local": None}


async def test_a_wrong_key(side, locked_server):
    settings = {"base_url": locked_server.base_url, "api_key": "wrong-key", **alone(side)}
    async with entered(side.connect(**settings)) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await got(client.chat.completions.create(**side.asked))
        assert caught.value.status_code == 401
        with pytest.raises(openai.AuthenticationError):
            await got(client.models.list())
        right = client.with_options(api_key="right-key")
        check_completion(await got(right.chat.completions.create(**side.asked)))


async def test_no_server_listens(side):
    settings = {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0, **alone(side)}
    async with entered(side.connect(**settings)) as client:
        with pytest.raises(openai.APIConnectionError):
            await got(client.chat.completions.create(**side.asked))


# ---------------------------------------------------------------------- other resources


async def test_models(client, side):
    page = await got(client.models.list())
    here = [] if side.name == "plain" else ["local/smollm2-135m"]
    assert [model.id for model in page.data] == [*here, side.model]
    listed = await items(client.models.list())
    assert [model.id for model in listed] == [model.id for model in page.data]
    assert all(isinstance(model, Model) for model in listed)
    assert page.has_next_page() is False


async def test_completions(client, side):
    asked = {"model": side.model, "prompt": "The sea", "max_tokens": 4, "temperature": 0.0}
    answer = await got(client.completions.create(**asked))
    assert isinstance(answer, Completion)
    parts = await items(await got(client.completions.create(stream=True, **asked)))
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text


async def test_embeddings_and_files_are_the_servers(client):
    hurried = client.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError, match="embedding=True"):
        assert not isinstance(
            await got(hurried.embeddings.create(model="m", input="x")), CreateEmbeddingResponse
        )
    with pytest.raises(openai.NotFoundError):
        await got(hurried.files.list())


async def test_responses(client, side):
    side.needs("responses")
    asked = {"model": side.model, "input": SHORT, "temperature": 0.0}
    answer = await got(client.responses.create(**asked))
    assert isinstance(answer, Response)
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage.output_tokens > 1
    events = await items(await got(client.responses.create(stream=True, **asked)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    raw = await got(client.responses.with_raw_response.create(**asked))
    async with entered(client.responses.stream(**asked)) as stream:
        final = await got(stream.get_final_response())
    texts = {events[-1].response.output_text, raw.parse().output_text, final.output_text}
    assert texts == {answer.output_text}


async def test_responses_are_cut_and_parsed(client, side):
    side.needs("responses")
    side.needs("max_completion_tokens")
    asked = {"model": side.model, "input": "Tell me about the sea.", "temperature": 0.0}
    cut = await got(client.responses.create(max_output_tokens=16, **asked))
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 16
    parsed = await got(client.responses.parse(text_format=Mood, max_output_tokens=60, **asked))
    assert isinstance(parsed.output_parsed, Mood)
