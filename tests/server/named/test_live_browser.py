"""The live page in a real browser, in front of a real `disco serve --config` with real models behind it."""

from __future__ import annotations

import contextlib
import json
import threading
import types
from collections.abc import Iterator

import pytest
from chromium import Page, find_chromium, open_page
from command_process import CHATS, KEY, asking, running, signals, tell_to_end, what_it_said
from serving import Served, serving

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import LiveBoard

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium or Chrome is installed"),
]

ODD = "<img src=x onerror=document.title='run'>"
CANARY = "heron-live-2217-canary"
CONFIG = """
state = "off"
power = "off"
local = "smollm2-135m"
key_file = "callers.key"
[models.away]
preset = "fast"
local = "none"
base_url = "{server}"
model = "smollm2-135m"
price = [1000.0, 2000.0]
budget = {{ usd = 1.0, window_s = 86400 }}
[models.here]
preset = "private"
[models."{odd}"]
preset = "private"
"""
LIVE = "/v1/disco/live"
KEYED = {"Authorization": f"Bearer {KEY}"}
ASK_NOW = "(ask(), true)"  # the page need not wait for its next time
CARDS = "[...document.querySelectorAll('#answers > li')].map(li => li.innerText)"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_page(find_chromium()) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(native_server, tmp_path_factory) -> Iterator[types.SimpleNamespace]:
    """The process and its address; `ask` returns an answer's text."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "callers.key").write_text(KEY)
    text = CONFIG.format(server=native_server.base_url, odd=ODD)
    (folder / "disco.toml").write_text(text, encoding="utf-8")
    with running("--config", str(folder / "disco.toml")) as (process, address):

        def ask(model: str, tokens: int) -> str:
            said = [{"role": "user", "content": f"Tell me about the sea. {CANARY}"}]
            body = {"model": model, "messages": said, "max_tokens": tokens, "stream": True}
            body |= {
                "disco": {"pace_tps": "off"},
                "logit_bias": {"0": -100, "2": -100},
            }  # it does not end by itself
            with asking(address, CHATS, body, KEYED) as connection:
                events = connection.getresponse().read().decode().split("\n\n")
            found = [json.loads(e.removeprefix("data: ")) for e in events if e.startswith("data: {")]
            return "".join(e["choices"][0]["delta"].get("content") or "" for e in found if e["choices"])

        yield types.SimpleNamespace(process=process, address=address, ask=ask)
        tell_to_end(process, address)
        assert CANARY not in what_it_said(process)


def url_of(address) -> str:
    return "http://{}:{}/".format(*address)


def bodies(page: Page) -> list[str]:
    """Every response to the page's questions that the browser still has."""
    asked = [e["params"] for e in page.events if e["method"] == "Network.responseReceived"]
    numbers = [params["requestId"] for params in asked if LIVE in params["response"]["url"]]
    found = []
    for number in numbers:
        with contextlib.suppress(AssertionError):  # it is gone
            found.append(page.call("Network.getResponseBody", requestId=number)["body"])
    return found


def log_in(page: Page, key: str) -> None:
    page.wait("!$('login').hidden")
    page.evaluate(f"$('key').value = {key!r}; $('login').requestSubmit()")


@signals
def test_answers_by_two_names_appear_with_writer_cost_and_budget_and_without_any_text(page, served):
    page.goto(url_of(served.address))
    page.wait("!$('login').hidden && $('status').textContent == 'needs the key'")
    assert page.evaluate("$('shown').hidden && $('models').childElementCount == 0")
    log_in(page, "not-the-key")
    page.wait("$('refused').textContent == 'This is not the key.'")
    log_in(page, KEY)
    page.wait("$('status').textContent == 'live' && $('login').hidden")
    assert page.evaluate("sessionStorage.length == 1 && localStorage.length == 0 && document.cookie == ''")
    assert KEY not in page.evaluate("location.href")

    answers = [served.ask("away", 12)]
    page.wait(f"{CARDS}.length == 1")  # it asks by itself
    # One is written for as long as it takes the page to see it.
    asking_long = threading.Thread(target=lambda: answers.append(served.ask("here", 60)))
    asking_long.start()
    writes = "[...document.querySelectorAll('#answers .busy')].some(e => e.textContent == 'device writes')"
    page.wait(f"{ASK_NOW} && {writes}")
    asking_long.join()
    answers.append(served.ask(ODD, 8))
    page.wait(f"{ASK_NOW} && {CARDS}.length == 3 && document.querySelectorAll('#answers .busy').length == 0")

    odd, here, away = page.evaluate(CARDS)
    assert "server wrote 100 %" in away
    assert "device wrote 100 %" in here
    for card, tokens in ((away, 12), (here, 60), (odd, 8)):
        shown = card.split()
        assert (shown[shown.index("tokens") + 1], "length" in shown) == (str(tokens), True)
        assert "ms" in card or " s" in card[card.index("TTFT") :]
    words = away.split()
    cost = float(words[words.index("bill") + 1])
    assert cost > 12 * 2000 / 1e6  # its tokens, and the prompt's
    left = page.evaluate("document.querySelector('.budget').innerText")
    assert "of 1.00 $ left, in any 24 h, account away" in left
    assert float(left.split(" $")[0].split()[-1]) == pytest.approx(1 - cost, abs=0.006)
    assert page.evaluate("parseFloat(document.querySelector('.meter span').style.width)") < 100
    tracks = page.evaluate("document.querySelectorAll('#answers .track .writing').length")
    assert tracks == 3
    wide = page.evaluate("document.querySelector('#answers .track .writing').getBoundingClientRect().width")
    assert wide > 10

    # A name is text, whatever it says.
    assert page.evaluate("document.images.length == 0 && document.title == 'disco: live'")
    assert ODD in page.evaluate("[...document.querySelectorAll('#models h3')].map(e => e.textContent)")
    # No text: neither what was asked nor what was answered, in the page or in anything that it was sent.
    seen = [page.evaluate("document.documentElement.outerHTML"), *bodies(page)]
    assert sum('"finished"' in body for body in seen) >= 3
    assert len(answers) == 3
    for secret in (CANARY, "about the sea", KEY, *(answer.strip()[:25] for answer in answers)):
        assert len(secret) > 8
        assert [text for text in seen if secret in text or json.dumps(secret)[1:-1] in text] == []
    complaints = page.complaints()  # the two refusals before the right key
    assert len(complaints) == 2
    assert all("401" in said for said in complaints)
    assert page.hosts() == {url_of(served.address).rstrip("/")}


