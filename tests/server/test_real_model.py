"""The whole way with the real model: the plain OpenAI client on one side, llama.cpp on the other."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from disco import Disco

pytestmark = pytest.mark.real

CHATS = "/v1/chat/completions"
SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "max_tokens": 12, "temperature": 0.9, "seed": 11}
HELLO = {"model": "m", "input": "Say hello.", "max_output_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def plain(local):
    with openai.OpenAI(base_url=local.base_url, api_key="any", max_retries=0) as client:
        yield client


def test_every_way_in_gives_the_same_text_for_the_same_seed(local, plain):
    """In the SDK's own types, and in events that look as the real API sends them."""
    create = plain.chat.completions.create
    answer = create(**ASKED)
    assert isinstance(answer, ChatCompletion)
    assert (answer.usage.completion_tokens, answer._request_id[:4]) == (12, "req_")
    *chunks, last = create(**ASKED, stream=True, stream_options={"include_usage": True})
    assert len({(c.id, c.model, c.created) for c in [*chunks, last]}) == 1
    assert (chunks[-1].choices[0].finish_reason, last.usage.completion_tokens) == ("length", 12)
    with plain.chat.completions.stream(**ASKED) as stream:
        events = list(stream)
    assert (events[0].type, events[-1].type) == ("chunk", "content.done")

    raw = local.ask(CHATS, {**ASKED, "stream": True})
    fixed = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    assert fixed.items() <= raw.headers.items()
    assert (raw.headers["x-request-id"][:4], "server" in raw.headers) == ("req_", False)
    begin, *parts, end = f"\n\n{raw.body.decode()}".split("\n\ndata: ")
    assert (begin, end) == ("", "[DONE]\n\n")
    said = list(map(json.loads, parts))
    assert said[0]["choices"][0]["delta"]["role"] == "assistant"
    assert said[-1]["choices"][0]["finish_reason"] == "length"
    assert {c["object"] for c in said} == {"chat.completion.chunk"}

    with Disco(local="smollm2-135m", policy="private") as client:
        here = client.chat.completions.create(**ASKED)
    texts = {whole.choices[0].message.content for whole in (answer, here)}
    texts |= {events[-1].content, "".join(c.choices[0].delta.content or "" for c in chunks)}
    texts.add("".join(c["choices"][0]["delta"].get("content") or "" for c in said))
    assert len(texts) == 1
    other = create(**{**ASKED, "seed": 12}).choices[0].message.content
    assert {other} != texts, "with the same text for every seed, this test says nothing"


def test_the_responses_api_answers_with_and_without_events(local, plain):
    answer = plain.responses.create(**HELLO)
    assert isinstance(answer, Response)
    assert answer.output_text
    events = list(plain.responses.create(**HELLO, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    for event in local.ask("/v1/responses", {**HELLO, "stream": True}).body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_ten_megabytes_go_through(local):
    """It is longer than the model's context, and the model says so; the server takes it."""
    words = "sea " * (10 * 2**20 // 4)
    answer = local.ask(CHATS, {"model": "m", "messages": [{"role": "user", "content": words}]})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
