"""`disco serve` as a process: how it starts, refuses and ends, and what docs/reference/server.md says of it."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from command_process import (
    CHAT,
    CHATS,
    KEY,
    LONG,
    ROOT,
    WITHIN_S,
    asking,
    running,
    signals,
    tell_to_end,
    what_it_said,
)
from fake_engine import FakeEngine
from scripted_server import STREAM_HEAD, WAIT_FOR_CLOSE, chunk, piece, sse, stream
from servers import free_port
from serving import upstream

from disco.cli import main
from disco.cli.main import _parser
from disco.cli.serving import serve_command, serve_setup
from disco.cli.serving.settings import MAX_ANSWERS, MAX_ROUNDS, read_settings
from disco.server import Metrics, serve
from disco.server.layers.layer_metrics import LayerMetrics
from disco.server.verifier.verifier_metrics import VerifierMetrics
from disco.speculate.layer_facts import LayerFacts

pytestmark = pytest.mark.real

PAGE = (ROOT / "docs" / "reference" / "server.md").read_text(encoding="utf-8")
SERVER_ONLY = ("--local", "none", "--preset", "fast")


def reaching(base_url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "first-key-1234", "OPENAI_BASE_URL": base_url}


@signals
def test_an_answer_in_progress_is_finished_before_the_end(tmp_path):
    """Under a key from a file, on an address that others can reach. SIGINT: tests/security/test_canary.py."""
    records, file = tmp_path / "routes.jsonl", tmp_path / "key"
    file.write_text(KEY + "\n")
    options = ("--preset", "private", "--grace", "600", "--record", str(records))
    with running(*options, "--host", "0.0.0.0", "--key-file", str(file)) as (process, address):
        with asking(address, "/v1/models") as connection:
            assert connection.getresponse().status == 401
        keyed = {"Authorization": f"Bearer {KEY}"}
        with asking(address, CHATS, LONG, keyed) as connection:
            answer = connection.getresponse()
            assert answer.readline().startswith(b"data: ")
            tell_to_end(process, address)
            assert answer.read().decode().endswith("data: [DONE]\n\n")
        said = what_it_said(process)
    (line,) = records.read_text().splitlines()
    assert json.loads(line)["finish_reason"] == "length"
    assert "CANARYPROMPT" not in said + line


@signals
@pytest.mark.parametrize(("grace", "count"), [("0.5", 1), ("600", 2)], ids=["after grace", "second signal"])
def test_what_takes_too_long_is_broken_off_and_told_so(grace, count):
    script = [STREAM_HEAD, piece(sse(chunk("Once"), done=False)), WAIT_FOR_CLOSE]
    with (
        upstream(script) as server,
        running("--grace", grace, *SERVER_ONLY, **reaching(server.base_url)) as (process, address),
        asking(address, CHATS, {**CHAT, "stream": True}) as streaming,
        asking(address, CHATS, CHAT) as waiting,
    ):
        answer = streaming.getresponse()
        assert answer.status == 200
        busy, deadline = "", time.monotonic() + WITHIN_S
        while "disco_http_requests_in_flight 2.0" not in busy:
            assert time.monotonic() < deadline, busy
            with asking(address, "/metrics") as connection:
                busy = connection.getresponse().read().decode()
        assert answer.readline().startswith(b"data: ")
        for _ in range(count):
            tell_to_end(process, address)
        last = answer.read().decode().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        whole = waiting.getresponse()
        assert (whole.status, json.loads(whole.read())["error"]["code"]) == (503, "shutting_down")
        what_it_said(process)


@signals
def test_connections_that_say_nothing_do_not_hold_up_the_end_and_a_backup_answers():
    """The first server is not there; the log says so although a caller does not notice."""
    text = stream(sse(chunk("From the second."), chunk(finish="stop")))
    variables = {"DISCO_BACKUP_KEY": "second-key-1234", **reaching(f"http://127.0.0.1:{free_port()}/v1")}
    with contextlib.ExitStack() as stack:
        second = stack.enter_context(upstream(text))
        options = ("--grace", "600", "--backup", second.base_url, "its-model")
        process, address = stack.enter_context(running(*SERVER_ONLY, *options, **variables))
        with asking(address, CHATS, CHAT) as connection:
            answered = json.loads(connection.getresponse().read())
        _, headers, body = second.requests[-1]
        for _ in range(50):  # some of them are being accepted just then
            stack.enter_context(socket.create_connection(address))
        process.send_signal(signal.SIGTERM)
        said = what_it_said(process)
    assert answered["choices"][0]["message"]["content"] == "From the second."
    assert (headers["authorization"], body["model"]) == ("Bearer second-key-1234", "its-model")
    assert "WARNING disco.route: endpoint server failed: connection" in said
    assert "key-1234" not in said


SELF = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://localhost:8699/v1"}
KEYED = {"DISCO_SERVER_KEY": KEY}
BACKUP = "--backup http://127.0.0.1:1/v1 its-model"
TIER = "--tier http://127.0.0.1:8699/v1 its-model"


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        ("--preset private --host 0.0.0.0", {}, "DISCO_SERVER_KEY"),
        ("--preset private --host no-such-host.invalid", KEYED, "not known"),
        ("--preset private --host 192.0.2.1", KEYED, "is not an address of this machine"),
        ("--preset private --key-file no-such-file", {}, "cannot be read"),
        ("--preset private", {"DISCO_SERVER_KEY": ""}, "empty"),
        ("--preset private --allow-origin *", {}, "no origin"),
        ("--preset private --local smolm2-135m", {}, "smollm2-135m"),
        ("--preset private --port {taken}", {}, "(?s)Port {taken} on 127.0.0.1 is in use.*--port"),
        ("--preset privat", {}, "private"),
        ("--local none", {}, "api_key|OPENAI_API_KEY"),
        (BACKUP, {"OPENAI_API_KEY": "k"}, "DISCO_BACKUP_KEY_1"),
        ("--port 8699 --preset {preset}", SELF, "The server behind disco.*is this server itself"),
        (f"{TIER} reach=own --port 8699", {}, "The tier 'tier-1'.*is this server itself"),
        (f"{TIER} reach=far", {}, "reach must be"),
        (f"{TIER} speed=1", {}, "no option 'speed'.*reach"),
        (f"{TIER} price=dear", {}, "such as price=0.1,0.4"),
        (TIER, {}, "has no api_key"),
        ("--tier http://127.0.0.1:1/v1", {}, "and the model"),
        ("--preset private --redact no_such_module:find", {}, "'no_such_module' cannot be imported"),
        ("--preset private --redact json:no_such_name", {}, "'json' has no 'no_such_name'"),
        ("--preset private --redact json", {}, "MODULE:FUNCTION"),
        ("--preset private --redact json:__name__", {}, "redact is a str"),
        ("--preset private --shadow cheap", {}, "--record"),
        ("--preset private --prompt-cache-mib 9", {}, "belong to --prompt-cache"),
        (
            "--preset private --prompt-cache --prompt-cache-mib 0",
            {},
            "--prompt-cache-mib must be at least 1, not 0",
        ),
        ("--preset private --histories {preset}/x", {}, "there is no folder"),
        # The file of the last run is read and written: only the preset is wrong.
        ("--preset privat --histories {preset}", {}, "^disco: no preset is called 'privat'"),
        ("--preset private --histories {preset} --record {preset}", {}, "--record writes this file too"),
        ("--slots 8", {}, "--slots is for a verify server.*--verify MODEL"),
        ("--local none --context 512", {}, "--context is for a local model"),
        ("--local http://127.0.0.1:1/v1#m --context 512", {}, r"LocalServer\(context_tokens"),
        ("--preset private --context 9000", {}, "trained with 8,192.*at most 8,192"),
        ("--preset private --runtime llama-server --context 9000", {}, "trained with 8,192.*at most 8,192"),
        ("--threads 1", {}, "--threads is for a verify server.*--verify MODEL"),
        ("--verify smollm2-135m --local none", {}, "--local cannot be used with --verify"),
        ("--verify smollm2-135m --runtime engine", {}, "--runtime cannot be used with --verify"),
        ("--verify smollm2-135m --preset privat", {}, "no preset is called 'privat'"),
        ("--verify smollm2-135m --slots 0", {}, "--slots must be at least 1, not 0"),
        ("--verify smollm2-135m --context 0", {}, "--context must be at least 1"),
        ("--verify smolm2-135m", {}, "smollm2-135m"),
        ("--verify smollm2-135m --host 0.0.0.0", {}, "DISCO_SERVER_KEY"),
        ("--verify smollm2-135m --port {taken}", {}, "(?s)Port {taken} on 127.0.0.1 is in use.*--port"),
        ("--verify smollm2-135m --key-file no-such-file", {}, "cannot be read"),
        ("--verify smollm2-135m", {"without": "uvicorn"}, r"(?s)(?=.*'uvicorn').*\[server\]"),
        ("", {"without": "uvicorn"}, r"(?s)(?=.*'uvicorn').*\[server\]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused_with_the_remedy(arguments, variables, says, tmp_path, monkeypatch, capsys):
    preset = tmp_path / "server-only.toml"
    preset.write_text('[dispatch]\npolicy = "server_only"\n')
    for name, value in variables.items():
        if name == "without":
            monkeypatch.setitem(sys.modules, value, None)
        else:
            monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        free = (
            [] if "--port" in arguments else ["--port", "0"]
        )  # a server of the user's may be on the usual one
        assert main(["serve", *free, *arguments.format(taken=taken, preset=preset).split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("disco: ")
    assert re.search(says.replace("{taken}", taken), said), said


def test_no_state_file_is_no_file_of_that_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off").mkdir()  # as good as a folder in which nothing may be written
    assert main(["serve", "--port", "0", "--preset", "privat", "--state", "off"]) == 2
    assert "no preset is called 'privat'" in capsys.readouterr().err


def test_tiers_are_read_from_the_arguments_and_their_keys_from_the_environment(monkeypatch):
    monkeypatch.setenv("DISCO_TIER_KEY_2", "key-of-the-second")
    given = [
        ["http://attic:8642/v1", "small", "reach=own", "price=0,0.5", "name=attic"],
        ["http://b/v1", "m"],
    ]
    first, second = serve_command._tiers(given)
    assert (first.base_url, first.model, first.reach, first.name) == (*given[0][:2], "own", "attic")
    assert (first.price, first.api_key) == ((0.0, 0.5), None)
    assert (second.reach, second.price, second.api_key) == ("any", None, "key-of-the-second")


def test_what_is_not_given_has_the_usual_value_which_is_that_of_the_library():
    def settled(*given):
        return read_settings(_parser().parse_args(["serve", *given]))

    answers, verifies = settled(), settled("--verify", "m", "--slots", "3", "--max-concurrent", "7")
    assert (answers.usual_local(), settled("--layers", "x.gguf").usual_local()) == ("smollm2-135m", "none")
    assert (answers.preset, answers.slots) == ("server-first", 8)
    assert (verifies.slots, verifies.context_tokens, verifies.max_concurrent) == (3, None, 7)
    usual = {name: given.default for name, given in inspect.signature(serve).parameters.items()}
    assert (answers.host, answers.port, answers.grace_s) == (usual["host"], usual["port"], usual["grace_s"])
    assert answers.max_body_mib * 2**20 == usual["max_body_bytes"]
    assert usual["max_concurrent"] == MAX_ANSWERS < MAX_ROUNDS


def test_the_commands_lines_go_to_standard_error_from_the_level_on(capsys):
    for level, lines in (("warning", 1), ("info", 2), ("error", 0)):
        with serve_setup.logging_at(level):
            logging.getLogger("disco.route").warning("endpoint server failed: server")
            logging.getLogger("disco.route").info("answer finished")
            logging.getLogger("httpx2").warning("https://user:password@host")
        logging.getLogger("disco").warning("after the end")
        assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("sh") is None, reason="needs curl")
def test_the_commands_work(local):
    here = local.base_url.removesuffix("/v1")
    lines = PAGE.replace("http://127.0.0.1:8642", here).replace("curl", "curl -sS")
    chat, response, told = (
        subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=120).stdout
        for line in re.findall(r"```sh\n(curl.*?)```", lines, re.DOTALL)
    )
    assert chat.endswith(b"data: [DONE]\n\n")
    assert json.loads(response)["output"][0]["content"][0]["text"]
    assert json.loads(told)["count"] >= 1  # the chat above


def test_every_metric_is_in_its_table():
    named = set(re.findall(r"^\| `(disco_\w+)` \|", PAGE, re.MULTILINE))
    metrics = Metrics()
    VerifierMetrics(metrics.registry, FakeEngine().facts)
    nowhere = LayerFacts("m", "f", 1, 2, 8, 64, 4, 8)
    LayerMetrics(metrics.registry, SimpleNamespace(passes=0, facts=lambda: nowhere))
    made = metrics.registry.collect()
    assert named == {metric.name + ("_total" if metric.type == "counter" else "") for metric in made}
