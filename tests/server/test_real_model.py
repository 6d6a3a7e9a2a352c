"""The whole way with the real model: the plain OpenAI client and curl on one side, llama.cpp on the other."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from disco import Disco

pytestmark = pytest.mark.real

SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "max_tokens": 24, "temperature": 0.9, "seed": 11}
LONG = {"model": "m", "messages": SEA, "max_tokens": 1500, "logit_bias": {"0": -100, "2": -100}}

curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture
def plain(local):
    with openai.OpenAI(base_url=local.base_url, api_key="any", max_retries=0) as client:
        yield client


def run_curl(*arguments: str) -> str:
    ran = subprocess.run(
        ["curl", "--silent", "--show-error", "--no-buffer", *arguments],
        check=True,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    return ran.stdout


def chunks_of(text: str) -> list[dict]:
    """The JSON of every event of a chat stream, which must be nothing but `data:` lines and end in [DONE]."""
    events = text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events[:-1])
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def test_the_plain_client_gets_its_own_types(plain):
    answer = plain.chat.completions.create(**ASKED)
    assert isinstance(answer, ChatCompletion)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 24
    assert answer._request_id.startswith("req_")
    chunks = list(plain.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert len({(c.id, c.model, c.created) for c in chunks}) == 1
    assert chunks[-1].usage.completion_tokens == 24
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_the_plain_clients_helpers_work(plain):
    class Sum(BaseModel):
        total: int

    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    parsed = plain.chat.completions.parse(
        model="m", messages=messages, response_format=Sum, max_tokens=60, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Sum)
    with plain.chat.completions.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "chunk"
    assert kinds[-1] == "content.done"


def test_the_responses_api_answers_with_and_without_events(plain):
    answer = plain.responses.create(model="m", input="Say hello.", max_output_tokens=8, temperature=0)
    assert isinstance(answer, Response)
    assert answer.output_text
    events = list(
        plain.responses.create(model="m", input="Say hello.", max_output_tokens=8, temperature=0, stream=True)
    )
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text


def test_the_local_model_is_listed_and_found(local, plain):
    name = local.client.router.local_model
    assert [m.id for m in plain.models.list()] == [name]
    assert plain.models.retrieve(name).owned_by == "this-machine"
    with pytest.raises(openai.NotFoundError) as caught:
        plain.models.retrieve("no/such model")
    assert caught.value.code == "model_not_found"


@curl
def test_every_way_in_gives_the_same_text_for_the_same_seed(local, plain):
    asked, url = {**ASKED, "max_tokens": 12}, f"{local.base_url}/chat/completions"

    def streamed(chunks) -> str:
        return "".join(c.choices[0].delta.content or "" for c in chunks)

    create = plain.chat.completions.create
    with Disco(local="smollm2-135m", policy="private") as client:
        texts = {
            "Disco": client.chat.completions.create(**asked).choices[0].message.content,
            "Disco, stream": streamed(client.chat.completions.create(**asked, stream=True)),
            "openai": create(**asked).choices[0].message.content,
            "openai, stream": streamed(create(**asked, stream=True)),
            "curl": json.loads(run_curl(url, "-d", json.dumps(asked)))["choices"][0]["message"]["content"],
            "curl, stream": "".join(
                c["choices"][0]["delta"].get("content") or ""
                for c in chunks_of(run_curl(url, "-d", json.dumps({**asked, "stream": True})))
            ),
        }
    assert texts["curl"]
    assert set(texts.values()) == {texts["curl"]}, texts
    other = create(**{**asked, "seed": 12}).choices[0].message.content
    assert other != texts["curl"], "with the same text for every seed, this test says nothing"


@curl
def test_events_look_as_the_real_api_sends_them(local):
    shown = run_curl(
        "--include", f"{local.base_url}/chat/completions", "-d", json.dumps({**ASKED, "stream": True})
    )
    head, _, body = shown.replace("\r\n", "\n").partition("\n\n")
    status, *fields = head.lower().split("\n")
    headers = dict(line.split(": ", 1) for line in fields)
    assert status == "http/1.1 200 ok"
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-request-id"].startswith("req_")
    assert "server" not in headers
    chunks = chunks_of(body)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    shown = run_curl(
        f"{local.base_url}/responses", "-d", '{"model":"m","input":"Hi","stream":true,"max_output_tokens":4}'
    )
    for event in shown.split("\n\n")[:-1]:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


@pytest.mark.parametrize(
    ("path", "stream"),
    [("/v1/chat/completions", True), ("/v1/chat/completions", False), ("/v1/responses", True)],
)
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
    else:
        time.sleep(0.5)
    raw.close()
    local.until(lambda: local.client.router.statistics.seen == seen + 1)
    route = local.routes[-1]
    assert route.finish_reason == "cancelled"
    assert [t.outcome for t in route.attempts] == ["cancelled"]
    assert route.attempts[0].completion_tokens < 1000
    if stream:  # otherwise it may not have come to writing
        assert route.attempts[0].completion_tokens > 0
        assert route.cost > 0
    assert local.ask("/v1/chat/completions", {**ASKED, "max_tokens": 1}).status == 200
    assert 'disco_answers_total{finish_reason="cancelled"' in local.ask("/metrics").body.decode()


def test_two_at_once_do_not_mix(local, plain):
    def ask(n: int, stream: bool) -> str:
        asked = {"messages": [{"role": "user", "content": f"Say {n}."}], "max_tokens": 12, "temperature": 0}
        answer = plain.chat.completions.create(model="m", **asked, stream=stream)
        if not stream:
            return answer.choices[0].message.content[:12]
        return "".join(c.choices[0].delta.content or "" for c in answer)[:12]

    alone = [ask(n, False) for n in range(3)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda n: ask(n, True), range(3))) == alone


def test_ten_megabytes_go_through(local):
    """It is longer than the model's context, and the model says so; the server takes it."""
    words = "sea " * (10 * 2**20 // 4)
    answer = local.ask(
        "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": words}]}
    )
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
