"""The requests that continue an answer, the templates behind them, and the probe's judgement."""

from __future__ import annotations

import json
import struct

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import answer, chunk, scripted_server, sse, stream
from servers import smollm2_gguf

from disco.endpoints.continuation import LADDER, CannotContinueError, Continuation, ProbeVerdict, probe
from disco.endpoints.continuation.methods import chat_call, completions_call, continue_call, used_up
from disco.endpoints.continuation.probe import judge
from disco.endpoints.continuation.rendering import render_prefix
from disco.endpoints.gguf_header import read_chat_template
from disco.errors import ConfigurationError, ModelFileError
from disco.request import Prefix, Request

MESSAGES = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("{{ m['content'] }}", "{{ m['content'] | trim }}")
# Past turns are rendered with an empty thought, new ones without: the header differs.
THINKING = CHATML.replace(
    "{{ m['content'] }}", "{% if m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}"
)
REWRITING = THINKING.replace("{{ m['content'] }}", "{{ m['content'] | upper | trim }}")


def ask(**params) -> Request:
    return Request(messages=MESSAGES, model="m", params=params)


class TestConfiguration:
    def test_unknown_method_names_the_nearest(self):
        with pytest.raises(ConfigurationError, match="flags"):
            Continuation("flag")

    def test_completions_needs_a_template(self):
        with pytest.raises(ConfigurationError, match="template"):
            Continuation("completions")

    def test_template_without_use_is_a_contradiction(self):
        with pytest.raises(ConfigurationError, match="template"):
            Continuation("flags", template=CHATML)


