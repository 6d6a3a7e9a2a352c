"""JSON schemas: what a grammar allows is valid under its schema, feature by feature, and nothing runs on for ever."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from pathlib import Path
from typing import Annotated, Literal

import anyio
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Request

pytest.importorskip("llama_cpp")
pytest.importorskip("llguidance")

from tests.endpoints.llamacpp.grammars import Grammar, randoms
from tests.endpoints.llamacpp.json_judge import parses, valid


def obj(required, properties):
    return {"type": "object", "properties": properties, "required": required}


S, N, I = {"type": "string"}, {"type": "number"}, {"type": "integer"}  # noqa: E741

FEATURES = [
    json.loads(line)
    for line in (Path(__file__).parent / "schema_features.jsonl").read_text("utf-8").splitlines()
]
features = pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [pytest.param(one["schema"], one["takes"], one["refuses"], id=one["feature"]) for one in FEATURES],
)


@features
def test_a_grammar_takes_what_it_should(schema, taken, refused):
    grammar = Grammar.of(schema)
    assert [text for text in taken if not grammar.matches(text)] == []
    assert [text for text in refused if grammar.matches(text)] == []


@features
def test_the_judge_of_these_tests_agrees(schema, taken, refused):
    """Otherwise what it says of written documents would mean nothing."""
    assert all(valid(json.loads(text), schema) for text in taken)
    # What is refused beyond the schema: another order, blanks, unlisted properties.
    assert sum(not parses(text) or not valid(json.loads(text), schema) for text in refused) >= min(
        1, len(refused) - 1
    )


@features
@settings(max_examples=10)
@given(random=randoms)
def test_whatever_a_grammar_allows_is_valid(schema, taken, refused, random):
    assert valid(json.loads(Grammar.of(schema).write(random)), schema)


@pytest.fixture(scope="module")
def endpoint():
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1)
    anyio.run(endpoint.warm_up)
    yield endpoint
    anyio.run(endpoint.aclose)


def test_a_model_s_own_tokens_are_read_the_same_way(endpoint):
    """Not byte by byte, but with tokens that cross the borders between a document's parts."""
    model = endpoint._worker.model
    (end,) = {token for token in range(model.vocabulary_tokens) if model.eos_text == _special(model, token)}
    own = {
        "vocabulary": model.grammar_vocabulary,
        "tokenize": lambda text: model.tokenize(text, special=False),
        "end": end,
    }
    for one in FEATURES:
        grammar = Grammar.of(one["schema"], **own)
        assert [text for text in one["takes"] if not grammar.matches(text)] == [], one["feature"]
        assert [text for text in one["refuses"] if grammar.matches(text)] == [], one["feature"]


