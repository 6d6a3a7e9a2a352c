"""Tools of the local model as an application meets them: streamed, parsed, in whole turns, by both APIs."""

from __future__ import annotations

from typing import Literal

import openai
import pydantic
import pytest
from loops import mostly
from openai.types.chat import ChatCompletionChunk
from weather_server import weather_server

from disco import AsyncDisco
from disco.dispatch import Preset

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: str = pydantic.Field(max_length=12)
    unit: Literal["C", "F"]


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")
FLAT = {
    "type": "function",
    "name": "get_weather",
    "description": TOOL["function"]["description"],  # so that it is the same prompt, which is in the cache
    "parameters": TOOL["function"]["parameters"],
    "strict": True,
}
GIVEN = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 60}
REQUIRED = {**GIVEN, "tools": [TOOL], "tool_choice": "required"}


@pytest.fixture
def device(thread_model):
    return thread_model


def private(device, **more):
    return AsyncDisco(local=device, policy="private", **more)


def check(call):
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "get_weather"
    return GetWeather.model_validate_json(call.function.arguments)


@mostly("trio")
async def test_streamed_and_not_it_is_the_same_call(device, anyio_backend):
    async with private(device) as client:
        whole = await client.chat.completions.create(**REQUIRED)
        (choice,) = whole.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        asked_for = check(call)
        stream = await client.chat.completions.create(
            **REQUIRED, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk.model_dump())
            assert (chunk.id, chunk.model) == (chunks[0].id, "m")
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
            "tool_calls"
        ]
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        pieces = [piece for chunk in chunks for one in chunk.choices for piece in one.delta.tool_calls or ()]
        assert [piece.function.name for piece in pieces if piece.function.name] == ["get_weather"]
        arguments = "".join(piece.function.arguments for piece in pieces)
        assert GetWeather.model_validate_json(arguments) == asked_for
        assert len(pieces) > 3


async def test_parse_gives_pydantic_objects(device):
    async with private(device) as client:
        answer = await client.chat.completions.parse(**REQUIRED)
        (call,) = answer.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, GetWeather)
        # The same model as the shape of the answer itself.
        shaped = await client.chat.completions.parse(**GIVEN, response_format=GetWeather)
        assert isinstance(shaped.choices[0].message.parsed, GetWeather)


async def test_a_whole_turn_with_the_result_and_an_answer(device):
    async with private(device) as client:
        first = await client.chat.completions.create(**REQUIRED)
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        history = [*ASK, message.model_dump(exclude_none=True), result]
        more = {**GIVEN, "messages": history, "max_tokens": 16}
        answer = await client.chat.completions.create(**more, tools=[TOOL], tool_choice="none")
        assert answer.choices[0].message.content
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason in ("stop", "length")


async def test_a_whole_turn_by_the_responses_api(device):
    given = {"model": "m", "temperature": 0}
    asked = {"role": "user", "content": ASK[0]["content"]}
    async with private(device) as client:
        answer = await client.responses.create(
            **given, input=asked["content"], tools=[FLAT], tool_choice="required"
        )
        (item,) = answer.output
        assert (item.type, item.name, answer.status) == ("function_call", "get_weather", "completed")
        GetWeather.model_validate_json(item.arguments)
        result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        following = [asked, item.model_dump(exclude_none=True), result]
        last = await client.responses.create(**given, input=following, max_output_tokens=16)
        assert last.output_text


async def test_what_the_local_model_cannot_keep_to_goes_to_the_server_or_is_refused_by_name(device):
    unique = {"type": "object", "properties": {"x": {"type": "array", "items": {}, "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": unique}}
    async with private(device) as client:
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
            await client.chat.completions.create(**GIVEN, tools=[tool])
        assert caught.value.param == "tools"
        with pytest.raises(openai.BadRequestError, match="functions"):
            await client.chat.completions.create(**GIVEN, functions=[{"name": "f"}])
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            await client.chat.completions.create(**GIVEN, tool_choice="required")

    device_first = Preset(dispatch={"policy": "device_only"})
    with weather_server() as server:
        async with AsyncDisco(
            local=device, policy=device_first, base_url=server.base_url, api_key="key"
        ) as client:
            answer = await client.chat.completions.create(**GIVEN, tools=[tool])
        assert answer.choices[0].message.tool_calls[0].id == "call_1"
        assert [one.endpoint for one in answer.route.attempts] == ["device", "server"]
        assert server.bodies[0]["tools"] == [tool]
