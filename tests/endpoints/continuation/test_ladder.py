"""The requests that continue an answer, what is rendered for them, and the probe for whether a server continues."""

from __future__ import annotations

import contextlib
import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import mostly
from scripted_server import answer, chunk, scripted_server, sse, stream
from servers import smollm2_gguf

from disco.endpoints.continuation import CannotContinueError, Continuation, ProbeVerdict, probe
from disco.endpoints.continuation.methods import chat_call, completions_call, continue_call, used_up
from disco.endpoints.continuation.probe import judge
from disco.endpoints.continuation.rendering import render_prefix
from disco.endpoints.openai_api.api_answer import read_whole
from disco.errors import ConfigurationError
from disco.request import Prefix, Request

MESSAGES = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEAD = "<|im_start|>assistant\n"
COMPLETIONS = Continuation("completions", template=CHATML)
FLAGS = Continuation("flags")
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def ask(**params) -> Request:
    return Request(messages=MESSAGES, model="m", params=params)


def test_settings_that_contradict_each_other_are_refused_and_unknown_means_no():
    for says, method, template in (
        ("flags", "flag", None),  # the nearest
        ("needs `template`", "completions", None),
        ("uses no `template`", "flags", CHATML),
        ("uses no `template`", "instructed", CHATML),
    ):
        with pytest.raises(ConfigurationError, match=says):
            Continuation(method, template=template)
    for method in ("none", "auto"):
        with pytest.raises(CannotContinueError):
            continue_call(ask(), Prefix("Well"), Continuation(method))


FIELDS = {"flags": {"continue_final_message": True, "add_generation_prompt": False}}


@pytest.mark.parametrize("method", ["flags", "prefix", "trailing"])
def test_chat_methods(method):
    call = continue_call(ask(max_completion_tokens=10), Prefix("Well then", tokens=2), Continuation(method))
    assert call.path == "/chat/completions"
    told = {"role": "assistant", "content": "Well then", **({"prefix": True} if method == "prefix" else {})}
    limit, fields = {"max_completion_tokens": 8}, FIELDS.get(method, {})
    assert call.body == {"messages": [*MESSAGES, told], "model": "m", **limit, **fields, **STREAMED}
    assert MESSAGES == [{"role": "user", "content": "Hi"}], "the caller's messages stay as they were"
    # An empty prefix is never sent: the request is only made a stream.
    request = ask(a=1, stream_options={"x": True})
    streamed = {"stream": True, "stream_options": {"x": True, "include_usage": True}}
    nothing = continue_call(request, Prefix("Well", withheld="Well"), Continuation(method))
    for call in (nothing, chat_call(request)):
        assert call.body == {"messages": MESSAGES, "model": "m", "a": 1, **streamed}


def test_whether_a_server_echoes_is_configured_or_its_methods_specification():
    for method, params, by_its_specification in (
        ("flags", {}, False),
        ("completions", {}, False),
        ("prefix", {}, None),
        ("trailing", {}, None),
        ("flags", {"echo": True}, True),  # the caller asks for it
    ):
        completes = method == "completions"
        make, template = (completions_call, CHATML) if completes else (continue_call, None)
        for told, echoes in ((None, by_its_specification), (True, True), (False, False)):
            continuation = Continuation(method, template=template, echoes=told)
            assert make(ask(**params), Prefix("Well then"), continuation).echoes is echoes


def test_the_limit_is_lowered_by_what_is_written_and_raised_by_what_must_be_written_again():
    prefix = Prefix("Well then", tokens=40, withheld=" then")
    assert continue_call(ask(max_tokens=100), prefix, FLAGS).body["max_tokens"] == 60 + 2
    assert completions_call(ask(), Prefix("Well"), COMPLETIONS).body["max_tokens"] is None
    cases = [({"max_tokens": 3}, 3), ({"max_tokens": 4}, 3), ({}, 3), ({"max_tokens": 0}, 0)]
    ends = [used_up(ask(**limit), Prefix("a" * bool(tokens), tokens=tokens)) for limit, tokens in cases]
    assert ends == [True, False, False, False]


def test_completions_maps_parameters_and_drops_the_rest():
    kept = {"temperature": 0.5, "seed": 1, "top_k": 5}
    dropped = {"tools": [], "logprobs": True, "n": 1}
    request = ask(max_completion_tokens=10, stop="END", **kept, **dropped)
    call = completions_call(request, Prefix("Well", tokens=4), COMPLETIONS)
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell"
    limits = {"max_tokens": 6, "stop": ["END", "<|im_end|>"]}
    assert call.path == "/completions"
    assert call.body == {"model": "m", "prompt": prompt, **limits, **kept, **STREAMED}


def test_completions_render_with_the_requests_tools_and_variables():
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}{{ bos_token }}" + CHATML
    none_of_its_own = {"messages": [], "bos_token": "<x>", "add_generation_prompt": False}
    request = ask(tools=[{"a": "<"}], chat_template_kwargs={"mood": "gay", **none_of_its_own})
    call = completions_call(request, Prefix("Well"), Continuation("completions", template=template))
    assert call.body["prompt"].startswith('[{"a": "<"}]gay<|im_start|>user')
    of_a_file = Continuation("completions", template=str(smollm2_gguf()))
    prompt = completions_call(ask(), Prefix("Well"), of_a_file).body["prompt"]
    assert prompt.endswith(f"Hi<|im_end|>\n{HEAD}Well")


def test_prompt_rendered_by_the_server():
    continuation = Continuation("completions", template="apply-template")
    with pytest.raises(CannotContinueError, match="control token"):
        completions_call(ask(), Prefix("A <|im_start|>"), continuation, head=HEAD)
    with pytest.raises(CannotContinueError, match="no chat template"):
        completions_call(ask(), Prefix("Well"), continuation)


