"""The web chat of the examples: what it sends, and what a real browser makes of it."""

from __future__ import annotations

import ast
import contextlib
import http.client
import importlib.util
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from anyio.from_thread import start_blocking_portal
from chromium import Page, find_chromium, open_page
from scripted_server import (
    RESET,
    STREAM_HEAD,
    WAIT_FOR_CLOSE,
    answer,
    chunk,
    piece,
    scripted_server,
    sse,
    stream,
    usage,
)

from disco import AsyncDisco, Backup
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install fastapi uvicorn")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install fastapi uvicorn")

APP = Path(__file__).parent.parent / "examples" / "web_chat" / "app.py"
LIMIT_S = 120.0  # for what takes seconds, on a busy machine
MODELS = answer(b"{}")  # what `warm_up` asks for
BEGIN = "The sea is salty because the rivers carry"
BEGINS = [STREAM_HEAD, piece(b"".join(sse(chunk(f"{word} "), done=False) for word in BEGIN.split()))]
DIES = [*BEGINS, 0.2, RESET]
HANGS = [*BEGINS, WAIT_FOR_CLOSE]


def says(text: str) -> list:
    """A whole answer of a server, of 20 tokens to 10."""
    end = [chunk(finish="stop"), usage(20, 10)]
    return stream(sse(*(chunk(f"{word} ") for word in text.split()), *end))


def tool_call(name: str, arguments: str) -> list[dict]:
    """A call of a function, in three pieces."""
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in (arguments[:5], arguments[5:])]
    parts = [chunk(tool_calls=[part]) for part in (first, *rest)]
    return [*parts, chunk(finish="tool_calls"), usage(20, 10)]


def calls(name: str, arguments: str) -> list:
    return stream(sse(*tool_call(name, arguments)))


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("web_chat_app", APP)
    made = importlib.util.module_from_spec(spec)
    sys.modules["web_chat_app"] = made  # annotations are looked up there
    spec.loader.exec_module(made)
    return made


def silent() -> SimulatedEndpoint:
    """A device that never comes to write: on a busy machine, too, what is read is the servers'."""
    profile = SimulatedProfile(answer="never", overhead_s=3600.0)
    return SimulatedEndpoint("device", profile, place="device")


