"""What a model's own file can do to the application that loads it: a chat template that never ends."""

import anyio
import pytest
from loops import by_turns, mostly
from promptly import promptly

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

pytestmark = pytest.mark.real

pytest.importorskip("llama_cpp")

ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
ASKED = Request([{"role": "user", "content": "Hello"}], "smollm2-135m", {"max_tokens": 2})


def endpoint(template, **options):
    return LlamaCppEndpoint(context_tokens=512, threads=1, chat_template=template, **options)


async def collect(attempt):
    return [event async for event in attempt]


@pytest.mark.parametrize(("isolation", "anyio_backend"), by_turns(["thread", "process"]))
@pytest.mark.anyio
async def test_a_looping_template_is_stopped_with_its_attempt(isolation):
    made = endpoint(ENDLESS, isolation=isolation)
    try:
        await made.warm_up()
        attempt = made.open(ASKED)
        with anyio.move_on_after(0.5) as scope:
            await collect(attempt)
        assert scope.cancelled_caught
        with promptly():
            await attempt.aclose()
    finally:
        with promptly():
            await made.aclose()


@mostly("trio")
@pytest.mark.anyio
async def test_a_looping_template_is_stopped_with_its_endpoint():
    made = endpoint(ENDLESS)
    await made.warm_up()
    async with anyio.create_task_group() as group:

        async def ask():
            with pytest.raises(EndpointFailure):
                await collect(made.open(ASKED))

        group.start_soon(ask)
        await anyio.sleep(0.3)
        with promptly():
            await made.aclose()


BOMBS = {
    "calls itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "doubles": "{% set ns = namespace(x='12345678') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubles a block": (
        "{% set ns = namespace(x='12345678') %}{% for i in range(99) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"
    ),
    "multiplies": "{{ 'a' * 10000000000 }}",
    "pads": "{{ 'a'|center(10000000000) }}",
    "pads by a method": "{{ 'a'.ljust(10000000000) }}",
    "formats": "{{ '%9999999999d' % 1 }}",
    "raises to a power": "{{ 99 ** 9999999 }}",
    "joins": "{{ range(100000)|map('string')|join('x' * 100000) }}",
}


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
def test_a_template_that_wants_too_much_memory_is_refused(template):
    from disco.endpoints.chat_template import ChatTemplate, TemplateLimitError

    made = ChatTemplate(template, eos_text="", bos_text="")
    with pytest.raises(TemplateLimitError):
        made.render([{"role": "user", "content": "x"}])


def test_a_template_that_takes_too_long_is_refused(monkeypatch):
    from disco.endpoints import chat_template

    monkeypatch.setattr(chat_template, "MAX_CPU_S", 0.05)
    deep = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    nested = "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    for template in (ENDLESS, deep, nested + "{{ ns.x }}", nested + "{{ ns.x|tojson }}"):
        made = chat_template.ChatTemplate(template, eos_text="", bos_text="")
        with pytest.raises(chat_template.TemplateLimitError, match="takes more than"):
            made.render([{"role": "user", "content": "x"}])


@mostly("asyncio")
@pytest.mark.anyio
async def test_the_caller_hears_what_to_do_about_it():
    made = endpoint("{{ 'a' * 10000000000 }}")
    try:
        with pytest.raises(EndpointFailure) as caught:
            await collect(made.open(ASKED))
        assert caught.value.kind is FailureKind.UNSERVED
        assert "chat_template=" in str(caught.value.error)
    finally:
        await made.aclose()


def test_templates_render_as_llama_cpp_renders_them():
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    from disco.endpoints.chat_template import ChatTemplate

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
    messages = [
        {"role": role, "content": f" hello <{role}> "} for role in ("system", "user", "assistant") * 3
    ]
    tools = [
        {"type": "function", "function": {"name": "f", "description": "<&>ü", "parameters": {"a": [1, {}]}}}
    ]
    theirs = Jinja2ChatFormatter(template=template, eos_token="</s>", bos_token="<s>")
    ours = ChatTemplate(template, eos_text="</s>", bos_text="<s>")
    for given in (None, tools):
        assert ours.render(messages, given) == theirs(messages=messages, tools=given).prompt
