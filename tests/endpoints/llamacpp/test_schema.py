"""JSON schemas: what a grammar allows is valid under its schema, feature by feature, and nothing runs on for ever."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.errors import FailureKind

pytest.importorskip("llguidance")

from tests.endpoints.llamacpp.answers import ask, complete, fails
from tests.endpoints.llamacpp.grammars import Grammar, randoms


def obj(required, properties):
    return {"type": "object", "properties": properties, "required": required}


def agrees(grammar, taken, refused):
    assert [text for text in taken if not grammar.matches(text)] == []
    assert [text for text in refused if grammar.matches(text)] == []


S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741
LINES = (Path(__file__).parent / "schema_features.jsonl").read_text("utf-8").strip().split("\n")
FEATURES = {one["feature"]: (one["schema"], one["takes"], one["refuses"]) for one in map(json.loads, LINES)}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_grammar_takes_what_it_should_and_ends_whatever_it_begins(feature):
    schema, taken, refused = FEATURES[feature]
    grammar = Grammar.of(schema)
    agrees(grammar, taken, refused)
    for number in range(3):
        json.loads(grammar.write(Random(number)))


@pytest.mark.real
def test_a_model_s_own_tokens_are_read_the_same_way(thread_model):
    """Not byte by byte, but with tokens that cross the borders between a document's parts."""
    model = thread_model.engine.model
    ends = filter(model.ends_answer, range(model.vocabulary_tokens))
    (end,) = [token for token in ends if model._special_text(token) == model.eos_text]
    own = {
        "vocabulary": model.grammar_vocabulary,
        "tokenize": lambda text: model.tokenize(text, special=False),
    }
    for schema, taken, refused in FEATURES.values():
        agrees(Grammar.of(schema, **own, end=end), taken, refused)


