"""The requests that continue an answer, and where their templates come from."""

from __future__ import annotations

import struct

import pytest
from servers import smollm2_gguf

from disco.endpoints.continuation import LADDER, CannotContinueError, Continuation
from disco.endpoints.continuation.methods import chat_call, completions_call, continue_call, used_up
from disco.endpoints.gguf_header import read_chat_template
from disco.errors import ConfigurationError, ModelFileError
from disco.request import Prefix, Request

MESSAGES = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COMPLETIONS = Continuation("completions", template=CHATML)
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def ask(**params) -> Request:
    return Request(messages=MESSAGES, model="m", params=params)


def test_the_ladder_holds_every_method():
    assert {"none", "auto", *LADDER} == {"none", "auto", "flags", "completions", "prefix", "trailing"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "flag"}, "flags"),  # the nearest
        ({"method": "completions"}, "needs `template`"),
        ({"method": "flags", "template": CHATML}, "uses no `template`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given, says):
    with pytest.raises(ConfigurationError, match=says):
        Continuation(**given)


def test_plain_request_is_only_made_a_stream():
    call = chat_call(Request(MESSAGES, "m", {"a": 1, "stream_options": {"x": True}}))
    options = {"x": True, "include_usage": True}
    assert call.body == {
        "messages": MESSAGES,
        "model": "m",
        "a": 1,
        "stream": True,
        "stream_options": options,
    }


@pytest.mark.parametrize(
    ("method", "message", "fields"),
    [
        ("flags", {}, {"continue_final_message": True, "add_generation_prompt": False}),
        ("prefix", {"prefix": True}, {}),
        ("trailing", {}, {}),
    ],
)
def test_chat_methods(method, message, fields):
    call = continue_call(ask(max_completion_tokens=10), Prefix("Well then", tokens=2), Continuation(method))
    assert call.path == "/chat/completions"
    told = {"role": "assistant", "content": "Well then", **message}
    limit = {"max_completion_tokens": 8}
    assert call.body == {"messages": [*MESSAGES, told], "model": "m", **limit, **fields, **STREAMED}
    assert MESSAGES == [{"role": "user", "content": "Hi"}], "the caller's messages stay as they were"
    # An empty prefix is never sent.
    call = continue_call(ask(), Prefix("Well", withheld="Well"), Continuation(method))
    assert call.body == {"messages": MESSAGES, "model": "m", **STREAMED}


@pytest.mark.parametrize(
    ("continuation", "echoes"),
    [
        (Continuation("flags"), False),
        (COMPLETIONS, False),
        (Continuation("prefix"), None),
        (Continuation("trailing"), None),
        (Continuation("flags", echoes=True), True),
        (Continuation("completions", template=CHATML, echoes=True), True),
        (Continuation("prefix", echoes=True), True),
        (Continuation("trailing", echoes=False), False),
    ],
)
def test_whether_a_server_echoes_is_configured_or_its_methods_specification(continuation, echoes):
    make = completions_call if continuation.method == "completions" else continue_call
    assert make(ask(), Prefix("Well then"), continuation).echoes is echoes


def test_an_echo_that_the_caller_asks_for_is_expected():
    prefix = Prefix("Well then")
    assert continue_call(ask(echo=True), prefix, Continuation("flags")).echoes is True
    assert continue_call(ask(echo=True), prefix, Continuation("flags", echoes=False)).echoes is False


@pytest.mark.parametrize("method", ["none", "auto"])
def test_unknown_means_no(method):
    with pytest.raises(CannotContinueError):
        continue_call(ask(), Prefix("Well"), Continuation(method))


def test_limit_is_lowered_by_what_is_written_and_raised_by_what_must_be_written_again():
    prefix = Prefix("Well then", tokens=40, withheld=" then")
    assert continue_call(ask(max_tokens=100), prefix, Continuation("flags")).body["max_tokens"] == 60 + 2


@pytest.mark.parametrize(
    ("limit", "tokens", "is_used_up"),
    [
        ({"max_tokens": 3}, 3, True),
        ({"max_tokens": 4}, 3, False),
        ({}, 3, False),
        ({"max_tokens": 0}, 0, False),
    ],
)
def test_used_up(limit, tokens, is_used_up):
    assert used_up(ask(**limit), Prefix("a" * bool(tokens), tokens=tokens)) is is_used_up


def test_completions_maps_parameters_and_drops_the_rest():
    kept = {"temperature": 0.5, "seed": 1, "top_k": 5}
    dropped = {"tools": [], "logprobs": True, "n": 1}
    request = ask(max_completion_tokens=10, stop="END", **kept, **dropped)
    call = completions_call(request, Prefix("Well", tokens=4), COMPLETIONS)
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell"
    limits = {"max_tokens": 6, "stop": ["END", "<|im_end|>"]}
    assert call.path == "/completions"
    assert call.body == {"model": "m", "prompt": prompt, **limits, **kept, **STREAMED}


def test_completions_without_limit_say_so():
    assert completions_call(ask(), Prefix("Well"), COMPLETIONS).body["max_tokens"] is None


def test_completions_render_with_the_requests_tools_and_variables():
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}" + CHATML
    request = ask(tools=[{"a": "<"}], chat_template_kwargs={"mood": "gay"})
    call = completions_call(request, Prefix("Well"), Continuation("completions", template=template))
    assert call.body["prompt"].startswith('[{"a": "<"}]gay<|im_start|>user')


def test_prompt_rendered_by_the_server():
    continuation = Continuation("completions", template="apply-template")
    head = "<|im_start|>assistant\n"
    assert completions_call(ask(), Prefix("Well"), continuation, head=head).body["prompt"] == head + "Well"
    with pytest.raises(CannotContinueError, match="control token"):
        completions_call(ask(), Prefix("A <|im_start|>"), continuation, head=head)
    with pytest.raises(CannotContinueError, match="no chat template"):
        completions_call(ask(), Prefix("Well"), continuation)


# ---------------------------------------------------------------------- templates in model files


def test_template_of_a_real_model():
    file = str(smollm2_gguf())
    template = read_chat_template(file)
    assert "<|im_start|>" in template
    assert Continuation("completions", template=file).template_source() == template


HEAD = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a GGUF"),
        (b"MZ" * 40, "not a GGUF"),
        (b"GGUF", "truncated|unknown type"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no chat template"),
        (HEAD + struct.pack("<Q", 1 << 60), "truncated|unknown type"),
        (HEAD + struct.pack("<Q1sI", 1, b"k", 77), "truncated|unknown type"),
        (None, "cannot be read"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path, data, says):
    path = tmp_path / "x.gguf"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelFileError, match=says):
        read_chat_template(str(path))
