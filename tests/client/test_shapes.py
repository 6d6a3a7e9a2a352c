"""Thoughts, text and calls, as a server writes them or as typed deltas: chat completions, chunks, events, Responses."""

from __future__ import annotations

import json

import pytest
from defects.asking import client, preset
from faults.in_memory import MemoryServer, Reply, anyio_backend  # noqa: F401 - a fixture
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_device import ScriptedDevice
from scripted_server import chunk, sse

import disco
from disco import AsyncDisco, Disco
from disco.client.responses.responses_request import chat_body
from disco.events import Delta, DeltaKind, Ended, ToolCallDelta, Usage

pytestmark = pytest.mark.anyio

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Of a city", "parameters": PARAMETERS, "strict": True}
TOOLS = [{"type": "function", "function": WEATHER}]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}
RESPONSE = {"model": "m", "input": "Weather?", "tools": [{"type": "function", **WEATHER}]}
CALLS = [("call_a", "weather", '{"city": "Paris"}'), ("call_b", "weather", '{"city": "Rome"}')]
# As servers write the calls: the name comes first, and what follows are arguments alone.
BEGUN = {"type": "function", "function": {"name": "weather", "arguments": ""}}
PIECES = [
    {"index": 0, "id": "call_a", **BEGUN},
    {"index": 0, "function": {"arguments": '{"city": '}},
    {"index": 0, "function": {"arguments": '"Paris"}'}},
    {"index": 1, "id": "call_b", **BEGUN},
    {"index": 1, "function": {"arguments": '{"city": "Rome"}'}},
]
WRITTEN = [
    chunk("", role="assistant"),
    chunk(reasoning_content="They ask "),
    chunk("Let me ", reasoning_content="about weather."),
    chunk("look."),
    *(chunk(tool_calls=[piece]) for piece in PIECES),
    chunk(finish="tool_calls"),
]
EVENT = TypeAdapter(ResponseStreamEvent)


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


def typed_device(batches=ANSWER) -> ScriptedDevice:
    """It has no vendor's chunks."""
    return ScriptedDevice(lambda _: [*batches, Ended("tool_calls", Usage(5, 9))])


def typed(batches=ANSWER) -> AsyncDisco:
    return AsyncDisco(local=typed_device(batches), policy="private")


def server_of(*chunks) -> MemoryServer:
    return MemoryServer(Reply([sse(*chunks)]))


def asking(server: MemoryServer) -> AsyncDisco:
    return client(server, policy=preset("server_only"))


def check(message) -> None:
    assert message.content == "Let me look."
    assert message.reasoning_content == "They ask about weather."
    assert {call.type for call in message.tool_calls} == {"function"}
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS


either = pytest.mark.parametrize(
    "made", [typed, lambda: asking(server_of(*WRITTEN))], ids=["typed", "written"]
)


@either
async def test_a_whole_answer_has_the_text_the_thoughts_and_the_calls(made):
    async with made() as one:
        answer = await one.chat.completions.create(**ASKED)
        raw = await one.chat.completions.with_raw_response.create(**ASKED)
    assert answer.choices[0].finish_reason == "tool_calls"
    for each in (answer, raw.parse(), ChatCompletion.model_validate(answer.model_dump())):
        check(each.choices[0].message)