@contextlib.contextmanager
def running(module, **settings) -> Iterator[SimpleNamespace]:
    """Port, URL and routes of the application, with the default preset and its budget."""
    bill, routes = module.Bill(), []

    def on_route(route) -> None:
        bill.add(route)
        routes.append(route)

    client = AsyncDisco(budget=module.BUDGET, on_route=on_route, max_retries=0, **settings)
    config = uvicorn.Config(module.create_app(client, "m", bill), port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield SimpleNamespace(port=port, url=f"http://127.0.0.1:{port}/", routes=routes)
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def scripted(*scripts) -> Iterator[SimpleNamespace]:
    """A server that plays the scripts; `stopped` waits until a hanging one was left."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_server(*scripts)) as server,
    ):
        server.stopped = lambda: portal.call(server.closed.wait)
        yield server


def server_of(server) -> dict:
    return {"base_url": server.base_url, "api_key": "k", "continuation": "none", "price": (0.15, 0.6)}


def wait_for(condition: Callable[[], object]) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it never came true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with a_browser() as opened:
        yield opened


@contextlib.contextmanager
def a_browser() -> Iterator[Page]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium or Chrome is installed")
    with open_page(chromium) as opened:
        yield opened


def request(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answered = connection.getresponse()
        return answered.status, answered.read().decode()


def events(port: int, text: str, *, tools: bool = False, name: str = "") -> list[dict]:
    """What the application sends to one question, by default of a new conversation."""
    name = name or json.loads(request(port, "POST", "/conversations")[1])["name"]
    asked = {"text": text, "tools": tools}
    parts = request(port, "POST", f"/conversations/{name}/answer", asked)[1].split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts if part]


def opened(page: Page, app: SimpleNamespace) -> None:
    page.events.clear()
    page.goto(app.url)
    page.wait("conversation && $('bill').textContent", limit_s=LIMIT_S)


def ask(page: Page, text: str, *, tools: bool = False) -> None:
    chosen = "true" if tools else "false"
    page.evaluate(f"$('ask').value = {text!r}; $('tools').checked = {chosen}; $('form').requestSubmit()")


def answered(page: Page) -> None:
    page.wait("document.querySelector('.facts') && !$('send').disabled", limit_s=LIMIT_S)


def every(page: Page, selector: str, wanted: str = "e.textContent") -> list:
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => {wanted})")


def test_it_says_how_to_run_it_and_starts_from_the_command_line(monkeypatch, capsys):
    source = APP.read_text(encoding="utf-8")
    assert "python examples/web_chat/app.py" in (ast.get_docstring(ast.parse(source)) or "")
    assert "# CHANGE: " in source
    page = APP.with_name("index.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded from elsewhere
    monkeypatch.setattr(sys, "argv", [str(APP), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(APP), run_name="__main__")
    assert ended.value.code == 0
    assert "--demo-server" in capsys.readouterr().out


def test_the_program_answers_with_what_it_reads_from_the_environment(tmp_path):
    with scripted(MODELS, says("From the server.")) as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        own = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "gpt-4o-mini"}
        backup = {"BACKUP_API_KEY": "b", "BACKUP_BASE_URL": server.base_url}
        environment = os.environ | own | backup | {"PYTHONPATH": str(APP.parents[2])}
        command = [sys.executable, str(APP), "--port", str(port)]
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as program:
            try:

                def answers() -> bool:
                    assert program.poll() is None, program.stdout.read()
                    with contextlib.suppress(ConnectionError):
                        return request(port, "GET", "/")[0] == 200
                    return False

                wait_for(answers)
                *words, last = events(port, "Tell me.")
            finally:
                program.terminate()
                said, _ = program.communicate()
    assert "".join(word["text"] for word in words).strip() == "From the server.", said
    assert {e["name"] for e in last["route"]["endpoints"]} == {"server", "device", "backup-1"}
    budget = last["route"]["budget"]["usd"]
    assert (budget["amount"], budget["per"]) == (5.0, "month")
    assert (last["route"]["preset"], last["bill_usd"] > 0) == ("server-first", True)


def test_a_backup_answers_where_the_server_refuses_and_each_answer_says_why(module):
    refuses = answer(b'{"error": {"message": "Invalid key"}}', status="401 Unauthorized")
    with scripted(MODELS, refuses) as server, scripted(MODELS, says("From the backup.")) as other:
        backup = Backup(base_url=other.base_url, api_key="b", model="n", price=(1, 2), continuation="none")
        with running(module, local=silent(), backups=[backup], **server_of(server)) as app:
            *words, last = events(app.port, "Tell me.")
    assert {word["writer"] for word in words} == {"backup-1"}
    assert last["why"][0].startswith("server starts: it is asked first")
    assert last["bill_usd"] == pytest.approx(40e-6)  # 20 tokens at 1 USD a million and 10 at 2


def test_what_was_read_is_in_the_next_request_once_with_the_functions_results(module):
    first = [chunk("Let me look. "), *tool_call("TimeIn", '{"zone": "Asia/Tokyo"}')]
    with (
        scripted(MODELS, stream(sse(*first)), says("It is late."), says("Yes.")) as server,
        running(module, local=silent(), **server_of(server)) as app,
    ):
        name = json.loads(request(app.port, "POST", "/conversations")[1])["name"]
        events(app.port, "What time is it?", tools=True, name=name)
        events(app.port, "Really?", name=name)
        messages = server.requests[-1][2]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert [m["content"] for m in messages if m["role"] == "assistant"] == ["Let me look. ", "It is late. "]


def test_an_unknown_conversation_and_an_empty_question_are_refused(module):
    with scripted(MODELS) as server, running(module, local=silent(), **server_of(server)) as app:
        status, said = request(app.port, "POST", "/conversations/x/answer", {"text": "Tell me."})
        assert (status, "Reload the page" in said) == (404, True)
        name = json.loads(request(app.port, "POST", "/conversations")[1])["name"]
        assert request(app.port, "POST", f"/conversations/{name}/answer", {"text": ""})[0] == 422
        assert len(server.requests) == 1


def test_a_function_that_does_not_exist_or_is_called_wrongly_is_told_to_the_model(module):
    wrong = [
        calls("Nothing", "{}"),
        calls("TimeIn", '{"place": 1}'),
        calls("TimeIn", '{"zone": "Moon/Base"}'),
    ]
    with (
        scripted(MODELS, *wrong, says("I cannot say.")) as server,
        running(module, local=silent(), **server_of(server)) as app,
    ):
        sent = events(app.port, "What time is it?", tools=True)
        results = [e["result"] for e in sent if "result" in e]
        told = [m["content"] for m in server.requests[-1][2]["messages"] if m["role"] == "tool"]
    assert told == results
    assert results[0] == "There is no function Nothing."
    assert "zone" in results[1]
    assert results[2] == "No time zone is called Moon/Base."
    assert sum("route" in e for e in sent) == len(app.routes) == 4


def test_a_model_on_this_machine_goes_on_where_the_server_died(module, page, tmp_path):
    """The colour of each word is its writer's; the bill has the server's money and the device's energy."""
    with (
        scripted(MODELS, DIES, answer(b"{}", status="500 Internal Server Error")) as server,
        running(module, local="smollm2-135m", runtime="llama-server", **server_of(server)) as app,
    ):
        opened(page, app)
        page.evaluate("window.peaks = []; new MutationObserver(() => peaks.push(parseInt($('buffered').textContent)))"
                      ".observe($('buffered'), {childList: true})")  # fmt: skip
        ask(page, "Why is the sea salty?")
        page.wait("document.querySelector('.words .server')", limit_s=LIMIT_S)
        answered(page)
        # A real model gives the title, too, or none.
        page.wait("!$('bill').textContent.includes(' 0.00 $')", limit_s=LIMIT_S)
        spans = every(page, ".words span", "[e.className, e.textContent, getComputedStyle(e).color]")
        facts = every(page, ".facts span")
        assert [name for name, *_ in spans] == ["server", "device"]
        assert spans[0][1].strip() == BEGIN
        assert spans[1][1].strip()
        assert spans[0][2] != spans[1][2]
        assert max(page.evaluate("peaks")) > 0
        assert facts[0].startswith("first word ")
        assert "server wrote 7 tokens, then failed (connection)" in [
            re.sub(r"wrote \d+", "wrote 7", fact) for fact in facts
        ]
        (money,) = every(page, ".facts .bill")
        usd, joule = re.fullmatch(r"([0-9.]+) \$ to servers, ([0-9.]+) J here", money).groups()
        assert float(usd) == pytest.approx(app.routes[0].bill_usd, abs=1e-7)
        assert float(usd) > 0
        assert float(joule) == pytest.approx(app.routes[0].device_energy_j, rel=0.1)
        assert float(joule) > 0
        assert "5.00 $ left this month" in facts
        why = every(page, ".why li")
        assert why[0].startswith("server starts: it is asked first")
        assert why[1].startswith("device stands by: ")
        assert min(every(page, ".share i", "e.getBoundingClientRect().width")) > 10
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert page.complaints() == []
        assert page.hosts() == {app.url.rstrip("/")}


def test_a_function_is_called_and_a_schema_gives_the_title(module, page):
    with (
        scripted(
            MODELS,
            calls("TimeIn", '{"zone": "Asia/Tokyo"}'),
            says("It is <b>late</b> there."),
            says('{"title": "Time in Tokyo"}'),
        ) as server,
        running(module, local=silent(), **server_of(server)) as app,
    ):
        opened(page, app)
        ask(page, "What time is it in Tokyo?", tools=True)
        answered(page)
        page.wait("document.title == 'Time in Tokyo'", limit_s=LIMIT_S)
        page.wait(f"$('bill').textContent.includes('{3 * 9e-6:.7f} $')", limit_s=LIMIT_S)
        # What a model writes is text, never markup.
        assert every(page, ".words") == ["It is <b>late</b> there. "]
        (call,) = every(page, ".facts .call")
        assert re.fullmatch(r'TimeIn\({"zone": "Asia/Tokyo"}\) → \w+day, \d\d \w+ \d{4}, \d\d:\d\d', call)
        assert every(page, ".facts .bill") == ["0.0000090 $ to servers, 0.00 J here"] * 2
        assert page.complaints() == []
        _, asked, told, titled = (body for _, _, body in server.requests)
    (tool,) = asked["tools"]
    assert (tool["function"]["name"], tool["function"]["strict"]) == ("TimeIn", True)
    assert "time zone" in tool["function"]["description"]
    assert [m["role"] for m in told["messages"]] == ["user", "assistant", "tool"]
    assert told["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": call.split(" → ")[1]}
    assert titled["response_format"]["json_schema"]["schema"]["required"] == ["title"]


def test_the_stop_button_stops_the_server_and_what_was_read_stays_in_the_conversation(module, page):
    with (
        scripted(MODELS, HANGS, says('{"title": "Salt"}'), says("More.")) as server,
        running(module, local=silent(), **server_of(server)) as app,
    ):
        opened(page, app)
        ask(page, "Why is the sea salty?")
        page.wait("document.querySelector('.words .server')", limit_s=LIMIT_S)
        assert page.evaluate("$('send').disabled && !$('stop').disabled")
        page.evaluate("$('stop').click()")
        server.stopped()
        page.wait("document.title == 'Salt'", limit_s=LIMIT_S)
        assert every(page, ".facts span") == ["stopped"]
        assert app.routes[0].finish_reason == "cancelled"
        wait_for(lambda: len(app.routes) == 2)
        in_all = sum(route.bill_usd for route in app.routes)
        assert app.routes[0].bill_usd > 0
        page.wait(f"$('bill').textContent.includes('{in_all:.7f} $')", limit_s=LIMIT_S)
        ask(page, "Go on.")
        page.wait("document.querySelectorAll('.reply:not(.live)').length == 2", limit_s=LIMIT_S)
        messages = server.requests[-1][2]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert BEGIN.startswith(messages[1]["content"].strip())


def test_two_users_chat_at_once_and_neither_sees_the_other(module, page):
    with (
        scripted(MODELS, HANGS, says("For the second."), says('{"title": "Second"}')) as server,
        running(module, local=silent(), **server_of(server)) as app,
        a_browser() as second,
    ):
        opened(page, app)
        opened(second, app)
        ask(page, "First question")
        page.wait("document.querySelector('.words .server')", limit_s=LIMIT_S)
        ask(second, "Second question")
        answered(second)
        second.wait("document.title == 'Second'", limit_s=LIMIT_S)
        assert page.evaluate("$('send').disabled")  # the first still waits
        assert every(second, ".words") == ["For the second. "]
        assert every(second, ".you") == ["Second question"]
        assert BEGIN.startswith(every(page, ".words")[0].strip())
        page.evaluate("$('stop').click()")
        server.stopped()
        answered(page)
        asked = [[m["content"] for m in body["messages"]] for _, _, body in server.requests[1:3]]
        assert page.evaluate("conversation") != second.evaluate("conversation")
    assert asked == [["First question"], ["Second question"]]


def test_an_error_says_what_each_endpoint_did_and_what_was_read_stays(module, page):
    """An answer that may call functions is continued by no other endpoint."""
    with (
        scripted(MODELS, DIES, says('{"title": "Salt"}')) as server,
        running(module, local=silent(), **server_of(server)) as app,
    ):
        opened(page, app)
        ask(page, "Why is the sea salty?", tools=True)
        answered(page)
        (wrong,) = every(page, ".facts .wrong")
        assert "server" in wrong
        assert every(page, ".words")[0].strip() == BEGIN
        assert re.match(r"[0-9.]+ \$ to servers", every(page, ".facts .bill")[0])
        assert every(page, ".why li")[0].startswith("server starts: ")


def test_without_a_server_the_model_here_answers_and_takes_the_functions(module, page):
    with running(module, local="smollm2-135m", runtime="llama-server") as app:
        opened(page, app)
        assert "no server" in page.evaluate("document.querySelector('.legend').textContent")
        ask(page, "What time is it?", tools=True)
        answered(page)
        assert not every(page, ".facts .wrong")
        ask(page, "Hello!")
        page.wait("document.querySelector('.words .device')", limit_s=LIMIT_S)
        page.wait("!$('send').disabled", limit_s=LIMIT_S)
        assert every(page, ".facts .bill")[0].startswith("0.00 $ to servers, ")
