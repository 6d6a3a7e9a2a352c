"""A chunk made in a template is the chunk that parsing its event gives."""

from __future__ import annotations

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

FULL = {
    **chunk("first"),
    "service_tier": "default",
    "system_fingerprint": "fp",
    "usage": None,
    "own": 1,
    "choices": [
        {"index": 0, "delta": {"content": "first", "x": None}, "logprobs": None, "finish_reason": None}
    ],
}


def event(body: dict[str, Any], text: str, **dumped: Any) -> bytes:
    body = json.loads(json.dumps(body))
    body["choices"][0]["delta"]["content"] = text
    return json.dumps(body, **dumped).encode()


def facts(value: Any) -> Any:
    if isinstance(value, BaseModel):
        slots = (vars(value), value.model_extra)
        return (
            type(value),
            value.model_fields_set,
            [{k: facts(v) for k, v in (s or {}).items()} for s in slots],
        )
    return [facts(item) for item in value] if isinstance(value, list) else value


def cast(template: ChunkTemplate, data: bytes) -> ChatCompletionChunk | None:
    text = template.text(data)
    return None if text is None else TemplateChunk(template, data, text).made()


@given(text=st.text(min_size=1), escaped=st.booleans(), full=st.booleans())
def test_the_same_as_parsed(text: str, escaped: bool, full: bool) -> None:
    body = FULL if full else chunk("first")
    first = event(body, "first")
    template = ChunkTemplate.of(first, ChatCompletionChunk.model_validate_json(first))
    assert template is not None
    try:
        data = event(body, text, ensure_ascii=escaped)
    except UnicodeEncodeError:  # a lone surrogate
        return
    made = cast(template, data)
    if made is not None:
        assert facts(made) == facts(ChatCompletionChunk.model_validate_json(data))
    else:
        assert json.dumps(text, ensure_ascii=escaped) != f'"{text}"'


@pytest.mark.parametrize(
    "data",
    [
        event(chunk("first"), 'a"b'),
        event(chunk("first"), "a\\b"),
        event(chunk("first"), ""),
        event(chunk("first"), "first").replace(b"first", b"a\tb"),
        event(chunk("first"), "first").replace(b"first", b"\xff"),
        event(chunk("first"), "first").replace(b"first", b'a", "role": "user'),
        event({**chunk("first"), "id": "chatcmpl-2"}, "first"),
        event(chunk("first", finish="stop"), "first"),
        event(FULL, "first"),
        b"[DONE]",
        b"",
    ],
)
def test_what_is_not_alike_is_parsed(data: bytes) -> None:
    first = event(chunk("first"), "first")
    template = ChunkTemplate.of(first, ChatCompletionChunk.model_validate_json(first))
    assert template is not None
    assert template.text(data) is None


def test_two_chunks_have_nothing_in_common_that_can_change() -> None:
    first = event(FULL, "first")
    source = ChatCompletionChunk.model_validate_json(first)
    template = ChunkTemplate.of(first, source)
    assert template is not None
    one, other = cast(template, event(FULL, "a")), cast(template, event(FULL, "b"))
    assert one is not None
    assert other is not None
    one.id = "changed"
    one.choices[0].delta.role = "user"
    one.choices[0].delta.x = 2
    one.choices.clear()
    one.own = 2
    assert facts(other) == facts(ChatCompletionChunk.model_validate_json(event(FULL, "b")))
    assert source.id == FULL["id"]


@pytest.mark.parametrize(
    "changed",
    [
        {"choices": [FULL["choices"][0], {**FULL["choices"][0], "index": 1}]},
        {"choices": [{**FULL["choices"][0], "own": {"content": "first"}}]},
        {"own": ["first"]},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
    ],
)
def test_chunks_with_more_in_them_make_no_mold(changed: dict[str, Any]) -> None:
    data = json.dumps({**FULL, **changed}).encode()
    assert ChunkTemplate.of(data, ChatCompletionChunk.model_validate_json(data)) is None


def test_an_event_of_several_lines_makes_no_mold() -> None:
    data = json.dumps(FULL, indent=1).encode()
    assert ChunkTemplate.of(data, ChatCompletionChunk.model_validate_json(data)) is None


def test_a_text_elsewhere_makes_no_mold() -> None:
    data = json.dumps({"content": "first", **FULL}).encode()
    assert ChunkTemplate.of(data, ChatCompletionChunk.model_validate_json(data)) is None


def made(raw: Any) -> ChatCompletionChunk:
    return raw.made() if isinstance(raw, TemplateChunk) else raw


def test_a_stream_is_read_with_few_parses(monkeypatch) -> None:
    parsed = []
    validate = ChatCompletionChunk.model_validate_json
    monkeypatch.setattr(
        ChatCompletionChunk, "model_validate_json", lambda data: parsed.append(1) or validate(data)
    )
    reader = ChatReader()
    texts = [f" w{n}" for n in range(100)]
    # The moment in `created` goes on, as servers write it.
    events = [event({**chunk("x"), "created": n // 20}, text) for n, text in enumerate(texts)]
    deltas = reader.read(events)
    assert [delta.text for delta in deltas] == texts
    assert [made(delta.raw).created for delta in deltas] == [n // 20 for n in range(100)]
    assert reader.tokens == 100
    assert len(parsed) == 10


def test_a_stream_without_two_events_alike_makes_few_molds(monkeypatch) -> None:
    parsed = []
    validate = ChatCompletionChunk.model_validate_json
    monkeypatch.setattr(
        ChatCompletionChunk, "model_validate_json", lambda data: parsed.append(1) or validate(data)
    )
    deltas = ChatReader().read(
        [event({**chunk("x"), "obfuscation": "o" * (n % 7 + 1)}, " w") for n in range(100)]
    )
    assert len(deltas) == 100
    assert len(parsed) <= 100 + 8
