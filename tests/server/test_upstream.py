"""What is handed on to the server behind, what comes back from it, and what becomes of its failures."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re

import anyio
import openai
import pytest
import scripted_server as scripted
from asgi import simulated
from serving import HELLO, serving, upstream

from disco import AsyncDisco
from disco.dispatch import Preset

pytestmark = pytest.mark.real

PLAIN = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
CHAT = {"model": "m", "messages": HELLO}
EVENTS = scripted.sse(
    scripted.chunk(role="assistant", content=""),
    scripted.chunk("Salt"),
    scripted.chunk(" water."),
    scripted.chunk(finish="stop"),
)


@contextlib.contextmanager
def behind(server, **more):
    """Serve a client whose server is `server` and who has no model here."""
    settings = {"base_url": server.base_url, "api_key": "upstream-key", "max_retries": 0, "price": (1, 2)}
    with serving(lambda **given: AsyncDisco(policy=PLAIN, **settings | more, **given)) as served:
        server.requests.clear()  # of warming up
        server.asked = anyio.Event()
        yield served


def sdk(served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.base_url, api_key="callers-key", max_retries=0)


def test_bytes_of_what_is_passed_through_are_the_servers_own():
    body = b'{"object":"list",  "data":[{"embedding":[0.5,1]}], "own":"\xc3\xa9"}'
    extra = (
        "x-request-id: req_theirs\r\nx-ratelimit-remaining-requests: 7\r\nx-secret: 1\r\nServer: nginx\r\n"
    )
    with upstream(scripted.answer(body, headers=extra)) as server, behind(server) as served:
        answer = served.ask("/v1/embeddings", {"model": "m", "input": "hello", "own": [1]})
        assert answer.status == 200
        assert answer.body == body
        assert answer.headers["x-request-id"] == "req_theirs"
        assert answer.headers["x-ratelimit-remaining-requests"] == "7"
        assert "x-secret" not in answer.headers
        assert "server" not in answer.headers
        line, headers, sent = server.requests[0]
    assert line == "POST /v1/embeddings HTTP/1.1"
    assert headers["authorization"] == "Bearer upstream-key"
    assert sent == {"model": "m", "input": "hello", "own": [1]}


def test_nothing_of_the_callers_headers_or_options_reaches_the_server():
    with upstream(scripted.stream(EVENTS)) as server, behind(server) as served:
        for extra in ({}, {"n": 2}):  # routed, passed through
            headers = {"Authorization": "Bearer callers-key", "Cookie": "c", "X-Own": "1"}
            body = {**CHAT, **extra, "stream": True, "disco": {"pace_tps": "off"}}
            assert served.ask("/v1/chat/completions", body, headers=headers).status == 200
        for _, sent, body in server.requests:
            assert sent["authorization"] == "Bearer upstream-key"
            assert "cookie" not in sent
            assert "x-own" not in sent
            assert "disco" not in body


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_that_is_passed_through_comes_piece_by_piece(path):
    """`n=2` and plain completions are the server's; its events are neither read nor rewritten."""
    first, second = b'data: {"a":  1}\n\n: a comment\n\n', b"data: [DONE]\n\n"
    script = [scripted.STREAM_HEAD, scripted.piece(first), 0.3, scripted.piece(second), scripted.STREAM_END]
    body = {**CHAT, "prompt": "x", "n": 2, "stream": True}
    with upstream(script) as server, behind(server) as served, served.open(path, body) as raw:
        got = b""
        while first not in got:
            got += raw.recv(65536)
        assert second not in got, "it waited for the end"
        while second not in got:
            got += raw.recv(65536)
    assert b"content-type: text/event-stream" in got


@pytest.mark.parametrize("stream", [True, False])
def test_what_comes_compressed_is_handed_on_as_text(stream):
    body = gzip.compress(b'{"object":"list","data":[]}')
    script = scripted.answer(body, headers="Content-Encoding: gzip\r\n")
    with upstream(script) as server, behind(server) as served:
        answer = served.ask("/v1/completions", {"model": "m", "prompt": "x", "stream": stream})
    assert answer.json == {"object": "list", "data": []}
    assert "content-encoding" not in answer.headers


