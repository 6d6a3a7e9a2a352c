"""A broken tool call: nobody sees half a call while another endpoint could make a whole one, and none is repaired."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
import openai
import pytest
from answers.two_servers import MODEL, TOOLS, called, document, good, stub, told, two
from faults.in_memory import DROPPED, MemoryServer, Reply
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import chunk, sse

from disco import AsyncDisco
from disco.events import ToolCallDelta
from disco.session.answer_rule import Calls

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

ROME = '{"city": "Rome", "days": [1, {"a": "}"}]}'
HALF = [called("", name="weather"), called('{"city": "Ro')]
WHOLE = stub(called("", name="weather"), *map(called, [ROME[:9], ROME[9:20], ROME[20:]]), finish="tool_calls")
ERROR = b'data: {"error": {"message": "boom", "code": 502}}\n\n'


def _half(**delta: Any) -> Reply:
    function = {"name": "weather", "arguments": '{"city": "Ro'}
    call = {"id": "c", "type": "function", "function": function}
    return document({"content": None, "tool_calls": [call], **delta}, "tool_calls")


BROKEN = {
    "the connection closes": stub(*HALF, end=DROPPED),
    "the stream ends": stub(*HALF, end=b"data: [DONE]\n\n"),
    "an error comes": stub(*HALF, end=ERROR),
    "half an event comes": stub(*HALF, end=b"data: {oops\n\n"),
    "it is said to be whole": stub(*HALF, finish="tool_calls"),
    "it is said to be the end": stub(*HALF, finish="stop"),
    "the second of two is": stub(called("{}", name="a"), called('{"ci', index=1, name="b"), finish="tool_calls"),
    "under one index": stub(
        called('{"ci', name="a", call_id="1"), called("{}", name="b", call_id="2"), finish="tool_calls"
    ),
    "it is no JSON": stub(called("{'city': }", name="weather"), finish="tool_calls"),
    "of the older API": stub({"function_call": {"name": "weather", "arguments": '{"ci'}}, finish="function_call"),
    "of a document": _half(),
    "of a document after a sentence": _half(content="I look."),
}  # fmt: skip
broken = pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN.keys())


@both
@broken
async def test_another_endpoint_makes_a_whole_one(reply, stream):
    """Streamed, a document's sentence is shown before its call is looked at, as is the first of two calls."""
    client, server = two(reply, WHOLE)
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        shown = reply in (BROKEN["the second of two is"], BROKEN["of a document after a sentence"])
        if stream and shown:
            assert (got.finish, isinstance(got.error, openai.OpenAIError)) == (None, True)
            assert (got.calls, server.requests) in (
                ({0: "{}"}, server.requests[:1]),
                ({}, server.requests[:1]),
            )
            return
        assert (got.calls, got.finish, got.error) == ({0: ROME}, "tool_calls", None)
        assert [name for name, failure in got.tried if failure is None] == ["good"]
        assert len(server.requests) == 2


@both
@pytest.mark.parametrize(
    "end", [{"end": DROPPED}, {"finish": "tool_calls"}], ids=["closed", "said to be whole"]
)
async def test_after_a_sentence_it_is_an_error_with_the_text(end, stream):
    said = stub({"content": "I look "}, {"content": "it up."}, *HALF, **end)
    client, server = two(said, WHOLE)
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        if not stream:  # nobody has the sentence: all of it is made again
            assert (got.text, got.calls, len(server.requests)) == ("", {0: ROME}, 2)
            return
        assert (got.text, got.calls, got.finish) == ("I look it up.", {}, None)
        assert isinstance(got.error, openai.OpenAIError)
        assert (got.error.partial_text, len(server.requests)) == ("I look it up.", 1)


@both
async def test_it_is_an_error_where_all_are_broken(stream):
    client, _ = two(BROKEN["it is said to be whole"], BROKEN["the connection closes"], max_retries=0)
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish) == ({}, None)
        assert "ended its answer within the arguments of a tool call" in str(got.error)
        again = [] if stream else [("server", "incomplete")]  # without the stream, which nobody asked for
        assert got.tried == [("server", "incomplete"), ("good", "connection"), *again]


