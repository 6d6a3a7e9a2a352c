"""What a person has to mend reaches a person: on stderr or in the log, once, with the remedy, and never in the way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler

import anyio
import pytest
from plain_server import listening
from servers import free_port

from disco import AsyncDisco, Backup, Disco
from disco.cli import main
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.state import Database

pytestmark = pytest.mark.real

KEY, WRONG = "right-secret-5678", "wrong-secret-1234"
MODELS = ("gpt-5", "gpt-5-mini")
FIRST = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}, migration={"enabled": False})
SEA = [{"role": "user", "content": "PROMPT Why is the sea salty?"}]


class Api(BaseHTTPRequestHandler):
    """It takes one key and knows two models, as OpenAI's does."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self._send(401, {"error": {"message": f"Incorrect API key provided: {WRONG}."}})
        return self._send(200, {"object": "list", "data": [{"id": name} for name in MODELS]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self._send(401, {"error": {"message": f"Incorrect API key provided: {WRONG}."}})
        if asked["model"] not in MODELS:
            said = {"message": f"The model `{asked['model']}` does not exist.", "code": "model_not_found"}
            return self._send(404, {"error": said})
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "By rivers."},
            "finish_reason": "stop",
        }
        event = {"index": 0, "delta": {"content": "By rivers."}, "finish_reason": "stop"}
        head = {"id": "x", "created": 0, "model": asked["model"]}
        if not asked.get("stream"):
            return self._send(200, {**head, "object": "chat.completion", "choices": [choice]})
        data = json.dumps({**head, "object": "chat.completion.chunk", "choices": [event]})
        return self._send(200, f"data: {data}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

    def _send(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with listening(Api) as url:
        yield url


PROGRAM = """
import logging, sys, warnings
from disco import Disco, DiscoWarning
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
base_url, key, model, set_up = sys.argv[1:]
exec(set_up)
first = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}, migration={"enabled": False})
local = SimulatedEndpoint("device", SimulatedProfile(answer="Here."), place="device")
at = {"base_url": base_url, "api_key": key, "price": (1, 1), "state": False, "max_retries": 0}
with Disco(local=local, preset=first, **at) as disco:
    for _ in range(3):
        asked = [{"role": "user", "content": "PROMPT Why is the sea salty?"}]
        print(disco.chat.completions.create(model=model, messages=asked).choices[0].message.content)
"""


def ran(base_url: str, key: str, model: str, set_up: str = "", *flags: str) -> list[str]:
    """The lines that a program leaves on stderr; its answers are all there."""
    command = [sys.executable, *flags, "-c", PROGRAM, base_url, key, model, set_up]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "Here.\n" * 3), done.stderr
    assert WRONG not in done.stderr
    assert "PROMPT" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["usual", "warnings are errors"])
def test_without_logging_it_is_on_stderr_once_and_ends_no_answer(base_url, flags):
    (line,) = ran(base_url, WRONG, "gpt-5", "", *flags)
    assert line.startswith("disco:1: DiscoWarning: Endpoint 'server' (127.0.0.1) refuses its key")
    assert "Check api_key" in line
    (line,) = ran(base_url, KEY, "gpt-5-min", "", *flags)
    assert "Endpoint 'server' (127.0.0.1) has no model 'gpt-5-min'" in line
    assert "Did you mean 'gpt-5-mini' or 'gpt-5'?" in line


def test_it_can_be_filtered_and_goes_through_logging_where_that_is_set_up(base_url):
    assert ran(base_url, WRONG, "gpt-5", "warnings.simplefilter('ignore', DiscoWarning)") == []
    assert ran(base_url, WRONG, "gpt-5", "logging.getLogger('disco').setLevel(logging.ERROR)") == []
    lines = ran(base_url, WRONG, "gpt-5", "logging.basicConfig(format='%(name)s %(levelname)s %(message)s')")
    (line,) = [line for line in lines if line.startswith("disco WARNING")]
    assert "refuses its key" in line
    assert not any("DiscoWarning" in line for line in lines)
    (line,) = ran(base_url, WRONG, "gpt-5", "logging.getLogger('app').addHandler(logging.StreamHandler())")
    assert "DiscoWarning" in line, "another logger's handler shows nothing of disco's"


def local() -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(answer="Here."), place="device")


def told(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "disco"]