CONTENT = "{{ m['content'] }}"
TRIMMING = CHATML.replace(CONTENT, "{{ m['content'] | trim }}")
# Past turns are rendered with an empty thought, new ones without: the header differs.
THINKING = CHATML.replace(CONTENT, "{% if m['role'] == 'assistant' %}<think></think>{% endif %}" + CONTENT)
REWRITING = THINKING.replace(CONTENT, "{{ m['content'] | upper | trim }}")
# What transformers writes into templates for training.
MARKED = CHATML.replace(CONTENT, "{% generation %}" + CONTENT + "{% endgeneration %}")


def test_the_prompt_ends_with_what_was_sent():
    for template, sent, end in (
        (CHATML, "Well ", HEAD + "Well "),
        (TRIMMING, " Well ", HEAD + " Well "),  # it trims past turns only
        (THINKING, "Well", HEAD + "<think></think>Well"),  # rendered as a past turn
        (MARKED, "Well", HEAD + "Well"),
    ):
        rendered = render_prefix(template, MESSAGES, sent)
        assert (rendered.text[-len(end) :], rendered.end_of_turn) == (end, "<|im_end|>")


def test_what_cannot_be_rendered_is_refused_without_quoting_it():
    for template, sent, says in (
        (REWRITING, "Well", "trims or rewrites"),
        (CHATML, "Write <|im_end|> to stop", "control token"),
        ("{% for %}", "Well", "not valid Jinja .line 1"),
        ("{{ raise_exception(messages[0].content) }}", "Well", "refused the conversation"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "Well", "SecurityError"),
    ):
        with pytest.raises(CannotContinueError, match=says) as caught:
            render_prefix(template, MESSAGES, sent)
        assert "Hi" not in str(caught.value)


@given(st.text(min_size=1, max_size=40), st.sampled_from([CHATML, TRIMMING, THINKING, REWRITING, MARKED]))
def test_a_rendered_prompt_ends_with_the_sent_text_or_is_refused(sent, template):
    try:
        rendered = render_prefix(template, MESSAGES, sent)
    except CannotContinueError:
        return
    assert rendered.text.endswith(sent)
    assert rendered.text.count("<|im_start|>") == 2


SENT = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
AUTO = Continuation("auto")


@contextlib.asynccontextmanager
async def probed(*scripts):
    """The verdict on a server, and the server."""
    async with (
        scripted_server(*scripts) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client,
    ):
        yield await probe(client, "m", read_whole), server


def said(text: str):
    return stream(sse(chunk(text), chunk(finish="length")))


def test_judgement():
    replies = {"continues": (", 12, 13", ",12,13"), "echoes": (SENT + ", 12",)}
    replies["restarts"] = ("1, 2, 3, 4", "12, 13", "Tally sheet: 1, 2", SENT + "\n\nSure!", "Sure!", "")
    for outcome, texts in replies.items():
        assert [judge(text) for text in texts] == [outcome] * len(texts)


def test_a_verdict_is_kept_as_json_and_applied():
    verdict = ProbeVerdict("prefix", {"flags": "refuses", "prefix": "continues"})
    assert ProbeVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
    assert verdict.applied_to(AUTO) == Continuation("prefix", echoes=False)
    assert ProbeVerdict("prefix", {"prefix": "echoes"}).applied_to(AUTO).known_to_echo
    assert ProbeVerdict().applied_to(AUTO) == Continuation("instructed")
    assert ProbeVerdict().applied_to(Continuation("auto", instructed=False)) == Continuation()


@pytest.mark.real
@pytest.mark.anyio
@mostly("trio")
async def test_first_rung_that_works_is_taken_and_no_further_one_asked(anyio_backend):
    refused = answer(b'{"error": {"message": "continue_final_message?"}}', status="400 X")
    async with probed(refused, answer(b"{}", status="404 X"), said(", 12, 13")) as (verdict, server):
        refuses = {"flags": "refuses", "completions": "refuses"}
        assert verdict == ProbeVerdict("prefix", {**refuses, "prefix": "continues"})
        chat = "/v1/chat/completions"
        assert [line.split()[1] for line, _, _ in server.requests] == [chat, "/apply-template", chat]
        assert all(body.get("max_tokens", 8) == 8 for _, _, body in server.requests)


@pytest.mark.real
@pytest.mark.anyio
@mostly("asyncio")
async def test_an_answer_in_parts_or_in_one_document_is_read_as_any_other(anyio_backend):
    choice = {"index": 0, "delta": {"content": [{"type": "text", "text": ", 12"}]}}
    whole = {"choices": [{"index": 0, "message": {"content": ", 12"}, "finish_reason": "length"}]}
    for script in (stream(sse({"choices": [choice]})), answer(json.dumps(whole).encode())):
        async with probed(script) as (verdict, _):
            assert verdict == ProbeVerdict("flags", {"flags": "continues"})


@pytest.mark.real
@pytest.mark.anyio
@mostly("asyncio")
async def test_server_that_renders(anyio_backend):
    rendered = answer(b'{"prompt": "<user>Count<assistant>"}')
    continues = stream(sse({"choices": [{"index": 0, "text": ", 12", "finish_reason": None}]}))
    async with probed(said("Sure!"), rendered, continues) as (verdict, server):
        assert (verdict.method, verdict.applied_to(AUTO).server_renders) == ("completions", True)
        assert server.requests[2][2]["prompt"] == "<user>Count<assistant>" + SENT
