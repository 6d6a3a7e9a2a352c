"""Texts, placeholders and back, pure: nothing named leaves, and what comes back is what there was."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from disco.endpoints.openai_api.chunk_reader import ChatReader
from disco.endpoints.redaction.placeholders import Placeholders, reading_of
from disco.endpoints.redaction.request_texts import with_texts
from disco.endpoints.redaction.restored_deltas import RestoredDeltas
from disco.endpoints.redaction.restored_text import HeldText, Restorer
from disco.errors import RedactionError
from disco.events import Delta
from disco.request import Request
from redaction.hooks import MAIL, hook

# Few characters, among them those of placeholders, so that originals overlap, contain each other and look like them.
# No backslash: with one, a text may hold what JSON makes of an original, which comes back as the original itself.
ODD = st.text(alphabet='ab[]_1A"\né ', max_size=40)


def placeholders(found, text):
    made = Placeholders()
    made.add(found, text, [text])
    return made


@st.composite
def texts_with_originals(draw, alphabet=ODD):
    text = draw(alphabet.filter(lambda t: t.strip()))
    spans = draw(st.lists(st.tuples(st.integers(0, len(text)), st.integers(1, 6)), min_size=1, max_size=5))
    found = {text[at : at + n]: draw(st.sampled_from(["A", "A_1", "B"])) for at, n in spans}
    found = {original: kind for original, kind in found.items() if original.strip()}
    assume(found)
    return text, found


def pieces_of(draw, text):
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.data())
def test_what_is_redacted_comes_back_as_it_was_in_whatever_pieces(data):
    text, found = data.draw(texts_with_originals())
    made = placeholders(found, text)
    sent = made.redacted(text)
    left = re.sub("|".join(map(re.escape, made.originals)), "\0", sent)
    assert not [original for original in found if original in left]
    restorer = Restorer(made.originals)
    assert restorer.whole(sent) == text
    held = HeldText(restorer)
    assert "".join(map(held.feed, pieces_of(data.draw, sent))) + held.end() == text


@given(st.data())
def test_the_servers_own_chunks_have_the_originals_too_and_every_token(data):
    text, found = data.draw(texts_with_originals())
    made = placeholders(found, text)
    pieces = [piece for piece in pieces_of(data.draw, made.redacted(text)) if piece]
    logprobs = data.draw(st.booleans())
    events = []
    for number, piece in enumerate(pieces):
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        if logprobs:
            choice["logprobs"] = {
                "content": [{"token": piece, "logprob": -1.0, "bytes": None, "top_logprobs": []}]
            }
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        events.append(json.dumps(chunk | {"system_fingerprint": str(number // 5)}).encode())
    restored = RestoredDeltas(Restorer(made.originals), is_json=False)
    deltas = [*restored.pass_on(ChatReader().read(events)), *restored.end()]
    raws = [d.raw.made() if hasattr(d.raw, "made") else d.raw for d in deltas]
    assert "".join(d.text for d in deltas) == text
    assert (
        "".join(raw.choices[0].delta.content if raw else d.text for raw, d in zip(raws, deltas, strict=True))
        == text
    )
    assert sum(d.tokens for d in deltas) == len(pieces)
    if logprobs:
        entries = [e.token for raw in raws for e in (raw.choices[0].logprobs.content if raw else ())]
        assert entries == pieces


@given(texts_with_originals(st.text(alphabet='ab"\\\né[]', max_size=30)))
def test_nothing_named_is_left_however_odd(case):
    text, found = case
    made = placeholders(found, text)
    left = re.sub("|".join(map(re.escape, made.originals)), "\0", made.redacted(text))
    assert not [original for original in found if original in left]


@given(st.data())
def test_no_part_of_an_original_leaves_where_a_prefix_ends(data):
    text, found = data.draw(texts_with_originals())
    made = placeholders(found, text)
    sent = text[: data.draw(st.integers(0, len(text)))]
    end = made.cut(sent)
    assert Restorer(made.originals).whole(made.redacted(sent[:end])) == sent[:end]
    longest_first = sorted(found, key=len, reverse=True)
    whole = [m.span() for m in re.finditer("|".join(map(re.escape, longest_first)), sent)]
    for original in found:  # a part that begins with a word is a part that could be recognised
        for start in range(len(sent)):
            if any(a < start < b for a, b in whole):
                continue
            begins_word = not (start and sent[start - 1].isalnum() and original[0].isalnum())
            if begins_word and sent[start:] != original and original.startswith(sent[start:]):
                assert end <= start


def test_the_longer_original_counts_and_the_numbers_follow_the_text():
    text = "Zora Quill asked Zora to write to zora.quill@heron.example, Zora said."
    made = placeholders(hook(text), text)
    assert made.redacted(text) == "[PERSON_1] asked [PERSON_2] to write to [EMAIL_1], [PERSON_2] said."
    again = placeholders(dict(reversed(hook(text).items())), text)
    assert again.originals == made.originals


def test_a_placeholder_that_the_text_has_already_is_not_taken():
    text = "[EMAIL_1] and [EMAIL_3] stand for nobody, ann@x.example and bob@x.example do."
    made = placeholders(hook(text), text)
    assert sorted(made.originals) == ["[EMAIL_2]", "[EMAIL_4]"]
    assert Restorer(made.originals).whole(made.redacted(text)) == text


SPELT = {
    "ascii": json.dumps,
    "unicode": lambda value: json.dumps(value, ensure_ascii=False),
    "capitals": lambda value: json.dumps(value).replace("\\u00e9", "\\u00E9"),
}


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT)
def test_what_json_spells_in_another_way_is_read_and_replaced(spelt):
    told = spelt({"to": 'René "Bo"', "said": "line\nzora@heron.example"})
    assert 'René "Bo"' in reading_of(told)
    assert hook(reading_of(told)) == {"zora@heron.example": "EMAIL"}
    made = placeholders({'René "Bo"': "PERSON"}, reading_of(told))
    assert json.loads(made.redacted(told))["to"] == "[PERSON_1]"
    arguments = HeldText(Restorer(made.originals), is_json=True)
    assert json.loads(arguments.feed('{"to": "[PERSON') + arguments.feed('_1]"}')) == {"to": 'René "Bo"'}


WRONG = {
    "no dict": ["zora"],
    "nothing": None,
    "empty": {" ": "A"},
    "no text": {7: "A"},
    "not there": {"canary-7": "A"},
    "kind of another shape": {"zora": "[A]"},
    "kind missing": {"zora": None},
}


@pytest.mark.parametrize("found", WRONG.values(), ids=WRONG)
def test_a_hook_that_returns_something_else_is_refused_without_a_quotation(found):
    with pytest.raises(RedactionError) as caught:
        placeholders(found, "zora is here")
    assert "nothing was sent" in str(caught.value)
    assert not re.search("zora|canary", str(caught.value))


def test_every_text_of_a_request_is_one_and_the_protocol_is_not():
    picture = {"type": "image_url", "image_url": {"url": "https://images.example/u", "detail": "low"}}
    said = {"role": "user", "name": "x1", "content": [{"type": "text", "text": "x2"}, picture]}
    call = {"id": "call_u", "type": "function", "function": {"name": "u", "arguments": '{"a": "x3"}'}}
    schema = {
        "type": "object",
        "description": "x4",
        "properties": {
            "name": {"type": "string", "enum": ["x5"], "default": "x6"},
            "id": {"const": "x7"},
            "image_url": {"description": "x23"},
        },
        "required": ["name", "id"],
    }
    tool = {"type": "function", "function": {"name": "u", "description": "x8", "parameters": schema}}
    request = Request(
        messages=[
            {"role": "system", "content": "x9"},
            said,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_u", "content": "x10"},
        ],
        model="u",
        params={
            "tools": [tool],
            "functions": [{"name": "u", "parameters": {}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "u", "schema": {}}},
            "tool_choice": {"type": "function", "function": {"name": "u"}},
            "metadata": {"x11": "x12", "name": "x13", "id": "x14"},
            "user": "x15",
            "stop": ["x16"],
            "prediction": {"type": "content", "content": "x17"},
            "unknown_to_disco": {"deep": ["x18"], "name": "x24"},
            "max_tokens": 7,
            "reasoning_effort": "low",
        },
        responses={
            "input": [
                {"type": "message", "role": "user", "content": "x19"},
                {"type": "function_call", "call_id": "u", "name": "u", "arguments": "x25"},
            ],
            "instructions": "x20",
            "tools": [{"type": "function", "name": "u", "parameters": {}}],
            "text": {"format": {"type": "json_schema", "name": "u", "schema": {}}},
        },
        classes=("x21", "x22"),
    )
    texts = []
    changed = with_texts(request, lambda text: texts.append(text) or text.replace("x", "y"))
    assert {m for text in texts for m in re.findall(r"x\d+", text)} == {f"x{n}" for n in range(1, 26)}
    assert {text for text in texts if not re.search(r"x\d", text)} == {"name", "id", "low"}
    flat = json.dumps([changed.messages, changed.params, changed.responses, changed.classes])
    assert not re.search(r"x\d", flat)
    assert with_texts(changed, lambda text: text.replace("y", "x")) == request


def test_a_value_that_is_no_json_is_refused():
    with pytest.raises(RedactionError, match="holds a bytes"):
        with_texts(Request([{"role": "user", "content": b"zora"}], "m"), str)


def test_nothing_changes_where_nothing_was_redacted():
    deltas = [Delta("a [b"), Delta("[EMAIL_1]"), Delta("", raw={"type": "response.created"}, tokens=0)]
    restored = RestoredDeltas(Restorer({}), is_json=False)
    assert [*restored.pass_on(deltas), *restored.end()] == deltas
    assert MAIL not in str(restored)
