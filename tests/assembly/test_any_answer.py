"""Whatever a server says: what disco makes of it is what the SDK makes of it, and no other error than the SDK's.

`DIFFERENCES` are on purpose, and left out of what is drawn where the two are compared; `test_pieces` shows them.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import openai
import pytest
from assembly.asked import FORMS, SETUPS, TOOLS, asked, document, events, in_virtual_time
from faults.in_memory import Reply, no_thread  # noqa: F401 - a fixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import chunk

DIFFERENCES = (
    "What is told again (ids, types, roles, formats, the names of calls) counts once: the SDK joins it.",
    "Calls with two ids are two; calls without an index get one: the SDK joins them, or raises a RuntimeError.",
    "Entries of one index with two types are two: the SDK gives one the other's type.",
    "Entries without an index are entries each: the SDK raises a RuntimeError at the second piece.",
    "The last of several numbers counts: the SDK adds them up.",
    "An empty value makes way for one of another type, and null says nothing of what an earlier chunk has said.",
    "A list of parts is its text: the SDK hands the list on.",
    "Fields beside the delta are those of all chunks: the SDK's helper takes the first chunk's.",
    "An answer that says nothing is none, and neither is one that ends within a call: somebody else may answer.",
    "The usage has counts, even where the server gives none, or odd ones.",
)

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
steady = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

# ---------------------------------------------------------------------- equal to the SDK's

TEXTS = st.text(st.sampled_from('ab \U0001f30aé\n"\\'), min_size=1, max_size=4)
SURE = {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}], "refusal": None}


# Complete ones: of an answer that ends within a call, disco makes an error.
ARGUMENTS = ([], ["{}"], ['{"a"', ": 1}"], ['{"a": "', "\U0001f30a", 'é"}'])
GIVEN = ("{}", '{"a": 1}', "", None, {"a": 1})


@st.composite
def deltas(draw: st.DrawFn) -> dict[str, Any]:
    """A delta, as the SDK can add it up to others."""
    numbered = st.dictionaries(
        st.integers(0, 1), st.fixed_dictionaries({}, optional={"text": TEXTS, "signature": TEXTS})
    )
    fields = {
        "content": TEXTS | st.none() | st.just(""),
        "refusal": TEXTS | st.none(),
        "reasoning_content": TEXTS | st.none(),
        "reasoning_details": numbered.map(lambda parts: [{"index": n, **parts[n]} for n in sorted(parts)]),
        "own": st.fixed_dictionaries({}, optional={"said": TEXTS, "listed": st.lists(TEXTS)}),
        "listed": st.lists(TEXTS),
    }
    names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True))
    return {name: draw(fields[name]) for name in names}


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chunks of one answer: any deltas, then calls in pieces, which come last so that both indices are there."""
    # The SDK's accumulator needs the entries of a list in order.
    said = [
        {"role": "assistant", "content": "a", "reasoning_details": [{"index": 0}, {"index": 1}]},
        *draw(st.lists(deltas(), max_size=5)),
    ]
    for index in range(draw(st.integers(0, 2))):
        whole = draw(st.sampled_from(ARGUMENTS))
        begun = {
            "index": index,
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        pieces = [begun, *({"index": index, "function": {"arguments": text}} for text in whole)]
        said += [{"tool_calls": [piece]} for piece in pieces]
    chunks = [chunk(**delta) for delta in said]
    for each in chunks:
        if draw(st.booleans()):
            each["choices"][0]["logprobs"] = draw(st.sampled_from([None, SURE]))
    return [*chunks, chunk(finish=draw(st.sampled_from(["stop", "tool_calls"])))]


def _said(answer: Any) -> Any:
    """What an answer says: without nulls, which the SDK's helper puts everywhere, and without indices of calls."""
    choice = answer.choices[0].model_dump(warnings=False)
    for call in choice["message"].get("tool_calls") or ():
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return _known(choice)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(item) for name, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, list) else value


@steady
@given(
    streams(),
    st.sampled_from(
        [
            *(("backed", form) for form in ("whole", "parsed", "streamed", "helped")),
            *(("served", form) for form in ("whole", "streamed")),
            ("beside", "whole"),
            ("alone", "helped"),
        ]
    ),
)
def test_a_stream_is_what_the_sdk_makes_of_it(chunks, way):
    plain = in_virtual_time(lambda: asked("sdk", "helped", events(*chunks)))
    answer = in_virtual_time(lambda: asked(*way, events(*chunks)))
    assert _said(answer) == _said(plain)


MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXTS.map("a".__add__)},
    optional={
        "refusal": TEXTS | st.none(),
        "reasoning_content": TEXTS,
        "annotations": st.lists(
            st.sampled_from([{"type": "file"}, {"type": "url_citation", "url_citation": {}}])
        ),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "id": TEXTS | st.none(),
                    "type": st.sampled_from(["function", "", None]),
                    "function": st.fixed_dictionaries(
                        {},
                        optional={
                            "name": TEXTS,
                            "arguments": st.sampled_from(GIVEN),
                        },
                    ),
                },
            ),
            max_size=2,
        ),
        "audio": st.just({"id": "s"}),
        "own": st.lists(st.integers() | TEXTS | st.none()) | st.just({"a": [{"index": 5}]}),
    },
)


