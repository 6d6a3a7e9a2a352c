"""A session asks the server by its own `/responses`: its events arrive as they came, and any writer may go on."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from defects.asking import client, device, preset
from faults.in_memory import RESET, MemoryServer, Reply, anyio_backend  # noqa: F401 - a fixture
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_server import chunk, sse

from disco.client.responses.responses_request import server_body
from disco.request import Request

pytestmark = pytest.mark.anyio

ASKED = {"model": "m", "input": "The sea?"}
SAID = "The sea is wide and deep, and salt is in it."
WORDS = SAID.split(" ")
AT = {"item_id": "msg_1", "output_index": 0}
PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
USAGE = {"input_tokens": 20, "output_tokens": 9, "total_tokens": 29, "provider_detail": 3}
NO_PLACES = {"output_index", "content_index", "sequence_number"}
EVENT = TypeAdapter(ResponseStreamEvent)


def response(**fields):
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m-1", "provider": "P"}
    empty = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "output": []}
    return {**about, **empty, "status": "in_progress", **fields}


def written(words=WORDS, *, ends="completed"):
    """All that a server says: an event that nobody knows, the parts of a message, and fields of its own."""
    texts = [word if number == 0 else f" {word}" for number, word in enumerate(words)]
    part = {**PART, "text": "".join(texts)}
    done = {**MESSAGE, "status": ends, "content": [part]}
    why = {"reason": "max_output_tokens"} if ends == "incomplete" else None
    whole = response(status=ends, output=[done], usage=USAGE, incomplete_details=why)
    here = {**AT, "content_index": 0}
    events = [
        {"type": "response.created", "response": response()},
        {"type": "response.new_in_this_api", "of": "the provider"},
        {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE},
        {"type": "response.content_part.added", **here, "part": PART},
        *(
            {"type": "response.output_text.delta", **here, "delta": text, "logprobs": [], **extra}
            for text, extra in zip(texts, [{"obfuscation": "x"}, *[{}] * len(texts)], strict=False)
        ),
        {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **here, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": f"response.{ends}", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def saying(events, *after) -> Reply:
    return Reply([*(sse(event, done=False) for event in events), *after])


def asking(*replies, pace_tps="off", **more):
    server = MemoryServer(*replies)
    given = {"local": device(answer=SAID), "policy": preset("server_only", pace_tps=pace_tps), **more}
    return server, client(server, **given)


def seen(event):
    return event if isinstance(event, dict) else event.to_dict()


@pytest.mark.parametrize("ends", ["completed", "incomplete"])
async def test_events_and_answers_are_those_of_the_server(ends):
    events = written(ends=ends)
    server, one = asking(saying(events))
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
        whole = await one.responses.create(**ASKED, max_output_tokens=50)
        raw = await one.responses.with_raw_response.create(**ASKED, stream=True)
        lines = [line async for line in raw.http_response.aiter_lines() if line.startswith("data: ")]
    assert [seen(event) for event in got] == events
    assert [json.loads(line.removeprefix("data: ")) for line in lines] == events
    assert whole.to_dict() == events[-1]["response"]
    assert server.requests[0] == {**ASKED, "stream": True}
    assert server.requests[1] == {**ASKED, "stream": True, "max_output_tokens": 50}


async def test_a_whole_answer_has_the_items_that_the_last_event_leaves_out():
    *events, last = written()
    last = {**last, "response": {**last["response"], "output": []}}
    _, one = asking(saying([*events, last]))
    async with one:
        whole = await one.responses.create(**ASKED)
    assert (whole.id, whole.output_text) == ("resp_1", SAID)


async def test_calls_and_thoughts_are_passed_on_too():
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "secret"}
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
    done = {**call, "arguments": "{}"}
    hosted = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    summary = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    events = [
        {"type": "response.created", "response": response()},
        {"type": "response.output_item.added", "output_index": 0, "item": thought},
        {"type": "response.reasoning_summary_text.delta", **summary, "delta": "Hm."},
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        {"type": "response.output_item.added", "output_index": 1, "item": call},
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 1,
            "delta": "{}",
        },
        {"type": "response.output_item.done", "output_index": 1, "item": done},
        {"type": "response.output_item.added", "output_index": 2, "item": hosted},
        {
            "type": "response.completed",
            "response": response(status="completed", output=[thought, done, hosted]),
        },
    ]
    _, one = asking(saying(events))
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
        whole = await one.responses.create(**ASKED)
    assert [seen(event) for event in got] == events  # without numbers, as they came
    assert [item.to_dict() for item in whole.output] == [thought, done, hosted]


@pytest.mark.parametrize("shown", [4, 9], ids=["before the text", "in the text"])
async def test_the_device_goes_on_in_the_item_that_the_server_began(shown):
    _, one = asking(saying(written()[:shown], RESET))
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
        async with one.responses.stream(**ASKED) as helper:
            final = await helper.get_final_response()
        whole = await one.responses.create(**ASKED)
    kinds = [event.type for event in got]
    assert kinds.count("response.created") == kinds.count("response.output_item.added") == 1
    assert kinds.count("response.output_item.done") == kinds.count("response.completed") == 1
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert len({event.item_id for event in got if hasattr(event, "item_id")}) == 1
    for answer in (got[-1].response, final, whole):
        assert answer.output_text == SAID
        assert len(answer.output) == 1
    for event in got:
        if event.type != "response.new_in_this_api":
            EVENT.validate_python(event.model_dump())
    if shown > 4:
        assert (got[-1].response.id, got[-1].response.output[0].id) == ("resp_1", "msg_1")


async def test_a_server_that_does_not_say_where_text_belongs_loses_none_of_it():
    """llama-server's events have no places and no numbers."""
    events = [
        {name: value for name, value in event.items() if name not in NO_PLACES} for event in written()[:9]
    ]
    _, one = asking(saying(events, RESET))
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
        async with one.responses.stream(**ASKED) as helper:
            final = await helper.get_final_response()
        whole = await one.responses.create(**ASKED)
    said = "".join(event.delta for event in got if event.type == "response.output_text.delta")
    assert said == SAID
    assert [answer.output_text for answer in (got[-1].response, final, whole)] == [SAID] * 3


