"""What a caller's schema or a model's own template can do to the application: never block it, nor eat its memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time

import anyio
import pytest
from anyio import to_thread
from jinja2 import TemplateSyntaxError
from loops import by_turns
from promptly import promptly

from disco.endpoints import chat_template
from disco.endpoints.chat_template import ChatTemplate, TemplateLimitError
from disco.endpoints.continuation import methods
from disco.endpoints.continuation.methods import Continuation, rendered_call
from disco.endpoints.continuation.rendering import CannotContinueError, render_prefix
from disco.endpoints.gguf_header import GgufError, read_chat_template, read_header, read_tokens
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import EndpointFailure, FailureKind, ModelFileError
from disco.request import Prefix, Request

HI = [{"role": "user", "content": "Hi"}]
ASKED = Request(HI, "smollm2-135m", {"max_tokens": 2})

MANY = {"enum": [f"value number {i}" for i in range(100_000)]}
FAR = {"type": "integer", "minimum": -(10**4000), "maximum": 10**4000}


def required(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


def nested(depth, around):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


UNIONS = nested(30, lambda inner: {"allOf": [{"anyOf": [inner, inner]}, {"anyOf": [inner, inner]}]})
LENGTHS = {"maxLength": 800, "minLength": 300}
STEPS = {f"p{i}": {"type": "integer", "multipleOf": 99_991 - i} for i in range(100)}
DEAR = {
    "characters in enum": MANY,
    "characters": {"enum": ["x" * 1_000_000]},
    "optional properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}},
    "subschemas": UNIONS,
    "nested too deeply": nested(5_000, lambda inner: {"type": "array", "items": inner}),
    "minimum is beyond": {"type": "integer", "minimum": 10**4000},
    "maximum is beyond": {"type": "number", "maximum": -(10**4000)},
    # Each of these kept llguidance busy for a minute or more.
    "steps of multipleOf": required(**STEPS),
    "patterns and formats": {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(30)]},
    # And these come upon its own limits.
    "too much work": {"allOf": [{"enum": [f"s{i}" for i in range(5_000)]}] * 2},
    "patterns and lengths": {"type": "string", "pattern": "(ab|a|b){0,500}", **LENGTHS},
}
DATES = {f"at{i}": {"type": "string", "format": "date-time"} for i in range(20)}
FINE = [
    FAR,
    {"type": "number", "maximum": 1.7976931348623157e308, "minimum": 0},
    {"anyOf": [{"const": i} for i in range(5_000)]},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
    {"type": "string", "pattern": r"^[\w.+-]{1,64}@(?:[a-z0-9-]+\.){1,8}[a-z]{2,24}$"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**5},
    required(**{f"p{i}": {"type": "string", "maxLength": 1_000} for i in range(1_000)}),
    {"allOf": [{"properties": {name: one}} for name, one in DATES.items()]},
]


def test_a_dear_schema_is_refused_by_name_with_the_remedy_and_what_people_write_is_accepted():
    from disco.endpoints.llamacpp.constraints import accepted_schema
    from disco.endpoints.llamacpp.json_schema import SchemaError

    for what, schema in DEAR.items():
        began_at = time.thread_time()
        with pytest.raises(SchemaError, match=what) as caught:
            accepted_schema(schema)
        assert what == "nested too deeply" or "send this request to a server" in str(caught.value)
        assert time.thread_time() - began_at < 5.0, what
    began_at = time.thread_time()
    for schema in FINE:
        accepted_schema(schema)
    assert time.thread_time() - began_at < 10.0


async def collect(attempt):
    return [event async for event in attempt]


@pytest.mark.real
@pytest.mark.parametrize("model", ["thread_model", "engine_host"])
def test_neither_the_event_loop_nor_the_next_request_waits_for_a_schema(model, request):
    endpoint = request.getfixturevalue(model)
    ticks, kinds = [], set()

    def asking(schema):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return endpoint.open(Request(HI, "m", {"max_tokens": 4, "response_format": form}))

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await anyio.sleep(0.01)

    async def main():
        await collect(asking({"type": "null"}))  # what only the first schema needs
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(0.05)
            # The last one is accepted, and takes its time where the model is.
            for schema in (MANY, FAR, {"enum": ["x" * 200_000]}):
                with anyio.move_on_after(1.0):
                    try:
                        await collect(asking(schema))
                    except EndpointFailure as failure:
                        kinds.add(failure.kind)
            with promptly(10.0, 30.0):
                await collect(endpoint.open(ASKED))
            group.cancel_scope.cancel()

    anyio.run(main)
    assert kinds == {FailureKind.UNSERVED}
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 1.0


ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.real
@pytest.mark.parametrize(("kind", "anyio_backend"), by_turns([EngineEndpoint, HostEndpoint]))
@pytest.mark.anyio
async def test_a_looping_template_is_stopped_with_its_attempt_and_with_its_endpoint(kind):
    bomb = "{% else %}{{ 'a' * 10000000000 }}{% endif %}"
    template = "{% if messages[0].content == 'Hi' %}" + ENDLESS + bomb
    made = kind(context_tokens=512, threads=1, chat_template=template)
    await made.warm_up()
    with pytest.raises(EndpointFailure) as caught:
        await collect(made.open(Request([{"role": "user", "content": "Bomb"}], "m", {"max_tokens": 2})))
    assert caught.value.kind is FailureKind.UNSERVED
    assert "chat_template=" in str(caught.value.error)  # the caller hears what to do about it
    attempt = made.open(ASKED)
    with anyio.move_on_after(0.5) as scope:
        await collect(attempt)
    assert scope.cancelled_caught
    with promptly():
        await attempt.aclose()

    async def ask():
        with contextlib.suppress(EndpointFailure):  # or it ends without a word
            await collect(made.open(ASKED))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.3)
        with promptly():
            await made.aclose()


EIGHT, MANY_TIMES = "{% set ns = namespace(x='12345678') %}", "{% for i in range(99) %}"
TWICE = "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
BOMBS = {
    "calls itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "doubles": EIGHT + MANY_TIMES + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubles a block": EIGHT + MANY_TIMES + TWICE + "{% set ns.x = y %}{% endfor %}",
    "multiplies": "{{ 'a' * 10000000000 }}",
    "pads by a method": "{{ 'a'.ljust(10000000000) }}",
    "formats": "{{ '%9999999999d' % 1 }}",
    "raises to a power": "{{ 99 ** 9999999 }}",
    "joins": "{{ range(100000)|map('string')|join('x' * 100000) }}",
}
NESTED = "{% set ns = namespace(x=['a'], y=['a']) %}{% for i in range(99) %}"
NESTED += "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
TUPLES = NESTED.replace("[", "(").replace("]", ",)")
BY_FILTERS = NESTED.replace("[ns.x, ns.x]", "([ns.x] * 2)|batch(2)|list")
BOMBS |= {
    "writes lists in lists": NESTED + "{{ ns.x }}",
    "writes them as JSON": NESTED + "{{ ns.x|tojson }}",
    "compares them": NESTED + "{{ ns.x == ns.y }}",
    "looks for one in another": NESTED + "{{ ns.x in [ns.y] }}",
    "makes them a key": TUPLES + "{{ {ns.x: 1} }}",
    "nests them by filters": BY_FILTERS + "{{ ns.x == ns.y }}",
    "nests them as arguments": "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs == [] }}{% endif %}{% endmacro %}{{ f(60) }}",
    "ranges": "{% for i in range(10**9) %}{% endfor %}",
    "lists a text": "{{ ('a' * 10000000)|list|length }}",
    "translates": "{{ ('a' * 100000).translate({97: 'b' * 100000})|length }}",
    "begins words": "{{ ('a ' * 5000000)|title }}",
}
DEEP = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
def test_a_template_that_wants_too_much_memory_is_refused(template):
    with pytest.raises(TemplateLimitError):
        ChatTemplate(template, eos_text="", bos_text="").render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "a" * 300_000,
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{% for i in i %}" * 30 + "{% endfor %}" * 30,
    ],
    ids=["long", "nested expression", "nested loops"],
)
def test_a_template_that_cannot_be_compiled_is_no_template(source):
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate(source, eos_text="", bos_text="")


@pytest.mark.parametrize("name", ["wordwrap", "urlize", "striptags", "pprint", "xmlattr"])
def test_filters_that_take_minutes_for_one_text_are_not_there(name):
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate("{{ messages[0].content|" + name + " }}", eos_text="", bos_text="")


def test_a_long_conversation_is_no_reason_to_stop_a_template():
    template = "{% for m in messages %}{{ m.get('content').split('</think>')[-1]|trim }}{% endfor %}"
    template += "{{ messages|length }}"
    messages = [{"role": "user", "content": "a" * 4_000_000}] * 3
    assert len(ChatTemplate(template, eos_text="", bos_text="").render(messages)) == 12_000_001


def test_a_template_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_CPU_S", 0.05)
    for template in (ENDLESS, DEEP):
        with pytest.raises(TemplateLimitError, match="takes more than"):
            ChatTemplate(template, eos_text="", bos_text="").render(HI)


def test_the_renderings_for_one_request_may_together_take_as_long_as_one(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(chat_template.time, "thread_time", lambda: next(ticks))  # every 64 checkpoints
    monkeypatch.setattr(chat_template, "MAX_CPU_S", 10)
    template = "{% for i in range(400) %}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    for _ in range(2):
        assert ChatTemplate(template, eos_text="", bos_text="").render(HI) == "Hi"
    with pytest.raises(CannotContinueError, match="was stopped"):
        render_prefix(template, HI, "Well")
    monkeypatch.setattr(chat_template, "MAX_CPU_S", 20)
    assert render_prefix(template, HI, "Well").text == "HiWell"


@pytest.mark.anyio
async def test_the_prompt_that_continues_an_answer_is_rendered_beside_the_event_loop_and_stops_with_its_attempt(
    monkeypatch,
):
    begun, over = threading.Event(), threading.Event()

    def watched(*given, **named):
        begun.set()
        try:
            return render_prefix(*given, **named)
        finally:
            over.set()

    monkeypatch.setattr(methods, "render_prefix", watched)
    endless = Continuation("completions", template=ENDLESS)
    async with anyio.create_task_group() as group:
        group.start_soon(rendered_call, ASKED, Prefix("Well"), endless)
        while not begun.is_set():  # noqa: ASYNC110 - it is another thread's state
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    with promptly():
        assert await to_thread.run_sync(over.wait, 30)


def test_templates_render_as_llama_cpp_renders_them():
    theirs = pytest.importorskip("llama_cpp.llama_chat_format").Jinja2ChatFormatter
    template = (
        "{{ bos_token }}{%- for m in messages if m.role != 'system' %}\n"
        "  {% if loop.first %}first {% endif %}{% generation %}{{ m.role ~ ': ' + m['content'] | trim }}"
        "{% endgeneration %}{% if loop.index > 3 %}{% break %}{% endif %}\n"
        "{% endfor %}{% if tools %}{{ tools | tojson }} {{ tools | tojson(indent=2) }}{% endif %}"
        "{{ messages[-1].content.split('l')[0] * 2 }}{% set x = {'a': [1, none]} %}{{ x }}{{ '%s-%d' % ('a', 3) }}"
        "{% macro f(a) %}<{{ a }}|{{ caller() if caller else '' }}>{% endmacro %}{% call f(2 ** 5) %}in{% endcall %}"
        "{{ messages | map(attribute='role') | join(', ') }}{{ messages | length }}{{ missing }}"
        "{% if add_generation_prompt %}assistant{{ eos_token }}{% endif %}"
    )
    roles = ("system", "user", "assistant") * 3
    messages = [{"role": role, "content": f" hello <{role}> "} for role in roles]
    function = {"name": "f", "description": "<&>ü", "parameters": {"a": [1, {}]}}
    ours = ChatTemplate(template, eos_text="</s>", bos_text="<s>")
    made = theirs(template=template, eos_token="</s>", bos_token="<s>")
    for tools in (None, [{"type": "function", "function": function}]):
        assert ours.render(messages, tools) == made(messages=messages, tools=tools).prompt


@pytest.mark.anyio
async def test_a_template_is_rendered_outside_the_event_loop(monkeypatch):
    """That of a server's model, with which an answer is continued: a hostile one takes seconds until it is stopped."""
    threads, render = [], ChatTemplate.render

    def watched(self, *given, **more):
        threads.append(threading.get_ident())
        return render(self, *given, **more)

    monkeypatch.setattr(ChatTemplate, "render", watched)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    call = await rendered_call(ASKED, Prefix("Once"), Continuation("completions", template=template))
    assert call.body["prompt"] == "HiOnce"
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_in_the_place_of_a_model_is_not_waited_for(tmp_path):
    """A local server says where its model's file is, and may say anything."""
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    for read in (read_header, read_tokens):
        with pytest.raises(GgufError, match="not a regular file"):
            read(pipe)
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_chat_template(str(pipe))