class TestCalls:
    def test_plain_request_is_only_made_a_stream(self):
        call = chat_call(Request(MESSAGES, "m", {"a": 1, "stream_options": {"x": True}}))
        assert call.body == {
            "messages": MESSAGES,
            "model": "m",
            "a": 1,
            "stream": True,
            "stream_options": {"x": True, "include_usage": True},
        }

    @pytest.mark.parametrize(
        ("method", "message", "fields"),
        [
            ("flags", {}, {"continue_final_message": True, "add_generation_prompt": False}),
            ("prefix", {"prefix": True}, {}),
            ("trailing", {}, {}),
        ],
    )
    def test_chat_methods(self, method, message, fields):
        call = continue_call(
            ask(max_completion_tokens=10), Prefix("Well then", tokens=2), Continuation(method)
        )
        assert call.path == "/chat/completions"
        assert call.body["messages"] == [*MESSAGES, {"role": "assistant", "content": "Well then", **message}]
        assert call.body["max_completion_tokens"] == 8
        assert fields.items() <= call.body.items()
        assert call.echoes is (False if method == "flags" else None)
        assert MESSAGES == [{"role": "user", "content": "Hi"}], "the caller's messages stay as they were"

    @pytest.mark.parametrize(
        ("continuation", "echoes"),
        [
            (Continuation("flags"), False),
            (Continuation("completions", template=CHATML), False),
            (Continuation("prefix"), None),
            (Continuation("trailing"), None),
            (Continuation("flags", echoes=True), True),
            (Continuation("completions", template=CHATML, echoes=True), True),
            (Continuation("prefix", echoes=True), True),
            (Continuation("trailing", echoes=False), False),
        ],
    )
    def test_whether_a_server_echoes_is_configured_or_its_methods_specification(self, continuation, echoes):
        make = completions_call if continuation.method == "completions" else continue_call
        assert make(ask(), Prefix("Well then"), continuation).echoes is echoes

    def test_an_echo_that_the_caller_asks_for_is_expected(self):
        prefix = Prefix("Well then")
        assert continue_call(ask(echo=True), prefix, Continuation("flags")).echoes is True
        assert continue_call(ask(echo=True), prefix, Continuation("flags", echoes=False)).echoes is False

    @pytest.mark.parametrize("method", ["flags", "prefix", "trailing"])
    def test_empty_prefix_is_never_sent(self, method):
        call = continue_call(ask(), Prefix("Well", withheld="Well"), Continuation(method))
        assert call.body["messages"] == MESSAGES
        assert "continue_final_message" not in call.body

    @pytest.mark.parametrize("method", ["none", "auto"])
    def test_unknown_means_no(self, method):
        with pytest.raises(CannotContinueError):
            continue_call(ask(), Prefix("Well"), Continuation(method))

    def test_limit_is_lowered_by_what_is_written_and_raised_by_what_must_be_written_again(self):
        call = continue_call(
            ask(max_tokens=100), Prefix("Well then", tokens=40, withheld=" then"), Continuation("flags")
        )
        assert call.body["max_tokens"] == 60 + 2

    def test_used_up(self):
        assert used_up(ask(max_tokens=3), Prefix("a", tokens=3))
        assert not used_up(ask(max_tokens=4), Prefix("a", tokens=3))
        assert not used_up(ask(), Prefix("a", tokens=3))
        assert not used_up(ask(max_tokens=0), Prefix())

    def test_completions_maps_parameters_and_drops_the_rest(self):
        request = ask(
            max_completion_tokens=10,
            temperature=0.5,
            seed=1,
            top_k=5,
            stop="END",
            tools=[],
            logprobs=True,
            n=1,
        )
        call = completions_call(
            request, Prefix("Well", tokens=4), Continuation("completions", template=CHATML)
        )
        assert call.path == "/completions"
        assert call.body == {
            "model": "m",
            "prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell",
            "max_tokens": 6,
            "temperature": 0.5,
            "seed": 1,
            "top_k": 5,
            "stop": ["END", "<|im_end|>"],
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def test_completions_without_limit_says_so(self):
        call = completions_call(ask(), Prefix("Well"), Continuation("completions", template=CHATML))
        assert call.body["max_tokens"] is None

    def test_prompt_rendered_by_the_server(self):
        continuation = Continuation("completions", template="apply-template")
        call = completions_call(ask(), Prefix("Well"), continuation, head="<|im_start|>assistant\n")
        assert call.body["prompt"] == "<|im_start|>assistant\nWell"


class TestTemplates:
    def test_prompt_ends_with_what_was_sent(self):
        rendered = render_prefix(CHATML, MESSAGES, "Well ")
        assert rendered.text.endswith("<|im_start|>assistant\nWell ")
        assert rendered.end_of_turn == "<|im_end|>"

    def test_trimming_template_cannot_hurt_where_the_turn_opens_alike(self):
        assert render_prefix(TRIMMING, MESSAGES, " Well ").text.endswith("assistant\n Well ")

    def test_thinking_template_is_rendered_as_a_past_turn(self):
        rendered = render_prefix(THINKING, MESSAGES, "Well")
        assert rendered.text.endswith("assistant\n<think></think>Well")
        assert rendered.end_of_turn == "<|im_end|>"

    def test_template_that_changes_the_answer_is_refused(self):
        with pytest.raises(CannotContinueError, match="trims or rewrites"):
            render_prefix(REWRITING, MESSAGES, "Well")

    def test_control_token_in_the_answer_is_refused(self):
        with pytest.raises(CannotContinueError, match="control token"):
            render_prefix(CHATML, MESSAGES, "Write <|im_end|> to stop")

    @pytest.mark.parametrize(
        "template", ["{% for %}", "{{ raise_exception('no') }}", "{{ messages[9].content.x }}"]
    )
    def test_broken_or_refusing_template_is_refused_without_quoting(self, template):
        with pytest.raises(CannotContinueError) as caught:
            render_prefix(template, MESSAGES, "Well")
        assert "Hi" not in str(caught.value)

    def test_template_cannot_reach_python(self):
        with pytest.raises(CannotContinueError):
            render_prefix("{{ ''.__class__.__mro__[1].__subclasses__() }}", MESSAGES, "Well")

    def test_bos_is_written_only_when_given(self):
        template = "{{ bos_token }}" + CHATML
        assert not render_prefix(template, MESSAGES, "W").text.startswith("<s>")
        assert render_prefix(template, MESSAGES, "W", bos_token="<s>").text.startswith("<s>")

    @given(
        sent=st.text(min_size=1, max_size=40),
        template=st.sampled_from([CHATML, TRIMMING, THINKING, REWRITING]),
    )
    def test_rendered_prompt_ends_with_the_sent_text_or_is_refused(self, sent, template):
        try:
            rendered = render_prefix(template, MESSAGES, sent)
        except CannotContinueError:
            return
        assert rendered.text.endswith(sent)
        assert rendered.text.count("<|im_start|>") == 2


class TestGGUF:
    def test_template_of_a_real_model(self):
        assert "<|im_start|>" in read_chat_template(str(smollm2_gguf()))
        continuation = Continuation("completions", template=str(smollm2_gguf()))
        assert continuation.template_source() == read_chat_template(str(smollm2_gguf()))

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"", "not a GGUF"),
            (b"MZ" * 40, "not a GGUF"),
            (b"GGUF", "truncated|unknown type"),
            (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version"),
            (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no chat template"),
            (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "truncated|unknown type"),
            (
                b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 77),
                "truncated|unknown type",
            ),
        ],
    )
    def test_other_files_are_named_for_what_they_are(self, tmp_path, data, says):
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=says):
            read_chat_template(str(path))

    def test_missing_file(self, tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read"):
            read_chat_template(str(tmp_path / "x.gguf"))


SENT = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"


class TestProbe:
    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            (", 12, 13", "continues"),
            (",12,13", "continues"),
            (SENT + ", 12", "echoes"),
            ("1, 2, 3, 4", "restarts"),
            ("12, 13, 14", "restarts"),
            ("Tally sheet: 1, 2", "restarts"),
            (SENT + "\n\nSure!", "restarts"),
            ("Sure!", "restarts"),
            ("", "restarts"),
        ],
    )
    def test_judgement(self, text, outcome):
        assert judge(text) == outcome

    @pytest.mark.anyio
    async def test_first_rung_that_works_is_taken_and_no_further_one_asked(self):
        refused = answer(b'{"error": {"message": "continue_final_message?"}}', status="400 X")
        missing = answer(b"{}", status="404 X")
        continues = stream(sse(chunk(", 12, 13"), chunk(finish="length")))
        async with (
            scripted_server(refused, missing, continues) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client,
        ):
            verdict = await probe(client, "m")
        assert verdict == ProbeVerdict(
            "prefix", {"flags": "refuses", "completions": "refuses", "prefix": "continues"}
        )
        assert [line.split()[1] for line, _, _ in server.requests] == [
            "/v1/chat/completions",
            "/apply-template",
            "/v1/chat/completions",
        ]
        assert all(body.get("max_tokens", 8) == 8 for _, _, body in server.requests)
        assert json.loads(json.dumps(verdict.to_dict())) == verdict.to_dict()
        assert ProbeVerdict.from_dict(verdict.to_dict()) == verdict
        assert verdict.applied_to(Continuation("auto")) == Continuation("prefix", echoes=False)
        assert ProbeVerdict("prefix", {"prefix": "echoes"}).applied_to(Continuation("auto")).known_to_echo

    @pytest.mark.anyio
    async def test_server_that_renders(self):
        restarts = stream(sse(chunk("Sure!"), chunk(finish="length")))
        rendered = answer(b'{"prompt": "<user>Count<assistant>"}')
        continues = stream(sse({"choices": [{"index": 0, "text": ", 12", "finish_reason": None}]}))
        async with (
            scripted_server(restarts, rendered, continues) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client,
        ):
            verdict = await probe(client, "m")
        assert verdict.method == "completions"
        assert verdict.applied_to(Continuation("auto")).server_renders
        assert server.requests[2][2]["prompt"] == "<user>Count<assistant>" + SENT

    @pytest.mark.anyio
    @pytest.mark.parametrize("status", ["401 X", "429 X", "503 X"])
    async def test_server_that_cannot_be_asked_now_gets_no_verdict(self, status):
        async with (
            scripted_server(answer(b"{}", status=status)) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client,
        ):
            verdict = await probe(client, "m")
        assert not verdict.conclusive
        assert verdict.method == "none"
        assert len(server.requests) == 1

    def test_the_ladder_holds_every_method(self):
        assert {"none", "auto", *LADDER} == {"none", "auto", "flags", "completions", "prefix", "trailing"}
