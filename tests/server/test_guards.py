"""Who is let in, and what those are told who are not."""

from __future__ import annotations

import hmac
import json

import anyio
import openai
import pytest
from serving import HELLO, serving

from disco import AsyncDisco, ConfigurationError
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import make_app
from disco.server.access_guards import is_loopback
from disco.server.api_errors import Refusal
from disco.server.request_body import SILENCE_S, Gone, parse, read_body

KEY = "a-key-of-many-characters"
CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}


def simulated(gap_s: float = 0.001, tokens: int = 4, **more) -> AsyncDisco:
    profile = SimulatedProfile(gap_s=gap_s, answer_tokens=tokens)
    device = SimulatedEndpoint("device", profile, place="device")
    return AsyncDisco(local=device, policy="private", **more)


@pytest.fixture(scope="module", autouse=True)
def _no_server():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        yield


@pytest.fixture(scope="module")
def open_server():
    with serving(simulated, max_body_bytes=100_000) as served:
        yield served


@pytest.fixture(scope="module")
def keyed():
    with serving(simulated, key=KEY, allow_origins=["http://app.test:3000"]) as served:
        yield served


# ---------------------------------------------------------------------- exposure


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("my.localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.2", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_what_counts_as_this_machine(host, inside):
    assert is_loopback(host) is inside


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "example.org"])
@pytest.mark.parametrize(("key", "says"), [(None, "no key"), ("short", "fewer than 16")])
def test_another_address_needs_a_good_key(host, key, says):
    client = simulated()
    with pytest.raises(ConfigurationError, match=f"{says}.*DISCO_SERVER_KEY") as caught:
        make_app(client, host=host, key=key)
    assert "short" not in str(caught.value)
    make_app(client, host=host, key=KEY)


@pytest.mark.parametrize("key", ["", " ", "with space", "ümlaut", "new\nline"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(ConfigurationError, match="visible ASCII"):
        make_app(simulated(), key=key)


@pytest.mark.parametrize("origin", ["*", "null", "localhost:3000", "http://a.test/path", "http://*.a.test"])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigurationError, match="origin"):
        make_app(simulated(), allow_origins=[origin])


@pytest.mark.parametrize("option", [{"max_body_bytes": 0}, {"max_concurrent": 0}])
def test_a_limit_of_nothing_is_refused(option):
    with pytest.raises(ConfigurationError, match="at least 1"):
        make_app(simulated(), **option)


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY[:-1]}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/metrics", "/v1/none"])
def test_without_the_key_nothing_is_answered(keyed, path, given):
    headers = {} if given is None else {"Authorization": given}
    answer = keyed.ask(path, CHAT if path == "/v1/chat/completions" else None, headers=headers)
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY[:8] not in str(answer.error)
    assert keyed.client.router.statistics.seen == 0 or path != "/v1/chat/completions"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_with_the_key_it_is(keyed, scheme):
    assert keyed.ask("/v1/models", headers={"Authorization": f"{scheme} {KEY}"}).status == 200


def test_the_plain_client_brings_the_key(keyed):
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


@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "http://127.0.0.1:3000", "https://app.test:3000"]
)
def test_pages_of_other_origins_are_refused(keyed, open_server, origin):
    for served in (keyed, open_server):
        headers = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
        answer = served.ask("/v1/chat/completions", CHAT, headers=headers)
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answer.headers
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert served.ask("/v1/chat/completions", method="OPTIONS", headers=preflight).status == 403


def test_pages_of_an_allowed_origin_may_ask(keyed):
    page = {"Origin": "http://app.test:3000"}
    preflight = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    allowed = keyed.ask("/v1/chat/completions", method="OPTIONS", headers=preflight)
    assert allowed.status == 204
    assert allowed.headers["access-control-allow-origin"] == "http://app.test:3000"
    assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert allowed.headers["access-control-allow-private-network"] == "true"
    answer = keyed.ask("/v1/chat/completions", CHAT, headers={**page, "Authorization": f"Bearer {KEY}"})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "http://app.test:3000"
    assert answer.headers["vary"] == "Origin"
    refused = keyed.ask("/v1/chat/completions", CHAT, headers=page)
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "http://app.test:3000"


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_a_request_that_looks_like_a_preflight_needs_the_key(keyed, method):
    headers = {"Origin": "http://app.test:3000", "Access-Control-Request-Method": "POST"}
    assert keyed.ask("/v1/models", method=method, headers=headers).status == 401


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:8642", "127.0.0.1.evil.test", "localhost.evil.test", ""]
)
def test_a_name_that_was_made_to_mean_this_machine_is_refused(open_server, host):
    for path in ("/v1/models", "/health", "/metrics"):
        answer = open_server.ask(path, at=host)
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642", "a.localhost"])
def test_loopback_names_are_taken(open_server, host):
    assert open_server.ask("/v1/models", at=host).status == 200


def test_a_further_name_can_be_allowed():
    with serving(simulated, allow_hosts=["Models.test"]) as served:
        assert served.ask("/v1/models", at="models.test:443").status == 200
        assert served.ask("/v1/models", at="other.test").status == 403


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


