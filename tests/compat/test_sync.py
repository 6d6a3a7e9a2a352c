"""One application, three runs: `openai.OpenAI` on the real server, `Disco` with either side answering."""

from __future__ import annotations

import copy
import json
import threading

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
from openai import OpenAI, Stream
from openai.lib.streaming.chat import ChatCompletionStream
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response

from disco import Disco


@pytest.fixture(
    params=["server", *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "device"))]
)
def side(request, make_side):
    """`test_async` has every case on all sides in every run; the way there is the same."""
    return make_side(request.param)


def connect(side, **more) -> OpenAI:
    kind = OpenAI if side.name == "plain" else Disco
    return kind(**{**side.settings, **more})


@pytest.fixture
def client(side):
    with connect(side) as made:
        yield made


# ---------------------------------------------------------------------- create


def test_a_completion(client, side):
    assert isinstance(client, OpenAI)
    answer = client.chat.completions.create(**side.asked)
    assert isinstance(answer, ChatCompletion)
    check_completion(answer)
    assert answer._request_id is None or isinstance(answer._request_id, str)
    assert copy.deepcopy(answer).choices == answer.choices


def test_a_stream_says_the_same(client, side):
    whole = client.chat.completions.create(**side.asked)
    stream = client.chat.completions.create(stream=True, **side.asked)
    assert isinstance(stream, Stream)
    chunks = list(stream)
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    check_stream(chunks)
    assert text_of(chunks) == whole.choices[0].message.content


def test_a_stream_keeps_the_protocol_of_iterators(client, side):
    with client.chat.completions.create(stream=True, **side.asked) as stream:
        assert isinstance(stream, Stream)
        first = next(stream)
        again = list(stream)  # goes on where the first one ended
        assert first.id == again[0].id
        check_stream([first, *again])
        with pytest.raises(StopIteration):
            next(stream)
        assert list(stream) == []
        assert isinstance(stream.response, httpx2.Response)
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    stream.close()
    assert stream.response.is_closed


def test_usage_in_a_stream(client, side):
    side.needs("usage")
    stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **side.asked)
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    check_stream(chunks[:-1])


def test_closing_in_mid_stream_frees_the_model(client, side):
    stream = client.chat.completions.create(stream=True, **{**side.asked, "max_tokens": 900})
    for _ in stream:
        break
    stream.close()
    check_completion(client.with_options(timeout=20, max_retries=0).chat.completions.create(**side.asked))


def test_several_at_once(client, side):
    expected = client.chat.completions.create(**side.asked).choices[0].message.content
    said = []

    def ask() -> None:
        stream = client.chat.completions.create(stream=True, **side.asked)
        said.append(text_of(list(stream)))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == [expected] * 3


# ---------------------------------------------------------------------- parameters


def test_stop(client, side):
    for stop in (" ", [" ", "\n"]):
        answer = client.chat.completions.create(**{**side.asked, "stop": stop})
        assert answer.choices[0].finish_reason == "stop"
        assert " " not in answer.choices[0].message.content


def test_the_same_seed_gives_the_same_text(client, side):
    asked = {**side.asked, "temperature": 1.0, "seed": 5}
    texts = [
        client.chat.completions.create(**asked).choices[0].message.content,
        client.chat.completions.create(**asked).choices[0].message.content,
        text_of(list(client.chat.completions.create(stream=True, **asked))),
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_under_either_name(client, side, name):
    side.needs(name)
    answer = client.chat.completions.create(model=side.model, messages=SEA, temperature=0.0, **{name: 4})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4


def test_log_probabilities(client, side):
    asked = {**side.asked, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == whole.choices[0].message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in entries)
    chunks = list(client.chat.completions.create(stream=True, **asked))
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert sum(len(found.content) for found in streamed) == 4


def test_several_choices_are_the_servers(client, side):
    """This server gives one whatever it is asked; the point is that the request goes there and comes back."""
    answer = client.chat.completions.create(n=2, **side.asked)
    assert isinstance(answer, ChatCompletion)
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    stream = client.chat.completions.create(n=2, stream=True, **side.asked)
    assert text_of(list(stream))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions(client, side, role):
    side.needs(role)
    messages = [{"role": role, "content": "Be brief."}, *SEA]
    check_completion(client.chat.completions.create(**{**side.asked, "messages": messages}))


def test_messages_of_the_sdks_own_types_and_any_iterable(client, side):
    first = client.chat.completions.create(**side.asked)
    talk = [*SEA, first.choices[0].message, {"role": "user", "content": "More."}]
    answer = client.chat.completions.create(**{**side.asked, "messages": iter(talk)})
    check_completion(answer)
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens


def test_content_in_parts(client, side):
    side.needs("content parts")
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "about the sea."}]
    messages = [{"role": "user", "content": parts}]
    check_completion(client.chat.completions.create(**{**side.asked, "messages": messages}))