def _special(model, token):
    return model._special_text(token) if model.ends_answer(token) else None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "null"}}, "not"),
        ({"type": "array", "items": S, "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "object", "properties": {"ab": I}, "propertyNames": {"maxLength": 1}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"maxLength": 1}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "pattern"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
        ({"$ref": "https://example.org/schema"}, r"\$ref"),
        ({"$ref": "#/$defs/none"}, r"\$ref"),
        ({"$ref": "#foo"}, r"\$ref"),
        ({"$ref": "#foo", "$defs": {"a": {"$anchor": "foo", "type": "integer"}}}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, r"\$ref"),
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


def test_an_impossible_alternative_is_left_out():
    grammar = Grammar.of({"type": "string", "anyOf": [S, {"type": "null"}]})
    assert grammar.matches('"a"')
    assert not grammar.matches("null")


def test_notes_are_no_obstacle_and_no_setting_of_llguidance_comes_from_a_schema():
    notes = {
        "discriminator": {"propertyName": "t"},
        "deprecated": True,
        "uniqueItems": False,
        "$schema": "unknown",
    }
    setting = {"x-guidance": {"lenient": True, "whitespace_flexible": True}}
    grammar = Grammar.of({**obj(["a"], {"a": {**I, **notes, "$id": "#a"}}), **notes, **setting})
    assert grammar.matches('{"a": 1}')
    assert not grammar.matches('{"a":  1}')
    with pytest.raises(SchemaError, match="not"):
        accepted_schema({"x-guidance": {"lenient": True}, "not": {}})


def test_blanks_and_digits_come_to_an_end():
    grammar = Grammar.of({"type": "array", "items": I})
    assert grammar.matches("[ 1 , 2 ]")
    assert not any(map(grammar.matches, ["[1,  2]", "[1,\n2]", " [1]", "[1] ", "[ ", "[" + "1" * 17 + "]"]))
    assert Grammar.of({"type": "number", "maximum": 1e300}).matches("5")
    assert Grammar.of({"type": "string", "minLength": 1100}).matches(f'"{"x" * 1100}"')


@pytest.mark.parametrize("references", ["#/$defs/a b~1c", "#/$defs/a%20b~1c", "#/components/schemas/1"])
def test_references_may_point_anywhere(references):
    document = {"$ref": references, "$defs": {"a b/c": I}, "components": {"schemas": [S, I]}}
    assert Grammar.of(document).matches("1")
    assert not Grammar.of(document).matches('"a"')


bounds = st.none() | st.integers(-1200, 1200)


@settings(max_examples=60)
@given(bounds, bounds, st.integers(-1300, 1300), st.sampled_from([1, 2, 4]))
def test_ranges_are_exact(low, high, value, parts):
    """Of integers, and of numbers with halves and quarters."""
    schema = {"type": "integer" if parts == 1 else "number"}
    schema |= {} if low is None else {"minimum": low / parts}
    schema |= {} if high is None else {"maximum": high / parts}
    inside = (low is None or low <= value) and (high is None or value <= high)
    try:
        assert (
            Grammar.of(schema).matches(json.dumps(value // parts if value % parts == 0 else value / parts))
            == inside
        )
    except SchemaError:
        assert low > high


PATTERNS = [
    "^a+b?$",
    "^(foo|ba[rz])$",
    "b",
    "^[^x]{2}$",
    r"^\w+@\w+\.de$",
    r'^["\\]$',
    "^a|b$",
    r"^\S$",
    "^.{1,3}$",
    r"^\n?x$",
    r"^[\s]$",
]


@settings(max_examples=40)
@given(st.sampled_from(PATTERNS), randoms, st.text('abforzxé"\\\n @.de', max_size=6))
def test_a_pattern_is_kept_to(pattern, random, text):
    grammar = Grammar.of({"type": "string", "pattern": pattern})
    # As in JavaScript: letters and digits are ASCII, blanks are not.
    python = re.compile(
        pattern.removesuffix("$") + (r"\Z" if pattern.endswith("$") else ""),
        0 if "s" in pattern.lower() else re.ASCII,
    )
    assert python.search(json.loads(grammar.write(random)))
    if not python.search(text):
        assert not grammar.matches(json.dumps(text, ensure_ascii=False))


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    kind: Literal["a", "b"]
    price: Annotated[float, pydantic.Field(ge=0)] | None = None
    tags: dict[str, int] = {}


class Order(pydantic.BaseModel):
    """What pydantic makes of a nested model: definitions, defaults, unions, tuples."""

    items: list[Item]
    at: datetime.datetime
    day: datetime.date | None = None
    id: uuid.UUID
    size: tuple[int, str]
    counts: dict[Literal["x", "y"], int] = {}
    parent: Order | None = None


@settings(max_examples=30)
@given(random=randoms)
def test_pydantic_takes_what_the_grammar_of_its_schema_writes(random):
    Order.model_validate_json(Grammar.of(Order.model_json_schema()).write(random, length=200))


# Whole answers of the real model


def asking(schema, **params):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    content = "Describe a person as JSON."
    return Request(
        [{"role": "user", "content": content}], "m", {"temperature": 0, "response_format": form, **params}
    )


async def answered(endpoint, request):
    deltas = []
    async with endpoint.open(request) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                return deltas, event
            deltas += [] if isinstance(event, Started) else event
    raise AssertionError("no Ended")


PERSON = obj(
    ["name", "age", "tags"],
    {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_answer_ends_with_its_document(endpoint, isolation):
    """By itself: also where the limit of tokens is just reached, and where it could go on."""

    async def check(endpoint):
        params = {"temperature": 1.5, "seed": 7, "top_p": 0.9}
        deltas, ended = await answered(endpoint, asking(PERSON, **params))
        value = json.loads("".join(delta.text for delta in deltas))
        assert valid(value, PERSON)
        assert ended.finish_reason == "stop"
        tokens = ended.usage.completion_tokens
        for limit, reason in ((tokens, "stop"), (tokens - 1, "length")):
            _, ended = await answered(endpoint, asking(PERSON, max_tokens=limit, **params))
            assert (ended.finish_reason, ended.usage.completion_tokens) == (reason, limit)
        with pytest.raises(EndpointFailure) as caught:
            await answered(endpoint, asking({"type": "array", "uniqueItems": True}))
        assert caught.value.kind is FailureKind.UNSERVED
        assert "uniqueItems" in str(caught.value.error)

    async def apart():
        endpoint = LlamaCppEndpoint(context_tokens=512, threads=1, isolation="process")
        try:
            await check(endpoint)
        finally:
            await endpoint.aclose()

    anyio.run(check, endpoint) if isolation == "thread" else anyio.run(apart)


def test_log_probabilities_are_the_model_s_own(endpoint):
    """Before the schema: a forced token has the probability that the model gave it, not 1."""
    forced, _ = anyio.run(answered, endpoint, asking({"const": "zebra"}, logprobs=True, top_logprobs=2))
    entries = [entry for delta in forced for entry in delta.logprobs["content"]]
    assert "".join(entry["token"] for entry in entries) == '"zebra"'
    assert entries[0]["logprob"] < -0.1
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_without_llguidance_the_remedy_is_named(endpoint, monkeypatch):
    monkeypatch.setattr("disco.endpoints.llamacpp.constraints.find_spec", lambda _name: None)
    with pytest.raises(EndpointFailure) as caught:
        anyio.run(answered, endpoint, asking(PERSON))
    assert caught.value.kind is FailureKind.UNSERVED
    assert 'pip install "disco-llm[local]"' in str(caught.value.error)
    free = Request([{"role": "user", "content": "Hi"}], "m", {"max_tokens": 1})
    assert anyio.run(answered, endpoint, free)[1].finish_reason == "length"
