"""The web chat of the examples: what it sends, and what a real browser makes of it."""

from __future__ import annotations

import ast
import contextlib
import http.client
import importlib.util
import json
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from anyio.from_thread import start_blocking_portal
from chromium import Page, find_chromium, open_page
from scripted_server import RESET, STREAM_HEAD, WAIT_FOR_CLOSE, answer, chunk, piece, scripted_server, sse

from disco import AsyncDisco
from disco.dispatch import available_presets
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install fastapi uvicorn")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install fastapi uvicorn")

APP = Path(__file__).parent.parent / "examples" / "web_chat" / "app.py"
FROM_SERVER = [f"word{i} " for i in range(20)]
FROM_DEVICE = "and this <b>device</b> says the rest."
WHOLE = "".join(FROM_SERVER) + FROM_DEVICE
BEGINS = [STREAM_HEAD, piece(b"".join(sse(chunk(text), done=False) for text in FROM_SERVER))]
DIES = [*BEGINS, 0.2, RESET]
HANGS = [*BEGINS, WAIT_FOR_CLOSE]
SERVER_FIRST = "server-first"


def load_app():
    spec = importlib.util.spec_from_file_location("web_chat_app", APP)
    module = importlib.util.module_from_spec(spec)
    sys.modules["web_chat_app"] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def running(**settings) -> Iterator[SimpleNamespace]:
    """Port, URL and routes of the application, with a device that takes a moment and then knows the whole answer."""
    profile = SimulatedProfile(answer=WHOLE, overhead_s=0.5, decode_tps=200.0)
    device = SimulatedEndpoint("device", profile, place="device")
    routes: list = []
    client = AsyncDisco(local=device, on_route=routes.append, max_retries=0, **settings)
    config = uvicorn.Config(load_app().create_app(client, "m"), port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield SimpleNamespace(port=port, url=f"http://127.0.0.1:{port}/", routes=routes)
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def with_server(script) -> Iterator[SimpleNamespace]:
    """The same with a server that is warmed up and then plays the script; `stopped` waits until it is left."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_server(answer(b"{}"), script)) as server,
        running(base_url=server.base_url, api_key="k", continuation="none", price=(0.15, 0.6)) as app,
    ):
        app.stopped = lambda: portal.call(server.closed.wait)
        yield app


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium or Chrome is installed")
    with open_page(chromium) as opened:
        yield opened


def events(app: SimpleNamespace, preset: str) -> list[dict]:
    body = {"messages": [{"role": "user", "content": "Tell me."}], "preset": preset}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", app.port, timeout=120)) as connection:
        connection.request("POST", "/chat", json.dumps(body), {"Content-Type": "application/json"})
        parts = connection.getresponse().read().decode().split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts if part]


def test_it_says_how_to_run_it_stays_short_and_starts_from_the_command_line(monkeypatch, capsys):
    source = APP.read_text(encoding="utf-8")
    assert "python examples/web_chat/app.py" in (ast.get_docstring(ast.parse(source)) or "")
    assert len(source.splitlines()) <= 120
    page = APP.with_name("index.html").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 200
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded from elsewhere
    monkeypatch.setattr(sys, "argv", [str(APP), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(APP), run_name="__main__")
    assert ended.value.code == 0
    assert "--demo-server" in capsys.readouterr().out


def test_the_words_come_with_their_writers_and_the_route_at_the_end():
    with with_server(DIES) as app:
        *words, last = events(app, SERVER_FIRST)
        assert "private" in events(app, "privat")[0]["error"]
    wrote = {name: "".join(e["text"] for e in words if e["writer"] == name) for name in ("server", "device")}
    assert wrote["server"] + wrote["device"] == WHOLE
    assert wrote["device"].strip() == FROM_DEVICE
    assert max(event["buffered"] for event in words) > 0
    assert words[-1]["buffered"] == 0
    assert [p["endpoint"] for p in last["route"]["segments"]] == ["server", "device"]
    assert last["bill_usd"] == pytest.approx(app.routes[0].bill_usd)


def submit(page: Page, text: str, preset: str) -> None:
    assert page.evaluate(f"$('preset').value = {preset!r}") == page.evaluate("$('preset').value")
    page.evaluate(f"$('ask').value = {text!r}; $('form').requestSubmit()")


def test_the_page_colours_each_word_by_its_writer(page, tmp_path):
    with with_server(DIES) as app:
        page.goto(app.url)
        page.wait("$('preset').value == 'balanced'")
        assert set(page.evaluate("Object.keys(presets)")) == set(available_presets())
        page.evaluate("window.peaks = []; new MutationObserver(() => peaks.push(parseInt($('buffered').textContent)))"
                      ".observe($('buffered'), {childList: true})")  # fmt: skip
        submit(page, "Tell me.", SERVER_FIRST)
        page.wait("document.querySelector('.words .server')")
        assert page.evaluate("$('send').disabled && !$('stop').disabled")
        page.wait("document.querySelector('.facts')")

        def every(selector: str, wanted: str) -> list:
            return page.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => {wanted})")

        spans = every(".words span", "[e.className, e.textContent]")
        colours = every(".words span", "getComputedStyle(e).color")
        facts = every(".facts span", "e.textContent")
        shares = every(".share i", "e.getBoundingClientRect().width")
        assert [name for name, _ in spans] == ["server", "device"]
        # What a model writes is text, never markup.
        assert spans[1][1].strip() == FROM_DEVICE
        assert colours[0] != colours[1]
        assert max(page.evaluate("peaks")) > 0
        page.wait("$('buffered').textContent == '0 tokens'")
        assert facts[0].startswith("first word ")
        assert "server wrote 20 tokens, then failed (connection)" in facts
        assert len(shares) == 2
        assert min(shares) > 50
        # The next question brings the conversation so far with it.
        page.wait("!$('send').disabled")
        assert page.evaluate("messages.map(m => m.role)") == ["user", "assistant"]
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert page.complaints() == []
        assert page.hosts() == {app.url.rstrip("/")}


def test_the_stop_button_stops_the_models(page):
    with with_server(HANGS) as app:
        page.goto(app.url)
        page.wait("$('preset').value == 'balanced'")
        submit(page, "Tell me.", SERVER_FIRST)
        page.wait("document.querySelector('.words .server')")
        page.evaluate("$('stop').click()")
        page.wait("document.querySelector('.facts')?.textContent == 'stopped' && !$('send').disabled")
        app.stopped()
        ends_at = time.monotonic() + 120
        while not app.routes:
            assert time.monotonic() < ends_at, "the answer never ended"
            time.sleep(0.02)
        assert app.routes[0].finish_reason == "cancelled"


def test_without_a_server_the_page_says_so(page):
    with running() as app:
        page.goto(app.url)
        page.wait("$('preset').value == 'private'")
        assert "no server" in page.evaluate("document.querySelector('.legend').textContent")
        submit(page, "Tell me.", "private")
        page.wait("document.querySelector('.facts')")
        assert page.evaluate("document.querySelector('.words').textContent") == WHOLE
