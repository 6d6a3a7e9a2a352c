"""The synchronous client on the real model and a real server: threads, streams and ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import httpx2
import openai
import pytest
from pydantic import BaseModel

import disco
from disco import Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile

SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "max_tokens": 8, "temperature": 0.0, "seed": 3}


@pytest.fixture(scope="module")
def client():
    with Disco(local="smollm2-135m", policy="private") as made:
        yield made


def server_only(llama_server, **more) -> Disco:
    return Disco(
        local=None,
        policy=Preset(dispatch={"policy": "server_only"}),
        base_url=llama_server.base_url,
        api_key="test-key",
        **more,
    )


def test_it_is_an_openai_client_with_the_same_answer_in_every_form(client):
    assert isinstance(client, openai.OpenAI)
    completions = client.chat.completions
    answer = completions.create(**ASKED)
    text = answer.choices[0].message.content
    assert answer.route.winner == "device"
    with completions.create(stream=True, **ASKED) as stream:
        assert isinstance(stream, openai.Stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
        assert (stream.writer, stream.route.winner) == ("device", "device")
    assert completions.with_raw_response.create(**ASKED).parse().choices[0].message.content == text
    with completions.with_streaming_response.create(stream=True, **ASKED) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    with completions.stream(**ASKED) as helper:
        kinds = [event.type for event in helper]
    assert kinds[0] == "chunk"
    assert kinds[-1] == "content.done"


def test_parse_gives_the_model_asked_for(client):
    class Who(BaseModel):
        name: str

    asked = {**ASKED, "max_tokens": 60}
    parsed = client.chat.completions.parse(response_format=Who, **asked)
    assert isinstance(parsed.choices[0].message.parsed, Who)


def test_many_threads_may_ask_at_once(client):
    expected = client.chat.completions.create(**ASKED).choices[0].message.content
    answers = []

    def ask() -> None:
        answers.append(client.chat.completions.create(**ASKED).choices[0].message.content)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [expected] * 4


def test_the_real_server_answers_through_the_same_calls(llama_server):
    with server_only(llama_server) as c:
        answer = c.chat.completions.create(**ASKED)
        assert answer.route.winner == "server"
        with c.chat.completions.create(stream=True, **ASKED) as stream:
            text = "".join(x.choices[0].delta.content or "" for x in stream if x.choices)
        assert text == answer.choices[0].message.content
        assert c.models.list().data  # passes through
        assert c.with_options(timeout=30).chat.completions.create(**ASKED).route.winner == "server"


def test_routed_requests_go_through_the_http_client_of_the_application(llama_server):
    seen = []
    own = httpx2.Client(event_hooks={"request": [lambda request: seen.append(request.url.path)]})
    with own, server_only(llama_server, http_client=own) as c:
        c.chat.completions.create(**ASKED)
        with c.chat.completions.create(stream=True, **ASKED) as stream:
            assert sum(1 for _ in stream) > 1
    assert [path.endswith("/chat/completions") for path in seen] == [True, True]


def test_leaving_a_stream_stops_the_answer(client):
    seen = client.routed.router.statistics.seen
    with client.chat.completions.create(**{**ASKED, "stream": True, "max_tokens": 400}) as stream:
        next(iter(stream))
    assert client.routed.router.statistics.seen == seen + 1  # it has been charged: nothing of it runs
    assert stream.route.finish_reason == "cancelled"


def test_errors_are_those_of_the_sdk_and_keep_what_was_written():
    dies = SimulatedProfile(answer_tokens=9, decode_tps=1000.0, fault=Fault(after_tokens=3))
    with Disco(local=SimulatedEndpoint("device", dies, place="device"), policy="private", max_retries=0) as c:
        with (
            pytest.raises(openai.APIConnectionError) as caught,
            c.chat.completions.create(model="m", messages=SEA, stream=True) as stream,
        ):
            for _ in stream:
                pass
        assert len(caught.value.partial_text.split()) == 3
        with pytest.raises(disco.NoEndpointError, match="needs a server"):
            c.files.list()
        with pytest.raises(disco.ConfigurationError, match="policy"):
            c.chat.completions.create(model="m", messages=SEA, extra_body={"disco": {"polcy": "fast"}})
        with pytest.raises(TypeError, match="messages"):
            c.chat.completions.create(model="m")


def test_nothing_of_it_is_left_after_close():
    before = set(threading.enumerate())
    with Disco(local="smollm2-135m", policy="private") as c:
        c.chat.completions.create(**ASKED)
    assert {t for t in threading.enumerate() if t.name == "disco-loop"} <= before


def test_a_program_that_forgets_to_close_it_still_ends():
    script = (
        "from disco import Disco\n"
        "c = Disco(local='smollm2-135m', policy='private')\n"
        "m = [{'role': 'user', 'content': 'Hi.'}]\n"
        "s = c.chat.completions.create(model='m', messages=m, stream=True, max_tokens=300)\n"
        "print(next(iter(s)).object)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "chat.completion.chunk"
    assert done.returncode == 0


def test_the_list_of_models_names_the_local_one_too(client, llama_server):
    assert [model.id for model in client.models.list()] == ["local/smollm2-135m"]
    with server_only(llama_server) as alone:
        theirs = [model.id for model in alone.models.list()]
    with Disco(local="smollm2-135m", base_url=llama_server.base_url, api_key="k") as both:
        assert [model.id for model in both.models.list()] == ["local/smollm2-135m", *theirs]
        asked = {**ASKED, "model": "local/smollm2-135m"}
        assert both.chat.completions.create(**asked).route.winner == "device"
