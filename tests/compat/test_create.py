"""One application, three runs: `create` of the SDK's client on the real server, and of disco's with either side."""

from __future__ import annotations

import copy
import json

import anyio
import httpx2
import pytest
from compat_cases import (
    ASKS_WEATHER,
    CALL,
    NAMED,
    RESULT,
    SEA,
    WEATHER,
    Mood,
    check_completion,
    check_stream,
    entered,
    got,
    items,
    merged_calls,
    next_of,
    text_of,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk

pytestmark = [pytest.mark.real, pytest.mark.anyio]


async def test_a_completion(client, side, ask):
    assert isinstance(client, side.classes[0])
    answer = await ask()
    assert isinstance(answer, ChatCompletion)
    check_completion(answer)
    assert answer._request_id is None or isinstance(answer._request_id, str)
    assert copy.deepcopy(answer).choices == answer.choices


async def test_a_stream_says_the_same(side, ask):
    whole = await ask()
    stream = await ask(stream=True)
    assert isinstance(stream, side.classes[1])
    chunks = await items(stream)
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    check_stream(chunks)
    assert text_of(chunks) == whole.choices[0].message.content


async def test_a_stream_keeps_the_protocol_of_iterators(ask):
    async with entered(await ask(stream=True)) as stream:
        first = await next_of(stream)
        again = await items(stream)  # goes on where the first one ended
        assert first.id == again[0].id
        check_stream([first, *again])
        assert await next_of(stream) is None
        assert await items(stream) == []
        assert isinstance(stream.response, httpx2.Response)
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    await got(stream.close())
    assert stream.response.is_closed


async def test_usage_in_a_stream(side, ask):
    side.needs("usage")
    *chunks, last = await items(await ask(stream=True, stream_options={"include_usage": True}))
    assert last.choices == []
    assert last.usage.completion_tokens == 8
    check_stream(chunks)


async def test_closing_in_mid_stream_frees_the_model(client, side, ask):
    stream = await ask(stream=True, max_tokens=900)
    await next_of(stream)
    await got(stream.close())
    hurried = client.with_options(timeout=20, max_retries=0)
    with anyio.fail_after(20):
        check_completion(await got(hurried.chat.completions.create(**side.asked)))


async def test_several_at_once(side, ask):
    expected = (await ask()).choices[0].message.content
    said = []

    async def one() -> None:
        said.append(text_of(await items(await ask(stream=True))))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(*([one] if side.is_async else [anyio.to_thread.run_sync, anyio.run, one]))
    assert said == [expected] * 3


# ---------------------------------------------------------------------- parameters


async def test_stop(ask):
    for stop in (" ", [" ", "\n"]):
        (choice,) = (await ask(stop=stop)).choices
        assert choice.finish_reason == "stop"
        assert " " not in choice.message.content


async def test_the_same_seed_gives_the_same_text(ask):
    asked = {"temperature": 1.0, "seed": 5}
    texts = {(await ask(**asked)).choices[0].message.content for _ in range(2)}
    assert texts == {text_of(await items(await ask(stream=True, **asked)))}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_under_either_name(client, side, name):
    side.needs(name)
    answer = await got(
        client.chat.completions.create(model=side.model, messages=SEA, temperature=0.0, **{name: 4})
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4


async def test_log_probabilities(ask):
    asked = {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await ask(**asked)).choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in entries)
    chunks = await items(await ask(stream=True, **asked))
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert sum(len(found.content) for found in streamed) == 4


async def test_several_choices_are_the_servers(ask):
    """This server gives one whatever it is asked; the point is that the request goes there and comes back."""
    answer = await ask(n=2)
    assert isinstance(answer, ChatCompletion)
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    assert text_of(await items(await ask(n=2, stream=True)))


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions(side, ask, role):
    side.needs(role)
    check_completion(await ask(messages=[{"role": role, "content": "Be brief."}, *SEA]))


async def test_messages_of_the_sdks_own_types_and_any_iterable(ask):
    first = await ask()
    talk = [*SEA, first.choices[0].message, {"role": "user", "content": "More."}]
    answer = await ask(messages=iter(talk))
    check_completion(answer)
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens


async def test_content_in_parts(side, ask):
    side.needs("content parts")
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "about the sea."}]
    check_completion(await ask(messages=[{"role": "user", "content": parts}]))


async def test_json_objects(ask):
    (choice,) = (await ask(max_tokens=60, response_format={"type": "json_object"})).choices
    assert choice.finish_reason == "stop"
    assert isinstance(json.loads(choice.message.content), dict)


async def test_a_json_schema(side, ask):
    side.needs("json_schema")
    schema = {**Mood.model_json_schema(), "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "mood", "strict": True, "schema": schema}}
    answer = await ask(max_tokens=60, response_format=wanted)
    assert Mood.model_validate_json(answer.choices[0].message.content)


async def test_a_named_tool_is_called(ask):
    asked = {"max_tokens": 60, "tools": [WEATHER], "tool_choice": NAMED}
    (call,) = (await ask(**asked)).choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert call.id
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    ((name, arguments),) = merged_calls(await items(await ask(stream=True, **asked)))
    assert (name, json.loads(arguments)) == ("weather", json.loads(call.function.arguments))


@pytest.mark.parametrize("content", ["", None], ids=["empty content", "null content"])
async def test_the_result_of_a_tool_is_sent_back(side, ask, content):
    if content is None:
        side.needs("null content")
    messages = [ASKS_WEATHER, {"role": "assistant", "content": content, "tool_calls": [CALL]}, RESULT]
    (choice,) = (await ask(messages=messages, tools=[WEATHER], max_tokens=60)).choices
    assert choice.message.content or choice.message.tool_calls