@signals
def test_a_page_from_elsewhere_gets_nothing(page, served):
    """Not even one of another name for the same server, which has another origin."""
    port = served.address[1]
    for origin in ("http://evil.test", "null", f"http://localhost:{port}"):
        with asking(served.address, LIVE, headers={**KEYED, "Origin": origin}) as connection:
            refused = connection.getresponse()
            assert refused.status == 403
            assert refused.getheader("access-control-allow-origin") is None
    page.call("Page.navigate", url="about:blank")
    page.wait("location.href == 'about:blank' && document.readyState == 'complete'")
    ask = f"fetch('{url_of(served.address)}v1/disco/live', {{headers: {json.dumps(KEYED)}}})"
    assert page.evaluate(f"{ask}.then(r => r.text(), () => 'no')") == "no"


def small(board: LiveBoard, answer: str):
    """Serves a simulated model with this page."""
    device = SimulatedEndpoint("device", SimulatedProfile(answer=answer, gap_s=0.002), place="device")

    def made(on_route):
        return AsyncDisco(local=device, preset="private", on_route=[on_route, board.answered])

    return serving(made, page=board, key=KEY)


def asked(one: Served, words: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "stream": True}
    assert one.ask(CHATS, body, headers=KEYED).status == 200


MARKUP = "<b onclick=alert(1)>bold</b><script>document.title='run'</script>"


def test_texts_are_shown_as_text_where_that_is_switched_on_and_the_page_says_so_in_red(page):
    with small(LiveBoard(text=True, answers=2), f"Well: {MARKUP} yes.") as one:
        page.goto(url_of(one.address))
        log_in(page, KEY)
        page.wait("!$('warning').hidden")
        for number in range(3):
            asked(one, f"{number} {MARKUP}")
        page.wait(f"{ASK_NOW} && {CARDS}.length == 2 && document.querySelectorAll('.text').length == 4")
        texts = page.evaluate("[...document.querySelectorAll('.text')].map(e => e.textContent)")
        assert texts == [f"2 {MARKUP}", f"Well: {MARKUP} yes.", f"1 {MARKUP}", f"Well: {MARKUP} yes."]
        assert page.evaluate("document.querySelectorAll('main b, main script, main img').length") == 0
        assert page.evaluate("document.title") == "disco: live"
        red, *others = json.loads(
            page.evaluate("JSON.stringify(getComputedStyle($('warning')).color.match(/\\d+/g).map(Number))")
        )
        assert red > 2 * max(others)
        assert "prompts and answers" in page.evaluate("$('warning').innerText")
        # A page that has seen more answers of a server before this one, at the same address, misses none of these.
        page.evaluate("began = 1; after = 99; ask()")
        page.wait(f"began != 1 && {CARDS}.length == 2")


@pytest.mark.slow
def test_it_fits_a_phone_is_dark_at_night_and_comes_back_with_its_server(page):
    with small(LiveBoard(), "A few words.") as one:
        page.goto(url_of(one.address))
        log_in(page, KEY)
        page.wait("$('status').textContent == 'live'")
        assert page.evaluate("$('warning').hidden")
        asked(one, "Hello?")
        page.wait(f"{CARDS}.length == 1")
        colours = {}
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.call("Emulation.setEmulatedMedia", features=features)
            colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert len(set(colours.values())) == 2
        size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.wait("innerWidth <= 360")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.call("Emulation.clearDeviceMetricsOverride")
        # Everything can be reached without a mouse, and has a name.
        unnamed = "[...document.querySelectorAll('[role=img]')].filter(e => !e.getAttribute('aria-label'))"
        assert page.evaluate(f"{unnamed}.length") == 0
        assert page.evaluate("document.querySelector('label[for=key]') !== null") is True
    page.wait("$('status').textContent.startsWith('no answer from the server')")
