"""Tools of the llama.cpp endpoint, as far as they need no model: reading requests, forms, history and answers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.template_messages import as_text, for_template, plain_messages
from disco.endpoints.llamacpp.request_params import read_params
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, HERMES, LLAMA, MISTRAL, form_of
from disco.endpoints.llamacpp.tool_calls.call_parser import CallReader
from disco.endpoints.llamacpp.tool_calls.tool_request import read_tools
from disco.errors import EndpointFailure, FailureKind
from disco.request import Prefix, Request
from tests.endpoints.llamacpp.grammars import Grammar, randoms

FORMS = [GENERIC, HERMES, LLAMA, MISTRAL]
forms = pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])

ADD = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
SAY = {
    "name": "say",
    "description": "d",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": ADD}, {"type": "function", "function": SAY}]


def read(**params):
    return read_tools({"tools": TOOLS, **params}, endpoint="here")


# Reading answers

# Whatever stands in a string is no marker: quotes, braces and the forms' own markers.
tricky = st.sampled_from(
    ["</tool_call>", "<tool_call>", '{"name": "x"}', "[TOOL_CALLS]", '"', "\\", "}", "]}", "\n", "é漢🦜"]
)
strings = st.lists(tricky | st.text(max_size=5), max_size=4).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(strings, values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)


def answer(form, calls):
    """What a model writes behind the form's opening."""
    text = form.before
    for number, (name, argument) in enumerate(calls):
        text += form.again if number else ""
        text += f'"{name}"{form.between}{argument}{form.after}'
    return text + form.close


def pieces(text, cuts):
    points = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(points)]


def collect(reader, parts):
    """What an application puts together from the pieces: per call its name, its id and its arguments."""
    calls = []
    for part in parts:
        for piece in reader.feed(part):
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append([piece.name, piece.id, ""])
            assert piece.index == len(calls) - 1
            calls[-1][2] += piece.arguments
    return calls


@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(names, arguments), min_size=1, max_size=3),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_any_cut_of_an_answer_gives_the_same_calls(form, calls, cuts):
    calls = calls if form.again else calls[:1]
    text = answer(form, calls)
    reader = CallReader(form)
    found = collect(reader, pieces(text, cuts))
    assert [(name, argument) for name, _, argument in found] == calls
    assert reader.whole
    assert len({identifier for _, identifier, _ in found}) == len(calls)
    assert all(identifier.startswith("call_") for _, identifier, _ in found)


@given(st.sampled_from(FORMS), names, arguments, st.data())
def test_a_cut_off_answer_is_not_whole_and_its_beginning_is_the_same(form, name, argument, data):
    text = answer(form, [(name, argument)])
    end = text.index(argument, len(form.before) + len(name) + 2) + len(argument)
    at = data.draw(st.integers(0, len(text)))
    reader = CallReader(form)
    found = collect(reader, [text[:at]])
    assert reader.whole == (at >= end)
    if found:
        assert found[0][0] == name
        assert argument.startswith(found[0][2])


@forms
def test_arguments_are_passed_on_as_they_come(form):
    reader = CallReader(form)
    text = answer(form, [("f", '{"a": "bc"}')])
    seen = [("".join(piece.arguments for piece in reader.feed(char))) for char in text]
    assert [one for one in seen if one] == list('{"a": "bc"}')


@forms
def test_what_is_not_of_the_form_is_noticed(form):
    for wrong in ("x", form.before + '"f"' + "x", answer(form, [("f", "{}")]) + "x"):
        with pytest.raises(ValueError, match=r"is missing where|behind the calls"):
            CallReader(form).feed(wrong)


# Grammars


@forms
@settings(max_examples=20)
@given(random=randoms)
def test_whatever_the_grammar_allows_is_read_as_calls_with_valid_arguments(form, random):
    tools = read()
    text = Grammar(form.grammar(tools)).write(random)
    reader = CallReader(form)
    found = collect(reader, [text])
    assert reader.whole
    assert 1 <= len(found) <= (16 if form.again else 1)
    for name, _, argument in found:
        value = json.loads(argument)
        assert isinstance(value["a"], int) if name == "add" else set(value) <= {"text"}


