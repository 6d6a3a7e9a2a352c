"""An endpoint that has no vendor's chunks (reasoning, text and calls as typed deltas only) works everywhere."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_server import chunk
from serving import serving

from disco import AsyncDisco, Disco
from disco.client.chat.chat_chunks import ChatChunks, assemble
from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.openai_api.chunk_reader import ChatReader
from disco.events import Delta, DeltaKind, Ended, ToolCallDelta, Usage
from disco.request import Prefix

pytestmark = pytest.mark.anyio

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "parameters": PARAMETERS, "strict": True}
TOOLS = [{"type": "function", "function": WEATHER}]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}


def thought(text: str) -> Delta:
    return Delta("", 1, DeltaKind.REASONING, reasoning=text)


def calls(*pieces: ToolCallDelta) -> Delta:
    return Delta("", 1, DeltaKind.TOOL, tool_calls=pieces)


ANSWER = [
    [thought("They ask "), thought("about weather.")],
    [Delta("Let me ")],
    [Delta("look.")],
    [calls(ToolCallDelta(0, "", "call_a", "weather"))],
    [calls(ToolCallDelta(0, '{"city": ')), calls(ToolCallDelta(0, '"Paris"}'))],
    [calls(ToolCallDelta(1, "", "call_b", "weather"), ToolCallDelta(1, '{"city": "Rome"}'))],
]
CALLS = [("call_a", "weather", '{"city": "Paris"}'), ("call_b", "weather", '{"city": "Rome"}')]
ONLY_CALLS = ANSWER[3:]
# As servers write the calls: the name comes first, and what follows are arguments alone.
BEGUN = {"type": "function", "function": {"name": "weather", "arguments": ""}}
PIECES = [
    {"index": 0, "id": "call_a", **BEGUN},
    {"index": 0, "function": {"arguments": '{"city": '}},
    {"index": 0, "function": {"arguments": '"Paris"}'}},
    {"index": 1, "id": "call_b", **BEGUN},
    {"index": 1, "function": {"arguments": '{"city": "Rome"}'}},
]


class TypedAttempt(Attempt):
    def __init__(self, batches: list[list[Delta]]) -> None:
        self._left = [*batches, Ended("tool_calls", Usage(5, 9))]

    async def __anext__(self) -> list[Delta] | Ended:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)

    async def aclose(self) -> None:
        self._left.clear()

    @property
    def usage(self) -> Usage:
        return Usage(5, 9)


class TypedEndpoint(Endpoint):
    place = "device"

    def __init__(self, batches=ANSWER) -> None:
        self.name = "typed"
        self._batches = batches

    def capabilities(self, model=None) -> Capabilities:
        return Capabilities(features=None)

    def open(self, request, prefix=Prefix(), *, wants=frozenset()) -> TypedAttempt:  # noqa: B008
        return TypedAttempt(self._batches)


def asking(batches=ANSWER) -> AsyncDisco:
    return AsyncDisco(local=TypedEndpoint(batches), policy="private")


def check(message) -> None:
    assert message.content == "Let me look."
    assert message.reasoning_content == "They ask about weather."
    assert said(message) == CALLS


def said(message):
    assert {call.type for call in message.tool_calls} == {"function"}
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]


async def test_a_whole_answer_has_the_text_the_thoughts_and_the_calls():
    async with asking() as client:
        answer = await client.chat.completions.create(**ASKED)
        raw = await client.chat.completions.with_raw_response.create(**ASKED)
    assert answer.choices[0].finish_reason == "tool_calls"
    check(answer.choices[0].message)
    check((raw.parse()).choices[0].message)
    plain = openai.types.chat.ChatCompletion.model_validate(answer.model_dump())  # strictly
    assert said(plain.choices[0].message) == CALLS


@pytest.mark.parametrize("batches", [ANSWER, ONLY_CALLS], ids=["all", "calls"])
async def test_chunks_are_what_servers_write(batches):
    async with asking(batches) as client:
        chunks = [each async for each in await client.chat.completions.create(**ASKED, stream=True)]
        raw = await client.chat.completions.with_raw_response.create(**ASKED, stream=True)
        parsed = [each async for each in raw.parse()]
        raw = await client.chat.completions.with_raw_response.create(**ASKED, stream=True)
        lines = [line async for line in raw.http_response.aiter_lines() if line.startswith("data: {")]
    written = [json.loads(line.removeprefix("data: ")) for line in lines]
    for each in (chunks, parsed, map(ChatCompletionChunk.model_validate, written)):
        deltas = [one.choices[0].delta.model_dump(exclude_unset=True) for one in each]
        assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        assert pieces == PIECES
        if batches is ANSWER:
            assert (
                "".join(delta.get("reasoning_content") or "" for delta in deltas) == "They ask about weather."
            )
            assert "".join(delta.get("content") or "" for delta in deltas) == "Let me look."
            assert all("content" not in delta for delta in deltas if "tool_calls" in delta)
    assert len({each.id for each in chunks}) == 1


async def test_the_stream_helper_adds_the_calls_up():
    async with asking() as client, client.chat.completions.stream(**ASKED) as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_completion()
    check(answer.choices[0].message)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.parsed_arguments["city"]) for event in done] == [
        ("weather", "Paris"),
        ("weather", "Rome"),
    ]


async def test_responses_have_an_item_for_each():
    asked = {"model": "m", "input": "Weather?", "tools": [{"type": "function", **WEATHER}]}
    async with asking() as client:
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    for answer in (whole, events[-1].response):
        kinds = [item.type for item in answer.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert answer.output[0].content[0].text == "They ask about weather."
        assert answer.output_text == "Let me look."
        assert [(item.call_id, item.name, item.arguments) for item in answer.output[2:]] == CALLS


def test_the_synchronous_client():
    with Disco(local=TypedEndpoint(), policy="private") as client:
        check(client.chat.completions.create(**ASKED).choices[0].message)
        with client.chat.completions.stream(**ASKED) as stream:
            check(stream.get_final_completion().choices[0].message)


def test_reasoning_that_came_in_one_chunk_with_text_is_in_the_whole_answer():
    body = chunk("Hi", reasoning_content="hm", role="assistant")
    deltas = ChatReader().read([json.dumps(body).encode()])
    answer = assemble(ChatChunks("m"), deltas, "stop", CompletionUsage.construct(), None)
    assert answer.choices[0].message.reasoning_content == "hm"
    assert answer.choices[0].message.content == "Hi"


@pytest.mark.real
def test_served_over_http():
    with (
        serving(lambda **more: AsyncDisco(local=TypedEndpoint(), policy="private", **more)) as served,
        openai.OpenAI(base_url=served.base_url, api_key="none") as client,
    ):
        check(client.chat.completions.create(**ASKED).choices[0].message)
        with client.chat.completions.stream(**ASKED) as stream:
            check(stream.get_final_completion().choices[0].message)
        answer = client.responses.create(model="m", input="Weather?", tools=[{"type": "function", **WEATHER}])
        assert [(item.call_id, item.name, item.arguments) for item in answer.output[2:]] == CALLS