@pytest.mark.parametrize("with_device", [True, False])
@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
def test_warm_up_says_what_the_doctor_would_and_raises_nothing_for_it(base_url, caplog, kind, with_device):
    """An unknown model with the nearest names, and a refused key; of a single server, too."""
    at = {"base_url": base_url, "preset": FIRST, "price": (1, 1), "state": False, "continuation": "none"}

    def warm_up(key: str, model: str | None, **more) -> list[str]:
        caplog.clear()
        client = kind(local=local() if with_device else None, api_key=key, **at, **more)
        if kind is Disco:
            with client:
                client.warm_up(model)
                client.warm_up(model)
        else:

            async def main() -> None:
                async with client:
                    await client.warm_up(model)
                    await client.warm_up(model)

            anyio.run(main)
        assert KEY not in caplog.text
        assert WRONG not in caplog.text
        return told(caplog)

    assert warm_up(KEY, "gpt-5") == warm_up(KEY, "gpt-5:nitro") == warm_up(KEY, None) == []
    (line,) = warm_up(KEY, "gpt-5-typo")
    assert "Endpoint 'server' (127.0.0.1) has no model 'gpt-5-typo'" in line
    assert "Did you mean 'gpt-5' or 'gpt-5-mini'?" in line
    (line,) = warm_up(WRONG, "gpt-5-typo")
    assert "Endpoint 'server' (127.0.0.1) refuses its key" in line
    backup = Backup(base_url=base_url, api_key=KEY, model="gpt-5-nano", price=(1, 1), continuation="none")
    (line,) = warm_up(KEY, "gpt-5", backups=[backup])
    assert "Endpoint 'backup-1' (127.0.0.1) has no model 'gpt-5-nano'" in line


def test_another_program_with_another_key_is_not_kept_from_asking_and_the_doctor_shows_who_rests(
    base_url, tmp_path, monkeypatch, capsys
):
    """The state file holds no key and nothing that is made of one."""
    state = tmp_path / "state.sqlite3"
    at = {"base_url": base_url, "preset": FIRST, "price": (1, 1), "state": state}

    def asked_by(key: str, *models: str) -> list[list[str]]:
        """One program: who was tried for each of its requests."""

        async def program() -> list[list[str]]:
            async with AsyncDisco(api_key=key, local=local(), **at) as client:
                create = client.chat.completions.create
                answers = [await create(model=model, messages=SEA) for model in models]
            return [[attempt.endpoint for attempt in answer.route.attempts] for answer in answers]

        return anyio.run(program)

    for _ in range(2):
        assert asked_by(WRONG, "gpt-5", "gpt-5") == [["server", "device"], ["device"]]
    assert asked_by(KEY, "gpt-5", "gpt-4-gone") == [["server"], ["server", "device"]]
    for file in tmp_path.iterdir():
        assert WRONG.encode() not in file.read_bytes()
    database = Database(state)
    with closing(database):
        facts = database.read(
            lambda c: c.execute("SELECT key, value FROM facts WHERE kind = 'breaker'").fetchall(), []
        )
    host = base_url.removeprefix("http://").removesuffix("/v1")
    assert sorted(json.loads(key) for key, _ in facts) == [
        ["server", host, "", "refused"],
        ["server", host, "gpt-4-gone", "refused"],
    ]
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def doctor() -> list[dict[str, str]]:
        given = [
            "--model",
            "gpt-5",
            "--local",
            "none",
            "--state",
            str(state),
            "--json",
            "--port",
            str(free_port()),
        ]
        assert main(["doctor", *given]) == 0  # those were other programs' keys
        findings = json.loads(capsys.readouterr().out)["findings"]
        return [one for one in findings if one["subject"] == "cool-down"]

    account, model = doctor()
    assert "refuses its key, or its account has no credit" in account["what"]
    assert "api_key" in account["remedy"]
    assert "for the model 'gpt-4-gone'" in model["what"]
    assert "Correct model=" in model["remedy"]
    assert main(["state", "show", "--state", str(state)]) == 0
    assert "gpt-4-gone" in capsys.readouterr().out


def test_a_function_that_makes_keys_of_a_synchronous_client(base_url):
    keys = [WRONG]
    with Disco(
        local=local(), preset=FIRST, base_url=base_url, api_key=lambda: keys[-1], price=(1, 1), state=False
    ) as client:

        def ask() -> str | None:
            return client.chat.completions.create(model="gpt-5", messages=SEA).choices[0].message.content

        assert [ask() for _ in range(3)] == ["Here."] * 3
        keys.append(KEY)
        answers = []
        while "By rivers." not in answers:  # the function is asked beside the answers, in a thread
            answers.append(ask())
            assert len(answers) < 1000
