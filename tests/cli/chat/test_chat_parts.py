"""The parts of `disco chat` that need no terminal: commands, conversation, status line, errors."""

import html
import re
from dataclasses import replace
from pathlib import Path

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cli.chat.commands import COMMANDS, completions, parse, unknown
from disco.cli.chat.conversation import Conversation
from disco.cli.chat.error_lines import error_line
from disco.cli.chat.status_line import BudgetLeft, Status, budgets_left, status_line
from disco.cli.word_wrap import cells
from disco.errors import BudgetExceededError, ModelFileError
from disco.session.records.answer_progress import AnswerProgress


def test_a_line_is_a_command_or_a_question():
    assert parse("/preset cheap ") == ("preset", "cheap")
    assert parse("/preset ./my own.toml") == ("preset", "./my own.toml")
    assert parse("/why") == parse("/WHY") == parse("/w") == ("why", "")
    assert parse("/") == ("help", "")
    assert parse("/polcy x") == ("polcy", "x")
    for question in ("Why?", "/etc/hosts: what is it?", "/preset\nis a command", " /help", "2 / 3", ""):
        assert parse(question) is None
    assert "/preset" in unknown("prest")
    assert all(command.usage.startswith(f"/{command.name}") for command in COMMANDS)


def test_commands_and_presets_are_completed():
    presets = {"cheap": "small bill", "cascade": "rises", "fast": "both"}

    def found(typed):
        return [(one.text, one.chars) for one in completions(typed, presets)]

    assert found("/c") == [("/clear", 2)]
    assert len(found("/")) == len(COMMANDS)
    assert found("/preset c") == [("cheap", 1), ("cascade", 1)]
    assert found("/preset ") == [("cheap", 0), ("cascade", 0), ("fast", 0)]
    assert found("what is /c") == found("/preset\nc") == found("/clear c") == []


def test_a_question_stays_for_a_retry_and_its_answer_goes():
    talk = Conversation()
    assert talk.take_back() is None
    assert [m["content"] for m in talk.ask("one")] == ["one"]
    talk.answered("1")
    assert [m["content"] for m in talk.ask("one")] == ["one", "1", "one"]
    talk.answered("")  # it failed before its first word
    assert talk.take_back() == "one"
    assert [m["content"] for m in talk.messages] == ["one", "1"]  # the earlier one was another question
    talk.ask("two")
    talk.answered("2, the beginning of")
    assert [(m["role"], m["content"]) for m in talk.messages[2:]] == [
        ("user", "two"),
        ("assistant", "2, the beginning of"),
    ]
    assert talk.take_back() == talk.take_back() == "two"
    assert len(talk.messages) == 2
    talk.clear()
    assert (talk.messages, talk.question) == ([], None)


DOCS = Path(__file__).parents[3] / "docs"
PROGRESS = AnswerProgress("server", ("server", "device"), 30, 12, 1.0, 3.5e-5, 0.0)
BUSY = Status(
    "balanced", bill_usd=3.5e-5, budgets=(BudgetLeft(0.4, 0.5, "usd"),), answering=True, progress=PROGRESS
)


