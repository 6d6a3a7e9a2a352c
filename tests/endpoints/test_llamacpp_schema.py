"""JSON schemas: what a grammar allows is valid under its schema, feature by feature, and nothing runs on for ever."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from typing import Annotated, Literal

import anyio
import pydantic
import pytest
from disco.endpoints.llamacpp.constraints import accepted_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Request

pytest.importorskip("llama_cpp")
pytest.importorskip("llguidance")

from tests.endpoints.grammars import Grammar, randoms


def obj(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


S, N, I = {"type": "string"}, {"type": "number"}, {"type": "integer"}  # noqa: E741
NODE = {
    "type": "object",
    "properties": {"v": I, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}

# Feature: (schema, documents it takes, documents it does not, what holds for every document it allows).
FEATURES = {
    "string": (
        S,
        ['""', '"a\\n\\u0001 é 漢"'],
        ["a", '"a', '"\n"', '"\\x"', '"\\ud800"'],
        lambda v: isinstance(v, str),
    ),
    "number": (
        N,
        ["0", "-1.5", "1e9", "10.25E-3"],
        ["01", "+1", ".5", "1.", "NaN"],
        lambda v: isinstance(v, int | float),
    ),
    "integer": (I, ["0", "-12"], ["1.5", "007", "1e3"], lambda v: isinstance(v, int)),
    "boolean": ({"type": "boolean"}, ["true", "false"], ["True", "1"], lambda v: isinstance(v, bool)),
    "null": ({"type": "null"}, ["null"], ["None"], lambda v: v is None),
    "any": ({}, ["1", '{"a":[{}]}', '"x"', "null"], ["", "x"], lambda v: True),
    "any described": ({"title": "T", "description": "d"}, ["1", "[]"], ["x"], lambda v: True),
    "several types": (
        {"type": ["string", "null"]},
        ['"a"', "null"],
        ["1"],
        lambda v: v is None or isinstance(v, str),
    ),
    "enum": (
        {"enum": ["a", 1, None, 'q"\\', {"k": [1]}]},
        ['"a"', "1", "null", r'"q\"\\"', '{"k": [1]}'],
        ['"b"', "2"],
        lambda v: v in ["a", 1, None, 'q"\\', {"k": [1]}],
    ),
    "enum of a type": ({"type": "string", "enum": ["a", None]}, ['"a"'], ["null"], lambda v: v == "a"),
    "const": ({"const": "é\n"}, ['"é\\n"'], ['"e"'], lambda v: v == "é\n"),
    "object": ({"type": "object"}, ["{}", '{"a": {"b": 1}}'], ["[]"], lambda v: isinstance(v, dict)),
    "properties": (
        obj(["a", "c"], a=I, b=S, c=I),
        ['{"a":1,"c":2}', '{"a": 1, "b": "x", "c": 2}'],
        ['{"a":1}', '{"c":1,"a":2}', '{"a":1,"c":2,}', '{"a":1,"c":2,"d":3}'],
        lambda v: {"a", "c"} <= set(v) <= {"a", "b", "c"},
    ),
    "optional properties": (
        obj(a=I, b=I, c=I),
        ["{}", '{"a":1}', '{"b":1}', '{"c":1}', '{"a":1,"c":1}', '{"b":1,"c":1}'],
        ['{,"b":1}', '{"c":1,"a":1}', '{"a":1 "b":1}'],
        lambda v: set(v) <= {"a", "b", "c"},
    ),
    "first required last": (
        obj(["c"], a=I, b=I, c=I),
        ['{"c":1}', '{"b":1,"c":1}'],
        ["{}", '{"a":1}'],
        lambda v: "c" in v,
    ),
    "no properties": (
        {"type": "object", "properties": {}, "additionalProperties": False},
        ["{}", "{ }"],
        ['{"a":1}'],
        lambda v: v == {},
    ),
    "empty properties": (obj(), ["{}"], ['{"a":1}'], lambda v: v == {}),
    "names to escape": (
        obj(['a"b\n'], **{'a"b\n': I}),
        ['{"a\\"b\\n":1}'],
        ['{"ab":1}'],
        lambda v: list(v) == ['a"b\n'],
    ),
    "map": (
        {"type": "object", "additionalProperties": I},
        ["{}", '{"x":1,"y":2}'],
        ['{"x":"1"}'],
        lambda v: all(isinstance(x, int) for x in v.values()),
    ),
    "map with names": (
        {
            "type": "object",
            "additionalProperties": I,
            "propertyNames": {"enum": ["x", "y"]},
            "minProperties": 1,
        },
        ['{"x":1}'],
        ["{}", '{"z":1}'],
        lambda v: set(v) <= {"x", "y"} and v,
    ),
    "required without properties": (
        {"type": "object", "required": ["k"]},
        ['{"k":[1]}'],
        ["{}"],
        lambda v: "k" in v,
    ),
    "array": ({"type": "array"}, ["[]", '[1, "a", []]'], ["{}"], lambda v: isinstance(v, list)),
    "items": (
        {"type": "array", "items": I},
        ["[]", "[1,2]"],
        ['["a"]', "[1,]"],
        lambda v: all(isinstance(x, int) for x in v),
    ),
    "minItems": (
        {"type": "array", "items": I, "minItems": 2, "maxItems": 3},
        ["[1,2]", "[1,2,3]"],
        ["[1]", "[1,2,3,4]", "[]"],
        lambda v: 2 <= len(v) <= 3,
    ),
    "no items": ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"], lambda v: v == []),
    "prefixItems": (
        {"type": "array", "prefixItems": [I, S], "minItems": 2, "maxItems": 2},
        ['[1,"a"]'],
        ["[1]", '["a",1]'],
        lambda v: isinstance(v[0], int) and isinstance(v[1], str),
    ),
    "anyOf": ({"anyOf": [I, S]}, ["1", '"a"'], ["null"], lambda v: isinstance(v, int | str)),
    "oneOf with a tag": (
        {"oneOf": [obj(["t", "x"], t={"const": "a"}, x=I), obj(["t"], t={"const": "b"})]},
        ['{"t":"a","x":1}', '{"t":"b"}'],
        ['{"t":"b","x":1}'],
        lambda v: v["t"] in "ab",
    ),
    "allOf": (
        {"allOf": [obj(["a"], a=I), {"properties": {"b": S}, "required": ["b"]}]},
        ['{"a":1,"b":"x"}'],
        ['{"a":1}'],
        lambda v: {"a", "b"} <= set(v),
    ),
    "anyOf beside others": (
        {
            "type": ["string", "integer"],
            "anyOf": [{"maxLength": 1, "type": "string"}, {"type": ["integer", "null"]}],
        },
        ['"a"', "7"],
        ["null", '"ab"'],
        lambda v: isinstance(v, int | str),
    ),
    "$ref": (
        {"$ref": "#/$defs/n", "description": "d", "$defs": {"n": {"type": "integer", "maximum": 3}}},
        ["3"],
        ["4"],
        lambda v: v <= 3,
    ),
    "$ref beside others": (
        {
            "properties": {"p": {"$ref": "#/$defs/n", "minimum": 2}},
            "required": ["p"],
            "$defs": {"n": {"type": "integer", "maximum": 3}},
        },
        ['{"p":2}'],
        ['{"p":1}', '{"p":4}'],
        lambda v: 2 <= v["p"] <= 3,
    ),
    "recursion": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        ['{"v":1,"next":{"v":2,"next":null}}'],
        ['{"v":1}'],
        lambda v: set(v) == {"v", "next"},
    ),
    "$ref to the root": (
        {
            "type": "object",
            "properties": {"sub": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["sub"],
        },
        ['{"sub":[{"sub":[]}]}'],
        ['{"sub":[1]}'],
        lambda v: isinstance(v["sub"], list),
    ),
    "minLength": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"é漢\\n"'],
        ['"a"', '"abcd"'],
        lambda v: 2 <= len(v) <= 3,
    ),
    "pattern": (
        {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        ['"AB-1"', '"ZZ-09"'],
        ['"ab-1"', '"AB-"', '"xAB-1"'],
        lambda v: re.fullmatch("[A-Z]{2}-[0-9]+", v),
    ),
    "date": (
        {"type": "string", "format": "date"},
        ['"2024-02-28"'],
        ['"2024-13-01"', '"24-1-1"'],
        datetime.date.fromisoformat,
    ),
    "time": (
        {"type": "string", "format": "time"},
        ['"23:59:00Z"', '"01:00:00.5+02:00"'],
        ['"24:00:00Z"', '"1:00"'],
        lambda v: re.match(r"\d\d:\d\d:\d\d", v),
    ),
    "date-time": (
        {"type": "string", "format": "date-time"},
        ['"2024-02-28T01:02:03Z"'],
        ['"2024-02-28"'],
        lambda v: pydantic.TypeAdapter(datetime.datetime).validate_python(v),
    ),
    "uuid": (
        {"type": "string", "format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"x"'],
        uuid.UUID,
    ),
    "email": (
        {"type": "string", "format": "email"},
        ['"a.b@c.org"'],
        ['"a@"', '"@b.de"'],
        lambda v: re.fullmatch(r"\S+@\S+\.[A-Za-z]+", v),
    ),
    "ipv4": (
        {"type": "string", "format": "ipv4"},
        ['"127.0.0.1"', '"255.255.255.255"'],
        ['"256.1.1.1"', '"1.1.1"'],
        lambda v: all(0 <= int(x) <= 255 for x in v.split(".")),
    ),
    "other formats": ({"type": "string", "format": "path"}, ['"anything"'], [], lambda v: isinstance(v, str)),
    "range": (
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
        ["-3", "0", "11"],
        ["-4", "12"],
        lambda v: -3 <= v < 12,
    ),
    "half range": (
        {"type": "integer", "exclusiveMinimum": 9.5},
        ["10", "999"],
        ["9", "-10"],
        lambda v: v > 9.5,
    ),
    "range of numbers": (
        {"type": "number", "minimum": 0, "maximum": 1},
        ["0", "0.5", "1"],
        ["1.5", "-0.5"],
        lambda v: 0 <= v <= 1,
    ),
    "open range of numbers": (
        {"type": "number", "exclusiveMinimum": 0},
        ["0.5", "3", "3.25"],
        ["0", "0.0", "-1"],
        lambda v: v > 0,
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, ["15", "-5"], ["16"], lambda v: v % 5 == 0),
    "fractional multipleOf": (
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
        ["0.75", "2"],
        ["0.7"],
        lambda v: (v * 4).is_integer() if isinstance(v, float) else True,
    ),
    "fractional bounds": (
        {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2.25},
        ["0.5", "2.24"],
        ["0.49", "2.25"],
        lambda v: 0.5 <= v < 2.25,
    ),
    "pattern and length": (
        {"type": "string", "pattern": "a", "minLength": 2, "maxLength": 3},
        ['"ba"', '"bab"'],
        ['"a"', '"bbab"', '"bb"'],
        lambda v: "a" in v and 2 <= len(v) <= 3,
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": I}, "additionalProperties": False},
        ['{"x1": 1}', "{}"],
        ['{"y": 1}', '{"x": "1"}'],
        lambda v: all(name[0] == "x" and isinstance(one, int) for name, one in v.items()),
    ),
    "propertyNames by a definition": (
        {
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/k"},
            "$defs": {"k": {"type": "string", "pattern": "^k"}},
        },
        ['{"k1": []}'],
        ['{"a": 1}'],
        lambda v: all(name[0] == "k" for name in v),
    ),
    "one property at least": (
        {**obj(a=S, b=S), "minProperties": 1},
        ['{"a": ""}', '{"b": ""}'],
        ["{}"],
        lambda v: v.keys() and v.keys() <= {"a", "b"},
    ),
    "parts beside properties": (
        {
            "type": "object",
            "properties": {"b": I},
            "required": ["b"],
            "anyOf": [{"required": ["a"]}, {"required": ["c"]}],
        },
        ['{"b": 1, "a": 2}'],
        ['{"b": 1}'],
        lambda v: "b" in v and ("a" in v or "c" in v),
    ),
    "a part of its own": (
        {
            "type": "object",
            "properties": {"a": {"allOf": [{"$ref": "#/$defs/n"}], "description": "d"}},
            "$defs": {"n": I},
        },
        ['{"a": 1}'],
        ['{"a": "x"}', '{"b": 1}'],
        lambda v: v.keys() <= {"a"},
    ),
    # Where an earlier compiler allowed more than the schema does:
    "enum beside a bound": ({"enum": [1, 20], "minimum": 10}, ["20"], ["1"], lambda v: v == 20),
    "additionalProperties beside allOf": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": I}}],
            "properties": {"b": I},
            "additionalProperties": False,
        },
        ["{}", '{"b":1}'],
        ['{"a":1}', '{"b":1,"a":1}'],
        lambda v: set(v) <= {"b"},
    ),
}

features = pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)


@features
def test_a_grammar_takes_what_it_should(feature):
    schema, taken, refused, _ = feature
    grammar = Grammar.of(schema)
    assert [text for text in taken if not grammar.matches(text)] == []
    assert [text for text in refused if grammar.matches(text)] == []


@features
@settings(max_examples=10)
@given(random=randoms)
def test_whatever_a_grammar_allows_is_valid(feature, random):
    schema, _, _, valid = feature
    assert valid(json.loads(Grammar.of(schema).write(random))) is not False


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
    for name, (schema, taken, refused, _) in FEATURES.items():
        grammar = Grammar.of(schema, **own)
        assert [text for text in taken if not grammar.matches(text)] == [], name
        assert [text for text in refused if grammar.matches(text)] == [], name


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
        ({**obj(["a"], a=I, b=I, c=I), "minProperties": 2}, "minProperties"),
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
    grammar = Grammar.of({**obj(["a"], a={**I, **notes, "$id": "#a"}), **notes, **setting})
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
    python = re.compile(pattern.removesuffix("$") + (r"\Z" if pattern.endswith("$") else ""), re.ASCII)
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
    name={"type": "string", "maxLength": 12},
    age={"type": "integer", "minimum": 0, "maximum": 120},
    tags={"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_answer_ends_with_its_document(endpoint, isolation):
    """By itself: also where the limit of tokens is just reached, and where it could go on."""

    async def check(endpoint):
        params = {"temperature": 1.5, "seed": 7, "top_p": 0.9}
        deltas, ended = await answered(endpoint, asking(PERSON, **params))
        value = json.loads("".join(delta.text for delta in deltas))
        assert (list(value), ended.finish_reason) == (["name", "age", "tags"], "stop")
        assert 0 <= value["age"] <= 120
        assert set(value["tags"]) <= {"a", "b"}
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
