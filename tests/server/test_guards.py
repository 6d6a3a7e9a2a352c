"""Who is let in, and what those are told who are not. Odd requests and pages: tests/security/test_served.py."""

from __future__ import annotations

import hmac
import json

import openai
import pytest
from asgi import simulated
from serving import HELLO, serving

from disco import ConfigurationError
from disco.server import make_app
from disco.server.access_guards import is_loopback

pytestmark = pytest.mark.real

KEY = "a-key-of-many-characters"
CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}
PAGE = "http://app.test:3000"


@pytest.fixture(scope="module")
def open_server():
    with serving(simulated, max_body_bytes=100_000, allow_hosts=["Models.test"]) as served:
        yield served


@pytest.fixture(scope="module")
def keyed():
    with serving(simulated, key=KEY, allow_origins=[PAGE]) as served:
        yield served


# ---------------------------------------------------------------------- exposure


def test_what_counts_as_this_machine():
    inside = ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST.", "my.localhost"]
    outside = [
        "0.0.0.0",
        "::",
        "",
        "192.168.1.2",
        "example.org",
        "localhost.example.org",
        "127.0.0.1.example.org",
    ]
    assert {host: is_loopback(host) for host in inside + outside} == dict.fromkeys(
        inside, True
    ) | dict.fromkeys(outside, False)


@pytest.mark.parametrize(("key", "says"), [(None, "no key"), ("short", "fewer than 16")])
def test_another_address_needs_a_good_key(key, says):
    for host in ("0.0.0.0", "::", "", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigurationError, match=f"{says}.*DISCO_SERVER_KEY") as caught:
            make_app(simulated(), host=host, key=key)
        assert "short" not in str(caught.value)
        make_app(simulated(), host=host, key=KEY)


@pytest.mark.parametrize(
    ("option", "values", "says"),
    [
        ("key", ["", " ", "with space", "ümlaut", "new\nline"], "visible ASCII"),
        (
            "allow_origins",
            [["*"], ["null"], ["app.test:3000"], [f"{PAGE}/path"], ["http://*.a.test"]],
            "origin",
        ),
        ("max_body_bytes", [0], "at least 1"),
        ("max_concurrent", [0], "at least 1"),
    ],
)
def test_what_is_no_setting_is_refused(option, values, says):
    for value in values:
        with pytest.raises(ConfigurationError, match=says):
            make_app(simulated(), **{option: value})


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/metrics", "/v1/none"])
def test_without_the_key_nothing_is_answered(keyed, path):
    before = keyed.client.router.statistics.seen
    bearers = ["", " ", " wrong", f" {KEY}x", f" {KEY[:-1]}"]
    for given in (None, "", f"Basic {KEY}", KEY, *(f"Bearer{rest}" for rest in bearers)):
        headers = {} if given is None else {"Authorization": given}
        answer = keyed.ask(path, CHAT if path == "/v1/chat/completions" else None, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY[:8] not in str(answer.error)
    assert keyed.client.router.statistics.seen == before


def test_with_the_key_it_is_answered(keyed):
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert keyed.ask("/v1/models", headers={"Authorization": f"{scheme} {KEY}"}).status == 200
    with openai.OpenAI(base_url=keyed.base_url, api_key=KEY) as client:
        assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content
    wrong = openai.OpenAI(base_url=keyed.base_url, api_key="wrong")
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_health_needs_no_key_and_says_nothing(keyed):
    answer = keyed.ask("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_keys_are_compared_in_constant_time(keyed, monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer guess"}).status == 401
    assert compared == [b"guess"]


# ---------------------------------------------------------------------- browsers


def test_pages_of_other_origins_are_refused(keyed, open_server):
    for origin in ("http://evil.test", "null", "http://127.0.0.1:3000", "https://app.test:3000"):
        for served in (keyed, open_server):
            headers = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
            answer = served.ask("/v1/chat/completions", CHAT, headers=headers)
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers
            preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            assert served.ask("/v1/chat/completions", method="OPTIONS", headers=preflight).status == 403


