"""JSON schemas as grammars: what a grammar allows is valid under its schema, feature by feature."""

from __future__ import annotations

import ctypes
import datetime
import json
import re
import uuid
from typing import Annotated, Literal

import anyio
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.gbnf import grammar_text
from disco.endpoints.llamacpp.json_numbers import integers, numbers
from disco.endpoints.llamacpp.json_patterns import PatternError, pattern_expression
from disco.endpoints.llamacpp.json_schema import SchemaError, schema_grammar
from tests.endpoints.gbnf_reader import Grammar

pytest.importorskip("llama_cpp")


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
        ['""', '"a\\n\\u00e9 é 漢"'],
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
        lambda v: set(v) == {"a", "b"},
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
        lambda v: re.fullmatch(r"\S+@\S+\.[a-z]+", v),
    ),
    "ipv4": (
        {"type": "string", "format": "ipv4"},
        ['"127.0.0.1"', '"255.255.255.255"'],
        ['"256.1.1.1"', '"1.1.1"'],
        lambda v: all(0 <= int(x) <= 255 for x in v.split(".")),
    ),
    "other formats": ({"type": "string", "format": "uri"}, ['"anything"'], [], lambda v: isinstance(v, str)),
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
    "multipleOf 1": ({"type": "number", "multipleOf": 1}, ["3"], ["3.5"], lambda v: v == int(v)),
}

features = pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)


@features
def test_a_grammar_takes_what_it_should(feature):
    schema, taken, refused, _ = feature
    grammar = Grammar(schema_grammar(schema))
    assert [text for text in taken if not grammar.matches(text)] == []
    assert [text for text in refused if grammar.matches(text)] == []


@features
@settings(max_examples=25, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_whatever_a_grammar_allows_is_valid(feature, random):
    schema, _, _, valid = feature
    text = Grammar(schema_grammar(schema)).write(random)
    value = json.loads(text)
    assert valid(value) is not False
    text.encode()  # no half characters


@pytest.fixture(scope="module")
def model():
    endpoint = LlamaCppEndpoint(context_tokens=64, threads=1)
    anyio.run(endpoint.warm_up)
    yield endpoint._worker.model
    anyio.run(endpoint.aclose)


def llama_takes(model, grammar, text):
    """Whether llama.cpp's own grammar takes the text, token by token, and then the end of the answer."""
    lib, _, vocab = model.handles
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    assert sampler, grammar
    data = np.zeros(1, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    try:
        for token in [*model.tokenize(text, special=False), lib.llama_vocab_eos(vocab)]:
            data[0] = (token, 1.0, 0.0)
            array = lib.llama_token_data_array(data.ctypes.data_as(lib.llama_token_data_p), 1, -1, False)
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
            if not data["logit"][0] > 0:
                return False
            if token != lib.llama_vocab_eos(vocab):
                lib.llama_sampler_accept(sampler, token)
        return True
    finally:
        lib.llama_sampler_free(sampler)


@features
def test_llama_cpp_reads_the_grammar_the_same_way(model, feature):
    schema, taken, refused, _ = feature
    grammar = schema_grammar(schema)
    assert [text for text in taken if not llama_takes(model, grammar, text)] == []
    assert [text for text in refused if text and llama_takes(model, grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "null"}}, "not"),
        ({"type": "array", "items": S, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "patternProperties": {"^x": I}}, "patternProperties"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "integer", "multipleOf": 5}, "multipleOf"),
        ({"type": "number", "minimum": 0.5}, "bounds"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "look-ahead"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern"),
        ({"type": "string", "minLength": 5000}, "minLength"),
        ({"$ref": "https://example.org/schema"}, r"\$ref"),
        ({"$ref": "#/$defs/none"}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, r"\$ref"),
        ({"type": "text"}, "type"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "bounds"),
        ({"properties": {"a": False}, "required": ["a"]}, "false"),
        ({"type": "object", "properties": {"a": S}, "minProperties": 1}, "minProperties"),
    ],
)
def test_what_a_grammar_cannot_say_is_refused_by_name(schema, named):
    with pytest.raises(SchemaError, match=named):
        schema_grammar(schema)


def test_an_impossible_alternative_is_left_out():
    grammar = Grammar(schema_grammar({"type": "string", "anyOf": [S, {"type": "null"}]}))
    assert grammar.matches('"a"')
    assert not grammar.matches("null")


ints = st.none() | st.integers(-1200, 1200)


@given(ints, ints, st.integers(-1300, 1300))
def test_ranges_of_integers_are_exact(low, high, value):
    expression = integers(low, high)
    inside = (low is None or low <= value) and (high is None or value <= high)
    if expression is None:
        assert low is not None
        assert high is not None
        assert low > high
    else:
        assert Grammar(grammar_text(expression, {})).matches(str(value)) == inside


@settings(deadline=None)
@given(ints, ints, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_ranges_of_numbers_are_never_left(low, high, above, below, random):
    expression = numbers(low, high, above=above and low is not None, below=below and high is not None)
    if expression is None:
        assert low is not None
        assert high is not None
        assert low >= high
        return
    value = json.loads(Grammar(grammar_text(expression, {})).write(random))
    assert low is None or (value > low if above else value >= low)
    assert high is None or (value < high if below else value <= high)


PATTERNS = [
    "^a+b?$",
    "^(foo|ba[rz])$",
    "b",
    "^[^x]{2}$",
    "^\\w+@\\w+\\.de$",
    '^["\\\\]$',
    "^a|b$",
    "^\\S$",
    "^.{1,3}$",
    "^\\n?x$",
    "^[\\s]$",
]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(PATTERNS), st.randoms(use_true_random=False), st.text('abforzxé"\\\n @.de', max_size=6)
)
def test_a_pattern_is_kept_to(pattern, random, text):
    grammar = Grammar(grammar_text(pattern_expression(pattern), {}))
    written = json.loads(grammar.write(random))
    assert re.search(pattern.removesuffix("$") + ("\\Z" if pattern.endswith("$") else ""), written)
    if not re.search(pattern, text):
        assert not grammar.matches(json.dumps(text))


@pytest.mark.parametrize(
    "pattern", ["(", "a(?=b)", "(a)\\1", "a$b", "\\bword", "(?i:a)", "[\\ud800]", "a{5000}"]
)
def test_patterns_beyond_a_grammar_are_refused(pattern):
    with pytest.raises(PatternError):
        pattern_expression(pattern)


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    kind: Literal["a", "b"]
    price: Annotated[float, pydantic.Field(ge=0)] | None = None
    tags: dict[str, int] = {}


class Order(pydantic.BaseModel):
    """What pydantic makes of a nested model: definitions, defaults, unions, tuples."""

    items: list[Item]
    at: datetime.datetime
    id: uuid.UUID
    size: tuple[int, str]
    parent: Order | None = None


@settings(max_examples=40, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_pydantic_takes_what_the_grammar_of_its_schema_writes(random):
    Order.model_validate_json(Grammar(schema_grammar(Order.model_json_schema())).write(random, depth=20))
