"""Tools with the real model: calls that are required, chosen and cut off, and what the model cannot keep to."""

from __future__ import annotations

import json

import openai
import pytest
from weather_server import weather_server

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.llamacpp.model.sampler import Sampler
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.events import DeltaKind
from disco.request import Prefix, Request
from tests.endpoints.conformance import next_event
from tests.endpoints.llamacpp.answers import ask, complete

pytestmark = [pytest.mark.real, pytest.mark.anyio]


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
WEATHER = tool("get_weather", city={"type": "string", "maxLength": 12}, unit={"enum": ["C", "F"]})
ADD = tool("add", a=SMALL, b=SMALL)
FIVE = {"content": "Add 3 and 5.", "max_tokens": 60, "tools": [ADD]}
ARGUMENTS = '{"city": "Rome", "unit": "C"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CALLED = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny in Rome."},
]
PARIS = {"content": "What is the weather in Paris?", "history": CALLED, "tools": [WEATHER], "max_tokens": 60}


def calls_of(deltas):
    """[name, arguments] of each call, put together as the API documents it."""
    calls = []
    for delta in deltas:
        if delta.kind is not DeltaKind.TOOL:
            continue
        assert (delta.text, delta.raw) == ("", None)
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


async def test_a_call_that_the_model_chooses_itself(thread_model):
    text, deltas, ended = await complete(thread_model, ask(**PARIS))
    ((name, arguments),) = calls_of(deltas)
    assert (name, json.loads(arguments)["city"]) == ("get_weather", "Paris")
    assert (text, ended.finish_reason) == ("", "tool_calls")  # the marker is in no text
    assert len(deltas) > 5
    _, deltas, ended = await complete(thread_model, ask(**{**PARIS, "max_tokens": 4}))
    assert (ended.finish_reason, calls_of(deltas)) == ("length", [])
    # An answer begun elsewhere may still call.
    _, deltas, ended = await complete(thread_model, ask(**PARIS), Prefix("I will look it up.\n", tokens=6))
    assert (ended.finish_reason == "tool_calls") == bool(calls_of(deltas))
    text, _, ended = await complete(
        thread_model, Request(CALLED[:3], "m", {"temperature": 0, "max_tokens": 16})
    )
    assert ("sunny" in text, ended.finish_reason) == (True, "stop")  # results of calls are read


async def test_a_plain_answer_stays_text_and_is_what_it_is_with_no_call_allowed(thread_model):
    hello = {"content": "Hello!", "max_tokens": 8}
    text, deltas, ended = await complete(thread_model, ask(**hello, tools=[WEATHER]))
    assert text
    assert {delta.kind for delta in deltas} == {DeltaKind.TEXT}
    assert ended.finish_reason in ("stop", "length")
    spell = thread_model._worker.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    plain, _, _ = await complete(thread_model, ask(**hello))
    none, _, _ = await complete(thread_model, ask(**hello, tools=[WEATHER], tool_choice="none"))
    assert none == plain


async def test_a_token_that_says_more_than_the_opening_is_cut_there(thread_model, monkeypatch):
    """The model is made to write the marker's end and what follows it as one token."""
    model = thread_model._worker.model
    beyond = model.index.beginning_with(b">")[0]
    written = [*model.tokenize("Well. <tool_call", special=False), beyond]
    assert model.piece(beyond) != b">"
    sample = Sampler.sample

    def forced(self):
        return sample(self) if self.constrained or not written else written.pop(0)

    monkeypatch.setattr(Sampler, "sample", forced)
    text, deltas, ended = await complete(thread_model, ask(**FIVE))
    ((name, arguments),) = calls_of(deltas)
    assert (text, name, set(json.loads(arguments))) == ("Well. ", "add", {"a", "b"})
    assert ended.finish_reason == "tool_calls"
    assert b"".join(map(model.piece, model._cached)).count(b'<tool_call>\n{"name": "add"') == 1


