"""`disco chat` line by line, without a terminal: the real model answers."""

import json
import os
import stat
from pathlib import Path

import anyio
import pytest
from faults import rising
from faults.in_memory import MemoryServer

from disco.cli import main
from disco.cli.chat.plain_view import PlainView
from disco.cli.chat.terminal_output import can_draw
from disco.cli.console import Screen

pytestmark = pytest.mark.real


@pytest.fixture
def says(monkeypatch):
    """What comes in through the pipe."""

    def says(*lines):
        left = iter(lines)

        def line(prompt=""):
            assert prompt == ""  # a pipe gets no prompt
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", line)

    return says


def test_a_chat_is_recorded_without_its_words(tmp_path, says, capsys):
    says("", "What is a\\", "xylophone-4711?", "/why", "/preset fast", "/prese t", "/nothing")
    path = tmp_path / "routes.jsonl"
    assert main(["chat", "--preset", "private", "--max-tokens", "24", "--record", str(path)]) == 0
    out = capsys.readouterr().out
    (record,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(record)["winner"] == "device"
    assert "xylophone" not in record
    assert "\x1b" not in out
    assert "first text after" in out  # the time line
    assert (
        out.index("answered under fast")
        < out.index("no preset is called 't'")
        < out.index("no command /nothing")
    )
    assert main(["chat", "--record", str(tmp_path)]) == 2  # before anything is loaded
    assert "is a folder" in capsys.readouterr().err


def test_a_failed_question_is_one_line_with_a_remedy_and_the_chat_goes_on(says, capsys):
    says("Hello?", "/clear")
    assert main(["chat", "--local", "http://127.0.0.1:9/v1#none"]) == 1  # a script sees it
    *_, failed, cleared = capsys.readouterr().out.splitlines()
    assert failed.startswith("The server at 127.0.0.1:9 cannot be reached. Check that it runs")
    assert cleared == "A new conversation."


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_closed_stream_is_the_end(monkeypatch, closed):
    """As behind `<&-` and `>&-`, where Python has no such stream at all."""
    monkeypatch.setattr(f"sys.{closed}", None)
    assert not can_draw()
    with pytest.raises(EOFError):
        anyio.run(PlainView(Screen(), "").question)


def test_an_answer_in_doubt_begins_again_below_a_line_that_says_so(monkeypatch, says, capsys):
    def client(**given):
        server = MemoryServer(rising.says("higher"))
        return rising.asking(
            server, rising.says("middle", "down"), rising.local(), "revise", on_route=given["on_route"]
        )

    monkeypatch.setattr("disco.cli.chat.chat_setup.AsyncDisco", client)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    says("Why?")
    assert main(["chat", "--model", "higher"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("[in doubt: the next tier answers]")
    assert rising.TEXT["lower"].startswith(lines[at - 1])
    assert lines[at + 1] == rising.TEXT["higher"]
    assert lines[at + 2].startswith("[server; middle failed: connection; first word after")


def test_a_history_file_is_the_users_alone(tmp_path):
    from disco.cli.chat.question_history import open_history
    from disco.errors import ConfigurationError

    path = tmp_path / "questions"
    path.touch(mode=0o644)
    open_history(str(path)).store_string("one\ntwo")
    assert list(open_history(str(path)).load_history_strings()) == ["one\ntwo"]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(open_history(None).load_history_strings()) == []
    with pytest.raises(ConfigurationError, match=r"--history .*cannot be read and written"):
        open_history(str(tmp_path / "none" / "questions"))
    mode = Path("/dev/null").stat().st_mode
    for odd in (str(tmp_path), "/dev/null"):  # as root, its permissions would be changed for everybody
        with pytest.raises(ConfigurationError, match=r"--history .*no regular file"):
            open_history(odd)
    assert Path("/dev/null").stat().st_mode == mode
