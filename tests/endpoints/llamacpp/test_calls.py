"""Tools of the llama.cpp endpoint with the real model: calls that are required, chosen, cut off and cancelled."""

from __future__ import annotations

import json

import anyio
import pytest
from loops import mostly

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.model.sampler import Sampler
from disco.events import DeltaKind, Ended, Started
from disco.request import Prefix, Request
from tests.endpoints.conformance import next_event

pytest.importorskip("llama_cpp")

pytestmark = [pytest.mark.real, pytest.mark.anyio]

NOTHING = Prefix()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def endpoint():
    endpoint = LlamaCppEndpoint(context_tokens=1024, threads=1)
    anyio.run(endpoint.warm_up)
    yield endpoint
    anyio.run(endpoint.aclose)


def tool(name, required=None, **properties):
    schema = {"type": "object", "properties": properties, "required": required or list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
WEATHER = tool("get_weather", city={"type": "string", "maxLength": 12}, unit={"enum": ["C", "F"]})
ADD = tool("add", a=SMALL, b=SMALL)
NAMED_ADD = {"type": "function", "function": {"name": "add"}}
CALLED = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "C"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny in Rome."},
]


def ask(content="Add 3 and 5.", history=(), max_tokens=60, **params):
    params = {"temperature": 0, "max_tokens": max_tokens, **params}
    return Request([*history, {"role": "user", "content": content}], "m", params)


async def complete(endpoint, request, prefix=NOTHING):
    """Deltas and the end of one attempt."""
    deltas = []
    async with endpoint.open(request, prefix) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                return deltas, event
            if not isinstance(event, Started):
                deltas += event
    raise AssertionError("no Ended")


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def calls_of(deltas):
    """[name, arguments] of each call, put together as the API documents it."""
    calls = []
    for delta in deltas:
        if delta.kind is not DeltaKind.TOOL:
            continue
        assert delta.text == ""
        assert delta.raw is None
        (piece,) = delta.tool_calls
        if piece.index == len(calls):
            assert piece.id.startswith("call_")
            assert piece.arguments == ""
            calls.append([piece.name, ""])
        else:
            assert (piece.id, piece.name) == (None, None)
            assert piece.arguments
        calls[piece.index][1] += piece.arguments
    return calls


# Tests of the same tools stand together: most of a prompt is its tools, and the cache holds them for the next one.


async def test_a_required_call_keeps_to_its_schema_and_comes_in_pieces(endpoint):
    deltas, ended = await complete(
        endpoint, ask("Weather in Paris?", tools=[WEATHER], tool_choice="required")
    )
    ((name, arguments),) = calls_of(deltas)
    assert name == "get_weather"
    value = json.loads(arguments)
    assert set(value) == {"city", "unit"}
    assert len(value["city"]) <= 12
    assert value["unit"] in ("C", "F")
    assert text_of(deltas) == ""
    assert len(deltas) > 5
    assert ended.finish_reason == "tool_calls"
    assert sum(delta.tokens for delta in deltas) == ended.usage.completion_tokens


async def test_a_call_that_the_model_chooses_itself(endpoint):
    request = ask("What is the weather in Paris?", CALLED, tools=[WEATHER])
    deltas, ended = await complete(endpoint, request)
    ((name, arguments),) = calls_of(deltas)
    assert name == "get_weather"
    assert json.loads(arguments)["city"] == "Paris"
    assert text_of(deltas) == ""  # the marker is in no text
    assert ended.finish_reason == "tool_calls"
    cut = ask("What is the weather in Paris?", CALLED, tools=[WEATHER], max_tokens=4)
    deltas, ended = await complete(endpoint, cut)
    assert (ended.finish_reason, calls_of(deltas)) == ("length", [])


async def test_an_answer_begun_elsewhere_may_still_call(endpoint):
    prefix = Prefix("I will look it up.\n", tokens=6)
    request = ask("What is the weather in Paris?", CALLED, tools=[WEATHER])
    deltas, ended = await complete(endpoint, request, prefix)
    assert ended.finish_reason in ("stop", "tool_calls")
    assert deltas
    calls_of(deltas)


async def test_a_named_function_is_the_one_called(endpoint):
    for name in ("add", "get_weather"):
        choice = {"type": "function", "function": {"name": name}}
        deltas, ended = await complete(endpoint, ask(tools=[WEATHER, ADD], tool_choice=choice))
        ((called, arguments),) = calls_of(deltas)
        assert called == name
        assert ended.finish_reason == "tool_calls"
    assert json.loads(arguments)


