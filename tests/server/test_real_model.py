"""The whole way with the real model: the plain OpenAI client on one side, llama.cpp on the other."""

from __future__ import annotations

import json
import time

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from disco import Disco

pytestmark = pytest.mark.real

CHATS = "/v1/chat/completions"
SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "max_tokens": 12, "temperature": 0.9, "seed": 11}
LONG = {"model": "m", "messages": SEA, "max_tokens": 1500, "logit_bias": {"0": -100, "2": -100}}
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
    assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert raw.headers["cache-control"] == "no-cache"
    assert raw.headers["x-request-id"].startswith("req_")
    assert "server" not in raw.headers
    *parts, done, nothing = raw.body.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in parts)
    said = [json.loads(event.removeprefix("data: ")) for event in parts]
    assert said[0]["choices"][0]["delta"]["role"] == "assistant"
    assert said[-1]["choices"][0]["finish_reason"] == "length"
    assert {c["object"] for c in said} == {"chat.completion.chunk"}

    with Disco(local="smollm2-135m", policy="private") as client:
        here = client.chat.completions.create(**ASKED)
    texts = {whole.choices[0].message.content for whole in (answer, here)}
    texts.add(events[-1].content)
    texts.add("".join(c.choices[0].delta.content or "" for c in chunks))
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


def test_the_local_model_is_listed_and_found(local, plain):
    name = local.client.router.local_model
    assert [m.id for m in plain.models.list()] == [name]
    assert plain.models.retrieve(name).owned_by == "this-machine"
    with pytest.raises(openai.NotFoundError) as caught:
        plain.models.retrieve("no/such model")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(("path", "stream"), [(CHATS, True), (CHATS, False), ("/v1/responses", True)])
def test_hanging_up_stops_the_model(local, stream, path):
    """The session ends, is charged for what it did, and the model is free for the next one."""
    seen = local.client.router.statistics.seen
    # Greedy, for some stories are short.
    response = {
        "model": "m",
        "input": "Tell me a very long story.",
        "max_output_tokens": 1500,
        "temperature": 0,
    }
    body = response if path == "/v1/responses" else LONG
    raw = local.open(path, {**body, "stream": stream, "disco": {"pace_tps": "off"}})
    if stream:
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
    deadline = time.monotonic() + 60
    while b"disco_http_requests_in_flight 1.0" not in local.ask("/metrics").body:
        assert time.monotonic() < deadline, "it is never answered"
    raw.close()
    local.until(lambda: local.client.router.statistics.seen == seen + 1)
    route = local.routes[-1]
    (attempt,) = route.attempts
    assert (route.finish_reason, attempt.outcome) == ("cancelled", "cancelled")
    assert attempt.completion_tokens < 1000
    if stream:  # otherwise it may not have come to writing
        assert attempt.completion_tokens > 0
        assert route.cost > 0
    assert local.ask(CHATS, {**ASKED, "max_tokens": 1}).status == 200
    assert 'disco_answers_total{finish_reason="cancelled"' in local.ask("/metrics").body.decode()


def test_ten_megabytes_go_through(local):
    """It is longer than the model's context, and the model says so; the server takes it."""
    words = "sea " * (10 * 2**20 // 4)
    answer = local.ask(CHATS, {"model": "m", "messages": [{"role": "user", "content": words}]})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