def test_the_status_line_says_who_writes_the_bank_the_cost_and_the_budget():
    assert status_line(BUSY, 120) == (
        "server writes, device at work · bank 12 tokens, 1.0 s · 0.000035 $ · budget 0.40 $ of 0.50 $ left · balanced"
    )
    assert status_line(BUSY, 60) == "server writes, device at work · bank 12 tokens, 1.0 s"

    def shown(status):
        return status_line(status, 200).split(" · ")

    unpaced = replace(PROGRESS, running=(), buffered_s=None, buffered_tokens=3)
    assert shown(replace(BUSY, progress=unpaced))[:2] == ["server has written", "bank 3 tokens"]
    assert shown(replace(BUSY, progress=replace(PROGRESS, writer=None)))[0] == "server and device at work"
    assert shown(replace(BUSY, progress=None, waited_s=2.3))[0] == "waiting 2 s"
    assert shown(replace(BUSY, progress=None, waited_s=2.3, loading="m.gguf"))[0] == "loading m.gguf 2 s"
    typing = Status("private", local_only=True, loading="m.gguf", waited_s=7.0)
    assert shown(typing) == ["loading m.gguf 7 s", "private, only this machine", "0.00 $", "/help"]
    left = {"server_tokens": {"amount": 9000, "window_s": 60.0, "left": 1200.0}}
    assert str(budgets_left(left)[0]) == "budget 1,200 of 9,000 tokens left"
    assert shown(replace(typing, device_energy_j=31.4))[2] == "0.00 $, 31 J"
    left = {"usd": {"amount": 5.0, "per": "month", "left": 4.99998}}
    assert str(budgets_left(left)[0]) == "budget 5.00 $ of 5.00 $ left this month"


@given(st.integers(0, 130), st.text("abc海é", min_size=1, max_size=60))
def test_the_status_line_is_never_wider_than_the_window(columns, preset):
    assert cells(status_line(replace(BUSY, preset=preset), columns)) <= columns
    assert cells(status_line(Status(preset), columns)) <= columns


def failed(kind, status):
    request = httpx2.Request("POST", "https://api.example.org:8443/v1/chat/completions?key=sk-hidden")
    return kind("No.", response=httpx2.Response(status, request=request), body=None)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (failed(openai.AuthenticationError, 401), "refused the key (401). Check OPENAI_API_KEY, or type /local"),
        (failed(openai.NotFoundError, 404), "has no model 'gpt', or no such path (404). Name one with --model"),
        (failed(openai.RateLimitError, 429), "takes no more requests now (429). /retry asks again later"),
        (failed(openai.InternalServerError, 503), "failed (503). /retry asks again"),
        (openai.APIConnectionError(request=httpx2.Request("POST", "https://api.example.org:8443/v1")), "cannot be"),
    ],
)  # fmt: skip
def test_an_error_of_the_server_is_one_line_with_its_address_and_a_remedy(error, says):
    line = error_line(error, model="gpt", local_only=False)
    assert says in line
    assert line.startswith("The server at api.example.org:8443 ")
    assert "hidden" not in line
    assert "/local" not in error_line(error, model="gpt", local_only=True)


def test_other_errors_keep_their_own_words_on_one_line():
    def line(error):
        return error_line(error, model="gpt", local_only=False)

    assert line(ModelFileError("There is no file\nx.gguf")) == "There is no file x.gguf."
    spent = BudgetExceededError("Nothing is left.", limit="usd", retry_after_s=None)
    assert line(spent) == "Nothing is left. Wait, or type /local to go on with this machine alone."
    assert line(failed(openai.BadRequestError, 400)) == "No. /retry asks again."
    assert len(line(openai.OpenAIError("\x1b[31m" + "long " * 1000))) < 500
    assert line(openai.OpenAIError("")).startswith("OpenAIError.")


def test_the_page_has_every_command_and_option_and_its_picture_todays_status_line():
    page = (DOCS / "how-to" / "chat.md").read_text(encoding="utf-8")
    assert [command.name for command in COMMANDS if f"`/{command.name}" not in page] == []
    (chat,) = re.findall(
        r"## `disco chat`\n(.*?)\n## ", (DOCS / "reference" / "cli.md").read_text("utf-8"), re.DOTALL
    )
    options = re.findall(r"^\| `(--[\w-]+)", chat, re.MULTILINE)
    assert len(options) > 5
    assert [option for option in options if f"`{option}" not in page] == []
    picture = html.unescape((DOCS / "pictures" / "chat.svg").read_text(encoding="utf-8")).replace("\xa0", " ")
    assert re.search(
        r"device writes · bank \d+ tokens, \d\.\d s · [\d.]+ µ\$ · balanced · Ctrl-C stops", picture
    )
