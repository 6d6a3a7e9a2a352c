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

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; from disco.cli import main; sys.exit(main())", "serve"]
LONG = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell a long story. CANARYPROMPT"}],
    "max_tokens": 1500,
    "logit_bias": {"0": -100, "2": -100},
    "stream": True,
    "disco": {"pace_tps": "off"},
}


def environment(**more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "DISCO_"))}
    return {**inherited, "PYTHONPATH": str(ROOT), **more}


@contextlib.contextmanager
def running(*arguments: str, **variables: str):
    """The process, and the base URL it printed. It must be told to end, or it is killed."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=environment(PYTHONFAULTHANDLER="1", **variables),
    )
    with process:
        try:
            first = process.stdout.readline()
            assert first.startswith("http://"), first + process.stdout.read()
            yield process, first.strip()
        finally:
            process.kill()


def end_of(process: subprocess.Popen[str]) -> int:
    """Its exit status; when it does not come, where it hangs."""
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints every thread's stack
        pytest.fail(f"It goes on after 20 s:\n{process.communicate(timeout=10)[0]}")


@pytest.fixture
def refused(monkeypatch, capsys):
    """Called with arguments and environment: what the command says when it does not start."""

    def run(*arguments: str, **variables: str) -> str:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DISCO_SERVER_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["serve", *arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("disco: ")
        return said

    return run


def begin(base_url: str, body: dict) -> http.client.HTTPResponse:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("POST", f"{parts.path}/chat/completions", json.dumps(body))
    response = connection.getresponse()
    response.kept = connection  # or its socket closes with it
    return response


def connects(base_url: str) -> bool:
    parts = urlsplit(base_url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise")
@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_answer_in_progress_is_finished_before_the_end(sent, tmp_path):
    records = tmp_path / "routes.jsonl"
    body = {**LONG, "max_tokens": 60}
    with running("--policy", "private", "--grace", "60", "--record", str(records)) as (process, base_url):
        answer = begin(base_url, body)
        assert answer.readline().startswith(b"data: ")
        process.send_signal(sent)
        deadline = time.monotonic() + 5
        while connects(base_url):
            assert time.monotonic() < deadline, "it still takes connections"
        text = answer.read().decode()
        assert text.endswith("data: [DONE]\n\n")
        answer.kept.close()
        assert end_of(process) == 0
        said = process.stdout.read()
    assert "CANARYPROMPT" not in said
    assert "Traceback" not in said
    (line,) = records.read_text().splitlines()
    assert json.loads(line)["finish_reason"] == "length"
    assert "CANARYPROMPT" not in line


@pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise")
@pytest.mark.parametrize(("grace", "signals"), [("0.5", 1), ("600", 2)], ids=["after grace", "second signal"])
def test_what_takes_too_long_is_broken_off_and_told_so(grace, signals):
    with running("--policy", "private", "--grace", grace) as (process, base_url):
        answer = begin(base_url, LONG)
        waiting = begin_without_reading(base_url, {**LONG, "stream": False})
        while "disco_http_requests_in_flight 2.0" not in metrics(base_url):
            assert process.poll() is None
        assert answer.readline().startswith(b"data: ")
        began_at = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        last = answer.read().decode().removesuffix("\n\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        whole = waiting.getresponse()
        assert whole.status == 503
        assert json.loads(whole.read())["error"]["code"] == "shutting_down"
        assert end_of(process) == 0
        assert time.monotonic() - began_at < 15
        assert "Traceback" not in process.stdout.read()
        waiting.close()
        answer.kept.close()


def metrics(base_url: str) -> str:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise")
def test_a_connection_that_says_nothing_does_not_hold_up_the_end():
    with running("--policy", "private", "--grace", "600") as (process, base_url):
        parts = urlsplit(base_url)
        silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(50)]
        process.send_signal(signal.SIGTERM)  # some of them are being accepted just now
        assert end_of(process) == 0
        for each in silent:
            each.close()


def begin_without_reading(base_url: str, body: dict) -> http.client.HTTPConnection:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("POST", f"{parts.path}/chat/completions", json.dumps(body))
    return connection


def test_a_key_from_a_file_or_the_environment_opens_another_address(tmp_path):
    key = "k" * 20
    file = tmp_path / "key"
    file.write_text(key + "\n")
    for arguments, variables in (((), {"DISCO_SERVER_KEY": key}), (("--key-file", str(file)), {})):
        with running("--policy", "private", "--host", "0.0.0.0", *arguments, **variables) as (_, base_url):
            parts = urlsplit(base_url)
            for headers, status in (({}, 401), ({"Authorization": f"Bearer {key}"}, 200)):
                connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=20)
                connection.request("GET", "/v1/models", headers=headers)
                assert connection.getresponse().status == status
                connection.close()


def test_another_address_without_a_key_is_refused(refused):
    assert "DISCO_SERVER_KEY" in refused("--host", "0.0.0.0", "--policy", "private")


def test_a_port_in_use_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port, "--policy", "private")
    assert f"Port {port} on 127.0.0.1 is in use" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("--host", "no-such-host.invalid"), {"DISCO_SERVER_KEY": "k" * 20}, "not known"),
        (("--host", "192.0.2.1"), {"DISCO_SERVER_KEY": "k" * 20}, "no address of this machine"),
        (("--key-file", "no-such-file"), {}, "cannot be read"),
        ((), {"DISCO_SERVER_KEY": ""}, "empty"),
        (("--allow-origin", "*"), {}, "no origin"),
        (("--policy", "privat"), {}, "private"),
        (("--local", "none"), {}, "api_key|OPENAI_API_KEY"),
        (("--local", "smolm2-135m"), {}, "smollm2-135m"),
        (
            ("--port", "8699", "--policy", "server-only.toml"),
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://localhost:8699/v1"},
            "is this one",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused_with_the_remedy(refused, arguments, variables, says, tmp_path):
    if "server-only.toml" in arguments:
        preset = tmp_path / "server-only.toml"
        preset.write_text('[dispatch]\npolicy = "server_only"\n')
        arguments = tuple(str(preset) if a == preset.name else a for a in arguments)
    policy = () if "--policy" in arguments or "none" in arguments else ("--policy", "private")
    assert re.search(says, refused(*policy, *arguments, **variables))


def test_without_the_extra_the_command_says_what_to_install(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = refused()
    assert 'pip install "disco-llm[server]"' in said
    assert "'uvicorn'" in said


def test_a_backup_answers_for_a_server_that_is_not_there():
    text = stream(sse(chunk("From the second."), chunk(finish="stop")))
    nowhere = {"OPENAI_API_KEY": "first-key-1234", "OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1"}
    with (
        upstream(text) as second,
        running(
            *("--local", "none", "--policy", "fast", "--backup", second.base_url, "its-model"),
            **nowhere,
            DISCO_BACKUP_KEY="second-key-1234",
        ) as (process, base_url),
    ):
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=20)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(asked))
            answered = json.loads(connection.getresponse().read())
        _, headers, body = second.requests[-1]
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == 0
    assert answered["choices"][0]["message"]["content"] == "From the second."
    assert headers["authorization"] == "Bearer second-key-1234"
    assert body["model"] == "its-model"


def test_a_backup_without_a_key_is_refused_with_the_variable_to_set(refused):
    said = refused("--backup", "http://127.0.0.1:1/v1", "its-model", OPENAI_API_KEY="k")
    assert "DISCO_BACKUP_KEY_1" in said
