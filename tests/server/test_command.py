"""`disco serve` as a process: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from scripted_server import chunk, sse, stream
from servers import free_port
from serving import upstream

from disco.cli import main

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; from disco.cli import main; sys.exit(main())", "serve"]
KEY = "k" * 20
LONG = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell a long story. CANARYPROMPT"}],
    "max_tokens": 1500,
    "logit_bias": {"0": -100, "2": -100},
    "stream": True,
    "disco": {"pace_tps": "off"},
}
signals = pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise")


@contextlib.contextmanager
def running(*arguments: str, **variables: str):
    """The process, and host and port of the base URL it printed. It must be told to end, or it is killed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "DISCO_"))}
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", **variables},
    )
    with process:
        try:
            first = process.stdout.readline()
            assert first.startswith("http://"), first + process.stdout.read()
            yield process, (urlsplit(first.strip()).hostname, urlsplit(first.strip()).port)
        finally:
            process.kill()


def end_of(process: subprocess.Popen[str]) -> int:
    """Its exit status; when it does not come, where it hangs."""
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints every thread's stack
        pytest.fail(f"It goes on after 20 s:\n{process.communicate(timeout=10)[0]}")


@contextlib.contextmanager
def asking(address, path: str, body: dict | None = None, headers: dict | None = None):
    """A request that has been sent; its answer has not been read."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers or {})
        yield connection


@pytest.fixture
def refused(monkeypatch, capsys):
    """Called with arguments and environment: what the command says when it does not start."""

    def run(*arguments: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["serve", *arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("disco: ")
        return said

    return run


def connects(address) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


@signals
@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_answer_in_progress_is_finished_before_the_end(sent, tmp_path):
    """Under a key from a file, on an address that others can reach."""
    records, file = tmp_path / "routes.jsonl", tmp_path / "key"
    file.write_text(KEY + "\n")
    options = ("--policy", "private", "--grace", "60", "--record", str(records))
    with running(*options, "--host", "0.0.0.0", "--key-file", str(file)) as (process, address):
        with asking(address, "/v1/models") as connection:
            assert connection.getresponse().status == 401
        keyed = {"Authorization": f"Bearer {KEY}"}
        with asking(address, "/v1/chat/completions", {**LONG, "max_tokens": 60}, keyed) as connection:
            answer = connection.getresponse()
            assert answer.readline().startswith(b"data: ")
            process.send_signal(sent)
            deadline = time.monotonic() + 60
            while connects(address):
                assert time.monotonic() < deadline, "it still takes connections"
            assert answer.read().decode().endswith("data: [DONE]\n\n")
        assert end_of(process) == 0
        said = process.stdout.read()
    assert "CANARYPROMPT" not in said
    assert "Traceback" not in said
    (line,) = records.read_text().splitlines()
    assert json.loads(line)["finish_reason"] == "length"
    assert "CANARYPROMPT" not in line


@signals
@pytest.mark.parametrize(("grace", "count"), [("0.5", 1), ("600", 2)], ids=["after grace", "second signal"])
def test_what_takes_too_long_is_broken_off_and_told_so(grace, count):
    """So are those who say nothing, some of whom are being accepted just then."""
    with (
        running("--policy", "private", "--grace", grace) as (process, address),
        asking(address, "/v1/chat/completions", LONG) as streaming,
        asking(address, "/v1/chat/completions", {**LONG, "stream": False}) as waiting,
    ):
        answer = streaming.getresponse()
        assert answer.status == 200
        busy, deadline = "", time.monotonic() + 60
        while "disco_http_requests_in_flight 2.0" not in busy:
            assert time.monotonic() < deadline, busy
            assert process.poll() is None
            with asking(address, "/metrics") as connection:
                busy = connection.getresponse().read().decode()
        assert answer.readline().startswith(b"data: ")
        silent = [socket.create_connection(address) for _ in range(50)]
        for _ in range(count):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        last = answer.read().decode().removesuffix("\n\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        whole = waiting.getresponse()
        assert whole.status == 503
        assert json.loads(whole.read())["error"]["code"] == "shutting_down"
        assert end_of(process) == 0
        assert "Traceback" not in process.stdout.read()
        for each in silent:
            each.close()


@signals
def test_a_connection_that_says_nothing_does_not_hold_up_the_end_and_a_backup_answers():
    """The first server is not there; the log says so although a caller does not notice."""
    text = stream(sse(chunk("From the second."), chunk(finish="stop")))
    nowhere = {"OPENAI_API_KEY": "first-key-1234", "OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1"}
    with (
        upstream(text) as second,
        running(
            *("--local", "none", "--policy", "fast", "--grace", "600"),
            *("--backup", second.base_url, "its-model"),
            **nowhere,
            DISCO_BACKUP_KEY="second-key-1234",
        ) as (process, address),
    ):
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        with asking(address, "/v1/chat/completions", asked) as connection:
            answered = json.loads(connection.getresponse().read())
        _, headers, body = second.requests[-1]
        silent = [socket.create_connection(address) for _ in range(50)]
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == 0
        for each in silent:
            each.close()
        said = process.stdout.read()
    assert answered["choices"][0]["message"]["content"] == "From the second."
    assert headers["authorization"] == "Bearer second-key-1234"
    assert body["model"] == "its-model"
    assert "WARNING disco.route: endpoint server failed: connection" in said
    assert "key-1234" not in said


def test_a_port_in_use_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port, "--policy", "private")
    assert f"Port {port} on 127.0.0.1 is in use" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("--host", "0.0.0.0"), {}, "DISCO_SERVER_KEY"),
        (("--host", "no-such-host.invalid"), {"DISCO_SERVER_KEY": KEY}, "not known"),
        (("--host", "192.0.2.1"), {"DISCO_SERVER_KEY": KEY}, "is not an address of this machine"),
        (("--key-file", "no-such-file"), {}, "cannot be read"),
        ((), {"DISCO_SERVER_KEY": ""}, "empty"),
        (("--allow-origin", "*"), {}, "no origin"),
        (("--policy", "privat"), {}, "private"),
        (("--local", "none"), {}, "api_key|OPENAI_API_KEY"),
        (("--local", "smolm2-135m"), {}, "smollm2-135m"),
        (("--backup", "http://127.0.0.1:1/v1", "its-model"), {"OPENAI_API_KEY": "k"}, "DISCO_BACKUP_KEY_1"),
        (
            ("--port", "8699", "--policy", "server-only.toml"),
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://localhost:8699/v1"},
            "is this server itself",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused_with_the_remedy(refused, arguments, variables, says, tmp_path):
    if "server-only.toml" in arguments:
        preset = tmp_path / "server-only.toml"
        preset.write_text('[dispatch]\npolicy = "server_only"\n')
        arguments = tuple(str(preset) if a == preset.name else a for a in arguments)
    policy = () if {"--policy", "--backup", "none"} & set(arguments) else ("--policy", "private")
    assert re.search(says, refused(*policy, *arguments, **variables))


def test_without_the_extra_the_command_says_what_to_install(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = refused()
    assert 'pip install "disco-llm[server]"' in said
    assert "'uvicorn'" in said
