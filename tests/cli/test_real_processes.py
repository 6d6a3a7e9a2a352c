"""The model server of `disco.testing` and the demo: real processes with a real model, some of them killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2
import openai
import pytest

from disco.errors import LocalModelError
from disco.record import read_record, timeline_of
from disco.testing import ModelServer, shape

pytestmark = pytest.mark.real


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A child of a killed process may stay a zombie until whoever adopted it looks.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_server_dies_in_mid_answer_and_comes_back_on_the_same_port():
    phrases = []
    progress = lambda _seconds, phrase: phrases.append(phrase)  # noqa: E731
    with ModelServer(context_tokens=512, progress=progress) as server:
        assert phrases
        port, pid = server.port, server.pid
        anyio.run(killed_in_mid_answer, server)
        server.kill()
        assert not server.running
        assert gone(pid)
        server.start()
        assert (server.port, server.running) == (port, True)
        assert server.pid != pid
        with openai.OpenAI(api_key="none", base_url=server.base_url, max_retries=0) as client:
            assert client.models.list().data[0].id == "smollm2-135m"


async def killed_in_mid_answer(server):
    async def read_and_kill(stream):
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                server.kill()

    asked = {"messages": [{"role": "user", "content": "Count to 100"}], "model": "m", "stream": True}
    asked["logit_bias"] = {"0": -100, "2": -100}  # it does not end by itself
    fresh = {
        "Connection": "close"
    }  # llama-server ends a connection after a streamed answer, perhaps under the next
    async with (
        shape(server.port, delay=0.1) as proxy,
        openai.AsyncOpenAI(
            api_key="none", base_url=proxy.base_url, max_retries=0, default_headers=fresh
        ) as client,
    ):
        began = time.monotonic()
        stream = await client.chat.completions.create(**asked, max_tokens=4)
        assert time.monotonic() - began >= 0.1
        assert [c async for c in stream][-1].choices[0].finish_reason == "length"
        stream = await client.chat.completions.create(**asked, max_tokens=400)
        with pytest.raises(openai.APIConnectionError) as failure:
            await read_and_kill(stream)
        assert isinstance(failure.value.__cause__, httpx2.ReadError)  # a reset, not a quiet end
        await stream.close()


def test_a_server_that_cannot_start_shows_the_end_of_its_log_and_a_slow_one_is_ended(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03" + bytes(100))
    broken, slow = ModelServer(tmp_path / "bad.gguf"), ModelServer(timeout_s=0.0)
    with pytest.raises(LocalModelError, match=r"(?s)ended while starting.*bad\.gguf"):
        broken.start()
    with pytest.raises(LocalModelError, match="within 0 s"):
        slow.start()
    assert not broken.running
    assert not slow.running


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_no_child_outlives_its_parent():
    program = """if True:
        from disco.testing import ModelServer
        server = ModelServer(progress=lambda seconds, phrase: print(server.pid, flush=True))
        server.start()
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(child)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["engine", "llama-server"])
def test_the_demo_shows_every_scene_and_keeps_its_records(runtime, tmp_path):
    routes, picture = tmp_path / "routes.jsonl", tmp_path / "shown.svg"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    command = [sys.executable, "-c", "import sys; from disco.cli import main; sys.exit(main())", "demo"]
    ran = subprocess.run(
        [*command, "--runtime", runtime, "--record", str(routes), "--svg", str(picture)],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SEAM BROKEN" not in ran.stdout
    records = [read_record(line) for line in routes.read_text(encoding="utf-8").splitlines()]
    assert len(records) >= 5
    assert all(timeline_of(record).reader is not None for record in records)
    assert "dies in mid-sentence" in picture.read_text(encoding="utf-8").replace("&#160;", " ")
