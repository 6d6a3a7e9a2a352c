"""The report as a whole: real models, faults of a check, Ctrl-C, and what is shown."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from servers import free_port, smollm2_gguf

from disco.cli import main
from disco.cli.doctor import examination, model_list, packages
from disco.cli.doctor.finding import Check, Facts, Setup, sets, typed
from disco.cli.doctor.hidden_secrets import clean, known_secrets, quoted
from disco.cli.doctor.packages import is_within
from disco.cli.doctor.server import check_answer, check_price
from disco.cli.main import _parser
from disco.profiles import user_profile_dir
from disco.state import Database
from tests.cli.doctor.keyed_api import KEY, SECRET, api

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
RUN = "from disco.cli import main; raise SystemExit(main())"


def test_a_healthy_set_up_with_a_real_model_and_a_real_server(native_server, tmp_path, monkeypatch, capsys):
    """Twice: the second run knows from the state file how the server continues, without asking."""
    state = tmp_path / "state.sqlite3"
    database = Database(state)
    database.write(lambda connection: None, None)
    database.close()
    monkeypatch.setenv("OPENAI_BASE_URL", native_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    given = ["doctor", "--model", native_server.model, "--state", str(state), "--port", str(free_port())]
    assert main([*given, "--ask"]) == 0
    shown = capsys.readouterr().out
    assert "does not" not in shown.split("You can")[0]
    for subject in (
        "local model: smollm2-135m loads in",
        "model: The server has",
        "answer: smollm2-135m wrote",
    ):
        assert subject in shown
    assert "continuation: The server continues a half-written answer (flags)" in shown
    assert "You can: get answers from this machine" in shown
    assert "move running answers to the server" in shown
    assert "You cannot yet" not in shown
    assert main([*given, "--json", "--local", "none"]) == 0
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "(flags)" in found["continuation"]["what"]
    assert found["answer"]["verdict"] == "not checked"


@pytest.mark.parametrize(
    ("status", "error", "subject", "cause", "remedy"),
    [
        (401, {"message": f"Incorrect API key provided: {KEY}"}, "key accepted", "(401)", "OPENAI_API_KEY"),
        (404, {"message": "The model does not exist"}, "model", "(404)", "--model"),
        (429, {"message": "quota", "code": "insufficient_quota"}, "answer", "(429)", "bill"),
        (500, {"message": "out of memory"}, "answer", "out of memory", "log"),
    ],
)
def test_a_question_that_fails_names_its_cause(doctor, server, status, error, subject, cause, remedy):
    def answer(path, key):
        if path.endswith("/chat/completions"):
            return status, "application/json", {"error": error}
        return api(path, KEY)  # lists its models to anyone

    with server(answer):
        doctor("--ask").fault(subject, cause, remedy=remedy)


def test_a_check_that_is_at_fault_says_so_and_stops_no_other(doctor, server, monkeypatch, capsys):
    def broken(setup, facts):
        raise RuntimeError(f"with the key {KEY}")

    async def endless(setup, facts):
        await anyio.sleep(60)

    lines = examination._lines

    def with_faults(setup):
        first, *others = lines(setup)
        return ((Check("python", 15.0, broken), Check("disk", 0.05, endless), *first), *others)

    monkeypatch.setattr(examination, "_lines", with_faults)
    with server(api):
        assert main(["doctor", "--local", "none", "--port", str(free_port())]) == 0
    shown = capsys.readouterr()
    assert "python: The check itself failed: RuntimeError in " in shown.out
    assert "disk: This took longer than 0 s and was given up" in shown.out
    assert "key accepted: The server takes the key." in shown.out
    assert SECRET not in shown.out + shown.err


def test_ctrl_c_ends_it_at_once(monkeypatch, capsys):
    """While a server does not answer."""
    monkeypatch.setattr(model_list, "_LIMIT_S", 600.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)

        def interrupted() -> None:
            with (
                silent.accept()[0],
                silent.accept()[0] as asked,
            ):  # the look whether anything listens; the request
                assert asked.recv(100)
                os.kill(os.getpid(), signal.SIGINT)
                over.wait(60)

        over = threading.Event()
        user = threading.Thread(target=interrupted)
        user.start()
        status = main(["doctor", "--local", "none", "--port", str(free_port())])
        over.set()
        user.join()
    assert status == 130
    assert SECRET not in "".join(capsys.readouterr())


class Closed(io.StringIO):
    """A pipe that its reader has closed."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_leaves_ends_it(monkeypatch):
    """As `disco doctor | head -1` does."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        assert main(["doctor", "--local", "none"]) == 141


def test_signs_that_the_output_cannot_write_end_nothing(monkeypatch):
    """As in a pipe on Windows, whose encoding has no arrow."""
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        out = io.TextIOWrapper(written, encoding="ascii", write_through=True)
        patch.setattr(sys, "stdout", out)
        assert main(["doctor", "--local", "none"]) == 1
    assert b"? export OPENAI_API_KEY" in written.getvalue()


def test_a_price_is_told_as_disco_prices_check_does(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    facts = Facts(is_reached=True)
    known = check_price(Setup(None, "balanced", "gpt-4o-mini"), facts)
    assert "Listed as 'gpt-4o-mini' of openai on " in known.what
    assert "0.15 $ in and 0.60 $ out per million tokens." in known.what
    unknown = check_price(Setup(None, "balanced", "my-model"), facts)
    assert unknown.what.startswith("No price is known for 'my-model' at api.openai.com;")
    assert "disco prices check my-model --base-url https://api.openai.com/v1" in unknown.remedy
    own = user_profile_dir() / "prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[broken")
    assert check_price(Setup(None, "balanced", "gpt-4o-mini"), facts).verdict == "does not"
    answer = anyio.run(check_answer, Setup(None, "balanced", "gpt-4o-mini"), facts)
    assert "the price of gpt-4o-mini is not known" in answer.what


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_what_is_to_be_typed_reaches_a_shell_as_it_is_meant(monkeypatch):
    path = str(Path.home() / "my models" / "$x.gguf")
    line = f"{sets('HERE', 'http://[::1]/a&b')}; {sets('THERE', like='HERE')}; printf '%s|' \"$THERE\" {typed(path)}"
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == f"http://[::1]/a&b|{path}|"
    monkeypatch.setattr(sys, "platform", "win32")
    assert sets("HERE", "http://h/v1") == '$env:HERE = "http://h/v1"'
    assert sets("THERE", like="HERE") == "$env:THERE = $env:HERE"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a limit of POSIX")
def test_a_full_disk(tmp_path, server):
    """As a limit on the size of files shows it to a process, which is how a quota does."""
    path = tmp_path / "state.sqlite3"
    database = Database(path)
    database.write(lambda connection: None, None)
    database.close()
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); {RUN}"
    command = [sys.executable, "-c", limited, "doctor", "--local", "none", "--json", "--state", str(path)]
    with server(api):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {one["subject"]: one for one in json.loads(ran.stdout)["findings"]}
    assert ran.returncode == 1
    assert found["state file"]["verdict"] == "does not"
    assert "less full" in found["state file"]["remedy"]


@pytest.mark.parametrize("arguments", [["--within", "0"], ["--port", "0"]])
def test_an_option_out_of_range_is_refused(arguments, capsys):
    assert main(["doctor", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_secrets_of_the_environment_are_hidden_whole_and_in_part(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f'"{KEY}"')
    monkeypatch.setenv("HTTPS_PROXY", "http://user:pass%2Fword-42@proxy:3128")
    secrets = known_secrets()
    assert clean(f"a {KEY} b pass%2Fword-42 pass/word-42", secrets) == "a [key] b [key] [key]"
    assert (
        quoted(f"key sk-p***{SECRET[-4:]} or {SECRET[3:9]}, see the docs", secrets)
        == "key [key] or [key] see the docs"
    )
    assert quoted(["no", "text"], secrets) == ""


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [
        ("3.57.0", ">=3.50,<4", True),
        ("4.0", ">=3.50,<4", False),
        ("3.9.2", ">=3.50,<4", False),
        ("2026.10.11549", ">=2026.10", True),
        ("0.3.36.post1", "<0.4,>=0.3.36", True),
        ("1.2.0rc1", ">=1.2", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version, bounds, within):
    assert is_within(version, bounds) is within


def test_the_page_describes_every_option_and_every_subject():
    page = (ROOT / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    options = {option for action in commands["doctor"]._actions for option in action.option_strings}
    assert options - set(re.findall(r"--[\w-]+", page)) == {"-h", "--help"}
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "disco" / "cli" / "doctor").glob("*.py")]
    said = r'(?:works|does_not|unchecked)\(\s*"([\w. ]+)"'
    subjects = {name for source in sources for name in re.findall(said, source)}
    assert subjects
    assert subjects - set(re.findall(r"^\| ([\w. ]+?) \|", page, re.MULTILINE)) == set()


def test_an_openai_package_that_is_too_old_is_named_by_every_import():
    """Then no command can start, this one neither: the error says what to type. Earlier versions lack httpx2."""
    code = "import sys; sys.modules['httpx2'] = None; import disco"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    last = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 1
    assert last.startswith("ImportError: disco needs openai>=3.50,<4, and openai ")
    assert last.endswith('pip install "openai>=3.50,<4"')
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "openai>=3.50,<4" in needed["dependencies"]
    (wheel,) = (one for one in needed["optional-dependencies"]["local"] if one.startswith("xllamacpp"))
    assert f'{wheel}; extra == "local"' in packages._KNOWN


@pytest.mark.slow
def test_a_running_disco_serve_is_found_and_its_port_is_its_own(tmp_path, monkeypatch, capsys):
    folder, port = tmp_path / "serve", free_port()
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    given = ["--local", str(smollm2_gguf()), "--port", str(port)]
    command = [sys.executable, "-c", RUN, "serve", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("http")
            assert main(["doctor", *given, "--json"]) == 0
        finally:
            process.terminate()
            process.stdout.read()
    found = {one["subject"]: one["what"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert f"port {port} runs" in found["attach"]
    assert "use its model" in found["attach"]
    assert "disco serve listens" in found["port"]
