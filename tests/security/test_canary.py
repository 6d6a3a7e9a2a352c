"""Keys and prompts that nobody else would write, in everything an application does; then the search for them.

What is searched: every file under the home, working and temporary folders of a process of its own, and all it
printed, with every logger at DEBUG, OpenTelemetry switched on and `python -X dev`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
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
from scripted_server import answer, chunk, sse, stream, usage
from serving import upstream

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUPPORT = (ROOT / "tests" / "support", ROOT / "tests" / "support" / "servers")
# As an application that debugs has it. httpx writes whole URLs into its own log at INFO, passwords in them too.
COMMAND = (
    "import logging, sys; logging.basicConfig(level=logging.DEBUG);"
    "logging.getLogger('httpx2').setLevel(logging.WARNING);"
    "from disco.cli import main; sys.exit(main())"
)
GOOD = stream(sse(*(chunk(word + " ") for word in ANSWER.split()), chunk(finish="stop"), usage(20, 10)))


def refusal(status: str, message: str) -> list:
    error = {"message": message, "type": "invalid_request_error", "code": "x", "param": None}
    return answer(json.dumps({"error": error}).encode(), status=status)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that is home, working folder and temporary folder of a process."""
    for name in ("home", "work", "tmp"):
        (tmp_path / name).mkdir()
    return tmp_path


