"""Keys and prompts that nobody else would write, in everything an application does; then the search for them.

What is searched: every file under the home, working and temporary folders of a process of its own, and all it
printed, with every logger at DEBUG, OpenTelemetry switched on and `python -X dev`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from canaries import (
    ANSWER,
    ANSWER_CANARY,
    CALLERS_KEY,
    KEY,
    MESSAGES,
    PASSWORD,
    PROMPT,
    SECRETS,
    TEXTS,
    TOOL,
    found_in,
    found_under,
)
from canary_flows import GOOD, refusal
from scripted_server import answer, chunk, sse, stream
from serving import upstream

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = (ROOT, ROOT / "tests" / "support", ROOT / "tests" / "support" / "servers", HERE)
# As an application that debugs has it. httpx writes whole URLs into its own log at INFO, passwords in them too.
COMMAND = (
    "import logging, sys; logging.basicConfig(level=logging.DEBUG);"
    "logging.getLogger('httpx2').setLevel(logging.WARNING);"
    "from disco.cli import main; sys.exit(main())"
)
WITHIN_S = 600  # all of it takes seconds
SCHEMA = {"type": "json_schema", "json_schema": {"name": PROMPT, "schema": PROMPT}}
BAD: list[dict] = [
    *({"messages": wrong} for wrong in (PROMPT, [PROMPT], [{"role": PROMPT, "content": "x"}])),
    *({"messages": [{"role": "user", "content": wrong}]} for wrong in ([{"type": PROMPT}], {"x": PROMPT})),
    {"messages": [{"role": "assistant", "tool_calls": PROMPT}]},
    *({field: PROMPT} for field in ("stream", "temperature", "max_tokens", "seed", "tools", "disco", "n")),
    *({"disco": {field: PROMPT}} for field in ("pace_tps", "deadline_s", "budget_class")),
    *({field: PROMPT} for field in ("modalities", "stream_options", "stop", "logit_bias")),
    {"tools": [{"type": "function", "function": {"name": PROMPT, "parameters": PROMPT}}]},
    *({"response_format": wrong} for wrong in ({"type": PROMPT}, SCHEMA)),
]


@pytest.fixture
def process(tmp_path: Path) -> Iterator:
    """Starts a Python for which `tmp_path` is everything; what it prints goes into files there."""
    folders = {"HOME": "home", "TMPDIR": "tmp"}
    folders |= {f"XDG_{name}_HOME": f"home/{name}" for name in ("CACHE", "CONFIG", "DATA", "STATE")}
    kept = [name for name in ("PATH", "SSL_CERT_DIR", "SYSTEMROOT") if name in os.environ]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, PATHS)), "PYTHONFAULTHANDLER": "1"}
    variables |= {"PYTHONUNBUFFERED": "1", **{name: os.environ[name] for name in kept}}
    variables |= {name: str(tmp_path / folder) for name, folder in folders.items()}
    for name in ("home", "work", "tmp"):
        (tmp_path / name).mkdir()
    started: list[subprocess.Popen] = []

    def start(*arguments: str, **more: str) -> subprocess.Popen:
        with (tmp_path / "stdout").open("wb") as out, (tmp_path / "stderr").open("wb") as err:
            settings = {"cwd": tmp_path / "work", "env": {**variables, **more}}
            settings |= {"stdin": subprocess.PIPE, "stdout": out, "stderr": err}
            started.append(subprocess.Popen([sys.executable, "-X", "dev", *arguments], **settings))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_the_search_finds_what_it_looks_for(tmp_path):
    shifted = [base64.b64encode(f"{user}:{KEY}".encode()) for user in ("user", "u", "us")]
    for number, data in enumerate([KEY.encode(), json.dumps({"key": [KEY]}).encode(), *shifted]):
        (tmp_path / str(number)).write_bytes(b"\0something else " + data + b" and more")
        assert len(found_under(tmp_path, {"key": KEY, "another": CALLERS_KEY})) == number + 1


def test_nothing_an_application_does_gives_them_away(process, tmp_path):
    ended = process(str(HERE / "canary_flows.py")).wait(WITHIN_S)
    assert ended == 0, (tmp_path / "stderr").read_text()[-3000:]
    told = json.loads((tmp_path / "work" / "summary.json").read_text())
    # It did do all that: failed in every way, moved, and left records, spans, metrics and log lines.
    assert {
        *("AuthenticationError", "RateLimitError", "BadRequestError", "InternalServerError"),
        *("APIConnectionError", "AnswerTimeoutError", "IncompleteAnswerError"),
        *("LocalModelError", "ContextLengthError"),
    } <= set(told["failed"])
    assert told["switched"] >= 1
    assert told["routes"] > 60
    for file, says in {
        "work/log.jsonl": "disco_preset",
        "work/spans.json": "local/smollm2-135m",
        "work/metrics.json": "disco.bill",
        "work/routes.jsonl": '"finish_reason": "stop"',
        "work/reprs.txt": "Request(model='m'",
        "stderr": "[prompt]",
    }.items():
        assert says in (tmp_path / file).read_text()
    learnt = state_files(tmp_path)
    with closing(sqlite3.connect(learnt[0])) as database:
        kinds = {kind for (kind,) in database.execute("SELECT kind FROM series")}
        assert {"ttft_s", "decode_tps", "start_s", "answer_tokens", "prompt_tokens"} <= kinds
        assert database.execute("SELECT count(*) FROM facts").fetchone()[0]
    assert found_under(tmp_path, SECRETS | TEXTS) == []


def state_files(folder: Path) -> list[Path]:
    """The files of the state file where such a process has it by default, the file itself first."""
    return sorted((folder / "home" / "STATE" / "disco").glob("state.sqlite3*"))


def test_the_server_gives_nothing_away(process, tmp_path):
    """Not in a log, not in metrics, and not to callers: neither the key of the server behind it nor their own."""
    quoted = f"You sent {PROMPT} with {KEY} of user:{PASSWORD}."
    scripts = [
        *(GOOD, GOOD),
        *(refusal(status, "x", quoted) for status in ("401 Unauthorized", "400 Bad Request")),
        answer(f"<html>{quoted}</html>".encode(), status="500 Oops", content_type="text/html"),
        answer(quoted.encode(), status="429 Slow Down", content_type="text/plain"),
        stream(sse(chunk(ANSWER), {"error": {"message": quoted, "code": "x"}})),
    ]
    body = {"model": "m", "messages": MESSAGES, "tools": [TOOL], "disco": {"pace_tps": "off"}}
    with upstream(*scripts) as behind:
        serve = process(
            *("-c", COMMAND, "serve", "--port", "0", "--local", "none", "--record", "routes.jsonl"),
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=behind.base_url.replace("://", f"://user:{PASSWORD}@"),
            DISCO_SERVER_KEY=CALLERS_KEY,
        )
        until = time.monotonic() + WITHIN_S
        while not (printed := (tmp_path / "stdout").read_text()).count("\n"):
            assert serve.poll() is None and time.monotonic() < until, (tmp_path / "stderr").read_text()  # noqa: PT018
            time.sleep(0.05)
        address = urlsplit(printed.partition("\n")[0]).netloc

        def ask(path: str, body: dict | None, key: str = CALLERS_KEY) -> bytes:
            with closing(http.client.HTTPConnection(address, timeout=WITHIN_S)) as connection:
                data = None if body is None else json.dumps(body)
                headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
                connection.request("GET" if body is None else "POST", path, data, headers)
                response = connection.getresponse()
                return repr(response.getheaders()).encode() + response.read()

        chats = "/v1/chat/completions"
        said = [ask(chats, {**body, "stream": way}) for way in (False, True)]
        assert all(ANSWER_CANARY.encode() in each for each in said)
        ways = [(chats, {}), (chats, {"stream": True}), ("/v1/responses", {"input": PROMPT})]
        for path, more in [*ways, ("/v1/embeddings", {"input": PROMPT})] * 3:  # the last script repeats
            said.append(ask(path, {**body, **more, "max_retries": 0}))
        bad = [ask(chats, {**body, **more}) for more in BAD]
        own = [
            each for each in bad if b"You sent" not in each
        ]  # the others are the words of the server behind it
        assert len(own) > 12
        assert list(found_in(b"".join(own), TEXTS)) == []
        said += [ask(chats, body, key=f"{CALLERS_KEY}-wrong"), ask("/v1/models", None, key="wrong")]
        quiet = b"".join(ask(path, None) for path in ("/metrics", "/health", "/v1/nothing"))
        assert list(found_in(b"".join(said + bad), SECRETS)) == []
        assert list(found_in(quiet, SECRETS | TEXTS)) == []
        assert [file.name.partition("sqlite3")[2] for file in state_files(tmp_path)] == ["", "-shm", "-wal"]
        assert found_under(tmp_path / "home", SECRETS | TEXTS) == []
        serve.send_signal(signal.SIGINT)
        assert serve.wait(WITHIN_S) == 0
    assert "server: http://127.0.0.1" in (tmp_path / "stdout").read_text()
    assert (tmp_path / "work" / "routes.jsonl").stat().st_size > 0
    assert found_under(tmp_path, SECRETS | TEXTS) == []


@pytest.mark.slow
def test_a_chat_in_the_terminal_keeps_no_words(process, tmp_path):
    policy, stdout = tmp_path / "policy.toml", tmp_path / "stdout"
    policy.write_text('[dispatch]\npolicy = "server_only"\n')
    asked = PROMPT.replace("\n", " ")
    scripts = [
        GOOD,
        refusal("400 No", "x", f"You sent {asked} by {KEY}"),
    ]  # a device does not take over from that
    with upstream(*scripts) as behind:
        command = ("-c", COMMAND, "chat", "--preset", str(policy), "--record", "routes.jsonl")
        chat = process(*command, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=behind.base_url)
        chat.communicate(f"{asked}\n{asked}\n\n".encode(), timeout=WITHIN_S)
    assert chat.returncode == 0, (tmp_path / "stderr").read_text()[-3000:]
    shown = stdout.read_text()
    assert ANSWER_CANARY in shown  # that is what it is for; nothing else has it
    assert "[prompt]" in shown.replace("\n", "")
    assert "[key]" in shown.replace("\n", "")
    stdout.write_text(shown.replace(ANSWER_CANARY, ""))  # the screen is where answers belong
    assert (tmp_path / "work" / "routes.jsonl").stat().st_size > 0
    assert found_under(tmp_path, SECRETS | TEXTS) == []