@forms
def test_only_what_may_be_called_is_in_the_grammar(form):
    both = [("add", '{"a":1}'), ("say", "{}")]
    one = Grammar(form.grammar(read(tool_choice={"type": "function", "function": {"name": "say"}})))
    assert one.matches(answer(form, [("say", "{}")]))
    assert not one.matches(answer(form, [("add", '{"a":1}')]))
    assert not one.matches(answer(form, [("say", '{"a":1}')]))
    if form.again:
        assert not one.matches(answer(form, [("say", "{}")] * 2))
        assert Grammar(form.grammar(read())).matches(answer(form, both))
        assert not Grammar(form.grammar(read(parallel_tool_calls=False))).matches(answer(form, both))


def test_definitions_of_two_functions_do_not_meet():
    def tool(name, kind):
        schema = {
            "properties": {"x": {"$ref": "#/$defs/T"}},
            "required": ["x"],
            "$defs": {"T": {"type": kind}},
        }
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    grammar = Grammar(GENERIC.grammar(read(tools=[tool("i", "integer"), tool("s", "string")])))
    assert grammar.matches(answer(GENERIC, [("i", '{"x":1}')]))
    assert grammar.matches(answer(GENERIC, [("s", '{"x":"1"}')]))
    assert not grammar.matches(answer(GENERIC, [("s", '{"x":1}')]))


def test_calls_beside_structured_output():
    sampling = read_params(
        Request([], "m", {"tools": TOOLS, "response_format": {"type": "json_object"}}),
        Prefix(),
        endpoint="here",
    )
    grammar = Grammar(GENERIC.grammar_beside(sampling.tools, sampling.schema))
    assert grammar.matches('{"a": 1}')
    assert grammar.matches("<tool_call>" + answer(GENERIC, [("say", "{}")]))


# Reading requests


def test_tools_as_the_request_has_them():
    assert read_tools({}, endpoint="here") is None
    assert read_tools({"tools": []}, endpoint="here") is None
    assert read(tool_choice="none") is None
    auto = read()
    assert (auto.required, auto.several, [one.name for one in auto.callable]) == (False, True, ["add", "say"])
    assert auto.offered[0]["function"]["description"] == ""
    assert read(tool_choice="required").required
    named = read(tool_choice={"type": "function", "function": {"name": "say"}})
    assert (named.required, named.several, [one.name for one in named.callable]) == (True, False, ["say"])
    assert len(named.offered) == 2  # it is shown all of them: the prompt stays the same
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    some = read(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (some.required, [one.name for one in some.callable]) == (True, ["add"])
    bare = read(tools=[{"type": "function", "function": {"name": "now"}}])
    assert Grammar(GENERIC.grammar(bare)).matches(answer(GENERIC, [("now", "{}")]))
    assert not Grammar(GENERIC.grammar(bare)).matches(answer(GENERIC, [("now", '{"a":1}')]))


def function(**of):
    return {"tools": [{"type": "function", "function": {"name": "f", **of}}]}


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"tools": ["x"]}, "function"),
        (function(name="a b"), "name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "same name"),
        (function(parameters="x"), "schema"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "not among"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_is_wrong_with_tools_is_said(params, named):
    refused(FailureKind.BAD_REQUEST, named, lambda: read(**params))


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "custom"),
        (function(parameters={"not": {}}), "'f'"),
        (function(parameters={"type": "string"}), "types"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "custom"),
    ],
)
def test_what_another_endpoint_may_serve_is_left_to_it(params, named):
    refused(FailureKind.UNSERVED, named, lambda: read(**params))


def refused(kind, named, what):
    with pytest.raises(EndpointFailure) as caught:
        what()
    assert caught.value.kind is kind
    assert named in str(caught.value.error)


def test_no_parameters_are_an_empty_schema():
    assert read(**function(parameters=[])) is not None


def test_a_required_call_cannot_continue_a_text():
    def given(**params):
        return read_params(
            Request([], "m", {"tools": TOOLS, **params}), Prefix("a", tokens=1), endpoint="here"
        )

    refused(FailureKind.UNSERVED, "", lambda: given(tool_choice="required"))
    assert given().tools


# History

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
HISTORY = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "1"}]},
    {"role": "tool", "tool_call_id": "other", "content": "2"},
]


def test_history_for_a_template_that_knows_tools():
    plain = plain_messages(HISTORY, endpoint="here")
    messages = for_template(plain, HERMES)
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert messages[2] == {"role": "tool", "content": "1", "tool_call_id": "call_1"}
    short = for_template(plain, MISTRAL)
    identifier = short[1]["tool_calls"][0]["id"]
    assert len(identifier) == 9
    assert short[2]["tool_call_id"] == identifier != short[1]["tool_calls"][1]["id"]
    broken = {**CALL, "function": {"name": "add", "arguments": '{"a'}}
    cut = plain_messages([{"role": "assistant", "tool_calls": [broken]}], endpoint="here")
    assert for_template(cut, HERMES)[0]["tool_calls"][0]["function"]["arguments"] == '{"a'