@pytest.mark.parametrize("batches", [ANSWER, ANSWER[3:]], ids=["all", "calls"])
async def test_chunks_are_what_servers_write(batches):
    async with typed(batches) as one:
        chunks = [each async for each in await one.chat.completions.create(**ASKED, stream=True)]
        raw = await one.chat.completions.with_raw_response.create(**ASKED, stream=True)
        parsed = [each async for each in raw.parse()]
        raw = await one.chat.completions.with_raw_response.create(**ASKED, stream=True)
        lines = [line async for line in raw.http_response.aiter_lines() if line.startswith("data: {")]
    written = [json.loads(line.removeprefix("data: ")) for line in lines]
    for each in (chunks, parsed, map(ChatCompletionChunk.model_validate, written)):
        deltas = [one.choices[0].delta.model_dump(exclude_unset=True) for one in each]
        assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
        assert [piece for delta in deltas for piece in delta.get("tool_calls", ())] == PIECES
        if batches is ANSWER:
            texts = ["".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content")]
            assert texts == ["They ask about weather.", "Let me look."]
            assert all("content" not in delta for delta in deltas if "tool_calls" in delta)
    assert len({each.id for each in chunks}) == 1


def test_the_synchronous_client_and_its_stream_helper():
    with Disco(local=typed_device(), policy="private") as one:
        check(one.chat.completions.create(**ASKED).choices[0].message)
        with one.chat.completions.stream(**ASKED) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
            check(stream.get_final_completion().choices[0].message)
    assert [(e.name, e.parsed_arguments["city"]) for e in done] == [("weather", "Paris"), ("weather", "Rome")]


@either
async def test_responses_have_an_item_for_each_and_events_that_add_up_to_them(made):
    async with made() as one:
        whole = await one.responses.create(**RESPONSE)
        events = [event async for event in await one.responses.create(**RESPONSE, stream=True)]
        async with one.responses.stream(**RESPONSE) as helper:
            final = await helper.get_final_response()
    assert isinstance(whole, Response)
    for answer in (whole, final, events[-1].response):
        assert answer.status == "completed"
        kinds = [item.type for item in answer.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert answer.output[0].content[0].text == "They ask about weather."
        assert answer.output_text == "Let me look."
        assert [(item.call_id, item.name, item.arguments) for item in answer.output[2:]] == CALLS
    for event in events:  # strictly: what the SDK would also construct unchecked
        EVENT.validate_python(event.model_dump())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    deltas = {kind: "".join(e.delta for e in events if e.type == kind) for kind in kinds if "delta" in kind}
    assert deltas["response.output_text.delta"] == "Let me look."
    assert deltas["response.function_call_arguments.delta"] == '{"city": "Paris"}{"city": "Rome"}'


async def test_output_can_be_sent_back_as_input():
    server = server_of(*WRITTEN)
    outputs = ["sunny", [{"type": "input_text", "text": "wet"}]]
    async with asking(server) as one:
        first = await one.responses.create(**RESPONSE, instructions="Be brief.")
        history = [
            {"role": "user", "content": "Weather?"},
            *[item.model_dump() for item in first.output],
            *(
                {"type": "function_call_output", "call_id": call_id, "output": output}
                for (call_id, _, _), output in zip(CALLS, outputs, strict=True)
            ),
        ]
        await one.responses.create(**{**RESPONSE, "input": history})
        with pytest.raises(disco.NoEndpointError, match="Pass the earlier items in input"):
            await one.responses.create(model="m", input="y", previous_response_id=first.id)
    asked, again = server.requests
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["tools"] == TOOLS
    _, called, *results = again["messages"]
    assert [m["role"] for m in again["messages"]] == ["user", "assistant", "tool", "tool"]
    assert (called["content"], [c["id"] for c in called["tool_calls"]]) == (
        "Let me look.",
        ["call_a", "call_b"],
    )
    assert [m["content"] for m in results] == ["sunny", "wet"]


async def test_a_cut_answer_is_incomplete_and_says_why_and_an_empty_one_is_an_answer():
    async with asking(server_of(chunk("Long"), chunk(finish="length"))) as one:
        cut = await one.responses.create(model="m", input="x", max_output_tokens=16)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete"
    async with asking(server_of(chunk("Long"), chunk(finish="abort"))) as one:
        failed = await one.responses.create(model="m", input="x")
        events = [e async for e in await one.responses.create(model="m", input="x", stream=True)]
    for response in (failed, events[-1].response):
        assert (response.status, response.output_text) == ("incomplete", "Long")
        assert (response.incomplete_details, response.output[0].status) == (None, "incomplete")
    assert (events[0].response.status, events[-1].type) == ("in_progress", "response.incomplete")
    async with asking(server_of(chunk(role="assistant"), chunk(finish="stop"))) as one:
        empty = await one.responses.create(model="m", input="x")
        events = [e.type async for e in await one.responses.create(model="m", input="x", stream=True)]
    assert (empty.status, empty.output_text) == ("completed", "")
    assert (events[0], events[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize(
    "more",
    [
        *({"tools": tools} for tools in ([{"type": "web_search"}], "text", ["text"])),
        *({"text": text} for text in ("plain", {"format": "json"})),
        {"previous_response_id": "resp_123"},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        {"include": ["file_search_call.results"]},
        {"something_new": 1},
        {"reasoning": "high"},
    ],
    ids=str,
)
def test_what_only_the_server_can_do_or_refuse_is_no_chat(more):
    assert chat_body({"model": "m", "input": "x", **more}) is None


def test_images_and_structured_output_are_translated():
    url = "data:image/png;base64,AA"
    image = {"type": "input_image", "image_url": url, "detail": "low"}
    schema = {"name": "who", "schema": {"type": "object"}}
    body = {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]}],
        "text": {"format": {"type": "json_schema", **schema}},
        "max_output_tokens": 5,
        "reasoning": {"effort": "low"},
        "tool_choice": {"type": "function", "name": "weather"},
    }
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    assert chat_body(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": parts}],
        "response_format": {"type": "json_schema", "json_schema": schema},
        "max_completion_tokens": 5,
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
