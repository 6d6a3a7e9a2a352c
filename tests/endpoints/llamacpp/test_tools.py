"""Tools of the llama.cpp endpoint, as far as they need no model: reading requests, forms, history and answers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.prompting.template_messages import as_text, for_template, plain_messages
from disco.endpoints.llamacpp.request_params import read_params
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, HERMES, LLAMA, MISTRAL, form_of
from disco.endpoints.llamacpp.tool_calls.call_parser import CallReader
from disco.endpoints.llamacpp.tool_calls.tool_request import read_tools
from disco.errors import FailureKind
from disco.request import Prefix, Request
from tests.endpoints.llamacpp.answers import refused
from tests.endpoints.llamacpp.grammars import Grammar, randoms

FORMS = [GENERIC, HERMES, LLAMA, MISTRAL]
forms = pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])


def tool(name, *required, **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def named(name):
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool("add", "a", a={"type": "integer"}), tool("say", text={"type": "string"})]


def read(**params):
    return read_tools({"tools": TOOLS, **params}, endpoint="here")


def plain(*messages):
    return plain_messages(messages, endpoint="here")


# Whatever stands in a string is no marker: quotes, braces and the forms' own markers.
MARKS = ["</tool_call>", "<tool_call>", '{"name": "x"}', "[TOOL_CALLS]", '"', "\\", "}", "]}", "\n", "é漢🦜"]
strings = st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=4).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(strings, values, max_size=3).map(lambda one: json.dumps(one, ensure_ascii=False))
names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
calls_made = st.lists(st.tuples(names, arguments), min_size=1, max_size=3)


def answer(form, *calls):
    """What a model writes behind the form's opening."""
    written = [f'"{name}"{form.between}{argument}{form.after}' for name, argument in calls]
    return form.before + (form.again or "").join(written) + form.close


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


@settings(max_examples=50)
@given(st.sampled_from(FORMS), calls_made, st.lists(st.integers(0, 10_000), max_size=20), st.data())
def test_any_cut_of_an_answer_gives_the_same_calls_and_a_beginning_their_beginning(form, calls, cuts, data):
    calls = calls if form.again else calls[:1]
    text = answer(form, *calls)
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    reader = CallReader(form)
    found = collect(reader, [text[a:b] for a, b in itertools.pairwise(at)])
    assert [(name, argument) for name, _, argument in found] == calls
    assert reader.whole
    assert len({identifier for _, identifier, _ in found}) == len(calls)
    assert all(identifier.startswith("call_") for _, identifier, _ in found)
    name, argument = calls[0]
    alone = answer(form, calls[0])
    end = alone.index(argument, len(form.before) + len(name) + 2) + len(argument)
    length = data.draw(st.integers(0, len(alone)))
    reader = CallReader(form)
    found = collect(reader, [alone[:length]])
    assert reader.whole == (length >= end)
    for found_name, _, beginning in found:
        assert (found_name, argument.startswith(beginning)) == (name, True)


@forms
def test_arguments_are_passed_on_as_they_come_and_what_is_not_of_the_form_is_noticed(form):
    reader = CallReader(form)
    seen = [
        "".join(piece.arguments for piece in reader.feed(char)) for char in answer(form, ("f", '{"a": "bc"}'))
    ]
    assert [one for one in seen if one] == list('{"a": "bc"}')
    for wrong in ("x", form.before + '"f"' + "x", answer(form, ("f", "{}")) + "x"):
        with pytest.raises(ValueError, match=r"is missing where|behind the calls"):
            CallReader(form).feed(wrong)


@forms
@settings(max_examples=10)
@given(random=randoms)
def test_whatever_the_grammar_allows_is_read_as_calls_with_valid_arguments(form, random):
    reader = CallReader(form)
    found = collect(reader, [Grammar(form.grammar(read())).write(random)])
    assert reader.whole
    assert 1 <= len(found) <= (16 if form.again else 1)
    for name, _, argument in found:
        value = json.loads(argument)
        assert isinstance(value["a"], int) if name == "add" else set(value) <= {"text"}


@forms
def test_only_what_may_be_called_is_in_the_grammar(form):
    one = Grammar(form.grammar(read(tool_choice=named("say"))))
    assert one.matches(answer(form, ("say", "{}")))
    assert not one.matches(answer(form, ("add", '{"a":1}')))
    assert not one.matches(answer(form, ("say", '{"a":1}')))
    if form.again:
        both = [("add", '{"a":1}'), ("say", "{}")]
        assert not one.matches(answer(form, *[("say", "{}")] * 2))
        assert Grammar(form.grammar(read())).matches(answer(form, *both))
        assert not Grammar(form.grammar(read(parallel_tool_calls=False))).matches(answer(form, *both))


def test_definitions_of_two_functions_do_not_meet():
    def defining(name, kind):
        made = tool(name, "x", x={"$ref": "#/$defs/T"})
        made["function"]["parameters"]["$defs"] = {"T": {"type": kind}}
        return made

    grammar = Grammar(GENERIC.grammar(read(tools=[defining("i", "integer"), defining("s", "string")])))
    assert grammar.matches(answer(GENERIC, ("i", '{"x":1}')))
    assert grammar.matches(answer(GENERIC, ("s", '{"x":"1"}')))
    assert not grammar.matches(answer(GENERIC, ("s", '{"x":1}')))


def test_calls_beside_structured_output_and_behind_a_text():
    def given(prefix="", **more):
        request = Request([], "m", {"tools": TOOLS, **more})
        return read_params(request, Prefix(prefix, tokens=len(prefix)), endpoint="here")

    sampling = given(response_format={"type": "json_object"})
    grammar = Grammar(GENERIC.grammar_beside(sampling.tools, sampling.schema))
    assert grammar.matches('{"a": 1}')
    assert grammar.matches("<tool_call>" + answer(GENERIC, ("say", "{}")))
    refused(FailureKind.UNSERVED, "not both", lambda: LLAMA.grammar_beside(sampling.tools, sampling.schema))
    refused(FailureKind.UNSERVED, "", lambda: given("a", tool_choice="required"))
    assert given("a").tools


