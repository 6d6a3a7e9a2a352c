"""What is rendered for a server that continues an answer by `/completions`."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints import chat_template
from disco.endpoints.chat_template import ChatTemplate
from disco.endpoints.continuation import CannotContinueError
from disco.endpoints.continuation.rendering import render_prefix

MESSAGES = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTENT = "{{ m['content'] }}"
TRIMMING = CHATML.replace(CONTENT, "{{ m['content'] | trim }}")
# Past turns are rendered with an empty thought, new ones without: the header differs.
THINKING = CHATML.replace(CONTENT, "{% if m['role'] == 'assistant' %}<think></think>{% endif %}" + CONTENT)
REWRITING = THINKING.replace(CONTENT, "{{ m['content'] | upper | trim }}")
# What transformers writes into templates for training.
MARKED = CHATML.replace(CONTENT, "{% generation %}" + CONTENT + "{% endgeneration %}")


@pytest.mark.parametrize(
    ("template", "sent", "end"),
    [
        (CHATML, "Well ", "<|im_start|>assistant\nWell "),
        (TRIMMING, " Well ", "<|im_start|>assistant\n Well "),  # it trims past turns only
        (THINKING, "Well", "<|im_start|>assistant\n<think></think>Well"),  # rendered as a past turn
        (MARKED, "Well", "<|im_start|>assistant\nWell"),
    ],
)
def test_the_prompt_ends_with_what_was_sent(template, sent, end):
    rendered = render_prefix(template, MESSAGES, sent)
    assert rendered.text.endswith(end)
    assert rendered.end_of_turn == "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "sent", "says"),
    [
        (REWRITING, "Well", "trims or rewrites"),
        (CHATML, "Write <|im_end|> to stop", "control token"),
        ("{% for %}", "Well", "not valid Jinja .line 1"),
        ("{{ raise_exception(messages[0].content) }}", "Well", "refused the conversation"),
        ("{{ messages[9].content.x }}", "Well", "refused the conversation"),
        ("{{ 1 / 0 }}", "Well", "refused the conversation"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "Well", "SecurityError"),
        ("{{ 'a' * 10000000000 }}", "Well", "was stopped: it makes more than"),
    ],
)
def test_what_cannot_be_rendered_is_refused_without_quoting_it(template, sent, says):
    with pytest.raises(CannotContinueError, match=says) as caught:
        render_prefix(template, MESSAGES, sent)
    assert "Hi" not in str(caught.value)


def test_a_template_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_CPU_S", 0.05)
    endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    with pytest.raises(CannotContinueError, match="was stopped: it takes more than"):
        render_prefix(endless, MESSAGES, "Well")


def test_a_servers_template_renders_as_the_same_template_of_the_local_model():
    """JSON is not escaped for HTML, `{% generation %}` means nothing, unknown tools are none."""
    template = (
        "{{ bos_token }}{% if tools %}{{ tools | tojson }}{{ tools | tojson(indent=2) }}{% endif %}"
        "{{ tools is none }}{{ messages[0] | tojson }}" + MARKED
    )
    messages = [{"role": "user", "content": "a < b & 'c' > \u20ac"}]
    for tools in (None, [{"type": "function", "function": {"name": "f", "description": "<&>\u00fc"}}]):
        written = render_prefix(template, messages, "Well", bos_token="<s>", tools=tools).text
        # The seam lies where the local model's prompt ends.
        assert written == ChatTemplate(template, eos_text="", bos_text="<s>").render(messages, tools) + "Well"


def test_further_variables_reach_the_template_and_change_none_of_its_own():
    extra = {"thinking": True, "messages": [], "bos_token": "<x>", "add_generation_prompt": False}
    template = "{% if thinking %}<think>{% endif %}{{ bos_token }}" + CHATML
    text = render_prefix(template, MESSAGES, "Well", bos_token="<s>", extra=extra).text
    assert text == "<think><s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell"
    assert not render_prefix(template, MESSAGES, "Well").text.startswith("<s>")


def test_threads_may_render_with_one_template():
    """Each rendering has its own limits: the processor's time of one thread says nothing of another's."""
    ends = []

    def render() -> None:
        ends.extend(render_prefix(TRIMMING, MESSAGES, str(number)).text[-9:] for number in range(50))

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == sorted(4 * [f"assistant\n{number}"[-9:] for number in range(50)])


@given(
    sent=st.text(min_size=1, max_size=40),
    template=st.sampled_from([CHATML, TRIMMING, THINKING, REWRITING, MARKED]),
)
def test_a_rendered_prompt_ends_with_the_sent_text_or_is_refused(sent, template):
    try:
        rendered = render_prefix(template, MESSAGES, sent)
    except CannotContinueError:
        return
    assert rendered.text.endswith(sent)
    assert rendered.text.count("<|im_start|>") == 2
