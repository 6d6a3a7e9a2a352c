"""Tools of the local model as an application meets them: through both clients, their helpers, and both APIs."""

from __future__ import annotations

from typing import Literal

import anyio
import openai
import pydantic
import pytest
from loops import mostly
from openai.lib.streaming.chat import ChunkEvent, FunctionToolCallArgumentsDoneEvent
from openai.types.chat import ChatCompletionChunk
from weather_server import weather_server

from disco import AsyncDisco, Disco
from disco.dispatch import Preset

pytestmark = [
    pytest.mark.anyio,
    # The SDK's helpers leave their own generators open, which trio remarks on; the plain client's do the same.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning",
        "ignore:Async generator 'openai:ResourceWarning",
        "ignore:Async generator 'httpx2:ResourceWarning",
    ),
]

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
        async with client.chat.completions.stream(**REQUIRED) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
        (done,) = (event for event in events if isinstance(event, FunctionToolCallArgumentsDoneEvent))
        assert done.parsed_arguments == call.function.parsed_arguments
        assert any(isinstance(event, ChunkEvent) for event in events)
        assert final.choices[0].message.tool_calls[0].function.parsed_arguments == done.parsed_arguments
        # The same model as the shape of the answer itself.
        shaped = await client.chat.completions.parse(**GIVEN, response_format=GetWeather)
        assert isinstance(shaped.choices[0].message.parsed, GetWeather)


def test_the_synchronous_client(device):
    with Disco(local=device, policy="private") as client:
        stream = client.chat.completions.create(**REQUIRED, stream=True)
        pieces = [piece for chunk in stream for piece in chunk.choices[0].delta.tool_calls or ()]
        parsed = client.chat.completions.parse(**REQUIRED)
    asked_for = check(parsed.choices[0].message.tool_calls[0])
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == asked_for
    arguments = "".join(piece.function.arguments for piece in pieces)
    assert GetWeather.model_validate_json(arguments) == asked_for


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


async def test_the_responses_api(device):
    given = {
        "model": "m",
        "input": ASK[0]["content"],
        "tools": [FLAT],
        "tool_choice": "required",
        "temperature": 0,
    }
    async with private(device) as client:
        answer = await client.responses.create(**given)
        (item,) = answer.output
        assert (item.type, item.name, answer.status) == ("function_call", "get_weather", "completed")
        asked_for = GetWeather.model_validate_json(item.arguments)
        seen = []
        async with client.responses.stream(**given) as stream:
            seen = [event async for event in stream]
            final = await stream.get_final_response()
        parts = [event.delta for event in seen if event.type == "response.function_call_arguments.delta"]
        assert len(parts) > 3
        assert GetWeather.model_validate_json("".join(parts)) == asked_for
        assert GetWeather.model_validate_json(final.output[0].arguments) == asked_for
        following = [
            {"role": "user", "content": given["input"]},
            item.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"},
        ]
        last = await client.responses.create(model="m", input=following, temperature=0, max_output_tokens=16)
        assert last.output_text


async def test_leaving_a_stream_in_the_middle_of_a_call(device):
    wide = {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 500}},
        "required": ["text"],
    }
    tool = {"type": "function", "function": {"name": "note", "parameters": wide}}
    given = {"model": "m", "messages": ASK, "tools": [tool], "tool_choice": "required", "stream": True}
    async with private(device) as client:
        with anyio.fail_after(60):
            stream = await client.chat.completions.create(**given)
            async for chunk in stream:
                if chunk.choices[0].delta.tool_calls:
                    break
            await stream.close()
        assert stream.route.finish_reason == "cancelled"
        assert (await client.chat.completions.create(**{**GIVEN, "max_tokens": 1})).choices


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