def test_tools_as_the_request_has_them():
    assert read_tools({}, endpoint="here") is read_tools({"tools": []}, endpoint="here") is None
    assert read(tool_choice="none") is None
    allowed = {"mode": "required", "tools": [named("add")]}
    for choice, required, several, names in (
        ("auto", False, True, ["add", "say"]),
        ("required", True, True, ["add", "say"]),
        (named("say"), True, False, ["say"]),
        ({"type": "allowed_tools", "allowed_tools": allowed}, True, True, ["add"]),
    ):
        tools = read(tool_choice=choice)
        assert (tools.required, tools.several) == (required, several)
        assert [one.name for one in tools.callable] == names
        # It is shown all of them: the prompt stays the same.
        assert [one["function"]["description"] for one in tools.offered] == ["", ""]
    for bare in (named("now"), {"type": "function", "function": {"name": "now", "parameters": []}}):
        grammar = Grammar(GENERIC.grammar(read(tools=[bare])))
        assert grammar.matches(answer(GENERIC, ("now", "{}")))
        assert not grammar.matches(answer(GENERIC, ("now", '{"a":1}')))


def function(**of):
    return {"tools": [{"type": "function", "function": {"name": "f", **of}}]}


WRONG, ELSEWHERE = FailureKind.BAD_REQUEST, FailureKind.UNSERVED  # another endpoint may serve it
CUSTOM = {"type": "custom", "custom": {"name": "x"}}


def test_what_is_wrong_with_tools_is_said():
    for params, kind, says in (
        ({"tools": ["x"]}, WRONG, "function"),
        (function(name="a b"), WRONG, "name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, WRONG, "same name"),
        (function(parameters="x"), WRONG, "schema"),
        ({"tool_choice": "sometimes"}, WRONG, "tool_choice"),
        ({"tool_choice": named("x")}, WRONG, "not among"),
        ({"tools": None, "tool_choice": "required"}, WRONG, "tool_choice"),
        ({"tools": [CUSTOM]}, ELSEWHERE, "custom"),
        ({"tool_choice": CUSTOM}, ELSEWHERE, "custom"),
        (function(parameters={"not": {}}), ELSEWHERE, "'f'"),
        (function(parameters={"type": "string"}), ELSEWHERE, "types"),
    ):
        refused(kind, says, lambda params=params: read(**params))


def test_parts_become_plain_text_and_malformed_history_is_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert plain({"role": "assistant", "content": parts})[0]["content"] == "ab"
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    function_call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    for message in ({"role": "function", "name": "f", "content": "1"}, function_call, image):
        refused(ELSEWHERE, "", lambda message=message: plain(message))
    for message in ({"role": "assistant", "tool_calls": [{}]}, calling(arguments={"a": 1})):
        refused(WRONG, "", lambda message=message: plain(message))


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
HISTORY = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "1"}]},
    {"role": "tool", "tool_call_id": "other", "content": "2"},
]


def calling(**function):
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", **function}}]}


def test_history_for_a_template_that_knows_tools():
    messages = for_template(plain(*HISTORY), HERMES)
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert messages[2] == {"role": "tool", "content": "1", "tool_call_id": "call_1"}
    short = for_template(plain(*HISTORY), MISTRAL)
    identifier = short[1]["tool_calls"][0]["id"]
    assert len(identifier) == 9
    assert short[2]["tool_call_id"] == identifier != short[1]["tool_calls"][1]["id"]
    cut_off = for_template(plain(calling(arguments='{"a')), HERMES)
    assert cut_off[0]["tool_calls"][0]["function"]["arguments"] == '{"a'
    (without,) = plain(calling(arguments={}))
    assert without["tool_calls"][0]["function"]["arguments"] == "{}"


def test_history_for_any_other_template_is_text():
    assert as_text(plain(*HISTORY), None) == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": 'I call add with {"a": 1}.\nI call add with {"a": 1}.'},
        {"role": "user", "content": "Result of add: 1\nResult of the function: 2"},
    ]
    # What an earlier call looks like is an example of the next one.
    shown = as_text(plain(*HISTORY), read())
    assert shown[2]["content"] == "\n".join([GENERIC.written("add", '{"a": 1}')] * 2)
    (asked,) = as_text(plain({"role": "developer", "content": "Be brief."}), read())
    text = asked["content"]
    assert (asked["role"], text[:11]) == ("system", "Be brief.\n\n")
    assert all(json.dumps(tool) in text for tool in read().offered)
    example = text[text.index(GENERIC.open) + len(GENERIC.open) : text.index("\nIf no")]
    ((_, _, argument),) = collect(CallReader(GENERIC), [example])
    assert json.loads(argument)


def test_a_template_shows_its_form():
    for template, form in (
        ("{{ messages }}", GENERIC),
        ('{% if tools %}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}', HERMES),
        ("{% if tools %}<tool_call><function=f><parameter=a>{% endif %} arguments", GENERIC),
        ('{% if tools %}[TOOL_CALLS][{"name"..}]{% endif %}', MISTRAL),
        ("{% if tools %}[TOOL_CALLS]f[ARGS]{}{% endif %}", GENERIC),
        ("<|start_header_id|>{% if tools %}{{ '\"name\": ' }}{{ '\"parameters\": ' }}{% endif %}", LLAMA),
        ("{% if tools %}to=functions.f<|message|>{}{% endif %}", GENERIC),
    ):
        assert form_of(template) is form, template
