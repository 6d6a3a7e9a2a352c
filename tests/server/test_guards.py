"""Who is let in, and what those are told who are not. Odd bytes on the wire: tests/security/test_served.py."""

from __future__ import annotations

import hmac
import json

import anyio
import pytest
from asgi import ANSWERS, CHAT, ask, asking, asking_verifier, part, pieces, simulated
from fake_engine import FIRST, ROUNDS, FakeEngine
from watched import virtually

from disco import ConfigurationError
from disco.server import Metrics, make_app
from disco.server.verifier import make_verifier_app

KEY = "a-key-of-many-characters"
KEYED = {"authorization": f"Bearer {KEY}"}
PAGE = "http://app.test:3000"
CHATS = ANSWERS[0]
PREFLIGHT = {"access-control-request-method": "POST"}


KINDS = {"answers": asking, "rounds": asking_verifier}


@pytest.fixture(scope="module", params=KINDS)
def unlocked(request):
    options = {"max_body_bytes": 100_000, "allow_hosts": ["Models.test"], "metrics": Metrics()}
    with KINDS[request.param](**options) as asked:
        yield asked


@pytest.fixture(scope="module", params=KINDS)
def keyed(request):
    with KINDS[request.param](key=KEY, allow_origins=[PAGE], metrics=Metrics()) as asked:
        yield asked


MADE = pytest.mark.parametrize(
    "make",
    [lambda **more: make_app(simulated(), **more), lambda **more: make_verifier_app(FakeEngine(), **more)],
)


def told(answer):
    return answer.status, answer.error["code"]


@pytest.mark.parametrize(("key", "says"), [(None, "no key"), ("short", "fewer than 16")])
@MADE
def test_another_address_needs_a_good_key(make, key, says):
    for host in ("0.0.0.0", "::", "", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigurationError, match=f"{says}.*DISCO_SERVER_KEY") as caught:
            make(host=host, key=key)
        assert "short" not in str(caught.value)
        make(host=host, key=KEY)


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
@MADE
def test_what_is_no_setting_is_refused(make, option, values, says):
    for value in values:
        with pytest.raises(ConfigurationError, match=says):
            make(**{option: value})


def test_without_the_key_nothing_is_answered(keyed, monkeypatch):
    compared = []
    real = hmac.compare_digest  # in constant time
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    bearers = ["", " ", " wrong", f" {KEY}x", f" {KEY[:-1]}"]
    for given in (None, "", f"Basic {KEY}", KEY, *(f"Bearer{rest}" for rest in bearers)):
        headers = {} if given is None else {"authorization": given}
        for path in (*keyed.paths, "/v1/models", "/metrics", "/v1/none", "/v1/disco/verifier"):
            answer = keyed(path, keyed.paths.get(path), **headers)
            assert told(answer) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY[:8] not in str(answer.error)
    assert {b"wrong", f"{KEY}x".encode()} <= set(compared)
    assert keyed.seen() == 0
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
        before = asked.seen()
        for path, body in asked.paths.items():
            for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
                answer = asked(path, body, **KEYED, **headers, **{"content-type": kind})
                assert told(answer) == (403, "origin_not_allowed")
                assert "access-control-allow-origin" not in answer.headers
            assert asked(path, method="OPTIONS", **headers, **PREFLIGHT).status == 403
        assert asked.seen() == before


def test_pages_of_an_allowed_origin_may_ask(keyed):
    wants = {"access-control-request-headers": "authorization,x-stainless-os"}
    wants |= {"access-control-request-private-network": "true", **PREFLIGHT}
    path, body = next(iter(keyed.paths.items()))
    allowed = keyed(path, method="OPTIONS", origin=PAGE, **wants)
    may = {"origin": PAGE, "headers": wants["access-control-request-headers"], "private-network": "true"}
    assert allowed.status == 204
    assert {
        f"access-control-allow-{name}": value for name, value in may.items()
    }.items() <= allowed.headers.items()
    for headers, status in ((KEYED, 200), ({}, 401)):
        answer = keyed(path, body, origin=PAGE, **headers)
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
        for path in ("/v1/models", "/health", "/metrics", *unlocked.paths):
            body = unlocked.paths.get(path)
            answer = unlocked(path, body, host=host, **{"sec-fetch-site": "same-origin"})
            assert told(answer) == (403, "host_not_allowed")
    inside = (
        "localhost LOCALHOST:1 LOCALHOST. 127.0.0.1:8642 127.8.9.1 [::1]:8642 a.localhost models.test:443"
    )
    for host in inside.split():
        assert unlocked("/v1/models", host=host).status == 200


def test_a_body_that_is_too_long_is_refused(unlocked):
    announced = {"content-length": "100001"}
    path, asks = next(iter(unlocked.paths.items()))
    for headers, body in ((announced, []), ({}, [part(b"x" * 60_000)]), ({}, [part(b"x" * 60_000)] * 5)):
        receive = pieces(*body, part(b"x" * 60_000, more=False), {"type": "the end"})
        assert told(unlocked(path, {}, receive, **headers)) == (413, "body_too_long")
        assert unlocked.portal.call(receive) == {"type": "the end"}, "the rest is read, so no reset is seen"
    assert unlocked(path, json.dumps(asks).encode().ljust(100_000)).status == 200


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_limit_are_asked_to_come_back(kind):
    async def main():
        options = {"max_concurrent": 2, "metrics": Metrics()}
        async with simulated(gap_s=1.0, tokens=50) as client, anyio.create_task_group() as tasks:
            if kind == "answers":
                app, path = make_app(client, **options), CHATS
                short, long = CHAT, {**CHAT, "stream": True}
            else:
                app, path = make_verifier_app(FakeEngine(gap_s=1.0), **options), ROUNDS
                short, long = FIRST, {**FIRST, "alone": 50}
            for _ in range(2):
                tasks.start_soon(ask, app, path, long)
            await anyio.sleep(1.5)
            refused = await ask(app, path, short)
            assert (told(refused), refused.headers["retry-after"]) == ((429, "rate_limit_exceeded"), "1")
            assert (await ask(app, "/health", None)).status == 200
            assert b"disco_http_requests_in_flight 2.0" in (await ask(app, "/metrics", None)).body
            await anyio.sleep(100.0)
            assert (await ask(app, path, short)).status == 200

    virtually(main)


def test_methods_and_made_up_paths(unlocked):
    wrong = unlocked(next(iter(unlocked.paths)))
    assert (told(wrong), wrong.headers["allow"]) == ((405, "method_not_supported"), "POST")
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
    if hasattr(unlocked, "client"):
        monkeypatch.setattr(unlocked.client, "post", broken)
    else:
        monkeypatch.setattr(unlocked.engine, "fails", KeyError("CANARY"))
    answer = unlocked(*next(iter(unlocked.paths.items())))
    assert told(answer) == (500, "internal_error")
    assert "KeyError" in answer.error["message"]
    assert b"CANARY" not in answer.body
    assert "KeyError at " in caplog.text
    assert "CANARY" not in caplog.text