def test_the_servers_models_and_the_local_one(monkeypatch):
    models = {
        "object": "list",
        "data": [{"id": "theirs", "object": "model", "created": 1, "owned_by": "them"}],
    }
    one = {"id": "org/theirs", "object": "model", "created": 1, "owned_by": "them", "extra": 5}
    scripts = [
        scripted.answer(json.dumps(models).encode()),
        scripted.answer(json.dumps(one).encode()),
        scripted.answer(b'{"error":{"message":"no such","code":"model_not_found"}}', status="404 Not Found"),
    ]
    with upstream(*scripts) as server, behind(server) as served:
        assert [m["id"] for m in served.ask("/v1/models").json["data"]] == ["theirs"]
        assert served.ask("/v1/models/org/theirs").json == one
        missing = served.ask("/v1/models/none")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_without_a_network_the_local_model_is_still_listed():
    nowhere = {"base_url": "http://127.0.0.1:9/v1", "api_key": "k", "max_retries": 0}
    with serving(lambda **given: simulated(policy="balanced", **nowhere, **given)) as served:
        assert [m["id"] for m in served.ask("/v1/models").json["data"]] == ["local/device"]


# ---------------------------------------------------------------------- failures

BOTH = ("/v1/chat/completions", "/v1/completions")  # routed, and passed through


