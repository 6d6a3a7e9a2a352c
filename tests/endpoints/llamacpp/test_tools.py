"""Tools of the llama.cpp endpoint, as far as they need no model: reading requests, forms, history and answers."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.prompting.template_messages import as_text, for_template, plain_messages
from disco.endpoints.llamacpp.request_params import read_params
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, HERMES, LLAMA, MISTRAL, form_of
from disco.endpoints.llamacpp.tool_calls.call_parser import CallReader
from disco.endpoints.llamacpp.tool_calls.calls_in_text import CallsInText, asked_of_server
from disco.endpoints.llamacpp.tool_calls.tool_request import read_tools
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta
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


def test_the_variables_of_a_request_reach_the_template_and_never_replace_the_conversation():
    source = "{{ mood }}|{{ messages[0].content }}|{{ tools }}|{{ add_generation_prompt }}|{{ eos_token }}"
    model = SimpleNamespace(template=source, eos_text="E", bos_text="B", path="m.gguf")
    render = Renderer(model, None)
    hint = {"mood": "calm", "messages": [], "tools": [1], "add_generation_prompt": False, "eos_token": "x"}
    messages = [{"role": "user", "content": "Hi."}]
    assert render(messages, variables=hint).text == "calm|Hi.|None|True|E"
    assert render(messages).text == "|Hi.|None|True|E"


# What llama-server is asked for, and what is read out of its answers


def asked(has_place=False, messages=({"role": "user", "content": "Hi."},), prefix="", **params):
    request = Request(list(messages), "m", params)
    return asked_of_server(request, Prefix(prefix, tokens=len(prefix)), endpoint="here", has_place=has_place)


def test_a_required_call_is_asked_for_as_a_document_whose_references_are_kept():
    parameters = {
        "$defs": {"T": {"type": "integer"}},
        "properties": {"x": {"$ref": "#/$defs/T"}, "me": {"$ref": "#"}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}, TOOLS[0]]
    more = {"stop": ["}"], "logprobs": True, "temperature": 0.5}
    for has_place in (False, True):
        request, calls = asked(has_place, tools=tools, tool_choice="required", **more)
        assert calls is not None
        assert request.params["temperature"] == 0.5
        assert not {"stop", "logprobs"} & set(request.params), "they would cut a call, or belong to text"
        schema = request.params["response_format"]["json_schema"]["schema"]
        first, second = schema["anyOf"]
        assert [one["properties"]["name"]["const"] for one in (first, second)] == ["f", "add"]
        assert first["properties"]["arguments"] == {"$ref": "#/$defs/0"}
        moved = schema["$defs"]["0"]["properties"]
        assert (moved["x"]["$ref"], moved["me"]["$ref"]) == ("#/$defs/0/$defs/T", "#/$defs/0")
        assert request.params.get("tool_choice") == ("none" if has_place else None)
        assert len(request.messages) == (1 if has_place else 2), (
            "the functions are in a message, or in the template"
        )
    refused(FailureKind.UNSERVED, "continue", lambda: asked(prefix="a", tools=TOOLS, tool_choice="required"))


def test_tools_that_may_be_called_are_the_templates_or_in_a_message():
    format_ = {"type": "json_object"}
    for has_place in (False, True):
        refused(
            FailureKind.UNSERVED, "both", lambda at=has_place: asked(at, tools=TOOLS, response_format=format_)
        )
        request, calls = asked(has_place, tools=TOOLS, tool_choice="none")
        assert (calls, len(request.messages), set(request.params)) == (None, 1, set())
    allowed = {"mode": "auto", "tools": [named("add")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    request, calls = asked(True, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert calls is None
    assert [one["function"]["name"] for one in request.params["tools"]] == ["add"]
    assert request.params["parallel_tool_calls"] is False
    request, calls = asked(False, tools=TOOLS, stop="x")
    assert calls is not None
    assert request.params == {"stop": ["x", "</tool_call>"]}
    assert "<tools>" in request.messages[0]["content"]
    past = ({"role": "tool", "tool_call_id": "a", "content": "12"},)
    assert asked(False, messages=past)[0].messages == [
        {"role": "user", "content": "Result of the function: 12"}
    ]
    assert asked(True, messages=past)[0].messages == list(past)


def pieces_of(text, cuts):
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [Delta(text[a:b]) for a, b in itertools.pairwise(at)]


def read_out(calls, deltas, reason="stop"):
    """The text, the calls' names and arguments, and the finish reason."""
    out = [one for delta in deltas for one in calls.read([delta])]
    rest, reason = calls.end(reason)
    made = [call for delta in (*out, *rest) for call in delta.tool_calls]
    assert sum(delta.tokens for delta in (*out, *rest)) <= len(deltas)
    text = "".join(delta.text for delta in (*out, *rest))
    return text, [call.name for call in made if call.name], "".join(call.arguments for call in made), reason


cutting = st.lists(st.integers(0, 10_000), max_size=20)
blanks = st.sampled_from(["", " ", "\n  "])


@given(arguments, cutting, blanks)
def test_a_document_that_is_a_call_is_read_as_one_wherever_it_is_cut(arguments, cuts, blank):
    text = f'{{{blank}"name"{blank}:{blank}"say",{blank}"arguments": {arguments}{blank}}}'
    calls = asked(tools=TOOLS, tool_choice="required")[1]
    assert read_out(calls, pieces_of(text, cuts)) == ("", ["say"], arguments, "tool_calls")


def test_a_document_that_is_no_call_is_garbage_and_one_that_is_cut_off_is_the_beginning_of_a_call():
    def reading(text, reason):
        return read_out(asked(tools=TOOLS, tool_choice="required")[1], [Delta(text)], reason)

    assert reading('{"name": "say", "arguments": {"te', "length") == ("", ["say"], '{"te', "length")
    for text in ("I say", '{"name": "say", "arguments": {"te', ""):
        with pytest.raises(EndpointFailure) as failed:
            reading(text, "stop")
        assert failed.value.kind is FailureKind.GARBAGE


@given(st.sampled_from(["", "Well. ", "a < b, "]), arguments, cutting, blanks)
def test_a_call_in_the_generic_form_is_read_behind_any_text(before, arguments, cuts, blank):
    text = f'{before}<tool_call>{blank}{{"name": "say", "arguments": {arguments}}}\n'
    calls = asked(tools=TOOLS)[1]
    assert read_out(calls, pieces_of(text, cuts)) == (before, ["say"], arguments, "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        "<tool",
        "a < b <tool_cal",
        '<tool_call>{"name": "unknown", "arguments": {}}',
        '<tool_call>{"name": "say", "arguments": {a}}',
        '<tool_call>{"name": "say", "parameters": {}}',
        "<tool_call>say it",
        "  plain text",
    ],
)
@given(cuts=cutting)
def test_what_is_no_call_stays_text(text, cuts):
    assert read_out(CallsInText(GENERIC, read(), endpoint="here"), pieces_of(text, cuts)) == (
        text,
        [],
        "",
        "stop",
    )