async def test_a_required_call_keeps_to_bans_and_penalties_and_no_stop_string_ends_it(thread_model):
    (three,) = thread_model._worker.model.tokenize("3", special=False)
    more = {"logit_bias": {str(three): -100}, "frequency_penalty": 1.0, "stop": ['"a"', "add"]}
    text, deltas, ended = await complete(thread_model, ask(**FIVE, tool_choice="required", **more))
    ((name, arguments),) = calls_of(deltas)
    assert (text, name, set(json.loads(arguments))) == ("", "add", {"a", "b"})
    assert ("3" in arguments, ended.finish_reason) == (False, "tool_calls")
    assert sum(delta.tokens for delta in deltas) == ended.usage.completion_tokens
    for limit in (3, 12):  # in the middle of a call
        limited = {**FIVE, "max_tokens": limit}
        _, deltas, ended = await complete(thread_model, ask(**limited, tool_choice="required", **more))
        assert (ended.finish_reason, ended.usage.completion_tokens) == ("length", limit)
        assert all(arguments.startswith(partial) for _, partial in calls_of(deltas))
    text, _, ended = await complete(thread_model, ask("Hello!", tools=[ADD], stop="o"))
    assert (ended.finish_reason, "o" in text) == ("stop", False)
    async with thread_model.open(ask(**{**FIVE, "max_tokens": None}, tool_choice="required")) as attempt:
        (delta, *_) = await next_event(attempt)
        await attempt.aclose()
    assert (delta.kind, attempt.usage.completion_tokens < 20) == (DeltaKind.TOOL, True)


async def test_tools_beside_structured_output(thread_model):
    """Either a whole document or a whole call, whichever the model prefers; never a mixture."""
    schema = {"type": "object", "properties": {"x": SMALL}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (mark,) = thread_model._worker.model.tokenize("<", special=False)
    for bias, reason in ((50, "tool_calls"), (-100, "stop")):
        request = ask(**FIVE, response_format=form, logit_bias={str(mark): bias})
        text, deltas, ended = await complete(thread_model, request)
        assert ended.finish_reason == reason
        assert [set(json.loads(one)) for _, one in calls_of(deltas)] == [{"a", "b"}] * (bias > 0)
        assert text == "" if bias > 0 else list(json.loads(text)) == ["x"]


# Templates that know tools; small ones of our own, because the model at hand has none.

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


def written(model):
    return b"".join(map(model.piece, model._cached)).decode().rpartition("assistant")[2]


@pytest.mark.parametrize(("template", "form"), [(MISTRAL, "mistral"), (LLAMA, "llama")])
async def test_a_template_that_knows_tools_decides_how_calls_are_written(
    thread_model, template, form, monkeypatch
):
    model = thread_model._worker.model
    renderer = Renderer(model, template)
    monkeypatch.setattr(thread_model, "_renderer", renderer)
    _, deltas, ended = await complete(
        thread_model, ask(**{**PARIS, "max_tokens": 30}, tool_choice="required")
    )
    cut_off = ended.finish_reason == "length"
    calls = calls_of(deltas)
    assert calls
    assert all(json.loads(arguments) for _, arguments in calls[: -1 if cut_off else None])
    assert not cut_off or form != "llama"  # others may call again
    assert (renderer.form.name, renderer.form.open in written(model)) == (form, True)
    text, _, _ = await complete(thread_model, ask(**{**PARIS, "max_tokens": 6}))
    assert renderer.form.open not in text


async def test_a_template_that_refuses_the_history_or_only_mentions_tools_gets_text(
    thread_model, monkeypatch
):
    model = thread_model._worker.model
    monkeypatch.setattr(thread_model, "_renderer", Renderer(model, LLAMA))
    history = [CALLED[0], {**CALLED[1], "tool_calls": [CALL] * 2}, CALLED[2]]
    _, deltas, _ = await complete(thread_model, ask(**FIVE, history=history, tool_choice="required"))
    assert json.loads(calls_of(deltas)[0][1])
    assert written(model).startswith("<tool_call>")
    mentions = "{% if tools %}{# <tool_call> arguments #}{% endif %}{{ messages[0].content }}"
    assert Renderer(model, mentions).form.name == "generic"


async def test_what_the_local_model_cannot_keep_to_goes_to_the_server_or_is_refused_by_name(thread_model):
    unique = tool("f", x={"type": "array", "items": {}, "uniqueItems": True})
    given = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 60}
    async with AsyncDisco(local=thread_model, policy="private") as client:
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
            await client.chat.completions.create(**given, tools=[unique])
        assert caught.value.param == "tools"
    with weather_server() as server:
        more = {"policy": Preset(dispatch={"policy": "device_only"}), "base_url": server.base_url}
        async with AsyncDisco(local=thread_model, api_key="key", **more) as client:
            answer = await client.chat.completions.create(**given, tools=[unique])
        assert answer.choices[0].message.tool_calls[0].id == "call_1"
        assert [one.endpoint for one in answer.route.attempts] == ["device", "server"]
        assert server.bodies[0]["tools"] == [unique]