@both
@pytest.mark.parametrize("more", [{}, {"budget": {"usd": 5, "per": "month"}}], ids=["alone", "with a budget"])
async def test_alone_it_is_what_the_sdk_gives(stream, more):
    server = MemoryServer(BROKEN["it is said to be whole"] if stream else BROKEN["of a document"])
    http = httpx2.AsyncClient(transport=server)
    async with AsyncDisco(
        base_url=server.base_url, api_key="secret-key-1234", http_client=http, price=(1, 1), **more
    ) as client:
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.finish, got.error) == ({0: '{"city": "Ro'}, "tool_calls", None)


@both
@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        (WHOLE, {0: ROME}),
        (stub(called("", name="now"), finish="tool_calls"), {0: ""}),
        (stub(called(" ", name="now"), finish="stop"), {0: " "}),
        (stub(called("{", name="f"), called("}"), called("\n"), finish="tool_calls"), {0: "{}\n"}),
        (stub(called('{"a": "\\', name="f"), called('"{"}'), finish="tool_calls"), {0: '{"a": "\\"{"}'}),
        (stub(called("[1]", name="f"), finish="tool_calls"), {0: "[1]"}),
        (stub(called("null", name="f"), finish="tool_calls"), {0: "null"}),
        (stub(called("", name="now"), called("{}", index=1, name="f"), finish="tool_calls"), {0: "", 1: "{}"}),
        (stub(*HALF, called('me"'), finish="length"), {0: '{"city": "Rome"'}),
        (stub(*HALF, finish="content_filter"), {0: '{"city": "Ro'}),
    ],
    ids=[
        *("whole", "no arguments", "blank", "space behind", "escapes", "a list", "null"),
        *("two, one without arguments", "the model's limit", "a filter"),
    ],
)  # fmt: skip
async def test_what_is_whole_is_passed_on_as_it_came(reply, calls, stream):
    client, server = two(reply, good())
    async with client:
        got = await told(client, stream=stream, tools=TOOLS)
        assert (got.calls, got.error, len(server.requests)) == (calls, None, 1)


@both
async def test_the_input_of_a_custom_tool_is_any_text(stream):
    custom = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "shell", "input": '{"rm'}}
    client, server = two(stub({"tool_calls": [custom]}, finish="tool_calls"), good())
    async with client:
        made = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=stream, tools=TOOLS
        )
        if stream:
            calls = [c async for e in made for ch in e.choices for c in ch.delta.tool_calls or []]
            assert calls[0].custom["input"] == '{"rm'
        assert len(server.requests) == 1


async def test_a_call_is_shown_as_soon_as_it_is_whole_and_in_order():
    """And not before; what comes behind its beginning waits with it."""
    steps = [sse(chunk(**delta), done=False) for delta in (
        {"role": "assistant"}, {"content": "I look."}, called("", name="f"), called('{"a"'), called(": 1}"),
        called("{", index=1, name="g"), called("}", index=1),
    )]  # fmt: skip
    apart = [step for each in steps for step in (1.0, each)]
    client, _ = two(Reply([*apart, 1.0, sse(chunk(finish="tool_calls"))]), good())
    async with client:
        begun, seen = anyio.current_time(), []
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, tools=TOOLS
        )
        async for each in stream:
            delta = each.choices[0].delta
            what = delta.content or [c.function.arguments for c in delta.tool_calls or []]
            if what:
                seen.append((round(anyio.current_time() - begun), what))
    assert seen == [
        (2, "I look."), (5, [""]), (5, ['{"a"']), (5, [": 1}"]), (7, ["{"]), (7, ["}"])
    ]  # fmt: skip


async def test_a_call_without_end_is_not_kept_back_for_ever():
    many = ["x" * 2**18] * 5
    endless = stub(called('{"a": "', name="f"), *map(called, many), end=DROPPED)
    client, _ = two(endless, WHOLE)
    async with client:
        got = await told(client, stream=True, tools=TOOLS)
        assert (len(got.calls[0]) > 2**20, isinstance(got.error, openai.OpenAIError)) == (True, True)


