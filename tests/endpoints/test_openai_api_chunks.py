"""Chunks of many servers become the same few kinds of delta."""

from __future__ import annotations

import itertools
import json

import pytest
from disco.endpoints.openai_api.chunk_reader import ChatReader, CompletionReader
from disco.endpoints.openai_api.chunk_repair import MalformedChunkError, ServerReportedError
from disco.endpoints.openai_api.chunk_template import TemplateChunk
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from scripted_server import chunk, usage

from disco.endpoints.openai_api.sse import ErrorData
from disco.events import DeltaKind, ToolCallDelta, Usage


def data(*bodies) -> list[bytes]:
    return [json.dumps(body).encode() for body in bodies]


def read(*bodies, choices: int = 1):
    reader = ChatReader(choices)
    return reader, reader.read(data(*bodies))


def test_text_keeps_the_vendors_chunk():
    reader, (delta,) = read(chunk("Hi"))
    assert (delta.text, delta.tokens, delta.kind) == ("Hi", 1, DeltaKind.TEXT)
    assert delta.raw == ChatCompletionChunk.model_validate(chunk("Hi"))
    assert reader.tokens == 1


@pytest.mark.parametrize(
    ("delta", "kind", "text"),
    [
        ({"role": "assistant", "content": ""}, DeltaKind.ROLE, ""),
        ({}, DeltaKind.ROLE, ""),
        ({"content": "a", "reasoning_content": None}, DeltaKind.TEXT, "a"),
        ({"reasoning_content": "hm"}, DeltaKind.REASONING, ""),
        ({"reasoning": "hm"}, DeltaKind.REASONING, ""),
        ({"refusal": "no"}, DeltaKind.TEXT, "no"),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, DeltaKind.TOOL, ""),
        ({"function_call": {"arguments": "{"}}, DeltaKind.TOOL, ""),
        ({"audio": {"data": "AA"}}, DeltaKind.TOOL, ""),
    ],
)
def test_kind_of_a_delta(delta, kind, text):
    _, (got,) = read(chunk(**delta))
    assert (got.kind, got.text) == (kind, text)
    assert got.tokens == (0 if kind is DeltaKind.ROLE else 1)


def test_several_kinds_in_one_chunk_become_several_deltas_without_doubling_anything():
    body = chunk("text", reasoning="why", tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    reader, deltas = read(body)
    assert [d.kind for d in deltas] == [DeltaKind.REASONING, DeltaKind.TEXT, DeltaKind.TOOL]
    fields = [d.raw.choices[0].delta for d in deltas]
    assert [f.content for f in fields] == [None, "text", None]
    assert [bool(f.tool_calls) for f in fields] == [False, False, True]
    assert reader.tokens == 1


CALL = {"index": 1, "id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}


@pytest.mark.parametrize(
    ("delta", "calls"),
    [
        ({"tool_calls": [CALL]}, [ToolCallDelta(1, "", "call_1", "look_up")]),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, [ToolCallDelta(0, "{")]),
        (
            {"tool_calls": [CALL, {"index": 2, "function": {"arguments": "{}"}}]},
            [ToolCallDelta(1, "", "call_1", "look_up"), ToolCallDelta(2, "{}")],
        ),
        ({"tool_calls": [{"function": {"arguments": "{"}}]}, [ToolCallDelta(0, "{")]),  # no index given
        ({"tool_calls": [{"index": 0, "function": {"name": 5, "arguments": 7}}]}, [ToolCallDelta(0)]),
        ({"function_call": {"name": "look_up", "arguments": "{"}}, [ToolCallDelta(0, "{", None, "look_up")]),
        ({"tool_calls": [{"index": [1], "function": {"arguments": "\ud83d"}}]}, [ToolCallDelta(0)]),
        ({"tool_calls": "look_up"}, []),
        ({"tool_calls": [5]}, []),
        ({"audio": {"data": "AA"}}, []),
    ],
)
def test_calls_are_typed_and_keep_the_vendors_chunk(delta, calls):
    _, (got,) = read(chunk(**delta))
    assert (got.kind, list(got.tool_calls)) == (DeltaKind.TOOL, calls)
    assert got.raw is not None


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"text": "m"}, 5]}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, ""),
        ({"reasoning": {"effort": 1}}, ""),
        ({"reasoning": "a\ud83db"}, "a\N{REPLACEMENT CHARACTER}b"),
    ],
)
def test_reasoning_is_typed_and_keeps_the_vendors_chunk(delta, text):
    _, (got,) = read(chunk(**delta))
    assert (got.kind, got.reasoning, got.text) == (DeltaKind.REASONING, text, "")
    assert got.raw is not None


