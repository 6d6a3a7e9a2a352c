"""Server-sent events survive every way of arriving; a chunk made in a template is what parsing its event gives."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel
from scripted_server import chunk

from disco.endpoints.openai_api.chunk_reader import ChatReader
from disco.endpoints.openai_api.chunk_template import ChunkTemplate, TemplateChunk
from disco.endpoints.openai_api.sse import EventSplitter


def events(*reads: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [event for read in reads for event in splitter.feed(read)]
    last = splitter.end()
    return [*found, last] if last is not None else found


FORMS = {
    b"data: a\n\ndata: b\n\n": [b"a", b"b"],
    b"data: a\r\n\r\ndata: b\r\n\r\n": [b"a", b"b"],
    b"data: a\r\rdata: b\r\r": [b"a", b"b"],
    b"data:a\n\ndata:  a\n\n": [b"a", b" a"],
    b": ping\n\n: ping\ndata: a\n\n": [b"a"],
    b"id: 1\nevent: message\nretry: 5\ndata: a\n\n": [b"a"],
    b'data: {"a":\ndata: 1}\n\n': [b'{"a":\n1}'],
    b"\xef\xbb\xbfdata: a\n\n": [b"a"],
    b"\n\n\n\ndata: a\n\n\n\n": [b"a"],
    b"data: a\n\ndata: [DONE]": [b"a", b"[DONE]"],
    b"event: only\n\n": [],
    b"": [],
}


def test_every_form_of_an_event_is_read():
    for stream, expected in FORMS.items():
        assert events(stream) == expected, stream
        assert events(*(stream[n : n + 1] for n in range(len(stream)))) == expected, stream


@pytest.mark.parametrize("size", [9, 900, 65_536])
def test_comments_between_the_lines_of_an_event_do_not_fill_it(size):
    """In reads of whole lines, and in reads of many lines."""
    stream = b"data: a\n" + b": ping\n:\n" * 30_000 + b"data: :b\n\n: ping\n\ndata: c\n\n"
    splitter = EventSplitter(most_bytes=2 * 65_536)
    reads = [stream[:8], *(stream[at : at + size] for at in range(8, len(stream), size))]
    assert [event for read in reads for event in splitter.feed(read)] == [b"a\n:b", b"c"]


@pytest.mark.parametrize("size", [1, 900, 65_536])
def test_a_comment_between_events_may_have_any_length(size):
    stream = b"data: a\n\n: " + b"x:" * 9_000 + b"\ndata: b\n\n:" + b"y" * 9_000 + b"\n\ndata: c\n\n"
    splitter = EventSplitter(most_bytes=2_000)
    reads = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [event for read in reads for event in splitter.feed(read)] == [b"a", b"b", b"c"]


@given(
    texts=st.lists(st.text(alphabet="aé€😀 \u2028\x85", max_size=8), min_size=1, max_size=6),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 300), max_size=20),
)
def test_any_chunking_gives_the_same_events(texts, newline, cuts):
    """Characters and line ends may be split over reads anywhere."""
    payloads = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b"data: " + payload + newline * 2 for payload in payloads)
    at = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
    reads = [stream[a:b] for a, b in itertools.pairwise(at)]
    assert events(*reads) == payloads


CHOICE = {"index": 0, "delta": {"content": "first", "x": None}, "logprobs": None, "finish_reason": None}
FULL = {**chunk("first"), "service_tier": "default", "system_fingerprint": "fp", "usage": None, "own": 1}
FULL["choices"] = [CHOICE]
parse = ChatCompletionChunk.model_validate_json


THOUGHT = chunk(reasoning_content="first", content=None)
CALLED = chunk(tool_calls=[{"index": 1, "function": {"arguments": "first"}}])


def event(body: dict[str, Any], text: str, **dumped: Any) -> bytes:
    body = json.loads(json.dumps(body))
    delta = body["choices"][0]["delta"]
    if calls := delta.get("tool_calls"):
        calls[0]["function"]["arguments"] = text
    else:
        delta["reasoning_content" if delta.get("reasoning_content") else "content"] = text
    return json.dumps(body, **dumped).encode()


def mold_of(body: dict[str, Any]) -> ChunkTemplate:
    first = event(body, "first")
    template = ChunkTemplate.of(first, parse(first))
    assert template is not None
    return template


def facts(value: Any) -> Any:
    if isinstance(value, BaseModel):
        slots = (vars(value), value.model_extra)
        fields = [{k: facts(v) for k, v in (s or {}).items()} for s in slots]
        return type(value), value.model_fields_set, fields
    return [facts(item) for item in value] if isinstance(value, list) else value


# Without surrogates: alone they cannot be encoded.
@given(
    text=st.text(min_size=1, alphabet=st.characters(codec="utf-8")),
    escaped=st.booleans(),
    body=st.sampled_from([FULL, chunk("first"), THOUGHT, CALLED]),
)
def test_the_same_as_parsed(text: str, escaped: bool, body: dict[str, Any]) -> None:
    template = mold_of(body)
    data = event(body, text, ensure_ascii=escaped)
    if (found := template.text(data)) is not None:
        assert facts(TemplateChunk(template, data, found).made()) == facts(parse(data))
    else:
        assert "\\u" in json.dumps(text, ensure_ascii=escaped)


def test_what_is_not_alike_is_parsed() -> None:
    plain = chunk("first")
    texts = (b"a\tb", b"\xff", b'a", "role": "u', b"a\\", b"\\ud83d", b"\\x", b"a" * 2**13)
    odd = [event(plain, "first").replace(b"first", text) for text in texts]
    odd += [event(plain, ""), event(CALLED, "first"), event(THOUGHT, "first")]
    odd += [event({**plain, "id": "chatcmpl-2"}, "first"), event(chunk("first", finish="stop"), "first")]
    for data in (*odd, event(FULL, "first"), b"[DONE]", b""):
        assert mold_of(plain).text(data) is None, data


def test_two_chunks_have_nothing_in_common_that_can_change() -> None:
    first = event(FULL, "first")
    source = parse(first)
    template = ChunkTemplate.of(first, source)
    assert template is not None
    one, other = template.chunk("a"), template.chunk("b")
    one.id, one.own = "changed", 2
    one.choices[0].delta.role = "user"
    one.choices[0].delta.x = 2
    one.choices.clear()
    assert facts(other) == facts(parse(event(FULL, "b")))
    assert source.id == FULL["id"]
    source.id = "changed"
    assert template.id == FULL["id"]


SOME = st.sampled_from(["a", 'b "', "\\", "\n", "é", "{", "{}", ""])
CALL = st.builds(
    lambda index, text: {"index": index, "function": {"arguments": text}}, st.integers(0, 2), SOME
)
BEGUN = st.builds(lambda call, name: {**call, "id": name, "type": "function"}, CALL, st.sampled_from("ab"))
DELTAS = st.one_of(
    st.fixed_dictionaries({"content": SOME}),
    st.fixed_dictionaries({"reasoning": SOME}, optional={"content": SOME}),
    st.fixed_dictionaries(
        {"tool_calls": st.lists(CALL | BEGUN, min_size=1, max_size=2)}, optional={"content": SOME}
    ),
)


@given(deltas=st.lists(DELTAS, min_size=2, max_size=30), escaped=st.booleans())
def test_a_stream_is_read_as_without_templates(deltas: list[dict[str, Any]], escaped: bool) -> None:
    events = [json.dumps(chunk(**delta), ensure_ascii=escaped).encode() for delta in deltas for _ in range(2)]
    with_templates, without = ChatReader(), ChatReader()
    with_templates._templates_left, without._templates_left = 100, 0
    for data in events:
        got, parsed = with_templates.read([data]), without.read([data])
        for delta in got:
            delta.raw = delta.raw.made() if isinstance(delta.raw, TemplateChunk) else delta.raw
        assert [facts(delta.raw) for delta in got] == [facts(delta.raw) for delta in parsed]
        assert got == parsed
    assert with_templates.tokens == without.tokens


@pytest.mark.parametrize(
    "first", [{"role": "assistant", "content": "a"}, {"content": "a", "role": "assistant"}]
)
def test_a_role_is_told_once(first: dict[str, Any]) -> None:
    body = json.loads(json.dumps(chunk(**first)))
    shown = mold_of(body).shown(event(body, "b"))
    assert json.loads(shown) == chunk("b")


def test_chunks_with_more_in_them_make_no_mold() -> None:
    used = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    two, nested = [CHOICE, {**CHOICE, "index": 1}], [{**CHOICE, "own": {"content": "first"}}]
    piece = CALLED["choices"][0]["delta"]["tool_calls"][0]
    calls: list[Any] = [[piece, piece], [{**piece, "own": ["first"]}], [{"index": 0}], []]
    deltas = [{"tool_calls": call} for call in calls]
    deltas += [{name: "first", "tool_calls": [piece]} for name in ("content", "reasoning")]
    deltas += [{"reasoning": "first", name: "first"} for name in ("content", "reasoning_content")]
    called = [[{**CHOICE, "delta": delta}] for delta in deltas]
    more = [{"choices": two}, {"choices": nested}, {"own": ["first"]}, {"usage": used}]
    odd = [json.dumps({**FULL, **each}) for each in (*more, *({"choices": each} for each in called))]
    # On several lines, and with a text elsewhere.
    for data in (*odd, json.dumps(FULL, indent=1), json.dumps({"content": "first", **FULL})):
        assert ChunkTemplate.of(data.encode(), parse(data)) is None, data


def test_a_stream_is_read_with_few_parses_and_makes_few_molds_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    count = lambda data: parsed.append(data) or parse(data)  # noqa: E731
    monkeypatch.setattr(ChatCompletionChunk, "model_validate_json", count)
    texts = [f" w{n}" for n in range(100)]
    # The moment in `created` goes on, as servers write it.
    events = [event({**chunk("x"), "created": n // 20}, text) for n, text in enumerate(texts)]
    deltas = ChatReader().read(events)
    raws = [d.raw.made() if isinstance(d.raw, TemplateChunk) else d.raw for d in deltas]
    assert [(delta.text, delta.tokens) for delta in deltas] == [(text, 1) for text in texts]
    assert [raw.created for raw in raws] == [n // 20 for n in range(100)]
    assert len(parsed) == 10
    no_two_alike = [event({**chunk("x"), "obfuscation": "o" * (n % 7 + 1)}, " w") for n in range(100)]
    assert len(ChatReader().read(no_two_alike)) == 100
    assert len(parsed) <= 10 + 100 + 8
