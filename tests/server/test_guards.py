"""Who is let in, and what those are told who are not. Odd bytes on the wire: tests/security/test_served.py."""

from __future__ import annotations

import hmac
import json

import anyio
import pytest
from asgi import ask, asking, part, pieces, simulated
from fake_engine import FIRST, ROUNDS, VERIFIER, FakeEngine
from serving import HELLO
from watched import virtually

from disco import ConfigurationError
from disco.server import Metrics, make_app

KEY = "a-key-of-many-characters"
KEYED = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}
PAGE = "http://app.test:3000"
CHATS = "/v1/chat/completions"
ANSWERS = (CHATS, "/v1/responses", "/v1/embeddings", "/v1/completions", ROUNDS)
BODIES = {CHATS: CHAT, ROUNDS: FIRST}
PREFLIGHT = {"access-control-request-method": "POST"}


@pytest.fixture(scope="module")
def unlocked():
    options = {"max_body_bytes": 100_000, "allow_hosts": ["Models.test"], "metrics": Metrics()}
    with asking(verifier=FakeEngine(), **options) as asked:
        yield asked


@pytest.fixture(scope="module")
def keyed():
    with asking(verifier=FakeEngine(), key=KEY, allow_origins=[PAGE], metrics=Metrics()) as asked:
        yield asked


def seen(asked) -> int:
    """How much work was begun."""
    return asked.client.router.statistics.seen + len(asked.verifier.rounds)


def told(answer):
    return answer.status, answer.error["code"]


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
            [["*"], ["null"], ["a.test:3000"], [f"{PAGE}/path"], ["http://*.a.test"]],
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


def test_without_the_key_nothing_is_answered(keyed, monkeypatch):
    compared = []
    real = hmac.compare_digest  # in constant time
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    bearers = ["", " ", " wrong", f" {KEY}x", f" {KEY[:-1]}"]
    for given in (None, "", f"Basic {KEY}", KEY, *(f"Bearer{rest}" for rest in bearers)):
        headers = {} if given is None else {"authorization": given}
        for path in (*BODIES, "/v1/models", "/metrics", "/v1/none", VERIFIER):
            answer = keyed(path, BODIES.get(path), **headers)
            assert told(answer) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY[:8] not in str(answer.error)
    assert {b"wrong", f"{KEY}x".encode()} <= set(compared)
    assert seen(keyed) == 0
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert keyed("/v1/models", authorization=f"{scheme} {KEY}").status == 200
    health = keyed("/health")  # needs none, and says nothing
    assert (health.status, health.json) == (200, {"status": "ok"})


# ---------------------------------------------------------------------- browsers

ELSEWHERE = ["http://evil.test", "null", "http://127.0.0.1:3000", "https://app.test:3000"]
ELSEWHERE += [f"{PAGE}.evil.test", f"{PAGE}@evil.test"]
FROM_PAGES = [*({"origin": origin} for origin in ELSEWHERE), {"sec-fetch-site": "cross-site"}]
FROM_PAGES += [{"sec-fetch-site": "same-site"}, {"origin": ELSEWHERE[0], "sec-fetch-site": "same-origin"}]


@pytest.mark.parametrize("headers", FROM_PAGES, ids=str)
def test_a_page_elsewhere_starts_no_work(keyed, unlocked, headers):
    """Whatever kind of body the page can send unasked."""
    for asked in (keyed, unlocked):
        before = seen(asked)
        for path in ANSWERS:
            for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
                answer = asked(path, BODIES.get(path, CHAT), **KEYED, **headers, **{"content-type": kind})
                assert told(answer) == (403, "origin_not_allowed")
                assert "access-control-allow-origin" not in answer.headers
        assert asked(CHATS, method="OPTIONS", **headers, **PREFLIGHT).status == 403
        assert seen(asked) == before


def test_pages_of_an_allowed_origin_may_ask(keyed):
    wants = {"access-control-request-headers": "authorization,x-stainless-os"}
    wants |= {"access-control-request-private-network": "true", **PREFLIGHT}
    allowed = keyed(CHATS, method="OPTIONS", origin=PAGE, **wants)
    may = {"origin": PAGE, "headers": wants["access-control-request-headers"], "private-network": "true"}
    assert allowed.status == 204
    assert {
        f"access-control-allow-{name}": value for name, value in may.items()
    }.items() <= allowed.headers.items()
    for headers, status in ((KEYED, 200), ({}, 401)):
        answer = keyed(CHATS, CHAT, origin=PAGE, **headers)
        assert answer.status == status
        assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (PAGE, "Origin")
    for method in ("GET", "POST", "HEAD"):  # what only looks like a preflight
        assert keyed("/v1/models", method=method, origin=PAGE, **PREFLIGHT).status == 401


