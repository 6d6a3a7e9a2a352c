"""Answers as servers in the wild send them, each standing for a kind: what comes of them by every way in."""

from __future__ import annotations

from typing import Any

import pytest
from assembly.asked import FORMS, TOOLS, asked, calls_of, document, events
from faults.in_memory import Reply, anyio_backend, no_thread  # noqa: F401 - fixtures
from openai.types.chat import ChatCompletion
from scripted_server import chunk, sse

# The SDK's helpers dump each chunk, and warn of what should be another type.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]

ROUTED = [
    *(("backed", form) for form in FORMS if form != "chunks"),
    ("beside", "whole"),
    *(("served", form) for form in ("whole", "streamed", "response")),
]
ENDS = chunk(finish="tool_calls")


def call(**fields: Any) -> dict[str, Any]:
    return chunk(tool_calls=[fields])


def begun(name: str = "f", arguments: str = "", **fields: Any) -> dict[str, Any]:
    return call(type="function", function={"name": name, "arguments": arguments}, **fields)


def more(arguments: str, **fields: Any) -> dict[str, Any]:
    return call(function={"arguments": arguments}, **fields)


ONE, TWO = ("a", "f", '{"x": 1}'), ("b", "g", '{"y": 2}')
CALLS: dict[str, tuple[list[Any], list[Any]]] = {
    "an empty id, type and name in later pieces": (
        [
            begun(index=0, id="a"),
            call(index=0, id="", type="", function={"name": "", "arguments": '{"x":'}),
            more(" 1}", index=0, id="", type=None),
        ],
        [ONE],
    ),
    "all told again in every piece": (
        [begun(index=0, id="a", arguments='{"x":'), begun(index=0, id="a", arguments=" 1}")],
        [ONE],
    ),
    "two calls of one index": (
        [begun(index=0, id="a", arguments=ONE[2]), begun("g", index=0, id="b", arguments=TWO[2])],
        [ONE, TWO],
    ),
    "two calls of one index in pieces": (
        [
            begun(index=0, id="a"),
            more('{"x": 1}', index=0),
            begun("g", index=0, id="b", arguments='{"y":'),
            more(" 2}", index=0),
        ],
        [ONE, TWO],
    ),
    "two calls without an index": (
        [begun(id="a", arguments=ONE[2]), begun("g", id="b", arguments=TWO[2])],
        [ONE, TWO],
    ),
    "two calls without an index in one chunk": (
        [
            chunk(
                tool_calls=[
                    *begun(id="a", arguments=ONE[2])["choices"][0]["delta"]["tool_calls"],
                    *begun("g", id="b", arguments=TWO[2])["choices"][0]["delta"]["tool_calls"],
                ]
            )
        ],
        [ONE, TWO],
    ),
    "pieces without an index": (
        [begun(id="a"), more('{"x":'), more(" 1}"), begun("g", id="b"), more(TWO[2])],
        [ONE, TWO],
    ),
    "two calls of one index without an id": (
        [begun(index=0, arguments=ONE[2]), begun("g", index=0, arguments=TWO[2])],
        [(None, *ONE[1:]), (None, *TWO[1:])],
    ),
    "one function called twice, without an id": (
        [begun(index=0, arguments=ONE[2]), begun(index=0, arguments=ONE[2])],
        [(None, *ONE[1:])] * 2,
    ),
    "by turns": (
        [
            begun(index=0, id="a"),
            begun("g", index=1, id="b"),
            more('{"x":', index=0),
            more('{"y":', index=1),
            more(" 1}", index=0),
            more(" 2}", index=1),
        ],
        [ONE, TWO],
    ),
    "numbered from one": (
        [begun(index=1, id="a", arguments=ONE[2]), begun("g", index=2, id="b", arguments=TWO[2])],
        [ONE, TWO],
    ),
    "an id that comes late": ([begun(index=0, id=""), more(ONE[2], index=0, id="a")], [ONE]),
}


@pytest.mark.parametrize(("setup", "form"), ROUTED)
@pytest.mark.parametrize(("pieces", "calls"), CALLS.values(), ids=CALLS)
async def test_calls_are_told_apart(pieces, calls, setup, form):
    answer = await asked(setup, form, events(*pieces, ENDS), tools=TOOLS)
    got = calls_of(answer)
    if form.startswith("response"):  # its calls have ids of disco's where the server gives none at first
        own = [made[0].startswith("call_disco_") for made in got]
        calls = [
            (made[0] if mine else told[0], *told[1:])
            for made, mine, told in zip(got, own, calls, strict=True)
        ]
    assert got == calls


@pytest.mark.parametrize(
    "pieces", [CALLS["by turns"], CALLS["two calls of one index"]], ids=["turns", "one index"]
)
async def test_one_server_alone_can_be_read_with_the_helper(pieces):
    answer = await asked("alone", "helped", events(*pieces[0], ENDS), tools=TOOLS)
    assert calls_of(answer) == pieces[1]


# ---------------------------------------------------------------------- fields as they come