async def test_text_that_playback_divides_is_not_doubled():
    text = " ".join([SAID] * 3)  # in one piece, which the pace divides into words
    events = written([text])
    steps = [sse(event, done=False) for event in events]
    _, one = asking(Reply([*steps[:5], 5.0, *steps[5:]]), pace_tps=5)
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
    texts = [event.delta for event in got if event.type == "response.output_text.delta"]
    assert len(texts) > 1
    assert "".join(texts) == text
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert got[-1].response.to_dict() == events[-1]["response"]


async def test_a_server_without_responses_is_asked_by_chat_and_not_by_responses_again():
    paths = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.path.rpartition("/v1")[2])
        if paths[-1] == "/responses":
            return httpx2.Response(404, json={"detail": "Not Found"})
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=sse(chunk("Wide."), chunk(finish="stop")))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    more = {"base_url": "http://server.test/v1", "api_key": "k", "http_client": http, "continuation": "none"}
    async with client(local=device(), policy=preset("server_only"), **more) as one:
        for _ in range(2):
            assert (await one.responses.create(**ASKED)).output_text == "Wide."
    assert paths == ["/responses", "/chat/completions", "/chat/completions"]


@pytest.mark.parametrize("status", [422, 400])
async def test_a_refused_request_raises_what_the_sdk_raises(status):
    _, one = asking(Reply(status=status))
    async with one:
        with pytest.raises(
            openai.BadRequestError if status == 400 else openai.UnprocessableEntityError
        ) as caught:
            await one.responses.create(**ASKED)
    assert caught.value.request.url.path == "/v1/responses"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "overloaded"},
        {"error": {"code": "server_error", "message": "overloaded"}},
    ],
)
async def test_a_failure_that_the_server_reports_is_raised_where_no_endpoint_can_take_over(event):
    _, one = asking(saying([*written()[:6], event]), local=None, budget={"usd": 1, "window_s": 60})
    async with one:
        with pytest.raises(openai.APIError, match="overloaded") as caught:
            await one.responses.create(**ASKED)
    assert caught.value.code == "server_error"
    assert caught.value.partial_text == "The sea"


async def test_a_failed_response_is_the_answer_where_no_endpoint_can_take_over():
    told = {"error": {"code": "server_error", "message": "overloaded"}, "status": "failed"}
    events = [*written()[:6], {"type": "response.failed", "sequence_number": 6, "response": response(**told)}]
    _, one = asking(saying(events), local=None, budget={"usd": 1, "window_s": 60})
    async with one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
        whole = await one.responses.create(**ASKED)
        raw = await one.responses.with_raw_response.create(**ASKED, stream=True)
        lines = [line async for line in raw.http_response.aiter_lines() if line.startswith("data: ")]
    assert [seen(event) for event in got] == events
    assert [json.loads(line.removeprefix("data: ")) for line in lines] == events
    assert whole.to_dict() == events[-1]["response"]
    _, one = asking(saying(events))
    async with one:  # and the device takes over
        assert (await one.responses.create(**ASKED)).output_text == SAID


def test_a_server_is_not_asked_about_items_that_disco_made():
    known = {"type": "reasoning", "id": "rs_1", "summary": []}
    told = {"type": "message", "role": "assistant", "content": "Yes."}
    ours = [{"type": "reasoning", "id": "rs_disco_1"}, {**told, "id": "msg_disco_1"}]
    body = server_body({"input": ["x", known, *ours], "stream": True, "store": True})
    assert body == {"input": ["x", known, told], "store": True}


def test_a_lower_limit_is_the_servers_too():
    request = Request(
        [], "m", {"max_completion_tokens": 90}, responses={"max_output_tokens": 90, "input": "x"}
    )
    assert request.limited(7).responses == {"max_output_tokens": 7, "input": "x"}
    assert Request([], "m", responses={"input": "x"}).limited(7).responses == {"input": "x"}


@pytest.mark.parametrize(
    ("ttft_s", "slowly", "outcome"),
    [(0.3, 999, "switched"), (30.0, 999, "late"), (30.0, 24, "source_finished")],
)
async def test_an_answer_migrates_within_its_item(ttft_s, slowly, outcome):
    """Where the migration is given up, the events that the server sent meanwhile are not lost."""
    text, routes = " ".join([SAID] * 30), []
    steps: list[bytes | float] = []
    events = written(text.split(" "))
    for number, event in enumerate(events):
        steps += [sse(event, done=False)] + [0.05] * (4 <= number < slowly)
    more = {"local": device(answer=text, ttft_s=ttft_s), "on_route": routes.append, "price": (50, 500)}
    policy = preset("server_only", order="make_before_break", pace_tps=5)
    async with client(MemoryServer(Reply(steps)), policy=policy, **more) as one:
        got = [event async for event in await one.responses.create(**ASKED, stream=True)]
    assert routes[0].migrations[-1].outcome == outcome
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert "".join(event.delta for event in got if event.type == "response.output_text.delta") == text
    rest = [event for event in got if not event.type.endswith(".delta")]
    assert [event.type for event in rest] == [e["type"] for e in events if not e["type"].endswith(".delta")]
    assert got[-1].response.output_text == text
    if outcome != "switched":
        assert got[-1].response.to_dict() == events[-1]["response"]
