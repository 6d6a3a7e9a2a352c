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

CHOICE = {"index": 0, "delta": {"content": "first", "x": None}, "logprobs": None, "finish_reason": None}
FULL = {**chunk("first"), "service_tier": "default", "system_fingerprint": "fp", "usage": None, "own": 1}
FULL["choices"] = [CHOICE]
parse = ChatCompletionChunk.model_validate_json


def event(body: dict[str, Any], text: str, **dumped: Any) -> bytes:
    body = json.loads(json.dumps(body))
    body["choices"][0]["delta"]["content"] = text
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
    text=st.text(min_size=1, alphabet=st.characters(codec="utf-8")), escaped=st.booleans(), full=st.booleans()
)
def test_the_same_as_parsed(text: str, escaped: bool, full: bool) -> None:
    body = FULL if full else chunk("first")
    template = mold_of(body)
    data = event(body, text, ensure_ascii=escaped)
    if (found := template.text(data)) is not None:
        assert facts(TemplateChunk(template, data, found).made()) == facts(parse(data))
    else:
        assert json.dumps(text, ensure_ascii=escaped) != f'"{text}"'


@pytest.mark.parametrize(
    "data",
    [
        event(chunk("first"), 'a"b'),
        event(chunk("first"), "a\\b"),
        event(chunk("first"), ""),
        *(event(chunk("first"), "first").replace(b"first", b) for b in (b"a\tb", b"\xff", b'a", "role": "u')),
        event({**chunk("first"), "id": "chatcmpl-2"}, "first"),
        event(chunk("first", finish="stop"), "first"),
        event(FULL, "first"),
        b"[DONE]",
        b"",
    ],
)
def test_what_is_not_alike_is_parsed(data: bytes) -> None:
    assert mold_of(chunk("first")).text(data) is None


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


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({**FULL, "choices": [CHOICE, {**CHOICE, "index": 1}]}),
        json.dumps({**FULL, "choices": [{**CHOICE, "own": {"content": "first"}}]}),
        json.dumps({**FULL, "own": ["first"]}),
        json.dumps({**FULL, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}),
        json.dumps(FULL, indent=1),  # several lines
        json.dumps({"content": "first", **FULL}),  # a text elsewhere
    ],
)
def test_chunks_with_more_in_them_make_no_mold(data: str) -> None:
    assert ChunkTemplate.of(data.encode(), parse(data)) is None


def read_counting(monkeypatch: pytest.MonkeyPatch, events: list[bytes]) -> tuple[list[Any], int]:
    """The deltas, and how often a chunk was parsed for them."""
    parsed: list[int] = []
    monkeypatch.setattr(
        ChatCompletionChunk, "model_validate_json", lambda data: parsed.append(1) or parse(data)
    )
    return ChatReader().read(events), len(parsed)


def test_a_stream_is_read_with_few_parses_and_makes_few_molds_in_vain(monkeypatch) -> None:
    texts = [f" w{n}" for n in range(100)]
    # The moment in `created` goes on, as servers write it.
    events = [event({**chunk("x"), "created": n // 20}, text) for n, text in enumerate(texts)]
    deltas, parsed = read_counting(monkeypatch, events)
    raws = [d.raw.made() if isinstance(d.raw, TemplateChunk) else d.raw for d in deltas]
    assert [(d.text, d.tokens, raw.created) for d, raw in zip(deltas, raws, strict=True)] == [
        (text, 1, n // 20) for n, text in enumerate(texts)
    ]
    assert parsed == 10
    no_two_alike = [event({**chunk("x"), "obfuscation": "o" * (n % 7 + 1)}, " w") for n in range(100)]
    deltas, parsed = read_counting(monkeypatch, no_two_alike)
    assert len(deltas) == 100
    assert parsed <= 100 + 8