def test_finish_reason_and_usage_are_kept_for_the_end():
    reader, deltas = read(chunk("a"), chunk(finish="stop"), usage(7, 1))
    assert [d.text for d in deltas] == ["a"]
    assert reader.finish_reason == "stop"
    assert reader.usage == Usage(7, 1)
    assert reader.finish_raw.usage.prompt_tokens == 7


def test_finish_reason_beside_content_is_split_from_it():
    reader, (delta,) = read(chunk("end", finish="length"))
    assert delta.text == "end"
    assert delta.raw.choices[0].finish_reason is None
    assert delta.raw.choices[0].delta.content == "end"
    assert reader.finish_raw.choices[0].finish_reason == "length"
    assert reader.finish_raw.choices[0].delta.content is None


def test_logprobs_count_tokens():
    body = chunk("abc")
    entry = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}
    body["choices"][0]["logprobs"] = {"content": [entry] * 3, "refusal": None}
    reader, (delta,) = read(body)
    assert delta.tokens == reader.tokens == 3
    assert len(delta.logprobs["content"]) == 3


def with_logprobs(text: str, *values, **delta):
    body = chunk(text, **delta)
    entries = [{"token": "a", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]
    body["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
    return body


def test_log_probabilities_that_the_application_asked_for_are_read_and_stay():
    body = with_logprobs("abc", -1.0, 0, -0.5)
    _, (delta,) = read(body)
    assert delta.logp == (-1.0, 0.0, -0.5)
    assert delta.raw == ChatCompletionChunk.model_validate(body)


def test_log_probabilities_for_our_own_use_are_not_in_the_chunk():
    reader = ChatReader(hides_logprobs=True)
    end = with_logprobs("", -0.1)
    end["choices"][0]["finish_reason"] = "stop"
    first, second, whole = reader.read(
        data(
            with_logprobs("ab", -1.0, -2.0), with_logprobs("c", -3.0), with_logprobs("d", -4.0, refusal="no")
        )
    )[:3]
    assert (first.tokens, first.logp, first.logprobs) == (2, (-1.0, -2.0), None)
    assert second.logp == (-3.0,)
    assert first.raw == ChatCompletionChunk.model_validate(chunk("ab"))
    assert whole.raw.choices[0].logprobs is None
    assert reader.read(data(end)) == []
    assert reader.finish_raw.choices[0].logprobs is None


@pytest.mark.parametrize("values", [["x"], [None], [-1.0, float("nan")], [float("-inf")], []])
def test_log_probabilities_that_are_no_numbers_are_none(values):
    _, (delta,) = read(with_logprobs("a", *values))
    assert delta.logp is None
    assert delta.text == "a"


@pytest.mark.parametrize("logprobs", ["x", [1], {"content": 5}, {"content": [5]}])
def test_log_probabilities_of_another_shape_harm_nothing(logprobs):
    body = chunk("a")
    body["choices"][0]["logprobs"] = logprobs
    _, (delta,) = read(body)
    assert (delta.text, delta.logp, delta.raw.choices[0].delta.content) == ("a", None, "a")


# Not here: digits in quotes and truth values, which the vendor's own model reads as integers.
NONSENSE = [-5, "many", 1.5, float("nan"), float("inf"), None, 10**30, [1], {"a": 1}]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("reader", [ChatReader, CompletionReader])
def test_a_count_that_makes_no_sense_counts_as_not_given(value, reader):
    counts = {
        "prompt_tokens": value,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": value},
    }
    one = reader()
    one.read(data({**chunk(), "choices": [], "usage": counts}))
    assert one.usage == Usage(0, 4, 0)


@pytest.mark.parametrize("usage", [*NONSENSE, {}, {"prompt_tokens": -1, "completion_tokens": "x"}], ids=repr)
def test_usage_that_makes_no_sense_is_none_at_all(usage):
    for reader in (ChatReader(), CompletionReader()):
        reader.read(data({**chunk(), "choices": [], "usage": usage}))
        assert reader.usage is None


def test_a_count_longer_than_python_reads_is_none_and_the_answer_goes_on():
    event = (
        data(chunk("a"))[0][:-1]
        + b', "usage": {"prompt_tokens": 1'
        + b"0" * 5000
        + b', "completion_tokens": 2}}'
    )
    reader = ChatReader()
    (delta,) = reader.read([event])
    assert delta.text == "a"
    assert reader.usage == Usage(0, 2)


def test_more_than_one_choice_is_opaque_and_ends_with_the_last():
    first, second = chunk("a"), chunk("b")
    second["choices"][0]["index"] = 1
    end = chunk(finish="length")
    end["choices"][0]["index"] = 1
    reader = ChatReader(2)
    deltas = reader.read(data(first, second, chunk(finish="stop")))
    assert [d.kind for d in deltas] == [DeltaKind.TOOL, DeltaKind.TOOL, DeltaKind.ROLE]
    assert reader.finish_reason is None
    assert reader.read(data(end)) == []
    assert reader.finish_reason == "length"


def broken(**change):
    return {**chunk("x"), **change}


@pytest.mark.parametrize(
    "body",
    [
        broken(created=None),
        broken(object="chat.completion"),
        broken(id=None, model=None),
        broken(choices=[{"delta": {"content": "x"}}]),
        broken(
            choices=[
                {"index": 0, "delta": {"content": [{"type": "text", "text": "x"}]}, "finish_reason": None}
            ]
        ),
        broken(choices=[{"index": 0, "delta": {"content": "x", "role": "model"}, "finish_reason": None}]),
    ],
)
def test_what_strict_validation_rejects_is_mended(body):
    _, (delta,) = read(body)
    assert delta.text == "x"
    assert delta.raw.choices[0].index == 0
    assert isinstance(delta.raw, ChatCompletionChunk)


def test_unknown_finish_reason_is_passed_on():
    reader, deltas = read(chunk(finish="eos"))
    assert (reader.finish_reason, deltas) == ("eos", [])


def test_null_delta_is_no_content():
    _, (delta,) = read(broken(choices=[{"index": 0, "delta": None, "finish_reason": None}]))
    assert delta.kind is DeltaKind.ROLE


# ---------------------------------------------------------------- characters beyond 16 bits


# Where a server may cut a text: how it is sent, and how it is read from the deltas, and from the vendor's chunks.
CUT_FIELDS = {
    "content": (lambda text: {"content": text}, lambda d: d.text, lambda d: d.content),
    "refusal": (lambda text: {"refusal": text}, lambda d: d.text, lambda d: d.refusal),
    "reasoning": (lambda text: {"reasoning": text}, lambda d: d.reasoning, lambda d: d.reasoning),
    "arguments": (
        lambda text: {"tool_calls": [{"index": 1, "function": {"arguments": text}}]},
        lambda d: "".join(call.arguments for call in d.tool_calls),
        lambda d: d.tool_calls[0].function.arguments,
    ),
}


def utf16_pieces(text: str, cuts: list[int]) -> list[str]:
    """`text` as a server cuts it that counts in units of 16 bits, as JavaScript does."""
    data = text.encode("utf-16-le")
    at = sorted({0, len(data), *(2 * (cut % (len(data) // 2 + 1)) for cut in cuts)})
    return [data[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(at)]


@pytest.mark.parametrize("field", CUT_FIELDS)
@given(
    text=st.text(alphabet="a\u20ac\U0001f600\U0001f469\u200d", max_size=9), cuts=st.lists(st.integers(0, 30))
)
def test_a_character_cut_in_two_is_whole_again(field, text, cuts):
    send, read_delta, read_raw = CUT_FIELDS[field]
    pieces = utf16_pieces(text, cuts)
    reader, deltas = read(*(chunk(**send(one)) for one in pieces), chunk(finish="stop"))
    assert "".join(map(read_delta, deltas)) == text
    raws = [delta.raw.made() if isinstance(delta.raw, TemplateChunk) else delta.raw for delta in deltas]
    assert "".join(read_raw(raw.choices[0].delta) or "" for raw in raws) == text
    assert reader.finish_reason == "stop"


@given(text=st.text(alphabet="a\u20ac\U0001f600", max_size=9), cuts=st.lists(st.integers(0, 30)))
def test_a_character_cut_in_two_is_whole_again_in_a_completion(text, cuts):
    choices = [{"index": 0, "text": one, "finish_reason": None} for one in utf16_pieces(text, cuts)]
    deltas = CompletionReader().read(data(*({"choices": [choice]} for choice in choices)))
    assert "".join(delta.text for delta in deltas) == text


@pytest.mark.parametrize(
    ("segments", "shown"),
    [
        (["a\ud83db"], ["a\ufffdb"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["\ude00a"], ["\ufffda"]),
        (["a\ud83d", "\ud83d", "\ude00"], ["a", "\ufffd", "\U0001f600"]),
        (["a\ud83d"], ["a", "\ufffd"]),  # the answer ends there
    ],
)
def test_half_a_character_is_replaced_where_its_other_half_does_not_come(pieces, shown):
    _, deltas = read(*map(chunk, pieces), chunk(finish="stop"))
    assert [delta.text for delta in deltas] == shown
    assert [delta.raw.choices[0].delta.content for delta in deltas] == shown
    ends = [{"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}]
    written = [{"choices": [{"index": 0, "text": one, "finish_reason": None}]} for one in pieces]
    assert [delta.text for delta in CompletionReader().read(data(*written, *ends))] == shown


def test_halves_of_different_texts_are_not_joined():
    """Of another field, of another call, of another choice."""
    _, deltas = read(
        chunk("\ud83d", reasoning="\ud83d"),
        chunk(reasoning="\ude00"),
        chunk("\ude00"),
        chunk(tool_calls=[{"index": n, "function": {"arguments": "\ud83d"}} for n in range(2)]),
        chunk(tool_calls=[{"index": 1, "function": {"arguments": "\ude00"}}]),
    )
    assert [d.reasoning for d in deltas if d.reasoning] == ["\U0001f600"]
    assert [d.text for d in deltas if d.text] == ["\U0001f600"]
    assert deltas[-1].tool_calls == (ToolCallDelta(1, "\U0001f600"),)
    first, second = chunk("\ud83d"), chunk("\ude00")
    second["choices"][0]["index"] = 1
    _, deltas = read(first, second, chunk("\ude00"), choices=2)
    assert [d.raw.choices[0].delta.content for d in deltas] == ["", "\ufffd", "\U0001f600"]


def test_no_other_text_of_a_chunk_holds_half_a_character():
    body = with_logprobs("a", -1.0)
    body["choices"][0]["logprobs"]["content"][0]["token"] = "a\ud83d"
    _, (delta,) = read(body)
    assert delta.logprobs["content"][0]["token"] == "a\ufffd"


def test_events_that_are_no_chunks_are_ignored():
    _, deltas = read(
        {"type": "ping"}, {"choices": [], **{k: v for k, v in chunk().items() if k != "choices"}}
    )
    assert deltas == []


def test_done_ends_the_reading():
    reader = ChatReader()
    assert reader.read([b"[DONE]", *data(chunk("late"))]) == []
    assert reader.done


@pytest.mark.parametrize("event", [b"<html>", b"[1, 2]", b'{"choices": [', b"\xff\xfe"])
def test_data_that_is_no_json_object_is_malformed(event):
    with pytest.raises(MalformedChunkError):
        ChatReader().read([event])
    with pytest.raises(MalformedChunkError):
        CompletionReader().read([event])


@pytest.mark.parametrize("event", [b'{"error": {"message": "boom"}}', ErrorData(b'{"message": "boom"}')])
@pytest.mark.parametrize("reader", [ChatReader, CompletionReader])
def test_error_objects_are_reported(event, reader):
    with pytest.raises(ServerReportedError) as caught:
        reader().read([event])
    assert caught.value.body == {"message": "boom"}


def test_completions_become_deltas_without_raw():
    reader = CompletionReader()
    body = {"choices": [{"index": 0, "text": " b", "finish_reason": None}]}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    counts = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
    (delta,) = reader.read([*data(body, end, counts), b"[DONE]"])
    assert (delta.text, delta.raw) == (" b", None)
    assert (reader.finish_reason, reader.usage, reader.done) == ("stop", Usage(3, 1), True)


@pytest.mark.parametrize(
    ("logprobs", "logp", "tokens"),
    [
        ({"tokens": ["a", "b"], "token_logprobs": [-1, -2.5], "top_logprobs": None}, (-1.0, -2.5), 2),
        ({"content": [{"token": "ab", "logprob": -0.5}]}, (-0.5,), 1),  # llama-server
        ({"token_logprobs": [None]}, None, 1),
        ({"content": [5]}, None, 1),
        ("x", None, 1),
        (None, None, 1),
    ],
)
def test_log_probabilities_of_a_completion(logprobs, logp, tokens):
    reader = CompletionReader()
    (delta,) = reader.read(data({"choices": [{"index": 0, "text": "ab", "logprobs": logprobs}]}))
    assert (delta.logp, delta.tokens, reader.tokens) == (logp, tokens, tokens)