async def test_one_of_two_functions_is_chosen(endpoint):
    deltas, _ = await complete(
        endpoint, ask(tools=[WEATHER, ADD], tool_choice="required", temperature=1.5, seed=3)
    )
    ((name, arguments),) = calls_of(deltas)
    value = json.loads(arguments)
    if name == "add":
        assert all(0 <= value[key] <= 99 for key in ("a", "b"))
    else:
        assert (name, set(value)) == ("get_weather", {"city", "unit"})


async def test_a_plain_answer_stays_text_and_is_what_it_is_with_no_call_allowed(endpoint):
    deltas, ended = await complete(endpoint, ask("Hello!", max_tokens=8, tools=[WEATHER]))
    assert text_of(deltas)
    assert {delta.kind for delta in deltas} == {DeltaKind.TEXT}
    assert ended.finish_reason in ("stop", "length")
    spell = endpoint._worker.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    plain, _ = await complete(endpoint, ask("Hello!", max_tokens=8))
    none, _ = await complete(endpoint, ask("Hello!", max_tokens=8, tools=[WEATHER], tool_choice="none"))
    assert text_of(none) == text_of(plain)


async def test_results_of_calls_are_read(endpoint):
    deltas, ended = await complete(endpoint, Request(CALLED[:3], "m", {"temperature": 0, "max_tokens": 16}))
    assert "sunny" in text_of(deltas)
    assert ended.finish_reason == "stop"


async def test_a_token_that_says_more_than_the_opening_is_cut_there(endpoint, monkeypatch):
    """The model is made to write the marker's end and what follows it as one token."""
    model = endpoint._worker.model
    beyond = model.index.beginning_with(b">")[0]
    written = [*model.tokenize("Well. <tool_call", special=False), beyond]
    assert model.piece(beyond) != b">"
    sample, decoded = Sampler.sample, []

    def forced(self):
        return sample(self) if self.constrained or not written else written.pop(0)

    def noted(ids, decode=model.decode):
        decoded.append(list(ids))
        decode(ids)

    monkeypatch.setattr(Sampler, "sample", forced)
    monkeypatch.setattr(model, "decode", noted)
    deltas, ended = await complete(endpoint, ask(tools=[ADD]))
    assert text_of(deltas) == "Well. "
    ((name, arguments),) = calls_of(deltas)
    assert (name, set(json.loads(arguments))) == ("add", {"a", "b"})
    assert ended.finish_reason == "tool_calls"
    assert b"".join(map(model.piece, model._cached)).count(b'<tool_call>\n{"name": "add"') == 1


async def test_banned_tokens_and_penalties_hold_inside_calls(endpoint):
    model = endpoint._worker.model
    (three,) = model.tokenize("3", special=False)
    request = ask(tools=[ADD], tool_choice=NAMED_ADD, logit_bias={str(three): -100}, frequency_penalty=1.0)
    deltas, _ = await complete(endpoint, request)
    assert "3" not in calls_of(deltas)[0][1]
    assert json.loads(calls_of(deltas)[0][1])


async def test_stop_strings_end_text_but_not_calls(endpoint):
    deltas, ended = await complete(endpoint, ask(tools=[ADD], tool_choice="required", stop=['"a"', "add"]))
    assert ended.finish_reason == "tool_calls"
    assert json.loads(calls_of(deltas)[0][1])
    deltas, ended = await complete(endpoint, ask("Hello!", tools=[ADD], stop="o"))
    assert (ended.finish_reason, "o" in text_of(deltas)) == ("stop", False)


