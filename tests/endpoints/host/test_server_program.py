"""The program of the child process: it ends with its parent, and keeps prompts and its key to itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from disco.endpoints.host.host_process import (
    HostSettings,
    host_command,
    host_environment,
    settings_line,
)
from disco.endpoints.host.llama_server_main import REFUSED
from disco.endpoints.llamacpp.model.model_files import resolve_model
from tests.endpoints.host.processes import is_alive, needs_proc

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.real
SECRET = "the heron at the weir"


@contextmanager
def child(**given):
    """The process alone, with its settings told; what it prints comes in its stdout."""
    with subprocess.Popen(
        host_command("llama-server"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=host_environment(),
    ) as process:
        try:
            process.stdin.write(
                settings_line(HostSettings(str(resolve_model("smollm2-135m")), "m", 512, 1, **given))
            )
            process.stdin.flush()
            yield process
        finally:
            process.kill()


@needs_proc
@pytest.mark.parametrize("runtime", ["engine", "llama-server"])
def test_it_ends_when_its_parent_is_killed_and_leaves_no_file(runtime):
    program = [sys.executable, str(Path(__file__).with_name("parent.py")), runtime]
    # A socket's path is short: pytest's folder may be too long for it.
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as folder:
        stale = stale_folder(Path(folder))
        told = {**host_environment(), "TMPDIR": folder}
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=told) as parent:
            pid = int(parent.stdout.readline())
            assert is_alive(pid)
            assert not stale.exists()
            (socket,) = Path(folder).glob("disco-*/s.sock")
            assert f"-{parent.pid}-" in str(socket)
            parent.kill()
        for _ in range(1500):
            if not is_alive(pid):
                break
            time.sleep(0.02)
        assert not is_alive(pid)
        assert not list(Path(folder).iterdir())


def stale_folder(where: Path) -> Path:
    """What a program leaves that was killed, with its host, while that loaded its model."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    folder = where / f"disco-{ended.pid}-x"
    folder.mkdir(mode=0o700)
    (folder / "s.sock").touch()
    long_ago = time.time() - 7200.0
    os.utime(folder, (long_ago, long_ago))
    return folder


def test_it_outlives_the_thread_that_started_it():
    """A demonstration starts its server in a worker thread, which ends when it has been idle."""
    with ExitStack() as stack:
        started = []

        def start() -> None:
            started.append(stack.enter_context(child()))
            started[0].stdout.readline()

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(0.3)


@pytest.mark.parametrize("loads", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_ends_when_its_pipes_do(loads):
    """All that a system other than Linux has of a parent that was killed while the model loaded."""
    with child() as process:
        if not loads:
            process.stdout.readline()
        process.stdout.close()
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_port_that_is_taken_is_named():
    """The endpoint lets the system choose a port; a demonstration's server has one that may be taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with child(port=port) as process:
            printed = process.stdout.read()
            assert process.wait() == REFUSED
    assert f"port {port} cannot be bound".encode() in printed


def test_it_loads_nothing_for_a_parent_that_has_ended_already():
    settings = json.loads(settings_line(HostSettings("no-such-file.gguf", "m", 512, 1)))
    told = json.dumps({**settings, "parent_pid": 2**22 + 1}).encode() + b"\n"
    ran = subprocess.run(
        host_command("llama-server"), input=told, env=host_environment(), timeout=60, check=False
    )
    assert ran.returncode == 0, "it looked for the model"


@pytest.mark.slow
def test_what_it_prints_holds_no_prompt_and_no_key():
    """Its output is read for the reason of a crash only. This is all of it, for requests that succeed and that fail."""
    with child(api_key="only-mine") as process:
        url = f"{process.stdout.readline().split()[1].decode()}/v1/chat/completions"
        printed: list[bytes] = []
        reader = threading.Thread(target=lambda: printed.extend(process.stdout))
        reader.start()

        def post(**more) -> int:
            body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2, **more}
            headers = {"Authorization": "Bearer only-mine", "Content-Type": "application/json"}
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        schema = {"type": "json_schema", "json_schema": {"schema": {"type": SECRET}}}
        assert post() == 200
        assert post(messages=[{"role": "user", "content": SECRET * 400}]) == 400  # beyond the context
        assert post(messages=[{"role": SECRET}]) >= 400
        assert post(response_format=schema) >= 400
        process.stdin.close()
        process.wait()
        reader.join()
    assert not [text for text in printed if SECRET.encode() in text or b"only-mine" in text]
