"""The demonstration server is a real process with a real model; it comes, dies and comes back."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import httpx2
import openai
import pytest

from disco.cli.demonstration.demo_server import DemoServer, DemoServerError
from disco.cli.demonstration.shaping_proxy import shape
from disco.errors import ConfigurationError, ModelFileError

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server():
    phrases = []
    with DemoServer(context_tokens=512, progress=lambda _seconds, phrase: phrases.append(phrase)) as server:
        server.phrases = phrases
        yield server


def ask(server, max_tokens=4):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": max_tokens}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    connection.close()
    return answer["choices"][0]["message"]["content"]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A child of a killed process may stay a zombie until whoever adopted it looks.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_it_answers_and_told_its_progress(server):
    assert ask(server)
    assert server.phrases
    assert server.running


def test_it_can_be_killed_and_restarted_on_the_same_port(server):
    port, pid = server.port, server.pid
    server.kill()
    server.kill()
    assert not server.running
    assert gone(pid)
    with pytest.raises(ConnectionRefusedError):
        ask(server)
    server.start()
    assert server.port == port
    assert server.pid != pid
    assert ask(server)


def test_an_openai_client_streams_through_the_shaper_and_sees_the_death_of_the_server(server):
    async def read_and_kill(stream):
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                server.kill()

    async def main():
        async with shape(server.port, delay=0.3) as proxy:
            client = openai.AsyncOpenAI(api_key="none", base_url=proxy.base_url, max_retries=0)
            async with client:
                stream_options = {"messages": [{"role": "user", "content": "Count to 100"}], "model": "m"}
                began = time.monotonic()
                stream = await client.chat.completions.create(**stream_options, stream=True, max_tokens=8)
                assert time.monotonic() - began >= 0.3
                chunks = [c async for c in stream]
                assert chunks[-1].choices[0].finish_reason == "length"

                stream = await client.chat.completions.create(**stream_options, stream=True, max_tokens=400)
                with pytest.raises(openai.APIConnectionError) as failure:
                    await read_and_kill(stream)
                assert isinstance(failure.value.__cause__, httpx2.ReadError)  # a reset, not a quiet end
                await stream.close()

    if not server.running:
        server.start()
    anyio.run(main)
    assert not server.running


def test_a_server_that_cannot_start_shows_the_end_of_its_log():
    server = DemoServer()
    with socket.socket() as taken:
        taken.bind((server.host, server.port))
        taken.listen()
        with pytest.raises(DemoServerError, match=r"(?i)address already in use|errno"):
            server.start()
    assert not server.running


def test_a_server_that_takes_too_long_is_ended():
    server = DemoServer(timeout_s=0.0)
    with pytest.raises(DemoServerError, match="within 0 s"):
        server.start()
    assert not server.running


def test_unknown_models_are_named_with_the_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match="smollm2-135m"):
        DemoServer("smollm2")
    with pytest.raises(ModelFileError, match="missing"):
        DemoServer(tmp_path / "missing.gguf")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_its_parent(how):
    program = """
        import signal, time
        # A test run in the background of a shell inherits that SIGINT is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from disco.cli.demonstration.demo_server import DemoServer
        def loading(seconds, phrase):
            print(server.pid, flush=True)
        server = DemoServer(progress=loading)
        with server:
            time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with parent:
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.send_signal(how)
        parent.wait(timeout=20)
    deadline = time.monotonic() + 20
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(child)
