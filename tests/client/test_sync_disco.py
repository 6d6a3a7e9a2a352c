"""The synchronous client on the real model and a real server: threads, streams and ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import httpx2
import openai
import pytest

import disco
from disco import Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile

pytestmark = pytest.mark.real

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


def test_answers_and_streams_tell_their_route(client):
    answer = client.chat.completions.create(**ASKED)
    assert answer.route.winner == "device"
    with client.chat.completions.create(stream=True, **ASKED) as stream:
        assert "".join(c.choices[0].delta.content or "" for c in stream) == answer.choices[0].message.content
        assert (stream.writer, stream.route.winner) == ("device", "device")


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
        with pytest.raises(disco.ConfigurationError, match="preset"):
            c.chat.completions.create(model="m", messages=SEA, extra_body={"disco": {"prset": "fast"}})
        with pytest.raises(TypeError, match="messages"):
            c.chat.completions.create(model="m")


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
