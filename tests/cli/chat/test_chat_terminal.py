"""`disco chat` as its user sees it, on an emulated terminal: with real models, and with a server of known answers."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler

import pytest

pytest.importorskip("pexpect")
if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from cli.chat.emulated_terminal import chat
from plain_server import PlainServer, listening, served
from scripted_server import chunk, sse

pytestmark = pytest.mark.real

ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, UP, TAB = "\r", "\x1b\r", "\x03", "\x04", "\n", "\x1b[A", "\t"
PASTE = "\x1b[200~{}\x1b[201~"
STORY = (
    "The lighthouse keeper, an extraordinarily conscientious woman, wrote everything into a leather-bound logbook: "
    "the wind, the weather, 海は広いな、大きいな。月がのぼるし、日が沈む。and "
    "https://example.org/a/very/long/address/that/does/not/fit until the naïve young engineer asked her why.\n\n"
    "```python\n    total = first_value + second_value + third_value\n```\nNobody remembers her answer."
)
TOLD = "Two words.\x1b]0;title\x07\x1b[2J"


@pytest.fixture
def served_only(tmp_path):
    """A preset under which only the server answers, and at once."""
    path = tmp_path / "served-only.toml"
    path.write_text(
        '[dispatch]\npolicy = "server_only"\n[migration]\nenabled = false\n[playback]\npace_tps = "off"\n'
    )
    return str(path)


@contextlib.contextmanager
def talking(preset, *arguments, text="Two words.", **window):
    server = PlainServer("flags", text=text)
    with (
        served(server) as base_url,
        chat("--preset", preset, "--price", "1,1", *arguments, server=base_url, **window) as terminal,
    ):
        terminal.ready()
        yield terminal, server


def questions(server):
    """The questions that the server got, each with the conversation before it; a probe is none."""
    bodies = [[m["content"] for m in body["messages"]] for body in server.bodies]
    return [(said[-1], said[:-1]) for said in bodies if not said[-1].startswith("Tally")]


def test_questions_are_edited_recalled_and_pasted_and_the_chat_ends_by_ctrl_d(served_only):
    with talking(served_only) as (terminal, server):
        terminal.type("one" + ALT_ENTER + "two" + CTRL_J + "three\\" + ENTER + "four")
        terminal.until("     four")
        terminal.type(ENTER)
        terminal.until("first word after")
        terminal.ready()
        assert questions(server)[-1] == ("one\ntwo\nthree\nfour", [])
        terminal.type(PASTE.format("def f():\r\n    return 1\r\n\r\nWhat does it do?"))
        terminal.until("     What does it do?")
        assert len(questions(server)) == 1  # a paste sends nothing
        terminal.type(ENTER)
        terminal.until(lambda: terminal.text.count("first word after") == 2)
        terminal.ready()
        assert questions(server)[-1] == (
            "def f():\n    return 1\n\nWhat does it do?", ["one\ntwo\nthree\nfour", "Two words."]
        )  # fmt: skip
        terminal.type(UP)
        terminal.until(lambda: terminal.text.count("def f():") == 2)
        terminal.type(CTRL_C)  # clears the line
        terminal.until("Ctrl-C again, or Ctrl-D, ends the chat")
        assert terminal.lines[-1] != "def f():"
        terminal.type("another" + CTRL_D)  # in a line that is not empty, Ctrl-D ends nothing
        terminal.until("you: another")
        terminal.type(CTRL_C)
        terminal.ready()
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
        assert len(questions(server)) == 2


def test_commands_complete_choose_keep_here_ask_again_and_forget(served_only):
    with talking(served_only, "--max-tokens", "24", text=TOLD, rows=50) as (terminal, server):
        terminal.type("Hello?" + ENTER)
        terminal.until("[server; first word after")
        terminal.ready()
        assert "Two words.]0;title[2J" in terminal.lines  # harmless: shown, not obeyed
        assert b"\x1b]0;title" not in terminal.sent
        terminal.type("/retry" + ENTER)
        terminal.until(lambda: terminal.text.count("first word after") == 2)
        terminal.ready()
        assert questions(server)[-1] == ("Hello?", [])
        terminal.type("/clear" + ENTER)
        terminal.until("A new conversation.")
        terminal.ready()
        terminal.type("/retr")
        terminal.until("ask the last question again")  # the menu
        terminal.type(TAB)
        terminal.until(lambda: terminal.text.count("you: /retry") == 2)
        terminal.type(ENTER)
        terminal.until("Nothing was asked yet.")
        terminal.ready()
        terminal.type("/locla" + ENTER)
        terminal.until("Did you mean /local or")
        terminal.ready()
        terminal.type("/preset" + ENTER)
        terminal.until("Both start on every prompt")
        terminal.ready()
        terminal.type("/local" + ENTER)
        terminal.until("The next questions stay on this machine.")
        terminal.until(lambda: "only this machine" in terminal.bar)
        terminal.type("/preset balanced" + ENTER)  # the server's own preset forbids the device
        terminal.until("answered under balanced")
        terminal.ready()
        terminal.type("Say hello." + ENTER)
        terminal.until(
            lambda: re.search(r"\[device; first word after", terminal.text) or "[stopped" in terminal.text
        )
        assert len(questions(server)) == 2  # the server has not heard of it
        terminal.ready()
        terminal.type("/quit" + ENTER)
        assert terminal.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 61])
def test_words_break_at_the_edge_and_code_is_left_to_the_terminal(served_only, columns):
    with talking(served_only, text=STORY, columns=columns, rows=60) as (terminal, _):
        terminal.type("Tell me." + ENTER)
        terminal.until("first word after")
        terminal.ready()
        shown = terminal.since("you: Tell me.")
        shown = shown[: next(at for at, line in enumerate(shown) if line.startswith("[server"))]
        prose, _, code = "\n".join(shown).partition("```python\n")
        told, _, rest = STORY.partition("```python\n")
        fitting = [word for word in told.split() if not re.search("[^ -~ï]", word) and len(word) < columns]
        found = [word for word in prose.split() if word in fitting]
        assert found == fitting  # each in one piece, in order
        assert "".join(prose.split()) == "".join(told.split())
        assert not [line for line in shown if line and line[0] in "、。"]
        line = rest.partition("\n")[0]
        assert "".join(code.split("\n")[: 1 + len(line) // columns]) == line.rstrip()  # as the terminal wraps
        assert code.endswith("```\nNobody remembers her answer.")


class GatedServer(PlainServer):
    """A server that writes the beginning of its answer, and the rest when the gate is opened."""

    BEGINNING = "Once there was a keeper of a lighthouse, who wrote down every ship that went by and did"

    def __init__(self):
        super().__init__("flags", text=self.BEGINNING + " not sleep until the last one was home.")
        self.gate = threading.Event()

    def pieces(self, body):
        if body["messages"][-1]["content"].startswith("Tally"):
            return super().pieces(body)
        self.bodies.append(body)
        return self._gated()

    def _gated(self):
        yield sse(chunk(self.BEGINNING), done=False)
        self.gate.wait(90)
        yield sse(chunk(self.text.removeprefix(self.BEGINNING)), chunk(finish="stop"))


@contextlib.contextmanager
def gated():
    server = GatedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            pieces = server.pieces(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client leaves where its user stops the answer
                for piece in pieces:
                    self.wfile.write(piece)

        def log_message(self, *args):
            pass

    with listening(Handler) as base_url:
        try:
            yield server, base_url
        finally:
            server.gate.set()


def test_while_an_answer_is_written_one_may_type_resize_the_window_and_stop_the_answer(served_only):
    options = ("--preset", served_only, "--price", "1,1", "--budget-usd", "0.5")
    with (
        gated() as (server, base_url),
        chat(*options, columns=120, server=base_url, NO_COLOR="1") as terminal,
    ):
        terminal.ready()
        assert "budget 0.50 $ of 0.50 $ left" in terminal.bar
        terminal.type("Tell me." + ENTER)
        terminal.until(server.BEGINNING)
        terminal.until(lambda: terminal.bar.startswith("server writes · bank 0 tokens · "))
        assert terminal.bar.endswith("served-only · Ctrl-C stops")
        terminal.type("and then" + UP)  # it becomes the next question; other keys do nothing
        terminal.until("you: and then")
        terminal.resize(40, 24)
        narrow = [
            "Once there was a keeper of a",
            "lighthouse, who wrote down every ship",
            "that went by and did",
        ]
        terminal.until(lambda: terminal.since("you: Tell me.")[:3] == narrow)
        assert terminal.bar == "server writes · bank 0 tokens"
        terminal.type(CTRL_C)
        echoed = []  # a second Ctrl-C, between the answer and the question, would end the chat
        terminal.until(
            lambda: echoed.append(terminal.echoes) or "[stopped; server; first word" in terminal.text
        )
        terminal.until(
            lambda: (
                echoed.append(terminal.echoes)
                or [line for line in terminal.lines if line][-2] == "you: and then"
            )
        )
        assert not any(echoed)
        assert not re.search(rb"\x1b\[[0-9;]*3[1-7]m", terminal.sent)
        assert terminal.since("you: Tell me.")[:3] == narrow
        assert "writes" not in terminal.text  # nothing of the status line is left behind
        server.gate.set()
        terminal.resize(100, 24)
        terminal.type(ENTER)
        terminal.until("the last one was home.")
        terminal.ready()
        assert questions(server)[-1] == (
            "and then",
            ["Tell me.", server.BEGINNING],
        )  # the part that was shown stays
        terminal.type("/why" + ENTER)
        terminal.until("preset served-only")
        terminal.ready()
        terminal.type(CTRL_C)
        terminal.until("Ctrl-C again, or Ctrl-D, ends the chat")
        terminal.type(CTRL_C)
        assert terminal.ended() == 0


def test_real_models_race_in_a_chat_and_their_time_line_is_shown(native_server):
    with chat("--preset", "fast", "--max-tokens", "24", server=native_server.base_url, rows=40) as terminal:
        terminal.until("you:")
        terminal.type("Write a story about the sea." + ENTER)  # while the model loads
        terminal.until("; first word after")
        terminal.ready()
        assert re.search(rb"(device|server) writes.*bank \d+ tokens", terminal.sent)
        terminal.type("/why" + ENTER)
        terminal.until(lambda: any(line.startswith("preset fast") for line in terminal.lines))
        terminal.ready()
        lanes = [line.split()[0] for line in terminal.since("you: /why") if line]
        assert {"device", "server", "reader"} <= set(lanes)
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


@pytest.mark.slow
def test_on_a_terminal_that_cannot_move_its_cursor_it_works_line_by_line(served_only):
    options = ("--preset", served_only, "--price", "1,1")
    with gated() as (server, base_url), chat(*options, columns=40, server=base_url, TERM="dumb") as terminal:
        terminal.until(lambda: terminal.bar == "you:")
        terminal.type("Tell me\\\n")
        terminal.until(lambda: terminal.bar == "...")
        terminal.type("a story.\n")
        terminal.until("that went by and")  # the last word is held: it may grow
        terminal.type(CTRL_C)
        terminal.until("[stopped; server;")
        terminal.until(lambda: terminal.bar == "you:")
        assert terminal.since("... a story.")[:2] == [
            "Once there was a keeper of a",
            "lighthouse, who wrote down every ship",
        ]
        assert terminal.since("... a story.")[2].replace("^C", "") == "that went by and did"
        assert questions(server)[-1] == ("Tell me\na story.", [])
        assert b"\x1b" not in terminal.sent
        terminal.type(CTRL_C)
        assert terminal.ended() == 130