ODD_CALLS: dict[str, dict[str, Any]] = {
    "no arguments": {"id": "a", "type": "function", "function": {"name": "now"}},
    "null as arguments": {"id": "a", "type": "function", "function": {"name": "now", "arguments": None}},
    "no type": {"id": "a", "function": {"name": "now", "arguments": "{}"}},
    "an empty type": {"id": "a", "type": "", "function": {"name": "now", "arguments": "{}"}},
    "no id": {"type": "function", "function": {"name": "now", "arguments": "{}"}},
    "null as id": {"id": None, "type": "function", "function": {"name": "now", "arguments": "{}"}},
    "an object as arguments": {
        "id": "a",
        "type": "function",
        "function": {"name": "now", "arguments": {"x": 1}},
    },
    "fields of the server's own": {
        "id": "a",
        "type": "function",
        "function": {"name": "now", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "abc"}},
    },
}
MESSAGES: dict[str, dict[str, Any]] = {
    **{name: {"tool_calls": [given]} for name, given in ODD_CALLS.items()},
    "an annotation of a file": {"content": "x", "annotations": [{"type": "file"}]},
    "a citation without its place": {
        "content": "x",
        "annotations": [{"type": "url_citation", "url_citation": {"url": "http://a"}}],
    },
    "a number as refusal": {"content": "x", "refusal": 5},
    "a sound without its data": {"content": "x", "audio": {"id": "s"}},
    "thoughts": {
        "content": "x",
        "reasoning": "hm",
        "reasoning_details": [
            {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "f", "index": 0}
        ],
    },
    "fields of the server's own": {
        "content": "x",
        "own": [1, {"a": None}],
        "nothing": None,
        "provider": {"b": 0.5},
    },
}


def _whole(message: dict[str, Any], **beside: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, **message},
        "finish_reason": "stop",
    }
    counted = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-1", "usage": counted}
    return {**made, "choices": [{**choice, **beside}]}


def _plain(answer: Any) -> Any:
    """All that an answer says, without what the SDK's helpers add."""
    said = answer.model_dump(exclude_unset=True, warnings=False)
    for choice in said["choices"]:
        choice["message"].pop("parsed", None)
        for made in choice["message"].get("tool_calls") or ():
            made.pop("index", None)
            made["function"].pop("parsed_arguments", None)
    return said


def _known(value: Any) -> Any:
    """Without nulls: the SDK's helpers say of every field that they know that it is null."""
    if isinstance(value, dict):
        return {name: _known(item) for name, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("setup", ["backed", "beside", "served"])
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_a_whole_document_is_what_the_sdk_makes_of_it(message, setup):
    body = _whole(message, stop_reason=7, content_filter_results={"hate": {"filtered": False}})
    body |= {"provider": "P", "system_fingerprint": "fp", "service_tier": "flex"}
    plain = await asked("sdk", "whole", document(body))
    answer = await asked(setup, "whole", document(body))
    assert isinstance(answer, ChatCompletion)
    assert _plain(answer) == _plain(plain)


@pytest.mark.parametrize(
    ("setup", "form"),
    [("backed", "whole"), ("backed", "helped"), ("served", "whole"), ("served", "streamed")],
)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_a_stream_is_what_the_sdk_makes_of_its_chunks(message, setup, form):
    pieces = [{**call, "index": at} for at, call in enumerate(message.get("tool_calls", []))]
    said = chunk(**{**message, **({"tool_calls": pieces} if pieces else {})})
    plain = await asked("sdk", "helped", events(said, chunk(finish="stop")))
    answer = await asked(setup, form, events(said, chunk(finish="stop")))
    given, made = (_known(_plain(each)["choices"][0]["message"]) for each in (plain, answer))
    assert made | {"role": "assistant"} == {"role": "assistant", **given}


REFUSED = [chunk(refusal="I can ", role="assistant"), chunk(refusal="not."), chunk(finish="stop")]


@pytest.mark.parametrize("form", ["streamed", "helped", "response"])
async def test_a_refusal_stays_one_where_a_reader_s_pace_divides_it(form):
    """Only the first word of a chunk has the chunk itself."""
    text = " ".join(["I can not help with that."] * 4)
    refused = [chunk(refusal=text, role="assistant"), chunk(finish="stop")]
    answer = await asked("paced", form, events(*refused))
    said = answer.output[0].content[0] if form == "response" else answer.choices[0].message
    assert (said.refusal, getattr(said, "content", None)) == (text, None)


@pytest.mark.parametrize("form", ["response", "response_helped"])
@pytest.mark.parametrize("setup", ["backed", "beside", "served"])
async def test_a_response_has_a_refusal_apart_from_its_text(setup, form):
    said = [chunk("Rhine."), *REFUSED[:2], chunk("Main."), REFUSED[2]]
    (item,) = (await asked(setup, form, events(*said))).output
    assert [(part.type, getattr(part, "text", None) or part.refusal) for part in item.content] == [
        ("output_text", "Rhine."),
        ("refusal", "I can not."),
        ("output_text", "Main."),
    ]


async def test_the_events_of_a_refusal_are_the_apis(monkeypatch):
    async def kinds(client: Any, **_: Any) -> list[str]:
        async with await client.responses.create(model="m", input="Which?", stream=True) as steps:
            return [step.type.removeprefix("response.") async for step in steps]

    monkeypatch.setitem(FORMS, "events", kinds)
    assert await asked("backed", "events", events(*REFUSED)) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *(
            "refusal.delta",
            "refusal.delta",
            "refusal.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ),
    ]


@pytest.mark.parametrize("form", ["whole", "streamed", "parsed"])
async def test_a_number_is_its_text(form):
    answer = await asked("backed", form, events(chunk(4), chunk(2.5), chunk(finish="stop")))
    assert answer.choices[0].message.content == "42.5"


async def test_a_stream_behind_a_line_of_json_is_read_as_the_sdk_reads_it():
    said = b'{"level": "info"}\n\n' + sse(chunk("Rhine."), chunk(finish="stop"))
    answer = await asked("backed", "whole", lambda _: Reply([said]))
    assert answer.choices[0].message.content == "Rhine."
