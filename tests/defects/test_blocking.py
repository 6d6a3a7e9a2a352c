"""What a caller's schema or a model's own template can do to the application: never block it, nor eat its memory."""

from __future__ import annotations

import itertools
import time

import anyio
import pytest
from loops import by_turns
from promptly import promptly

from disco.endpoints import chat_template
from disco.endpoints.chat_template import ChatTemplate, TemplateLimitError
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

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
    pytest.importorskip("llama_cpp")
    pytest.importorskip("llguidance")
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
@pytest.mark.parametrize("model", ["thread_model", "process_model"])
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
@pytest.mark.parametrize(("isolation", "anyio_backend"), by_turns(["thread", "process"]))
@pytest.mark.anyio
async def test_a_looping_template_is_stopped_with_its_attempt_and_with_its_endpoint(isolation):
    bomb = "{% else %}{{ 'a' * 10000000000 }}{% endif %}"
    template = "{% if messages[0].content == 'Hi' %}" + ENDLESS + bomb
    made = LlamaCppEndpoint(context_tokens=512, threads=1, chat_template=template, isolation=isolation)
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
        with pytest.raises(EndpointFailure):
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
DEEP = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
NESTED = "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
def test_a_template_that_wants_too_much_memory_is_refused(template):
    with pytest.raises(TemplateLimitError):
        ChatTemplate(template, eos_text="", bos_text="").render(HI)


def test_a_template_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_CPU_S", 0.05)
    for template in (ENDLESS, DEEP, NESTED + "{{ ns.x }}", NESTED + "{{ ns.x|tojson }}"):
        with pytest.raises(TemplateLimitError, match="takes more than"):
            ChatTemplate(template, eos_text="", bos_text="").render(HI)


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