# ------------------------------------------------------------------ the Responses API


def _events(*events: dict[str, Any]) -> Reply:
    return Reply([sse(*({**e, "sequence_number": n} for n, e in enumerate(events)), done=False)])


def _call(arguments: str, status: str = "completed") -> dict[str, Any]:
    names = {"id": "fc_1", "call_id": "call_1", "name": "weather"}
    return {"type": "function_call", "status": status, "arguments": arguments, **names}


def _response(*output: Any) -> dict[str, Any]:
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True}
    return {**base, "status": "completed", "output": list(output), "tools": [], "tool_choice": "auto"}


def _pieces(*arguments: str) -> list[dict[str, Any]]:
    at = {"output_index": 0, "item_id": "fc_1"}
    return [
        {"type": "response.created", "response": {**_response(), "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": _call("", "in_progress")},
        *({"type": "response.function_call_arguments.delta", **at, "delta": text} for text in arguments),
    ]


def _done(arguments: str) -> list[dict[str, Any]]:
    at = {"output_index": 0, "item_id": "fc_1"}
    return [
        {"type": "response.function_call_arguments.done", **at, "arguments": arguments, "name": "weather"},
        {"type": "response.output_item.done", "output_index": 0, "item": _call(arguments)},
        {"type": "response.completed", "response": _response(_call(arguments))},
    ]


def _document(body: Any) -> Reply:
    return Reply([json.dumps(body).encode()], headers={"content-type": "application/json"})


@both
@pytest.mark.parametrize(
    "reply",
    [
        _events(*_pieces('{"city": "Ro')),
        _events(*_pieces('{"city": "Ro'), *_done('{"city": "Ro')),
        _events(*_pieces(), *_done('{"city": "Ro')),
        _document(_response(_call('{"city": "Ro'))),
    ],
    ids=["closed", "said to be whole", "at its end alone", "a document"],
)
async def test_a_broken_call_of_a_response(reply, stream):
    client, server = two(reply, WHOLE)
    async with client:
        made = await client.responses.create(model=MODEL, input="x", stream=stream, tools=[_tool()])
        if stream:
            events = [event async for event in made]
            begun = [e for e in events if e.type == "response.output_item.added"]
            assert [e.item.type for e in begun] == ["function_call"]
            made = events[-1].response
        assert [item.arguments for item in made.output] == [ROME]
        assert len(server.requests) == 2


@both
@pytest.mark.parametrize(
    "reply",
    [
        _events(*_pieces(ROME[:9], ROME[9:]), *_done(ROME)),
        _events(*_pieces(), *_done(ROME)),
        _document(_response(_call(ROME))),
        _events(*_pieces(), *_done("")),
    ],
    ids=["in pieces", "at its end alone", "a document", "no arguments"],
)
async def test_a_whole_call_of_a_response(reply, stream):
    client, server = two(reply, good())
    async with client:
        made = await client.responses.create(model=MODEL, input="x", stream=stream, tools=[_tool()])
        if stream:
            events = [event async for event in made]
            numbers = [event.sequence_number for event in events]
            assert numbers == sorted(numbers)
            made = events[-1].response
        assert [item.arguments for item in made.output] in ([ROME], [""])
        assert len(server.requests) == 1


def _tool() -> dict[str, Any]:
    return {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


# ------------------------------------------------------------------ when JSON is whole

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=4), of, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), st.booleans(), st.data())
def test_arguments_are_whole_at_their_last_bracket_and_not_before(value, is_ascii, data):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=data.draw(st.sampled_from([None, 1])))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6)))
    calls = Calls()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for number, piece in enumerate(pieces):
        calls.read([ToolCallDelta(0, piece)])
        assert calls.may_be_shown == (number == len(pieces) - 1)
        assert calls.are_broken != calls.may_be_shown
