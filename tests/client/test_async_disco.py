"""The clients as an application has them: real models on both sides, wrong configurations, errors."""

from __future__ import annotations

import subprocess
import sys

import openai
import pytest
from defects.asking import create, device, preset, text_of

import disco
from disco import AsyncDisco, Disco
from disco.endpoints.continuation import Continuation
from disco.endpoints.simulation.simulated_script import Fault

KEY = {"api_key": "x"}


@pytest.mark.real
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("source", "order", "anyio_backend"),
    [("server", "break_before_make", "asyncio"), ("device", "make_before_break", "trio")],
)
async def test_an_answer_moves_between_real_endpoints_without_a_trace(
    llama_server, thread_model, source, order
):
    """How the server continues is found out at first, and known to copies."""
    policy = preset(f"{source}_only", order=order, pace_tps=5.0, rate=0.0 if source == "server" else 1e-6)
    auto = Continuation(method="auto", template=str(llama_server.gguf))
    at = {"base_url": llama_server.base_url, "continuation": auto, **KEY}
    async with AsyncDisco(local=thread_model, policy=policy, **at) as one:
        await one.warm_up()
        asker = one.with_options(timeout=60)
        assert asker.server.capabilities("any").continues
        stream = await create(asker, model=llama_server.model, stream=True, max_tokens=50, temperature=0)
        text, route = await text_of(stream), stream.route
    assert [t.outcome for t in route.migrations][-1] == "switched"
    assert [p.endpoint for p in route.segments] == [source, "device" if source == "server" else "server"]
    assert route.seamless
    assert route.segments[-1].end_char == len(text)
    assert route.answer_tokens <= 50
    cut = route.segments[0].end_char  # between words
    assert text[cut].isspace() or not text[cut].isalnum() or not text[cut - 1].isalnum()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"local": "smollm2-135m", "policy": "balnced"}, "balanced"),
        ({"policy": "private", "api_key": "x"}, "local"),
        ({"policy": "balanced", "api_key": "x", "server_profile": "gpt-4o-mni-2024"}, "gpt-4o-mini-2024"),
        ({"policy": "fast", "local": "smollm2-135m"}, "api_key"),
        ({"api_key": "x", "continuation": "flag"}, "flags"),
    ],
)
def test_a_wrong_configuration_says_what_to_write_instead(arguments, says, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(disco.DiscoError, match=says):
        AsyncDisco(**arguments)


def test_errors_of_the_synchronous_client_are_those_of_the_sdk_and_keep_what_was_written():
    dies = device(answer_tokens=9, decode_tps=1000.0, fault=Fault(after_tokens=3))
    with Disco(local=dies, policy="private", max_retries=0) as one:
        with pytest.raises(openai.APIConnectionError) as caught, create(one, stream=True) as stream:
            for _ in stream:
                pass
        assert len(caught.value.partial_text.split()) == 3
        with pytest.raises(disco.NoEndpointError, match="needs a server"):
            one.files.list()
        with pytest.raises(TypeError, match="messages"):
            one.chat.completions.create(model="m")


FORGETS = """
from disco import Disco
client = Disco(local="smollm2-135m", policy="private")
messages = [{"role": "user", "content": "Hi."}]
stream = client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=300)
print(next(iter(stream)).object)
"""


@pytest.mark.real
def test_a_program_that_forgets_to_close_it_still_ends():
    program = [sys.executable, "-c", FORGETS]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("chat.completion.chunk", 0), done.stderr