def environment(place: Path, **more: str) -> dict[str, str]:
    folders = {
        "HOME": "home",
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "home/cache",
        "XDG_CONFIG_HOME": "home/config",
    }
    folders |= {"XDG_DATA_HOME": "home/data", "XDG_STATE_HOME": "home/state"}
    kept = {name: os.environ[name] for name in ("PATH", "SSL_CERT_DIR", "SYSTEMROOT") if name in os.environ}
    paths = os.pathsep.join(str(path) for path in (ROOT, *SUPPORT, HERE))
    settings = {"PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    return kept | {name: str(place / folder) for name, folder in folders.items()} | settings | more


@pytest.fixture
def process(place: Path) -> Iterator:
    """Starts a Python in that place; what it prints goes into files there."""
    started: list[subprocess.Popen] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen:
        with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
            one = subprocess.Popen(
                [sys.executable, "-X", "dev", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=place / "work",
                env=environment(place, **variables),
            )
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


def check(place: Path, *, allowed: frozenset[str] = frozenset()) -> None:
    canaries = {name: canary for name, canary in (SECRETS | TEXTS).items() if name not in allowed}
    assert found_under(place, canaries) == []


def test_the_search_finds_what_it_looks_for(tmp_path):
    """However it is written down."""
    import base64
    from urllib.parse import quote

    for number, data in enumerate(
        (
            KEY.encode(),
            quote(f"x={KEY}").encode(),
            base64.b64encode(f"user:{KEY}".encode()),
            base64.b64encode(f"u:{KEY}".encode()),
            base64.b64encode(f"us:{KEY}".encode()),
            json.dumps({"key": [KEY]}).encode(),
            repr({"headers": f"Bearer {KEY}"}).encode(),
        )
    ):
        file = tmp_path / str(number)
        file.write_bytes(b"\0something else " + data + b" and more")
        assert len(found_under(tmp_path, {"key": KEY})) == number + 1
    assert found_under(tmp_path, {"another": CALLERS_KEY}) == []
    (tmp_path / KEY).touch()
    assert "in the name" in " ".join(found_under(tmp_path, {"key": KEY}))


def test_nothing_an_application_does_gives_them_away(process, place):
    run = process(str(HERE / "canary_flows.py"))
    assert run.wait(120) == 0, (place / "stderr").read_text()[-3000:]
    told = json.loads((place / "work" / "summary.json").read_text())
    # It did do all that: failed in every way, moved, and left records, spans, metrics and log lines.
    assert {
        "AuthenticationError",
        "RateLimitError",
        "BadRequestError",
        "InternalServerError",
        "APIConnectionError",
        "APIResponseValidationError",
        "AnswerTimeoutError",
        "IncompleteAnswerError",
        "LocalModelError",
        "ContextLengthError",
    } <= set(told["failed"].values())
    assert told["switched"] >= 1
    assert told["routes"] > 100
    for file, says in {
        "log.jsonl": "disco_preset",
        "spans.json": "local/smollm2-135m",
        "metrics.json": "disco.cost",
        "routes.jsonl": '"finish_reason": "stop"',
        "reprs.txt": "Request(model='m'",
    }.items():
        assert says in (place / "work" / file).read_text()
    assert "[key]" in (place / "stderr").read_text()
    assert "[prompt]" in (place / "stderr").read_text()
    check(place)


def test_the_server_gives_nothing_away(process, place):
    """Not in a log, not in metrics, and not to callers: neither the key of the server behind it nor their own."""
    quote = f"You sent {PROMPT} with {KEY} of user:{PASSWORD}."
    scripts = [
        GOOD,
        GOOD,
        refusal("401 Unauthorized", quote),
        refusal("400 Bad Request", quote),
        answer(f"<html>{quote}</html>".encode(), status="500 Oops", content_type="text/html"),
        answer(quote.encode(), status="429 Slow Down", content_type="text/plain"),
        stream(sse(chunk(ANSWER), {"error": {"message": quote, "code": "x"}})),
    ]
    body = {"model": "m", "messages": MESSAGES, "tools": [TOOL], "disco": {"pace_tps": "off"}}
    with upstream(*scripts) as behind:
        serve = process(
            *("-c", COMMAND, "serve", "--port", "0", "--local", "none", "--record", "routes.jsonl"),
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=behind.base_url.replace("://", f"://user:{PASSWORD}@"),
            DISCO_SERVER_KEY=CALLERS_KEY,
        )
        address = urlsplit(first_line(serve, place / "stdout")).netloc

        def ask(path: str, body: dict | None, key: str = CALLERS_KEY) -> bytes:
            with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
                data = None if body is None else json.dumps(body)
                headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
                connection.request("GET" if body is None else "POST", path, data, headers)
                response = connection.getresponse()
                return repr(response.getheaders()).encode() + response.read()

        said = [ask("/v1/chat/completions", {**body, "stream": way}) for way in (False, True)]
        assert all(ANSWER_CANARY.encode() in each for each in said)
        for number in range(12):  # the last script repeats
            path, more = [
                ("/v1/chat/completions", {}),
                ("/v1/chat/completions", {"stream": True}),
                ("/v1/responses", {"input": PROMPT}),
                ("/v1/embeddings", {"input": PROMPT}),
            ][number % 4]
            said.append(ask(path, {**body, **more, "max_retries": 0}))
        said.append(ask("/v1/chat/completions", {**body, "messages": PROMPT}))
        said.append(ask("/v1/chat/completions", {**body, "disco": {"policy": PROMPT[:20]}}))
        said.append(ask("/v1/chat/completions", body, key=f"{CALLERS_KEY}-wrong"))
        said.append(ask("/v1/models", None, key="wrong"))
        quiet = [ask("/metrics", None), ask("/health", None), ask("/v1/nothing", None)]
        for each in (*said, *quiet):
            assert list(found_in(each, SECRETS)) == []
        for each in quiet:
            assert list(found_in(each, TEXTS)) == []
        serve.send_signal(signal.SIGINT)
        assert serve.wait(20) == 0
    assert "server: http://127.0.0.1" in (place / "stdout").read_text()
    assert (place / "work" / "routes.jsonl").stat().st_size > 0
    check(place)


def test_a_chat_in_the_terminal_keeps_no_words(process, place):
    (place / "policy.toml").write_text('[dispatch]\npolicy = "server_only"\n')
    asked = PROMPT.replace("\n", " ")
    scripts = [GOOD, *(refusal(status, f"You sent {asked} by {KEY}") for status in ("400 No", "401 No"))]
    with upstream(*scripts) as behind:
        chat = process(
            *("-c", COMMAND, "chat", "--policy", str(place / "policy.toml"), "--record", "routes.jsonl"),
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=behind.base_url,
        )
        chat.communicate(f"{asked}\n{asked}\n{asked}\n\n".encode(), timeout=120)
    assert chat.returncode == 0, (place / "stderr").read_text()[-3000:]
    shown = (place / "stdout").read_text()
    assert ANSWER_CANARY in shown  # that is what it is for; nothing else has it
    assert "[prompt]" in shown.replace("\n", "")
    assert "[key]" in shown.replace("\n", "")
    # The screen is where answers belong. After the 401 the device answers, a real model that may repeat the prompt.
    *others, last = shown.split("you: ", 3)
    last = last[last.rindex("[device;") :]
    (place / "stdout").write_text("you: ".join([*others, last]).replace(ANSWER_CANARY, ""))
    assert (place / "work" / "routes.jsonl").stat().st_size > 0
    check(place)


def first_line(process: subprocess.Popen, file: Path) -> str:
    """What a process says first."""
    import time

    until = time.monotonic() + 60
    while not (text := file.read_text()).count("\n"):
        assert process.poll() is None, file.with_name("stderr").read_text()[-3000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    return text.partition("\n")[0]