def test_pages_of_an_allowed_origin_may_ask(keyed):
    page = {"Origin": PAGE}
    preflight = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    allowed = keyed.ask("/v1/chat/completions", method="OPTIONS", headers=preflight)
    assert allowed.status == 204
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert allowed.headers["access-control-allow-private-network"] == "true"
    keyed_page = {**page, "Authorization": f"Bearer {KEY}"}
    for headers, status in ((keyed_page, 200), (page, 401)):
        answer = keyed.ask("/v1/chat/completions", CHAT, headers=headers)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "Origin"
    for method in ("GET", "POST", "HEAD"):  # what only looks like a preflight
        headers = {**page, "Access-Control-Request-Method": "POST"}
        assert keyed.ask("/v1/models", method=method, headers=headers).status == 401


def test_a_name_that_was_made_to_mean_this_machine_is_refused(open_server):
    for host in (
        "evil.test",
        "evil.test:8642",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "other.test",
        "",
    ):
        for path in ("/v1/models", "/health", "/metrics"):
            answer = open_server.ask(path, at=host)
            assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    allowed = "models.test:443"
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642", "a.localhost", allowed):
        assert open_server.ask("/v1/models", at=host).status == 200


# ---------------------------------------------------------------------- limits


def test_a_body_that_is_too_long_is_refused(open_server):
    long = b"x" * 100_001
    for body in (long, iter([long[:60_000], long[60_000:]])):  # announced, and in chunks
        answer = open_server.ask("/v1/chat/completions", body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.error["code"]) == (413, "body_too_long")
    fits = json.dumps(CHAT).encode().ljust(100_000)
    assert open_server.ask("/v1/chat/completions", fits).status == 200


def test_more_than_the_limit_are_asked_to_come_back():
    with serving(lambda **more: simulated(gap_s=0.01, tokens=5000, **more), max_concurrent=2) as served:
        held = [served.open("/v1/chat/completions", {**CHAT, "stream": True}) for _ in range(2)]
        assert held[0].recv(1000).startswith(b"HTTP/1.1 200")
        answer = served.ask("/v1/chat/completions", CHAT)
        while answer.status == 200:  # the second has not been read yet
            answer = served.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert answer.headers["retry-after"] == "1"
        assert served.ask("/health").status == 200
        assert "disco_http_requests_in_flight 2.0" in served.ask("/metrics").body.decode()
        for one in held:
            one.close()
        served.until(lambda: len(served.routes) == 2)
        with openai.OpenAI(base_url=served.base_url, api_key="x", max_retries=0, timeout=60) as client:
            stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
            assert next(iter(stream)).choices
            stream.close()


# ---------------------------------------------------------------------- paths and failures


def test_methods_and_made_up_paths(open_server):
    wrong = open_server.ask("/v1/chat/completions", method="GET")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert wrong.error["code"] == "method_not_supported"
    assert open_server.ask("/v1/models", {}).status == 405
    assert open_server.ask("/v1/models", method="HEAD").status == 200
    for n in range(3):  # what clients make up must not become a label each
        open_server.ask(f"/v1/made-up-{n}")
        open_server.ask(f"/v1/models/made-up-{n}")
    text = open_server.ask("/metrics").body.decode()
    assert "made-up" not in text
    assert 'disco_http_requests_total{path="other",status="404"} 3.0' in text
    assert 'disco_http_requests_total{path="/v1/models/{name}",status="404"} 3.0' in text


def test_a_failure_nobody_foresaw_tells_its_kind_only(open_server, monkeypatch, caplog):
    caplog.set_level("DEBUG")

    async def broken(*_, **__):
        raise KeyError("CANARY")

    monkeypatch.setattr(open_server.client, "post", broken)
    answer = open_server.ask("/v1/chat/completions", CHAT)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert "KeyError" in answer.error["message"]
    assert b"CANARY" not in answer.body
    assert "KeyError at " in caplog.text
    assert "CANARY" not in caplog.text