A = {"anyOf": [{"$ref": "#/$defs/a"}]}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "null"}}, "not"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
        ({"type": "array", "items": S, "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "object", "properties": {"ab": I}, "propertyNames": {"maxLength": 1}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"maxLength": 1}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        *(({"type": "string", "pattern": odd}, "pattern") for odd in ("^(?=a)b$", "(", r"(a)\1")),
        *(({"$ref": ref}, r"\$ref") for ref in ("https://example.org/schema", "#/$defs/none", "#foo")),
        ({"$ref": "#foo", "$defs": {"a": {"$anchor": "foo", "type": "integer"}}}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, r"\$ref"),
        ({"properties": {"a": {"$id": "https://example.org/a", "$ref": "#/b"}}}, r"\$id"),
        ({"type": "text"}, "type"),
        ({"properties": []}, "properties"),
        ({"required": "a", "type": "object"}, "required"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"anyOf": {"type": "null"}}, "anyOf"),
        ({"items": "x"}, "schema is not an object"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "bounds"),
        ({"type": "integer", "minimum": 2**60}, "minimum"),
        ({"const": 2**53 + 1}, "const"),
        ({"enum": [[{"a": 2**53}]]}, "enum"),
        ({"enum": [float("nan")]}, "JSON"),
        ({"properties": {"a": False}, "required": ["a"]}, "false"),
        ({"enum": []}, "nothing is valid"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({**obj(["a"], {"a": I, "b": I, "c": I}), "minProperties": 2}, "minProperties"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(schema, named):
    with pytest.raises(SchemaError, match=named):
        accepted_schema(schema)


NOTES = {
    "discriminator": {"propertyName": "t"},
    "deprecated": True,
    "uniqueItems": False,
    "$schema": "unknown",
}
SETTING = {"x-guidance": {"lenient": True, "whitespace_flexible": True}}
DEFS = {"$defs": {"a b/c": I}, "components": {"schemas": [S, I]}}
ENDLESS = ["[1,  2]", "[1,\n2]", " [1]", "[1] ", "[ ", "[" + "1" * 17 + "]"]
LOOP = {
    "$defs": {"a": {"anyOf": [*A["anyOf"], {"type": "null"}]}},
    "properties": {"x": {"$ref": "#/$defs/a"}},
}


def test_what_else_a_grammar_takes():
    for schema, taken, refused in (
        ({"type": "string", "anyOf": [S, {"type": "null"}]}, ['"a"'], ["null"]),  # an impossible alternative
        # Notes are no obstacle, and no setting of llguidance comes from a schema.
        ({**obj(["a"], {"a": {**I, **NOTES, "$id": "#a"}}), **NOTES, **SETTING}, ['{"a": 1}'], ['{"a":  1}']),
        ({"type": "array", "items": I}, ["[ 1 , 2 ]"], ENDLESS),  # blanks and digits come to an end
        ({"type": "number", "maximum": 1e300}, ["5"], []),
        ({"type": "string", "minLength": 1100}, [f'"{"x" * 1100}"'], []),
        *(
            ({"$ref": ref, **DEFS}, ["1"], ['"a"'])
            for ref in ("#/$defs/a b~1c", "#/$defs/a%20b~1c", "#/components/schemas/1")
        ),
        (LOOP, ["{}", '{"x":null}'], ['{"x":1}']),
    ):
        agrees(Grammar.of(schema), taken, refused)


bounds = st.none() | st.integers(-1200, 1200)


@settings(max_examples=60)
@given(bounds, bounds, st.integers(-1300, 1300), st.sampled_from([1, 2, 4]))
def test_ranges_are_exact(low, high, value, parts):
    """Of integers, and of numbers with halves and quarters."""
    schema = {"type": "integer" if parts == 1 else "number"}
    schema |= {} if low is None else {"minimum": low / parts}
    schema |= {} if high is None else {"maximum": high / parts}
    inside = (low is None or low <= value) and (high is None or value <= high)
    text = json.dumps(value // parts if value % parts == 0 else value / parts)
    try:
        assert Grammar.of(schema).matches(text) == inside
    except SchemaError:
        assert low > high


PATTERNS = ["^a+b?$", "^(foo|ba[rz])$", "b", "^[^x]{2}$", r"^\w+@\w+\.de$", r'^["\\]$', "^a|b$", r"^\S$"]
# Unicode's, as the grammar's engine has them. Python's also has U+001C to U+001F.
BLANKS = r"\t\n\v\f\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
PATTERNS += ["^.{1,3}$", r"^\n?x$", r"^[\s]$"]


@settings(max_examples=40)
@example(r"^\S$", Random(0), "\x1c")
@example(r"^[\s]$", Random(759), "")  # U+0085
@example("^a|b$", Random(337), "")  # any byte goes, and the text must end with a certain one
@given(st.sampled_from(PATTERNS), randoms, st.text('abforzxé"\\\n @.de', max_size=6))
def test_a_pattern_is_kept_to(pattern, random, text):
    grammar = Grammar.of({"type": "string", "pattern": pattern})
    # As in JavaScript: letters and digits are ASCII, blanks are not.
    flags = 0 if "s" in pattern.lower() else re.ASCII
    script = pattern.replace(r"\S", f"[^{BLANKS}]").replace(r"[\s]", f"[{BLANKS}]")
    python = re.compile(re.sub(r"\$$", r"\\Z", script), flags)
    assert python.search(json.loads(grammar.write(random, towards=pattern.encode())))
    if not python.search(text):
        assert not grammar.matches(json.dumps(text, ensure_ascii=False))


class Item(pydantic.BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["a", "b"]
    height: float = Field(ge=0.5, lt=2.25, multiple_of=0.25)
    code: str = Field(pattern="^[A-Z]{2}-", max_length=5)
    tags: list[Literal["a", "b"]] = Field(min_length=1, max_length=2)


class Order(pydantic.BaseModel):
    """What pydantic makes of a nested model: definitions, defaults, formats, tuples."""

    model_config = pydantic.ConfigDict(extra="forbid")
    items: list[Item] = Field(max_length=3)
    at: datetime.datetime
    day: datetime.date | None = None
    clock: datetime.time
    id: uuid.UUID
    host: ipaddress.IPv4Address
    size: tuple[int, str]
    counts: dict[Literal["x", "y"], int] = {}
    names: dict[str, Annotated[str, Field(min_length=2)]] = Field(min_length=1)
    parent: Order | None = None


@settings(max_examples=30)
@given(random=randoms)
def test_pydantic_takes_what_the_grammar_of_its_schema_writes(random):
    Order.model_validate_json(Grammar.of(Order.model_json_schema()).write(random, length=300))


def asking(schema, **params):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return ask("Describe a thing as JSON.", response_format=form, **{"max_tokens": None, **params})


@pytest.mark.real
@pytest.mark.anyio
async def test_an_answer_ends_with_its_document(thread_model, monkeypatch):
    """By itself: also where the limit of tokens is just reached, and where it could go on."""
    params = {"temperature": 1.5, "seed": 7, "top_p": 0.9}
    text, _, ended = await complete(thread_model, asking(Item.model_json_schema(), **params))
    Item.model_validate_json(text)
    assert ended.finish_reason == "stop"
    tokens = ended.usage.completion_tokens
    for limit, reason in ((tokens, "stop"), (tokens - 1, "length")):
        _, _, ended = await complete(
            thread_model, asking(Item.model_json_schema(), max_tokens=limit, **params)
        )
        assert (ended.finish_reason, ended.usage.completion_tokens) == (reason, limit)
    monkeypatch.setattr("disco.endpoints.llamacpp.constraints.find_spec", lambda _name: None)
    failure = await fails(thread_model, asking(Item.model_json_schema()))
    assert failure.kind is FailureKind.UNSERVED
    assert 'pip install "disco-llm[local]"' in str(failure.error)
    assert (await complete(thread_model, ask("Hi", max_tokens=1)))[2].finish_reason == "length"


@pytest.mark.real
@pytest.mark.anyio
async def test_log_probabilities_are_the_model_s_own(thread_model):
    """Before the schema: a forced token has the probability that the model gave it, not 1."""
    _, forced, _ = await complete(thread_model, asking({"const": "zebra"}, logprobs=True, top_logprobs=2))
    entries = [entry for delta in forced for entry in delta.logprobs["content"]]
    assert "".join(entry["token"] for entry in entries) == '"zebra"'
    assert entries[0]["logprob"] < -0.1
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