def test_json_objects(client, side):
    answer = client.chat.completions.create(
        **{**side.asked, "max_tokens": 60}, response_format={"type": "json_object"}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_json_schema(client, side):
    side.needs("json_schema")
    schema = {
        "name": "mood",
        "strict": True,
        "schema": {**Mood.model_json_schema(), "additionalProperties": False},
    }
    answer = client.chat.completions.create(
        **{**side.asked, "max_tokens": 60}, response_format={"type": "json_schema", "json_schema": schema}
    )
    assert Mood.model_validate_json(answer.choices[0].message.content)


def test_a_named_tool_is_called(client, side):
    asked = {**side.asked, "max_tokens": 60, "tools": [WEATHER], "tool_choice": NAMED}
    answer = client.chat.completions.create(**asked)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert call.id
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    chunks = list(client.chat.completions.create(stream=True, **asked))
    ((name, arguments),) = merged_calls(chunks)
    assert (name, json.loads(arguments)) == ("weather", json.loads(call.function.arguments))


@pytest.mark.parametrize("content", ["", None], ids=["empty content", "null content"])
def test_the_result_of_a_tool_is_sent_back(client, side, content):
    if content is None:
        side.needs("null content")
    messages = [ASKS_WEATHER, {"role": "assistant", "content": content, "tool_calls": [CALL]}, RESULT]
    answer = client.chat.completions.create(
        model=side.model, messages=messages, tools=[WEATHER], temperature=0.0, max_tokens=60
    )
    (choice,) = answer.choices
    assert choice.message.content or choice.message.tool_calls


# ---------------------------------------------------------------------- helpers


def test_the_stream_helper_and_its_events(client, side):
    asked = {**side.asked, "max_tokens": 20, "stop": "mysterious"}
    expected = client.chat.completions.create(**asked).choices[0].message.content
    with client.chat.completions.stream(**asked) as stream:
        assert isinstance(stream, ChatCompletionStream)
        events = list(stream)
        final = stream.get_final_completion()
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    assert kinds[-1] == "content.done"
    assert "".join(e.delta for e in events if e.type == "content.delta") == expected
    assert events[-1].content == expected
    assert isinstance(final, ParsedChatCompletion)
    assert final.choices[0].message.content == expected
    assert final.choices[0].finish_reason == "stop"


def test_the_stream_helper_is_left_early(client, side):
    asked = {**side.asked, "max_tokens": 900}
    with client.chat.completions.stream(**asked) as stream:
        for event in stream:
            if event.type == "content.delta":
                break
        assert stream.current_completion_snapshot.choices[0].message.content
    check_completion(client.with_options(timeout=20, max_retries=0).chat.completions.create(**side.asked))


def test_parse(client, side):
    side.needs("json_schema")
    asked = {**side.asked, "max_tokens": 60, "response_format": Mood}
    parsed = client.chat.completions.parse(**asked)
    assert isinstance(parsed, ParsedChatCompletion)
    assert isinstance(parsed.choices[0].message.parsed, Mood)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


def test_parse_of_a_cut_answer(client, side):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(**side.asked)
    check_completion(caught.value.completion)


def test_raw_responses(client, side):
    expected = client.chat.completions.create(**side.asked).choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(**side.asked)
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
    raw = client.with_raw_response.chat.completions.create(stream=True, **side.asked)
    stream = raw.parse()
    assert isinstance(stream, Stream)
    chunks = list(stream)
    check_stream(chunks)
    assert text_of(chunks) == expected


def test_streamed_responses(client, side):
    completions = client.chat.completions.with_streaming_response
    with completions.create(**side.asked) as response:
        assert response.status_code == 200
        check_completion(response.parse())
    with completions.create(**side.asked) as response:
        assert response.json()["object"] == "chat.completion"
    with completions.create(**side.asked) as response:
        assert json.loads(b"".join(response.iter_bytes()))["usage"]
    with completions.create(stream=True, **side.asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"
    check_stream([ChatCompletionChunk.model_validate_json(line[5:]) for line in lines[:-1]])


def test_copies(client, side):
    for changed in (
        client.copy(),
        client.with_options(timeout=50, max_retries=1),
        client.with_options(default_headers={"X-Own": "1"}, default_query={"own": "1"}),
    ):
        assert type(changed) is type(client)
        assert changed.base_url == client.base_url
        check_completion(changed.chat.completions.create(**side.asked))
    assert client.with_options(timeout=50).timeout == 50
    assert client.with_options(max_retries=1).max_retries == 1


def test_what_the_request_adds(client, side):
    answer = client.chat.completions.create(
        **side.asked,
        extra_headers={"X-Own": "1"},
        extra_query={"own": "1"},
        extra_body={"min_p": 0.01},
        timeout=60,
    )
    check_completion(answer)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout(client, side, stream):
    patient = client.with_options(max_retries=0)
    asked = {**side.asked, "messages": [{"role": "user", "content": "sea " * 400}], "stream": stream}
    if side.name != "plain":  # the other side would answer in time
        asked["extra_body"] = {"disco": {"policy": "private"}} if side.name == "device" else None
        patient = patient if side.name == "device" else connect(side, local=None, max_retries=0)
    with pytest.raises(openai.APITimeoutError):  # noqa: PT012 - this server's headers come before its text
        answer = patient.chat.completions.create(**asked, timeout=0.02)
        _ = list(answer)


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
def test_a_call_that_python_itself_would_refuse(client, side, wrong):
    asked = {name: value for name, value in {**side.asked, **wrong}.items() if value is not None}
    with pytest.raises(TypeError):
        client.chat.completions.create(**asked)
    with pytest.raises(TypeError):
        client.chat.completions.create(**asked, stream=True)


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
def test_a_request_that_nobody_understands(client, side, wrong):
    """This server says 500 where the API says 400."""
    hurried = client.with_options(max_retries=0)
    with pytest.raises(openai.APIStatusError) as caught:
        hurried.chat.completions.create(**{**side.asked, **wrong})
    assert caught.value.status_code in (400, 500)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


def test_a_prompt_that_is_too_long(client, side):
    side.needs("long prompts")
    asked = {**side.asked, "messages": [{"role": "user", "content": "word " * 5000}]}
    if side.name == "device":  # the server is longer than it says, too
        asked["extra_body"] = {"disco": {"local_only": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_a_wrong_key(side, locked_server):
    alone = {} if side.name == "plain" else {"policy": "balanced", "local": None}
    settings = {"base_url": locked_server.base_url, "api_key": "wrong-key", **alone}
    with connect(side, **settings) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(**side.asked)
        assert caught.value.status_code == 401
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        right = client.with_options(api_key="right-key")
        check_completion(right.chat.completions.create(**side.asked))


def test_nobody_listens(side):
    alone = {} if side.name == "plain" else {"policy": "balanced", "local": None}
    client = connect(side, base_url="http://127.0.0.1:9/v1", max_retries=0, **alone)
    with client, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**side.asked)


# ---------------------------------------------------------------------- other resources


def test_models(client, side):
    page = client.models.list()
    assert side.model in [model.id for model in page.data]
    listed = list(client.models.list())
    assert [model.id for model in listed] == [model.id for model in page.data]
    assert all(isinstance(model, Model) for model in listed)
    assert page.has_next_page() is False


def test_completions(client, side):
    asked = {"model": side.model, "prompt": "The sea", "max_tokens": 4, "temperature": 0.0}
    answer = client.completions.create(**asked)
    assert isinstance(answer, Completion)
    stream = client.completions.create(stream=True, **asked)
    text = "".join([part.choices[0].text for part in stream])
    assert text == answer.choices[0].text


def test_embeddings_and_files_are_the_servers(client, side):
    hurried = client.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError, match="embedding=True"):
        assert not isinstance(hurried.embeddings.create(model="m", input="x"), CreateEmbeddingResponse)
    with pytest.raises(openai.NotFoundError):
        hurried.files.list()


def test_responses(client, side):
    side.needs("responses")
    asked = {"model": side.model, "input": SHORT, "temperature": 0.0}
    answer = client.responses.create(**asked)
    assert isinstance(answer, Response)
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage.output_tokens > 1
    events = list(client.responses.create(stream=True, **asked))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == answer.output_text
    raw = client.responses.with_raw_response.create(**asked)
    assert raw.parse().output_text == answer.output_text
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.output_text == answer.output_text


def test_responses_are_cut_and_parsed(client, side):
    side.needs("responses")
    side.needs("max_completion_tokens")
    asked = {"model": side.model, "input": "Tell me about the sea.", "temperature": 0.0}
    cut = client.responses.create(max_output_tokens=16, **asked)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 16
    parsed = client.responses.parse(text_format=Mood, max_output_tokens=60, **asked)
    assert isinstance(parsed.output_parsed, Mood)