def test_history_for_any_other_template_is_text():
    messages = as_text(plain_messages(HISTORY, endpoint="here"), None)
    assert messages == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": 'I call add with {"a": 1}.\nI call add with {"a": 1}.'},
        {"role": "user", "content": "Result of add: 1\nResult of the function: 2"},
    ]
    # What an earlier call looks like is an example of the next one.
    shown = as_text(plain_messages(HISTORY, endpoint="here"), read())
    assert shown[2]["content"] == "\n".join([GENERIC.written("add", '{"a": 1}')] * 2)
    asked = as_text(plain_messages([{"role": "developer", "content": "Be brief."}], endpoint="here"), read())
    assert [one["role"] for one in asked] == ["system"]
    text = asked[0]["content"]
    assert text.startswith("Be brief.\n\n")
    assert all(json.dumps(tool) in text for tool in read().offered)
    reader = CallReader(GENERIC)
    (example,) = collect(reader, [text[text.index(GENERIC.open) + len(GENERIC.open) : text.index("\nIf no")]])
    assert json.loads(example[2])


def called(call):
    return {"role": "assistant", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"role": "function", "name": "f", "content": "1"}, FailureKind.UNSERVED),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, FailureKind.UNSERVED),
        (called({}), FailureKind.BAD_REQUEST),
        (called({"function": {"name": "f", "arguments": {"a": 1}}}), FailureKind.BAD_REQUEST),
    ],
)
def test_malformed_history_is_refused(message, kind):
    refused(kind, "", lambda: plain_messages([message], endpoint="here"))


def test_a_call_without_arguments_has_none():
    (message,) = plain_messages(
        [called({"function": {"name": "f", "arguments": {}}, "id": "1"})], endpoint="here"
    )
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


# Forms

TEMPLATES = {
    "{{ messages }}": GENERIC,
    '{% if tools %}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}': HERMES,
    "{% if tools %}<tool_call><function=f><parameter=a>{% endif %} arguments": GENERIC,
    '{% if tools %}[TOOL_CALLS][{"name"..}]{% endif %}': MISTRAL,
    "{% if tools %}[TOOL_CALLS]f[ARGS]{}{% endif %}": GENERIC,
    "<|start_header_id|>{% if tools %}{{ '\"name\": ' }}{{ '\"parameters\": ' }}{% endif %}": LLAMA,
    "{% if tools %}to=functions.f<|message|>{}{% endif %}": GENERIC,
}


@pytest.mark.parametrize(("template", "form"), TEMPLATES.items(), ids=range(len(TEMPLATES)))
def test_a_template_shows_its_form(template, form):
    assert form_of(template) is form


# Text before a call


def assemble(assembler, parts):
    deltas = []
    for token, part in enumerate(parts):
        deltas += assembler.push(token, part.encode())
        if assembler.stopped:
            break
    return "".join(delta.text for delta in deltas), assembler


@given(st.text("ab <to", max_size=8), st.text("x{\n", max_size=3), st.lists(st.integers(0, 50), max_size=10))
def test_text_before_the_opening_is_passed_on_and_what_is_beyond_it_is_kept(before, beyond, cuts):
    text, assembler = assemble(TextAssembler(("<tool_call>",)), pieces(before + "<tool_call>" + beyond, cuts))
    assert text == before
    assert assembler.stopped_by == "<tool_call>"
    assert beyond.encode().startswith(assembler.beyond)


@pytest.mark.parametrize(
    ("text", "before", "stopped"),
    [
        ("\n <tool_call>", "", True),
        ("a <tool_call>", "", False),
        (" <tool_call>", "a", False),
        ("<tool <tool_call>", "", False),
    ],
)
def test_an_opening_that_counts_only_at_the_beginning(text, before, stopped):
    for parts in (list(text), [text]):
        assembler = TextAssembler(("<tool_call>",), before, only_first="<tool_call>")
        shown, assembler = assemble(assembler, parts)
        assert assembler.stopped == stopped
        assert shown + "".join(d.text for d in assembler.flush()) == (
            text.removesuffix("<tool_call>") if stopped else text
        )