def test_a_page_cannot_load_something_from_here_as_a_picture_or_script(keyed):
    """Such requests have no Origin."""
    sites = (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200))
    for path in ("/v1/models", "/metrics", "/health"):
        assert [keyed(path, **KEYED, **{"sec-fetch-site": s}).status for s, _ in sites] == [
            n for _, n in sites
        ]
        assert keyed(path, **KEYED, **{"sec-fetch-site": "cross-site", "origin": PAGE}).status == 200


def test_a_name_that_was_made_to_mean_this_machine_is_refused(unlocked):
    """DNS rebinding: for the browser such a page is of the same origin, so only the name gives it away."""
    outside = (
        "evil.test evil.test:8642 127.0.0.1.evil.test localhost.evil.test other.test 0.0.0.0 192.168.1.2"
    )
    for host in ["", *outside.split()]:
        for path in ("/v1/models", "/health", "/metrics", VERIFIER, *BODIES):
            body = BODIES.get(path)
            answer = unlocked(path, body, host=host, **{"sec-fetch-site": "same-origin"})
            assert told(answer) == (403, "host_not_allowed")
    inside = (
        "localhost LOCALHOST:1 LOCALHOST. 127.0.0.1:8642 127.8.9.1 [::1]:8642 a.localhost models.test:443"
    )
    for host in inside.split():
        assert unlocked("/v1/models", host=host).status == 200


def test_a_body_that_is_too_long_is_refused(unlocked):
    announced = {"content-length": "100001"}
    for path, asks in BODIES.items():
        for headers, body in ((announced, []), ({}, [part(b"x" * 60_000)]), ({}, [part(b"x" * 60_000)] * 5)):
            receive = pieces(*body, part(b"x" * 60_000, more=False), {"type": "the end"})
            assert told(unlocked(path, {}, receive, **headers)) == (413, "body_too_long")
            assert unlocked.portal.call(receive) == {"type": "the end"}, (
                "the rest is read, so no reset is seen"
            )
        assert unlocked(path, json.dumps(asks).encode().ljust(100_000)).status == 200


def test_more_than_the_limit_are_asked_to_come_back():
    async def main():
        async with simulated(gap_s=1.0, tokens=50) as client, anyio.create_task_group() as tasks:
            app = make_app(client, max_concurrent=2, metrics=Metrics(), verifier=FakeEngine(gap_s=1.0))
            tasks.start_soon(ask, app, CHATS, {**CHAT, "stream": True})
            tasks.start_soon(ask, app, ROUNDS, {**FIRST, "alone": 50})
            await anyio.sleep(1.0)
            for path, body in BODIES.items():
                refused = await ask(app, path, body)
                assert (told(refused), refused.headers["retry-after"]) == ((429, "rate_limit_exceeded"), "1")
            assert (await ask(app, "/health", None)).status == 200
            assert b"disco_http_requests_in_flight 2.0" in (await ask(app, "/metrics", None)).body
            await anyio.sleep(100.0)
            assert (await ask(app, CHATS, CHAT)).status == 200

    virtually(main)


def test_methods_and_made_up_paths(unlocked):
    for path in BODIES:
        wrong = unlocked(path)
        assert (told(wrong), wrong.headers["allow"]) == ((405, "method_not_supported"), "POST")
    assert unlocked(VERIFIER, {}).status == 405
    assert unlocked("/v1/models", {}).status == 405
    assert unlocked("/v1/models", method="HEAD").status == 200
    for n in range(3):  # what clients make up must not become a label each
        unlocked(f"/v1/made-up-{n}")
        unlocked(f"/v1/models/made-up-{n}")
    text = unlocked("/metrics").body.decode()
    assert "made-up" not in text
    assert 'disco_http_requests_total{path="other",status="404"} 3.0' in text
    assert 'disco_http_requests_total{path="/v1/models/{name}",status="404"} 3.0' in text


def test_a_failure_nobody_foresaw_tells_its_kind_only(unlocked, monkeypatch, caplog):
    async def broken(*_, **__):
        raise KeyError("CANARY")

    caplog.set_level("DEBUG")
    monkeypatch.setattr(unlocked.client, "post", broken)
    monkeypatch.setattr(unlocked.verifier, "fails", KeyError("CANARY"))
    for path, body in BODIES.items():
        answer = unlocked(path, body)
        assert told(answer) == (500, "internal_error")
        assert "KeyError" in answer.error["message"]
        assert b"CANARY" not in answer.body
    assert "KeyError at " in caplog.text
    assert "CANARY" not in caplog.text
