"""What comes in pieces besides the text and the calls: thoughts, lists, log probabilities, halves of characters."""

from __future__ import annotations

from typing import Any

import pytest
from assembly.asked import asked, events
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures
from scripted_server import chunk

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]

ENDS = chunk(finish="stop")
each_way = pytest.mark.parametrize(
    ("setup", "form"), [("backed", "whole"), ("backed", "helped"), ("beside", "whole"), ("served", "whole")]
)


def beside(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chunk with fields beside its delta."""
    return {**body, "choices": [{**body["choices"][0], **fields}]}


def thought(index: int | None = 0, kind: str = "reasoning.text", **fields: Any) -> dict[str, Any]:
    numbered = {} if index is None else {"index": index}
    return {"type": kind, "format": "anthropic-claude-v1", **numbered, **fields}


PIECES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a thought and its signature": (
        [
            {"reasoning_details": [thought(text="Let ")]},
            {"reasoning_details": [thought(text="me see", signature=None)]},
            {"reasoning_details": [thought(signature="abc")]},
        ],
        {"reasoning_details": [thought(text="Let me see", signature="abc")]},
    ),
    "two thoughts in one chunk": (
        [
            {"reasoning_details": [thought(text="a"), thought(1, text="b")]},
            {"reasoning_details": [thought(1, text="c")]},
        ],
        {"reasoning_details": [thought(text="a"), thought(1, text="bc")]},
    ),
    "a summary, and what it sums up, under one index": (
        [
            {"reasoning_details": [thought(kind="reasoning.summary", summary="They ")]},
            {"reasoning_details": [thought(kind="reasoning.summary", summary="ask")]},
            {"reasoning_details": [thought(kind="reasoning.encrypted", data="xyz", id="rs_1")]},
        ],
        {
            "reasoning_details": [
                thought(kind="reasoning.summary", summary="They ask"),
                thought(kind="reasoning.encrypted", data="xyz", id="rs_1"),
            ]
        },
    ),
    "thoughts without an index": (
        [{"reasoning_details": [thought(None, text="a")]}, {"reasoning_details": [thought(None, text="b")]}],
        {"reasoning_details": [thought(None, text="a"), thought(None, text="b")]},
    ),
    "citations": (
        [{"annotations": [{"type": "file"}]}, {"annotations": [{"type": "url_citation"}]}],
        {"annotations": [{"type": "file"}, {"type": "url_citation"}]},
    ),
    "a list of the server's own": ([{"own": ["a"]}, {"own": []}, {"own": ["b", 1]}], {"own": ["a", "b", 1]}),
    "numbers of the server's own": (
        [{"at": 1, "sure": 0.5}, {"at": 2, "sure": 0.25}],
        {"at": 2, "sure": 0.25},
    ),
    "an object of the server's own": (
        [{"own": {"id": "a", "said": "x"}}, {"own": {"id": "a", "said": "y"}}, {"own": None}],
        {"own": {"id": "a", "said": "xy"}},
    ),
    "a sound": (
        [
            {"audio": {"id": "s", "data": "AA"}},
            {"audio": {"data": "BB"}},
            {"audio": {"id": "s", "expires_at": 5}},
        ],
        {"audio": {"id": "s", "data": "AABB", "expires_at": 5}},
    ),
    "a call of the older API": (
        [
            {"function_call": {"name": "f", "arguments": "{"}},
            {"function_call": {"name": "f", "arguments": "}"}},
        ],
        {"function_call": {"name": "f", "arguments": "{}"}},
    ),
    "nulls first": (
        [{"reasoning_content": None, "own": None}, {"reasoning_content": "hm", "own": {"a": 1}}],
        {"reasoning_content": "hm", "own": {"a": 1}},
    ),
}


@each_way
@pytest.mark.parametrize(("deltas", "said"), PIECES.values(), ids=PIECES)
async def test_pieces_of_one_thing_make_one_thing(deltas, said, setup, form):
    if (form, said.keys()) in (("helped", {"audio"}), ("helped", {"function_call"})):
        pytest.skip("the SDK's helper joins the id and the name")
    answer = await asked(setup, form, events(*(chunk(**each) for each in deltas), chunk("x"), ENDS))
    message = answer.choices[0].message.model_dump(exclude_none=True)
    assert {name: message.get(name) for name in said} == _known(said)
    assert message["content"] == "x"


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(item) for name, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, list) else value


@each_way
async def test_what_the_last_chunk_says_is_not_lost(setup, form):
    last = beside(
        chunk(finish="stop", annotations=[{"type": "file"}]),
        logprobs={"content": [{"token": "", "logprob": 0.0, "bytes": None, "top_logprobs": []}]},
    )
    answer = await asked(setup, form, events(chunk("x"), last))
    assert [each.type for each in answer.choices[0].message.annotations] == ["file"]
    assert [each.token for each in answer.choices[0].logprobs.content] == [""]


@each_way
async def test_what_one_chunk_says_is_said_once(setup, form):
    """disco takes a chunk with thoughts, a text and an end apart."""
    probs = {"content": [{"token": "x", "logprob": -1.0, "bytes": None, "top_logprobs": []}], "refusal": None}
    both = chunk("x", reasoning_content="hm", annotations=[{"type": "file"}], own=[1])
    both = beside(both, logprobs=probs, token_ids=[5], finish_reason="stop")
    answer = await asked(setup, form, events(both))
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.reasoning_content, choice.message.own) == ("x", "hm", [1])
    assert len(choice.message.annotations) == len(choice.logprobs.content) == 1
    if form == "whole":  # the SDK's helper takes what the first chunk says
        assert choice.token_ids == [5]


# ---------------------------------------------------------------------- log probabilities


def sure_of(token: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -0.5, "bytes": [1], "top_logprobs": []}], "refusal": None}


@each_way
@pytest.mark.parametrize("last", [{}, {"logprobs": None}], ids=["lacking", "null"])
async def test_log_probabilities_stay_where_some_chunks_have_none(last, setup, form):
    said = [
        beside(chunk("a"), logprobs=sure_of("a")),
        beside(chunk(role="assistant"), logprobs=None),
        beside(chunk("b"), logprobs=sure_of("b")),
    ]
    answer = await asked(setup, form, events(*said, beside(ENDS, **last)), logprobs=True)
    assert [each.token for each in answer.choices[0].logprobs.content] == ["a", "b"]
    assert answer.choices[0].to_dict()["logprobs"]["content"][0]["logprob"] == -0.5


@each_way
async def test_log_probabilities_of_another_shape_are_passed_on(setup, form):
    odd = {"tokens": ["a"], "token_logprobs": [-0.5]}
    said = [beside(chunk("a"), logprobs=odd), beside(chunk("b"), logprobs=odd)]
    if form == "helped":
        pytest.skip("the SDK's helper leaves them out")
    answer = await asked(setup, form, events(*said, ENDS), logprobs=True)
    assert answer.choices[0].logprobs.model_extra["token_logprobs"] == [-0.5, -0.5]


# ---------------------------------------------------------------------- texts


@each_way
async def test_the_text_of_a_list_of_parts(setup, form):
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "The "},
    ]
    said = [chunk(content=parts), chunk(content=["sea", {"type": "text", "text": "."}]), ENDS]
    answer = await asked(setup, form, events(*said))
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("The sea.", "hm")


@each_way
async def test_characters_cut_in_two(setup, form):
    wave = "\U0001f30a"
    first, second = (chr(unit) for unit in (0xD83C, 0xDF0A))
    said = [
        chunk("a" + first, reasoning_content="b" + first, own="c" + first),
        chunk(second, reasoning_content=second, own=second),
        chunk(
            tool_calls=[
                {
                    "index": 0,
                    "id": "a",
                    "type": "function",
                    "function": {"name": "f", "arguments": '"' + first},
                }
            ]
        ),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": second + '"'}}]),
    ]
    message = (await asked(setup, form, events(*said, chunk(finish="tool_calls")))).choices[0].message
    assert (message.content, message.reasoning_content, message.own) == ("a" + wave, "b" + wave, "c" + wave)
    assert message.tool_calls[0].function.arguments == f'"{wave}"'


# ---------------------------------------------------------------------- beside the delta


@each_way
async def test_fields_beside_the_delta(setup, form):
    if form == "helped":
        pytest.skip("the SDK's helper takes what the first chunk says")
    said = [
        {
            **beside(chunk("a"), token_ids=[1, 2], message={"content": "a"}),
            "citations": ["u"],
            "x_groq": {"id": "q"},
        },
        {**beside(chunk("b"), token_ids=[3], message={"content": "ab"}), "citations": ["u", "v"]},
        {**beside(ENDS, stop_reason=7, token_ids=None), "citations": None, "x_groq": {"usage": 1}},
    ]
    answer = await asked(setup, form, events(*said))
    (choice,) = answer.choices
    assert (choice.message.content, choice.token_ids, choice.stop_reason) == ("ab", [1, 2, 3], 7)
    assert (answer.citations, answer.x_groq) == (["u", "v"], {"id": "q", "usage": 1})
    assert answer.to_dict()["choices"][0]["message"]["content"] == "ab"


@each_way
async def test_a_choice_that_nobody_asked_for(setup, form):
    def at(index: int, body: dict[str, Any]) -> dict[str, Any]:
        return beside(body, index=index)

    both = {**chunk(), "choices": [at(n, chunk(f"{n}"))["choices"][0] for n in (0, 1)]}
    said = [both, at(1, chunk("b")), at(0, chunk("a")), at(1, chunk(finish="tool_calls")), at(0, ENDS)]
    answer = await asked(setup, form, events(*said))
    got = [(c.index, c.message.content, c.finish_reason) for c in answer.choices]
    assert got == [(0, "0a", "stop"), (1, "1b", "tool_calls")]


@each_way
async def test_the_only_choice_has_another_number(setup, form):
    answer = await asked(setup, form, events(beside(chunk("a"), index=1), beside(ENDS, index=1)))
    assert [(c.index, c.message.content) for c in answer.choices] == [(0, "a")]


@each_way
@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"total_tokens": 5},
        {"prompt_tokens": "3", "completion_tokens": 1},
        [],
        "x",
        5,
        {"prompt_tokens": None},
    ],
)
async def test_usage_of_any_shape(usage, setup, form):
    answer = await asked(setup, form, events(chunk("a"), {**ENDS, "usage": usage}))
    assert answer.choices[0].message.content == "a"