@steady
@given(MESSAGES, st.sampled_from(["backed", "beside", "served"]))
def test_a_document_is_what_the_sdk_makes_of_it(message, setup):
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": "stop", "own": [1]}]
    body["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    plain = in_virtual_time(lambda: asked("sdk", "whole", document(body)))
    answer = in_virtual_time(lambda: asked(setup, "whole", document(body)))
    assert answer.to_dict(warnings=False) == plain.to_dict(warnings=False)


# ---------------------------------------------------------------------- no other errors than the SDK's

ODD = st.sampled_from(
    [
        *(
            None,
            True,
            5,
            -1,
            10**400,
            1.5,
            float("nan"),
            float("inf"),
            "",
            "x",
            "\ud83c",
            "\udf0a",
            "null",
            "{}",
        ),
        *(
            [],
            {},
            [None],
            [[]],
            [{}],
            [5, "x"],
            {"a": 1},
            {"\ud83c": "\udf0a"},
            {"index": 0},
            [{"index": "x"}],
        ),
        *([{"type": "text", "text": "x"}], {"_fields_set": 1}, {"message": "x"}, [{"index": 0, "id": 5}]),
        json.loads("[" * 40 + "]" * 40),
    ]
)
LOGPROBS = {
    "content": [
        {"token": "a", "logprob": -0.5, "bytes": [1], "top_logprobs": [{"token": "a", "logprob": -1}]}
    ]
}
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAMPLES = [
    {**chunk("x", role="assistant"), "system_fingerprint": "fp", "service_tier": "flex", "own": {"a": [1]}},
    chunk("y", reasoning_details=[{"index": 0, "type": "reasoning.text", "text": "hm"}], refusal=None),
    {**chunk("z"), "choices": [{**chunk("z")["choices"][0], "logprobs": LOGPROBS}]},
    chunk(tool_calls=[CALL], annotations=[{"type": "url_citation", "url_citation": {"url": "u"}}]),
    chunk(function_call={"name": "f", "arguments": "{}"}, audio={"id": "s", "data": "AA"}),
    {
        **chunk(finish="stop"),
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {}},
    },
]
DOCUMENT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "x",
                "tool_calls": [CALL],
                "annotations": [{"type": "file"}],
            },
            "finish_reason": "stop",
            "logprobs": LOGPROBS,
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
PART = {"type": "output_text", "text": "x", "annotations": []}
ITEM = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [PART]}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [ITEM],
}
AT = {"item_id": "m", "output_index": 0, "content_index": 0}
STEPS = [
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {"type": "response.content_part.added", **AT, "part": {**PART, "text": ""}},
    {"type": "response.output_text.delta", **AT, "delta": "x", "logprobs": []},
    {"type": "response.content_part.done", **AT, "part": PART},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {
        "type": "response.completed",
        "response": {**RESPONSE, "usage": {"input_tokens": 1, "output_tokens": 1}},
    },
]
NUMBERED = [{**step, "sequence_number": number} for number, step in enumerate(STEPS)]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for name, item in inside for p in _paths(item, (*path, name)))]


@st.composite
def spoilt(draw: st.DrawFn, sample: Any) -> Any:
    """The same with odd values at some places, or nothing there."""
    made = copy.deepcopy(sample)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_paths(made)))
        if not path:
            continue
        at = made
        for step in path[:-1]:
            at = at[step]
        if isinstance(at, dict) and draw(st.booleans()):
            del at[path[-1]]
        else:
            at[path[-1]] = copy.deepcopy(draw(ODD))
    if draw(st.booleans()) and isinstance(made, list) and made:
        made.insert(draw(st.integers(0, len(made))), copy.deepcopy(draw(st.sampled_from(made))))
    return made


def _responding(steps: list[Any]) -> Any:
    said = b"".join(b"data: " + json.dumps(step).encode() + b"\n\n" for step in steps)
    return Reply([said])


REPLIES = st.one_of(
    spoilt(SAMPLES).map(lambda chunks: events(*chunks)),
    spoilt(DOCUMENT).map(document),
    spoilt(NUMBERED).map(_responding),
    spoilt(RESPONSE).map(
        lambda body: Reply([json.dumps(body).encode()], headers={"content-type": "application/json"})
    ),
)


@settings(steady, max_examples=150)
@given(REPLIES, st.sampled_from([name for name in SETUPS if name != "sdk"]), st.sampled_from(sorted(FORMS)))
def test_no_answer_makes_an_error_that_is_not_the_sdks(reply, setup, form):
    said = ""
    try:
        in_virtual_time(lambda: asked(setup, form, reply, tools=TOOLS))
    except openai.OpenAIError as error:
        said = str(error)
    except Exception:
        # Of what the application makes of the chunks itself, or the SDK in front: then the SDK alone fails, too.
        if form != "streamed" and setup != "served":
            raise
        with pytest.raises(Exception) as plain:  # noqa: PT011
            in_virtual_time(lambda: asked("sdk", form, reply, tools=TOOLS))
        assert not isinstance(plain.value, openai.OpenAIError)
    assert "disco failed on this request" not in said
