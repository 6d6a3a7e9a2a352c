"""The Responses API on the session: what is translated, what comes back, and what is left to the server."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from scripted_server import chunk, sse

import disco
from disco import AsyncDisco, Disco
from disco.client.responses.responses_request import chat_body
from disco.dispatch import Preset

pytestmark = pytest.mark.anyio

SERVER_ONLY = Preset(dispatch={"policy": "server_only"})
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def call(index: int, arguments: str, **more) -> dict:
    function = {"arguments": arguments, **({"name": "weather"} if more else {})}
    return chunk(tool_calls=[{"index": index, "function": function, **more}])


TOOL_ANSWER = [
    chunk("", role="assistant"),
    chunk(reasoning_content="They ask "),
    chunk(reasoning_content="about weather."),
    chunk("Let me "),
    chunk("look."),
    call(0, "", id="call_a", type="function"),
    call(0, '{"city": '),
    call(0, '"Paris"}'),
    call(1, "", id="call_b", type="function"),
    call(1, '{"city": "Rome"}'),
    chunk(finish="tool_calls"),
]


class Server:
    """Answers every chat request with the same chunks, and keeps what it was asked."""

    def __init__(self, chunks: list[dict]) -> None:
        self.asked: list[dict] = []
        self.paths: list[str] = []
        self._body = sse(*chunks)

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))

    async def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(request.url.path)
        self.asked.append(json.loads(request.content))
        if not request.url.path.endswith("/chat/completions"):
            return httpx2.Response(400, json={"error": {"message": "unknown here", "type": "x"}})
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=self._body)


def asking(server: Server) -> AsyncDisco:
    return AsyncDisco(policy=SERVER_ONLY, api_key="x", http_client=server.client())


async def test_every_kind_of_output_becomes_an_item_of_its_own():
    server = Server(TOOL_ANSWER)
    async with asking(server) as c:
        answer = await c.responses.create(
            model="m", input="Weather?", instructions="Be brief.", tools=[WEATHER]
        )
    assert isinstance(answer, Response)
    assert answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.output_text == "Let me look."
    calls = answer.output[2:]
    assert [(c.call_id, c.name, json.loads(c.arguments)["city"]) for c in calls] == [
        ("call_a", "weather", "Paris"),
        ("call_b", "weather", "Rome"),
    ]
    (asked,) = server.asked
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["tools"] == [
        {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}
    ]


async def test_the_events_are_the_apis_and_add_up_to_the_response():
    async with asking(Server(TOOL_ANSWER)) as c:
        stream = await c.responses.create(model="m", input="Weather?", tools=[WEATHER], stream=True)
        events = [event async for event in stream]
        async with c.responses.stream(model="m", input="Weather?", tools=[WEATHER]) as helper:
            final = await helper.get_final_response()
    for event in events:  # strictly: what the SDK would also construct unchecked
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == final.output_text == "Let me look."
    arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert arguments == '{"city": "Paris"}{"city": "Rome"}'


async def test_output_can_be_sent_back_as_input():
    server = Server(TOOL_ANSWER)
    async with asking(server) as c:
        first = await c.responses.create(model="m", input="Weather?", tools=[WEATHER])
        history = [
            {"role": "user", "content": "Weather?"},
            *[item.model_dump() for item in first.output],
            {"type": "function_call_output", "call_id": "call_a", "output": "sunny"},
            {
                "type": "function_call_output",
                "call_id": "call_b",
                "output": [{"type": "input_text", "text": "wet"}],
            },
        ]
        await c.responses.create(model="m", input=history, tools=[WEATHER])
    messages = server.asked[1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["content"] == "Let me look."
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["call_a", "call_b"]
    assert [m["content"] for m in messages[2:]] == ["sunny", "wet"]


async def test_a_cut_answer_is_incomplete_and_says_why():
    async with asking(Server([chunk("Long"), chunk(finish="length")])) as c:
        answer = await c.responses.create(model="m", input="x", max_output_tokens=16)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"


async def test_an_empty_answer_is_an_answer():
    async with asking(Server([chunk(role="assistant"), chunk(finish="stop")])) as c:
        answer = await c.responses.create(model="m", input="x")
        events = [e.type async for e in await c.responses.create(model="m", input="x", stream=True)]
    assert (answer.status, answer.output_text) == ("completed", "")
    assert (events[0], events[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_123"},
        {"tools": [{"type": "web_search"}]},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        {"include": ["file_search_call.results"]},
        {"something_new": 1},
    ],
)
async def test_what_only_the_server_can_do_goes_there_untouched(more):
    body = {"model": "m", "input": "x", **more}
    assert chat_body(body) is None
    server = Server(TOOL_ANSWER)
    async with asking(server) as c:
        known = {k: v for k, v in body.items() if k != "something_new"}
        extra = {k: v for k, v in body.items() if k == "something_new"}
        with pytest.raises(openai.BadRequestError, match="unknown here"):
            await c.responses.create(**known, extra_body=extra or None)
    assert server.paths[0].endswith("/responses")
    assert server.asked[0] == body


async def test_going_on_from_a_response_made_here_is_refused_with_the_remedy():
    async with asking(Server(TOOL_ANSWER)) as c:
        first = await c.responses.create(model="m", input="x")
        with pytest.raises(disco.NoEndpointError, match="Pass the earlier items in input"):
            await c.responses.create(model="m", input="y", previous_response_id=first.id)


def test_images_and_structured_output_are_translated():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    chat = chat_body(
        {
            "model": "m",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]}],
            "text": {"format": {"type": "json_schema", "name": "who", "schema": {"type": "object"}}},
            "max_output_tokens": 5,
            "reasoning": {"effort": "low"},
            "tool_choice": {"type": "function", "name": "weather"},
        }
    )
    assert chat == {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What?"},
                    {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}},
                ],
            }
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "who", "schema": {"type": "object"}},
        },
        "max_completion_tokens": 5,
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }


@pytest.mark.real
def test_the_real_local_model_answers_it_in_both_clients():
    class Who(BaseModel):
        name: str

    asked = {"model": "m", "input": "Say hello.", "temperature": 0.0}
    with Disco(local="smollm2-135m", policy="private") as c:
        answer = c.responses.create(max_output_tokens=16, **asked)
        chat = c.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Say hello."}], temperature=0.0, max_tokens=16
        )
        assert answer.output_text == chat.choices[0].message.content
        assert answer.usage.output_tokens == chat.usage.completion_tokens
        events = list(c.responses.create(max_output_tokens=16, stream=True, **asked))
        assert events[-1].response.output_text == answer.output_text
        assert isinstance(
            c.responses.parse(text_format=Who, max_output_tokens=60, **asked).output_parsed, Who
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": "text"},
        {"tools": ["text"]},
        {"text": "plain"},
        {"text": {"format": "json"}},
        {"reasoning": "high"},
    ],
    ids=str,
)
def test_what_is_no_request_is_the_servers_to_refuse(wrong):
    assert chat_body({"model": "m", "input": "Hello.", **wrong}) is None
