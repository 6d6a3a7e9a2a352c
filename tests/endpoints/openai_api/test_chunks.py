"""Chunks of many servers become the same few kinds of delta."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from scripted_server import chunk, usage

from disco.endpoints.openai_api.chunk_reader import ChatReader, CompletionReader
from disco.endpoints.openai_api.chunk_template import TemplateChunk
from disco.events import DeltaKind, Usage
from disco.events import ToolCallDelta as Call

READERS = pytest.mark.parametrize("reader", [ChatReader, CompletionReader])
ROLE, TEXT, REASONING, TOOL = DeltaKind.ROLE, DeltaKind.TEXT, DeltaKind.REASONING, DeltaKind.TOOL
parsed = ChatCompletionChunk.model_validate


def data(*bodies) -> list[bytes]:
    return [json.dumps(body).encode() for body in bodies]


def read(*bodies, **settings):
    reader = ChatReader(**settings)
    return reader, reader.read(data(*bodies))


def raw_delta(delta):
    raw = delta.raw.made() if isinstance(delta.raw, TemplateChunk) else delta.raw
    return raw.choices[0].delta


def with_choice(body, **change):
    body["choices"][0].update(change)
    return body


def completion(text: str, finish: str | None = None, **more):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


LOOK_UP = {"index": 1, "id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}
SECOND = {"index": 2, "function": {"arguments": "{}"}}
CALL = Call(0, "", "call_1", "look_up")  # calls are numbered from 0


@pytest.mark.parametrize(
    ("delta", "kind", "said"),
    [
        ({"role": "assistant", "content": ""}, ROLE, ""),
        ({}, ROLE, ""),
        ({"content": "a", "reasoning_content": None}, TEXT, "a"),
        ({"refusal": "no"}, TEXT, "no"),
        ({"tool_calls": [LOOK_UP, SECOND]}, TOOL, (CALL, Call(1, "{}"))),
        ({"tool_calls": [{"function": {"arguments": "{"}}]}, TOOL, (Call(0, "{"),)),  # no index given
        ({"tool_calls": [{"index": 0, "function": {"name": 5, "arguments": 7}}]}, TOOL, (Call(0),)),
        ({"tool_calls": [{"index": [1], "function": {"arguments": "\ud83d"}}]}, TOOL, (Call(0),)),
        ({"function_call": {"name": "f", "arguments": "{"}}, TOOL, (Call(0, "{", None, "f"),)),
        ({"tool_calls": "look_up"}, TOOL, ()),
        ({"tool_calls": [5]}, TOOL, ()),
        ({"audio": {"data": "AA"}}, TOOL, ()),
        ({"reasoning": "hm", "reasoning_content": "hm"}, REASONING, "hm"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"text": "m"}, 5]}, REASONING, "hm"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, REASONING, ""),
        ({"reasoning": {"effort": 1}}, REASONING, ""),
    ],
)
def test_a_delta_has_one_kind_and_keeps_the_vendors_chunk(delta, kind, said):
    reader, (got,) = read(chunk(**delta))
    tokens = int(kind is not ROLE)
    assert (got.kind, got.tokens, reader.tokens) == (kind, tokens, tokens)
    assert [each for each in (got.text, got.reasoning, got.tool_calls) if each] == ([said] if said else [])
    assert got.raw is not None


def test_several_kinds_in_one_chunk_become_several_deltas_without_doubling_anything():
    calls = [{"index": 0, "function": {"arguments": "{"}}]
    reader, deltas = read({**usage(3, 1), **chunk("text", reasoning="why", tool_calls=calls)})
    assert [d.kind for d in deltas] == [REASONING, TEXT, TOOL]
    assert [raw_delta(d).content for d in deltas] == [None, "text", None]
    assert [bool(raw_delta(d).tool_calls) for d in deltas] == [False, False, True]
    assert [d.raw.usage is None for d in deltas] == [True, True, False]
    assert reader.tokens == 1


def test_finish_reason_and_usage_are_kept_for_the_end_apart_from_content():
    reader, (delta,) = read(chunk("a"), chunk(finish="eos"), usage(7, 1))  # whatever the reason is called
    assert (delta.text, delta.raw) == ("a", parsed(chunk("a")))
    assert (reader.finish_reason, reader.usage) == ("eos", Usage(7, 1))
    assert reader.finish_raw.usage.prompt_tokens == 7
    reader, (delta,) = read(chunk("end", finish="length"))
    assert (delta.text, raw_delta(delta).content, delta.raw.choices[0].finish_reason) == ("end", "end", None)
    (choice,) = reader.finish_raw.choices
    assert (choice.finish_reason, choice.delta.content) == ("length", None)


def test_more_than_one_choice_is_opaque_and_ends_with_the_last():
    reader, deltas = read(chunk("a"), with_choice(chunk("b"), index=1), chunk(finish="stop"), choices=2)
    assert ([d.kind for d in deltas], reader.finish_reason) == ([TOOL, TOOL, ROLE], None)
    assert reader.read(data(with_choice(chunk(finish="length"), index=1))) == []
    assert reader.finish_reason == "length"
    # The last one may end beside its content.
    reader, (first,) = read(chunk("b", finish="stop"), choices=2)
    assert (reader.finish_reason, first.raw.choices[0].finish_reason) == (None, "stop")
    (last,) = reader.read(data(with_choice(chunk("c", finish="length"), index=1)))
    assert (reader.finish_reason, last.raw.choices[0].finish_reason) == ("length", None)
    assert reader.finish_raw.choices[0].delta.content is None


def entries(*values):
    return [{"token": "a", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]


def with_logprobs(text: str, *values, **delta):
    return with_choice(chunk(text, **delta), logprobs={"content": entries(*values), "refusal": None})


def test_log_probabilities_count_tokens_and_are_in_the_chunk_if_the_application_asked_for_them():
    body = with_logprobs("abc", -1.0, 0, -0.5)
    reader, (delta,) = read(body)
    assert (delta.logp, delta.raw) == ((-1.0, 0.0, -0.5), parsed(body))
    assert delta.tokens == reader.tokens == len(delta.logprobs["content"]) == 3
    end = with_choice(with_logprobs("", -0.1), finish_reason="stop")
    reader, (first, *_) = read(body, end, hides_logprobs=True)
    assert (first.logp, first.raw) == ((-1.0, 0.0, -0.5), parsed(chunk("abc")))
    assert reader.finish_raw.choices[0].logprobs is None


NO_NUMBERS = [{"content": entries(*v)} for v in (["x"], [None], [-1.0, float("nan")], [float("-inf")], [])]


@pytest.mark.parametrize("logprobs", [*NO_NUMBERS, "x", [1], {"content": 5}, {"content": [5]}], ids=repr)
def test_log_probabilities_that_make_no_sense_are_none_and_harm_nothing(logprobs):
    _, (delta,) = read(with_choice(chunk("a"), logprobs=logprobs))
    assert (delta.text, delta.logp, raw_delta(delta).content) == ("a", None, "a")


def test_completions_become_deltas_without_raw():
    for logprobs, logp in (
        ({"tokens": ["a", "b"], "token_logprobs": [-1, -2.5], "top_logprobs": None}, (-1.0, -2.5)),
        ({"content": [{"token": "ab", "logprob": -0.5}]}, (-0.5,)),  # llama-server
        ({"token_logprobs": [None]}, None),
        ({"content": [5]}, None),
        ("x", None),
    ):
        reader = CompletionReader()
        counts = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
        bodies = completion(" b", logprobs=logprobs), completion("", "stop"), counts
        (delta,) = reader.read([*data(*bodies), b"[DONE]"])
        assert (delta.text, delta.raw, delta.logp) == (" b", None, logp)
        assert delta.tokens == reader.tokens == len(logp or "1")
        assert (reader.finish_reason, reader.usage, reader.done) == ("stop", Usage(3, 1), True)


# Not here: digits in quotes and truth values, which the vendor's own model reads as integers.
NONSENSE = [-5, "many", 1.5, float("nan"), float("inf"), None, 10**30, [1], {"a": 1}]


@READERS
def test_a_count_that_makes_no_sense_counts_as_not_given(reader):
    def used(counts):
        one = reader()
        one.read(data({**chunk(), "choices": [], "usage": counts}))
        return one.usage

    for value in NONSENSE:
        counts = {"prompt_tokens": value, "completion_tokens": 4}
        assert used({**counts, "prompt_tokens_details": {"cached_tokens": value}}) == Usage(0, 4, 0), value
        assert used(value) is None, value
    assert used({"prompt_tokens": -1, "completion_tokens": "x"}) is None
    assert used({"prompt_tokens": 3.0, "completion_tokens": 4}) == Usage(3, 4, 0)
    one, longer_than_python_reads = reader(), b"1" + b"0" * 5000
    one.read(
        [
            b'{"choices": [], "usage": {"prompt_tokens": %b, "completion_tokens": 2}}'
            % longer_than_python_reads
        ]
    )
    assert one.usage == Usage(0, 2)


def test_what_strict_validation_rejects_is_mended():
    changes = [{"created": None}, {"object": "chat.completion"}, {"id": None, "model": None}]
    deltas = [{"content": [{"type": "text", "text": "x"}]}, {"content": "x", "role": "model"}]
    choices = [{"delta": {"content": "x"}}, *({"index": 0, "delta": each} for each in deltas)]
    for change in (*changes, *({"choices": [choice]} for choice in choices)):
        _, (delta,) = read({**chunk("x"), **change})
        assert (delta.text, delta.raw.choices[0].index) == ("x", 0), change
        assert isinstance(delta.raw, ChatCompletionChunk)


# Where a server may cut a text, and how it is read from the vendor's chunk.
CUT_FIELDS = {
    "content": lambda d: d.content,
    "refusal": lambda d: d.refusal,
    "reasoning": lambda d: d.reasoning,
    "tool_calls": lambda d: d.tool_calls[0].function.arguments,
}


def said_in(delta):
    return delta.text + delta.reasoning + "".join(call.arguments for call in delta.tool_calls)


@settings(max_examples=100)
@given(
    field=st.sampled_from(list(CUT_FIELDS)),
    text=st.text(alphabet="a\u20ac\U0001f600\U0001f469\u200d", max_size=9),
    cuts=st.lists(st.integers(0, 30)),
)
def test_a_character_cut_in_two_is_whole_again(field, text, cuts):
    """Servers that count in units of 16 bits, as JavaScript does, cut anywhere between them."""
    units = text.encode("utf-16-le")
    at = sorted({0, len(units), *(2 * (cut % (len(units) // 2 + 1)) for cut in cuts)})
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(at)]
    calls = [[{"index": 1, "function": {"arguments": piece}}] for piece in pieces]
    sent = [chunk(**{field: each}) for each in (calls if field == "tool_calls" else pieces)]
    reader, deltas = read(*sent, chunk(finish="stop"))
    assert "".join(map(said_in, deltas)) == text
    assert "".join(CUT_FIELDS[field](raw_delta(delta)) or "" for delta in deltas) == text
    assert reader.finish_reason == "stop"
    deltas = CompletionReader().read(data(*map(completion, pieces)))
    assert "".join(delta.text for delta in deltas) == text


def test_half_a_character_is_replaced_where_its_other_half_does_not_come():
    for pieces, shown in (
        (["a\ud83db"], ["a\ufffdb"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["\ude00a"], ["\ufffda"]),
        (["a\ud83d", "\ud83d", "\ude00"], ["a", "\ufffd", "\U0001f600"]),
        (["a\ud83d"], ["a", "\ufffd"]),  # the answer ends there
    ):
        reader, deltas = read(*map(chunk, pieces), chunk(finish="stop"))
        assert [delta.text for delta in deltas] == [raw_delta(delta).content for delta in deltas] == shown
        assert reader.finish_reason == "stop"
        written = CompletionReader().read(data(*map(completion, pieces), completion("", "stop")))
        assert [delta.text for delta in written] == shown


def test_a_choice_that_has_written_nothing_is_not_the_answer_where_another_has_its_number():
    both = [{"index": 0, "delta": {"content": "Rhine"}}, {"index": 1, "delta": {"content": "Main"}}]
    ended = with_choice(chunk(finish="stop"), index=1)
    _, deltas = read(ended, {**chunk(), "choices": both}, chunk(finish="stop"))
    assert [delta.text for delta in deltas if delta.kind is TEXT] == ["Rhine"]


def test_halves_of_different_texts_are_not_joined():
    """Of another field, of another call, of another choice; and no other text of a chunk holds half a character."""
    _, deltas = read(
        chunk("\ud83d", reasoning="\ud83d"),
        chunk(reasoning="\ude00"),
        chunk("\ude00"),
        chunk(tool_calls=[{"index": n, "function": {"arguments": "\ud83d"}} for n in range(2)]),
        chunk(tool_calls=[{"index": 1, "function": {"arguments": "\ude00"}}]),
    )
    assert [said_in(delta) for delta in deltas if said_in(delta)] == ["\U0001f600"] * 3
    assert deltas[-1].tool_calls == (Call(1, "\U0001f600"),)
    _, deltas = read(chunk("\ud83d"), with_choice(chunk("\ude00"), index=1), chunk("\ude00"), choices=2)
    assert [raw_delta(d).content for d in deltas] == ["", "\ufffd", "\U0001f600"]
    body = with_logprobs("a", -1.0)
    body["choices"][0]["logprobs"]["content"][0]["token"] = "a\ud83d"
    _, (delta,) = read(body)
    assert delta.logprobs["content"][0]["token"] == "a\ufffd"