async def test_tools_beside_structured_output(endpoint):
    """Either a whole document or a whole call, whichever the model prefers; never a mixture."""
    schema = {"type": "object", "properties": {"x": SMALL}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (mark,) = endpoint._worker.model.tokenize("<", special=False)
    for bias, reason in ((50, "tool_calls"), (-100, "stop")):
        request = ask("Five?", tools=[ADD], response_format=form, logit_bias={str(mark): bias})
        deltas, ended = await complete(endpoint, request)
        assert ended.finish_reason == reason
        if reason == "tool_calls":
            assert set(json.loads(calls_of(deltas)[0][1])) == {"a", "b"}
            assert text_of(deltas) == ""
        else:
            assert list(json.loads(text_of(deltas))) == ["x"]
            assert calls_of(deltas) == []


async def test_max_tokens_in_the_middle_of_a_call(endpoint):
    whole, _ = await complete(endpoint, ask(tools=[ADD], tool_choice=NAMED_ADD))
    ((_, arguments),) = calls_of(whole)
    for limit in (3, 10, 14):
        deltas, ended = await complete(endpoint, ask(tools=[ADD], tool_choice=NAMED_ADD, max_tokens=limit))
        assert ended.finish_reason == "length"
        assert ended.usage.completion_tokens == limit
        assert all(arguments.startswith(partial) for _, partial in calls_of(deltas))


@mostly("trio")
async def test_cancelling_in_the_middle_of_a_call(endpoint, anyio_backend):
    long = tool("note", text={"type": "string", "minLength": 400})
    with anyio.fail_after(20):
        async with endpoint.open(ask(tools=[long], tool_choice="required", max_tokens=None)) as attempt:
            (delta, *_) = await next_event(attempt)
            assert delta.kind is DeltaKind.TOOL
            await attempt.aclose()
            usage = attempt.usage
        deltas, _ = await complete(endpoint, ask(tools=[long], tool_choice="required", max_tokens=12))
    assert usage.completion_tokens < 200
    assert calls_of(deltas)


async def test_a_schema_that_refers_to_itself_is_kept_to(endpoint):
    looped = {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    function = {"type": "function", "function": {"name": "f", "parameters": looped}}
    deltas, _ = await complete(endpoint, ask(tools=[function], tool_choice="required"))
    assert json.loads(calls_of(deltas)[0][1]) in ({}, {"x": None})


async def test_the_context_ends_in_the_middle_of_a_call():
    endpoint = LlamaCppEndpoint(context_tokens=160, threads=1)
    try:
        long = tool("note", text={"type": "string", "minLength": 400})
        _, ended = await complete(endpoint, ask("x", tools=[long], tool_choice="required", max_tokens=None))
        assert ended.finish_reason == "length"
        assert ended.usage.prompt_tokens + ended.usage.completion_tokens == 160
    finally:
        await endpoint.aclose()


# Templates that know tools; small ones of our own, because the model at hand has none.

HERMES = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>"
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]\n{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}"
    '{% if c.id | length != 9 %}{{ raise_exception("id") }}{% endif %}{{ c.function | tojson }}{% endfor %}'
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}<|im_start|>assistant\n"
)
LLAMA = (
    '<|start_header_id|>{% if tools %}{{ tools | tojson }}Use {"name": .., "parameters": ..}{{ \'"parameters": \' }}'
    "{% endif %}{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one at a time') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", '
    '"parameters": {{ c.function.arguments | tojson }}}'
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize(("template", "form"), [(HERMES, "hermes"), (MISTRAL, "mistral"), (LLAMA, "llama")])
async def test_a_template_that_knows_tools_decides_how_calls_are_written(template, form):
    endpoint = LlamaCppEndpoint(context_tokens=1024, threads=1, chat_template=template)
    try:
        for parallel in (False, None):
            more = {"parallel_tool_calls": parallel, "max_tokens": 40}
            request = ask(history=CALLED, tools=[WEATHER], tool_choice="required", **more)
            deltas, ended = await complete(endpoint, request)
            calls = calls_of(deltas)
            assert calls
            assert all(
                json.loads(arguments)
                for _, arguments in calls[: -1 if ended.finish_reason == "length" else None]
            )
            assert ended.finish_reason == "tool_calls" or (parallel is None and form != "llama")
        renderer = endpoint._renderer
        assert renderer.form.name == form
        written = b"".join(map(endpoint._worker.model.piece, endpoint._worker.model._cached)).decode()
        assert renderer.form.open in written[written.rindex("assistant") :]
        deltas, _ = await complete(
            endpoint, ask("What is the weather in Paris?", CALLED, tools=[WEATHER], max_tokens=12)
        )
        assert renderer.form.open not in text_of(deltas)
    finally:
        await endpoint.aclose()


async def test_a_template_that_refuses_the_history_gets_it_as_text():
    endpoint = LlamaCppEndpoint(context_tokens=1024, threads=1, chat_template=LLAMA)
    try:
        both = {**CALLED[1], "tool_calls": CALLED[1]["tool_calls"] * 2}
        history = [CALLED[0], both, CALLED[2]]
        deltas, _ = await complete(endpoint, ask(history=history, tools=[ADD], tool_choice="required"))
        assert json.loads(calls_of(deltas)[0][1])
        plain = await complete(endpoint, ask("Hello!", max_tokens=2))
        assert text_of(plain[0])
    finally:
        await endpoint.aclose()


async def test_a_template_that_only_mentions_tools_gets_the_general_form():
    template = "{# tools: <tool_call> arguments #}" + HERMES.replace("if tools", "if xml_tools")
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1, chat_template=template)
    try:
        await endpoint.warm_up()
        assert endpoint._renderer.form.name == "generic"
    finally:
        await endpoint.aclose()