def refusal(**error) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        ("401 Unauthorized", refusal(message="bad upstream-key"), openai.AuthenticationError, "bad [key]"),
        ("429 Too Many Requests", refusal(message="slow down"), openai.RateLimitError, "slow down"),
        ("500 Oops", refusal(message="broken"), openai.InternalServerError, "broken"),
        ("503 Busy", b"<html>busy</html>", openai.InternalServerError, "status 503"),
        ("422 No", b'{"detail":"field missing"}', openai.UnprocessableEntityError, "field missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_servers_errors_keep_status_and_words(status, body, kind, says):
    script = scripted.answer(body, status=status, headers="Retry-After: 7\r\n")
    with upstream(script) as server:
        for path, stream in itertools.product(BOTH, (True, False)):
            with behind(server) as served:  # a new one, for which nothing rests
                asked = {**CHAT, "prompt": "x", "stream": stream}
                answer = served.ask(path, asked)
                assert answer.status == int(status[:3])
                assert says in answer.error["message"]
                assert b"upstream-key" not in answer.body
                assert answer.headers["retry-after"] == "7"
                assert answer.headers["x-should-retry"] == "false"  # retrying has been done here
                with sdk(served) as client, pytest.raises(kind, match=re.escape(says)):
                    client.post(path.removeprefix("/v1"), cast_to=object, body=asked)


def test_a_server_that_is_not_there_is_a_502():
    nowhere = {"base_url": "http://127.0.0.1:9/v1", "api_key": "k", "max_retries": 0, "price": (1, 1)}
    with serving(lambda **given: AsyncDisco(policy=PLAIN, **nowhere, **given)) as served:
        for path in (*BOTH, "/v1/models/x"):
            answer = served.ask(path, None if "models" in path else {**CHAT, "prompt": "x"})
            assert (answer.status, answer.error["code"]) == (502, "connection_failed")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x"])
def test_a_list_of_models_that_is_none_is_a_502(path):
    said = [b"<html>hello</html>", b"[]", b'{"data"', b"[" * 100_000]
    said += [b'{"data": 5}'] if path == "/v1/models" else []
    with upstream(*map(scripted.answer, said)) as server, behind(server) as served:
        for _ in said:
            answer = served.ask(path)
            assert (answer.status, answer.error["code"]) == (502, "bad_response")


def test_a_server_that_says_nothing_is_a_504():
    with upstream([scripted.WAIT_FOR_CLOSE]) as server, behind(server, timeout=0.3) as served:
        for path in BOTH:
            answer = served.ask(path, {**CHAT, "prompt": "x"})
            assert (answer.status, answer.error["code"]) == (504, "timeout")


@pytest.mark.parametrize("path", [*BOTH, "/v1/responses"])
@pytest.mark.parametrize("end", [scripted.RESET, "error object"])
def test_a_stream_that_breaks_ends_with_an_error_event(path, end):
    """Text before it arrives; then the plain client raises, as it would have at the server itself."""
    first = scripted.sse(scripted.chunk("Salt"), done=False)
    error = {"error": {"message": "overloaded", "type": "server_error", "code": "overloaded", "param": None}}
    last = end if end == scripted.RESET else scripted.piece(scripted.sse(error, done=False))
    script = [scripted.STREAM_HEAD, scripted.piece(first), 0.1, last, scripted.STREAM_END]
    asked = {"model": "m", "stream": True}
    with upstream(script) as server, behind(server) as served, sdk(served) as client:
        more = {"input": "Hi"} if path == "/v1/responses" else {"messages": HELLO, "prompt": "Hi"}
        answer = served.ask(path, {**asked, **more})
        assert answer.status == 200
        *events, nothing = answer.body.decode().split("\n\n")
        assert nothing == ""
        assert any('"Salt"' in event for event in events)
        assert "data: [DONE]" not in events
        problem = json.loads(events[-1].rpartition("data: ")[2])
        if end != scripted.RESET:
            assert problem["error"]["code"] == "overloaded"
        if path == "/v1/responses":
            numbers = [json.loads(event.partition("data: ")[2])["sequence_number"] for event in events]
            assert numbers == list(range(len(events)))
            assert events[-1].startswith("event: error\n")
            assert problem["type"] == "error"
            assert problem["message"]
        ask = {
            "/v1/responses": lambda: client.responses.create(**asked, input="Hi"),
            "/v1/completions": lambda: client.completions.create(**asked, prompt="Hi"),
            "/v1/chat/completions": lambda: client.chat.completions.create(**asked, messages=HELLO),
        }
        with pytest.raises(openai.APIError):
            list(ask[path]())


# ---------------------------------------------------------------------- hanging up


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_closes_the_connection_to_the_server(path, stream):
    first = scripted.piece(scripted.sse(scripted.chunk("Salt"), done=False))
    started = [scripted.STREAM_HEAD, first] if stream else []
    with upstream([*started, scripted.WAIT_FOR_CLOSE]) as server, behind(server) as served:
        raw = served.open(path, {**CHAT, "prompt": "x", "stream": stream})
        if stream:
            got = b""
            while b"Salt" not in got:
                got += raw.recv(65536)
        served.until(server.asked.is_set)
        raw.close()
        served.until(server.closed.is_set)
        if path == "/v1/chat/completions":
            served.until(lambda: bool(served.routes))
            assert served.routes[0].finish_reason == "cancelled"
        status = 200 if stream else 499
        counted = f'disco_http_requests_total{{path="{path}",status="{status}"}} 1.0'
        assert counted in served.ask("/metrics").body.decode()


def test_a_reader_who_does_not_read_does_not_stop_the_others():
    big = scripted.piece(scripted.sse(scripted.chunk("x" * 60_000), done=False))
    script = [scripted.STREAM_HEAD, *([big] * 200), scripted.WAIT_FOR_CLOSE]
    with upstream(script, scripted.stream(EVENTS)) as server, behind(server) as served:
        lazy = served.open("/v1/chat/completions", {**CHAT, "stream": True})
        served.until(server.asked.is_set)
        answer = served.ask("/v1/chat/completions", CHAT)
        assert answer.json["choices"][0]["message"]["content"] == "Salt water."
        lazy.close()
        served.until(lambda: len(served.routes) == 2)


# ---------------------------------------------------------------------- metrics


def test_metrics_say_what_the_route_records_say():
    failing = scripted.answer(b"{}", status="500 Oops")
    with upstream(failing, scripted.stream(EVENTS)) as server, behind(server, max_retries=2) as served:
        for stream in (True, False):
            served.ask("/v1/chat/completions", {**CHAT, "stream": stream})
        lines = served.ask("/metrics").body.decode().splitlines()
        seen = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        routes = served.routes
    assert len(routes) == 2
    assert seen['disco_answers_total{finish_reason="stop",winner="server"}'] == "2.0"
    cost = sum(route.cost for route in routes)
    assert float(seen['disco_cost_usd_total{endpoint="server"}']) == pytest.approx(cost)
    written = sum(c.completion_tokens for r in routes for c in r.ledger.charges if c.phase == "answer")
    tokens = 'disco_tokens_total{endpoint="server",kind="completion",phase="answer"}'
    assert float(seen[tokens]) == written > 0
    assert seen['disco_attempt_failures_total{endpoint="server",failure="server"}'] == "1.0"
    assert not any(name.startswith("disco_failovers_total") for name in seen), "a retry is none"
    assert seen['disco_time_to_first_token_seconds_count{stage="released"}'] == "2.0"
    assert seen['disco_time_per_output_token_seconds_count{stage="generated"}'] == "2.0"
    assert seen['disco_http_requests_total{path="/v1/chat/completions",status="200"}'] == "2.0"
    assert seen["disco_http_requests_in_flight"] == "0.0"
