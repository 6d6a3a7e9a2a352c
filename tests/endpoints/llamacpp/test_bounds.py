"""One caller's request takes a model neither time nor memory that others would wait for."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.sequences import SequenceModel
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.prompt_tokens import answer_ids, build_prompt
from disco.endpoints.llamacpp.request_params import read_params, refuse_costly_schemas
from disco.errors import EndpointFailure, FailureKind
from disco.request import Prefix, Request
from tests.endpoints.llamacpp.answers import ask, fails, fresh, refused

CONTEXT = 64


class Tokenizer:
    """A word is a token, and at most 80 characters are. Notes how many characters it is given at once."""

    context_tokens, wants_bos, bos_token, vocabulary = CONTEXT, False, -1, None
    index = SimpleNamespace(longest=80)

    def __init__(self):
        self.given = []

    def tokenize(self, text, *, special):
        del special
        self.given.append(len(text))
        return [1] * sum(-(-len(word) // 80) for word in text.split(" "))

    def piece(self, token):
        del token
        return b"word"

    def spell(self, ids):
        del ids
        return b""


def read(**params):
    return read_params(Request(messages=[], model="m", params=params), Prefix(), endpoint="here")


# Stop texts


def test_an_empty_stop_text_is_none():
    for stop, wanted in (("", ()), ([""], ()), (["", "a"], ("a",)), ([], ()), (None, ()), ("a", ("a",))):
        assert read(stop=stop).stop == wanted
        request = Request(messages=[], model="m", params={"stop": stop})
        assert (request.stops, request.may_be_empty) == (wanted, bool(wanted))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("stop", ["a"] * 17, "at most 16 texts in stop, not 17"),
        ("stop", "a" * 1001, "at most 1,000 characters in one text in stop, not 1,001"),
        ("logit_bias", {str(token): 1 for token in range(10_001)}, "at most 10,000 tokens in logit_bias"),
        (
            "tools",
            [{"type": "function", "function": {"name": f"f{number}"}} for number in range(129)],
            "at most 128 tools",
        ),
    ],
)
def test_a_parameter_that_would_take_too_much_is_refused_by_name_and_limit(name, value, says):
    """Another endpoint may have other limits, so it may be asked."""
    with pytest.raises(EndpointFailure) as caught:
        read(**{name: value})
    assert caught.value.kind is FailureKind.UNSERVED
    assert caught.value.error.param == name
    assert says in str(caught.value.error)


def test_what_is_not_too_much_is_served():
    assert len(read(stop=["a" * 1000] * 16).stop) == 16


class Counted(str):
    """A text that counts the looks at its characters."""

    __slots__ = ()
    looks = 0

    def __getitem__(self, place):
        Counted.looks += 1
        return super().__getitem__(place)

    def startswith(self, *given):
        Counted.looks += len(given[0])
        return super().startswith(*given)


def test_a_token_costs_the_same_however_much_is_held_back():
    """Text that is all but a stop string: every token once made the search begin anew."""
    stop = Counted("a" * 1000 + "b")
    assembler = TextAssembler((stop,))
    after_making, tokens = Counted.looks, 4000
    shown = sum(len(assembler.push(token, b"a")) for token in range(tokens))
    assert shown == tokens - 1000
    assert Counted.looks - after_making <= 4 * tokens
    assert [assembler.push(0, b"b"), assembler.stopped] == [[], True]


# Prompts


@pytest.mark.parametrize("text", ["a" * 10**7, "a " * 10**6], ids=["bytes", "tokens"])
def test_a_prompt_that_is_far_too_long_is_refused_before_it_is_tokenized_whole(text):
    for prompt in (
        lambda model: build_prompt(model, text, Prefix(), opening="", name="here"),
        lambda model: build_prompt(model, "hi", Prefix(text), opening="", name="here"),
        lambda model: answer_ids(model, text, name="here"),
    ):
        model = Tokenizer()
        refused(FailureKind.CONTEXT_LENGTH, "maximum context length is 64 tokens", lambda: prompt(model))  # noqa: B023 - called at once
        assert sum(model.given) < 100_000


def test_work_on_a_long_prompt_ends_where_nobody_wants_it_any_more():
    model = Tokenizer()
    model.context_tokens = 10**6

    def check():
        if len(model.given) == 3:
            raise Aborted

    with pytest.raises(Aborted):
        build_prompt(model, "a " * 10**6, Prefix(), opening="", name="here", check=check)
    assert sum(model.given) < 100_000


@pytest.mark.real
def test_a_long_prompt_has_the_tokens_it_has_whole(monkeypatch):
    model = SequenceModel(
        resolve_model("smollm2-135m"),
        context_tokens=64,
        threads=1,
        batch_tokens=64,
        gpu_layers=0,
        keep_loading=lambda: True,
    )
    model.context_tokens = 10**6
    tokenize, given = model.tokenize, []
    monkeypatch.setattr(
        model, "tokenize", lambda text, *, special: given.append(len(text)) or tokenize(text, special=special)
    )
    random_ = random.Random(1)
    parts = [
        "<|im_start|>",
        "<|im_end|>",
        "\n",
        " ",
        "<|",
        "|>",
        "<|none|>",
        "word",
        " words ",
        "é",
        "😀",
        "  \n",
    ]
    try:
        for turn in range(3):
            text = "".join(random_.choice(parts) for _ in range(15_000)) + " plain" * (turn * 20_000)
            given.clear()
            found = build_prompt(model, text, Prefix(), opening="", name="here").ids
            assert (len(given) > 3, max(given) < len(text)) == (True, True)
            assert found == tokenize(text, special=True)
            found = answer_ids(model, text, name="here")
            assert found == tokenize(text, special=False)
    finally:
        model.close()


@pytest.mark.real
@pytest.mark.anyio
async def test_a_prompt_of_control_tokens_is_refused_at_once():
    """llama.cpp would take minutes for it: it is in the square of their number."""
    async with fresh(context_tokens=64) as endpoint:
        failure = await fails(endpoint, ask("<|im_start|>" * 400_000))
        assert failure.kind is FailureKind.CONTEXT_LENGTH


# Schemas for llama-server


def words(count):
    return [f"word{number}" for number in range(count)]


def optional(count):
    return {"type": "object", "properties": {word: {"type": "string"} for word in words(count)}}


def nested(depth):
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "integer"}


def pattern(text):
    return {"type": "string", "pattern": text}


def refers(count):
    return {"$defs": {"words": {"enum": words(100)}}, "anyOf": [{"$ref": "#/$defs/words"}] * count}


TOO_MUCH = {
    "values": {"enum": words(251)},
    "values inside": {"type": "array", "items": {"anyOf": [{"enum": words(200)}, {"enum": words(51)}]}},
    "properties": optional(250),
    "branches": {"oneOf": [{"const": word} for word in words(251)]},
    "values by reference": refers(3),
    "depth": nested(61),
    "subschemas": {
        "type": "object",
        "properties": {word: {} for word in words(10_001)},
        "required": words(10_001),
    },
    "characters": {"const": "a" * 250_001},
    "alternatives": pattern("|".join(words(251))),
    "optional characters": pattern("a?" * 21),
    "repeated optional parts": pattern("^((a?){5}[b-d]){5}$"),
    "repeated repetitions": pattern("(a{0,30}){0,30}"),
    "long repetitions": pattern("((abc){100}){100}"),
}
NOT_TOO_MUCH = {
    "values": {"enum": words(250)},
    "properties": optional(249),
    "many required ones": {**optional(1000), "required": words(1000)},
    "one list behind another": {
        "type": "object",
        "properties": {word: {"enum": words(100)} for word in words(100)},
    },
    "references": refers(2),
    "a tree": {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    },
    "unknown references": {"anyOf": [{"$ref": "#/none"}, {"$ref": "http://a"}]},
    "an address": pattern(r"^(\d{1,3}\.){3}\d{1,3}$"),
    "a slug": pattern("^[a-z0-9]+(-[a-z0-9]+)*$"),
    "a long text": pattern("^[a-z|(]{1,1000}$"),
    "a strange one": pattern(r")}{(*?[\]"),
    "lengths": {"type": "array", "maxItems": 10_000, "items": {"type": "string", "maxLength": 10_000}},
}


def ways_to_send(schema):
    yield "response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    yield "response_format", {"type": "json_object", "schema": schema}
    yield "tools", [{"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.mark.parametrize("schema", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_schema_over_which_llama_server_would_take_long_is_not_sent_to_it(schema):
    """It works on one for minutes, and everybody else waits."""
    for name, value in ways_to_send(schema):
        with pytest.raises(EndpointFailure) as caught:
            refuse_costly_schemas({name: value}, endpoint="here")
        assert caught.value.kind is FailureKind.UNSERVED
        assert caught.value.error.param == name
        assert "word" not in str(caught.value.error)


@pytest.mark.parametrize("schema", NOT_TOO_MUCH.values(), ids=NOT_TOO_MUCH)
def test_a_usual_schema_is_sent_to_llama_server(schema):
    for name, value in ways_to_send(schema):
        refuse_costly_schemas({name: value}, endpoint="here")
    refuse_costly_schemas({"response_format": {"type": "text"}, "tools": None}, endpoint="here")