# ---------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "parse"),
        (b"{", None, "parse"),
        (b"\xff\xfe", None, "parse"),
        (b'{"model": NaN}', None, "parse"),
        (b"[" * 100_000, None, "parse"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', None, "parse"),
        (b"[]", None, "object"),
        (b'"text"', None, "object"),
        ({}, "model", "model"),
        ({"model": 3}, "model", "string"),
        ({"model": "m"}, "messages", "messages"),
        ({"model": "m", "messages": "hello"}, "messages", "array"),
        ({"model": "m", "messages": ["hello"]}, "messages", "array"),
        ({"model": "m", "messages": []}, "messages", "empty"),
        ({**CHAT, "stream": "yes"}, "stream", "boolean"),
        ({**CHAT, "disco": 3}, "disco", "dict"),
        ({**CHAT, "disco": {"local_onyl": True}}, "disco", "local_only"),
        ({**CHAT, "disco": {"policy": "balnced"}}, "disco", "balanced"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_the_api_would_refuse_is_refused_in_its_words(open_server, body, param, says):
    answer = open_server.ask("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert says in answer.error["message"]
    assert "extra_body" not in answer.error["message"]


@pytest.mark.parametrize("body", [{}, {"model": "m", "input": 3}, {"model": None, "input": "x"}])
def test_responses_are_checked_too(open_server, body):
    assert open_server.ask("/v1/responses", body).error["type"] == "invalid_request_error"


def test_a_preset_cannot_be_read_from_a_file_over_http(open_server, tmp_path):
    """The path of a preset is for the program that owns the files, not for whoever may ask."""
    secret = tmp_path / "secret.toml"
    secret.write_text("TOPSECRET = 1")
    for name in (str(secret), "../secret", "C:secret"):
        answer = open_server.ask("/v1/chat/completions", {**CHAT, "disco": {"policy": name}})
        assert answer.status == 400
        assert b"TOPSECRET" not in answer.body
    assert open_server.ask("/v1/chat/completions", {**CHAT, "disco": {"policy": "private"}}).status == 200


def test_what_needs_a_server_says_so(open_server):
    for path in ("/v1/completions", "/v1/embeddings"):
        answer = open_server.ask(path, {"model": "m", "prompt": "x", "input": "x"})
        assert answer.status == 400
        assert "OPENAI_API_KEY" in answer.error["message"]


def test_unknown_paths_and_methods_are_answered_in_the_apis_shape(open_server):
    for path in ("/", "/v1", "/v1/chat/completions/", "/v2/chat/completions", "/v1/files"):
        assert open_server.ask(path, {}).status == 404
        assert open_server.ask(path, {}).error["code"] == "unknown_url"
    wrong = open_server.ask("/v1/chat/completions", method="GET")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert wrong.error["code"] == "method_not_supported"
    assert open_server.ask("/v1/models", {}).status == 405
    assert open_server.ask("/v1/models", method="HEAD").status == 200


def test_made_up_paths_make_no_metrics_of_their_own(open_server):
    for n in range(20):
        open_server.ask(f"/v1/made-up-{n}")
        open_server.ask(f"/v1/models/made-up-{n}")
    text = open_server.ask("/metrics").body.decode()
    assert "made-up" not in text
    assert 'disco_http_requests_total{path="other",status="404"}' in text


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


# ---------------------------------------------------------------------- reading a body


def pieces(*messages):
    """A `receive` that gives these, and then waits for ever."""
    left = list(messages)

    async def receive():
        await anyio.lowlevel.checkpoint()
        if left:
            return left.pop(0)
        return await anyio.sleep_forever()

    return receive


def part(data, more=True):
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.anyio
async def test_a_body_in_parts_is_put_together():
    receive = pieces(part(b"ab"), part(b""), part(b"c", more=False))
    assert await read_body({"headers": []}, receive, 3) == b"abc"


@pytest.mark.anyio
async def test_a_client_that_leaves_in_its_body_is_gone():
    with pytest.raises(Gone):
        await read_body({"headers": []}, pieces(part(b"ab"), {"type": "http.disconnect"}), 3)


def test_a_client_that_falls_silent_in_its_body_is_given_up():
    import trio
    from trio.testing import MockClock

    clock = MockClock(autojump_threshold=0)

    async def main():
        with pytest.raises(Refusal) as caught:
            await read_body({"headers": []}, pieces(part(b"ab")), 3)
        return caught.value.status

    assert trio.run(main, clock=clock) == 408
    assert clock.current_time() == pytest.approx(SILENCE_S, abs=0.1)


def test_what_only_disco_knows_is_taken_out_of_the_body():
    asked = parse("/chat/completions", json.dumps({**CHAT, "stream": True}).encode())
    assert asked.disco == {"pace_tps": "off"}
    assert "disco" not in asked.body
    assert asked.stream


# ---------------------------------------------------------------------- any event loop


@pytest.mark.anyio
async def test_the_application_runs_on_any_event_loop():
    """Uvicorn brings asyncio; other ASGI servers run on trio."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    async with simulated() as client:
        app = make_app(client)
        await app(scope, pieces(part(body, more=False)), send)
        assert sent[0]["status"] == 200
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert sent[-2]["body"].endswith(b"data: [DONE]\n\n")
        gone = pieces(part(body, more=False), {"type": "http.disconnect"})
        with anyio.fail_after(60):
            await app(scope, gone, send)
        assert client.router.statistics.seen == 2
        assert app.state.limiter.busy == 0
