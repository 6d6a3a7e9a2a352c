"""What is handed on to the server behind, what comes back from it, and what becomes of its failures."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import logging
import re

import anyio
import httpx2
import openai
import pytest
import scripted_server as scripted
from asgi import asking, simulated
from serving import HELLO, serving, upstream

from disco import AsyncDisco, Timeouts
from disco.dispatch import Preset
from disco.endpoints.openai_api.sdk_client import ReusesRequests
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

PLAIN = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
CHAT = {"model": "m", "messages": HELLO}
CHATS, COMPLETIONS = BOTH = ("/v1/chat/completions", "/v1/completions")  # routed, and passed through
RESPONSES = "/v1/responses"
INPUTS = {CHATS: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hi"}, RESPONSES: {"input": "Hi"}}
SALT = scripted.piece(scripted.sse(scripted.chunk("Salt"), done=False))
EVENTS = scripted.sse(scripted.chunk("Salt"), scripted.chunk(" water."), scripted.chunk(finish="stop"))


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


def until(raw, wanted: bytes) -> bytes:
    """What comes on a socket, up to something that is waited for."""
    got = b""
    while wanted not in got:
        got += raw.recv(65536)
    return got


def test_what_is_passed_through_is_the_servers_own_and_nothing_of_the_callers_headers_reaches_it():
    body = b'{"object":"list",  "data":[{"embedding":[0.5,1]}], "own":"\xc3\xa9"}'
    theirs = {"x-request-id": "req_theirs", "x-ratelimit-remaining-requests": "7"}
    extra = "".join(f"{k}: {v}\r\n" for k, v in {**theirs, "x-secret": "1", "Server": "nginx"}.items())
    headers = {"Authorization": "Bearer callers-key", "Cookie": "c", "X-Own": "1"}
    frozen = gc.get_freeze_count()
    script = scripted.answer(body, headers=extra)
    with upstream(script, scripted.stream(EVENTS)) as server, behind(server) as served:
        assert gc.get_freeze_count() <= frozen, "the garbage collector is its host's"
        asked = {"model": "m", "input": "hello", "own": [1]}
        answer = served.ask("/v1/embeddings", asked, headers=headers)
        assert (answer.status, answer.body) == (200, body)
        assert theirs.items() <= answer.headers.items()
        assert not {"x-secret", "server"} & set(answer.headers)
        assert (server.requests[0][0], server.requests[0][2]) == ("POST /v1/embeddings HTTP/1.1", asked)
        for more in ({}, {"n": 2}):  # routed, passed through
            own = {**CHAT, **more, "stream": True, "disco": {"pace_tps": "off"}}
            assert served.ask(CHATS, own, headers=headers).status == 200
        for _, sent, given in server.requests:
            assert sent["authorization"] == "Bearer upstream-key"
            assert not {"cookie", "x-own"} & set(sent)
            assert "disco" not in given


class Copying(ReusesRequests, AsyncDisco):
    """As the command's own client."""


def test_a_request_copied_from_an_earlier_one_has_its_own_body_and_the_key_of_the_moment():
    sent: list[httpx2.Request] = []

    def answer(request):
        sent.append(request)
        return httpx2.Response(200, json={"data": []})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    with asking(
        Copying(api_key="first-key", base_url="http://h.test/v1", http_client=http, policy=PLAIN)
    ) as asked:
        for text in ("one", "two" * 100):
            asked("/v1/embeddings", {"model": "m", "input": text})
        asked.client.api_key = "second-key"
        for _ in range(2):
            asked("/v1/embeddings", {"model": "m", "input": "three"})
    assert [json.loads(request.content)["input"] for request in sent] == [
        "one",
        "two" * 100,
        "three",
        "three",
    ]
    assert [int(r.headers["content-length"]) for r in sent] == [len(request.content) for request in sent]
    assert [r.headers["authorization"][7:] for r in sent] == ["first-key"] * 2 + ["second-key"] * 2
    first, second = ({n: v for n, v in r.headers.items() if n != "content-length"} for r in sent[:2])
    assert first == second
    assert len(asked.client._kept) == 2


def test_what_comes_compressed_is_handed_on_as_text():
    script = scripted.answer(gzip.compress(b'{"data":[]}'), headers="Content-Encoding: gzip\r\n")
    with upstream(script) as server, behind(server) as served:
        for stream in (True, False):
            answer = served.ask(COMPLETIONS, {"model": "m", "prompt": "x", "stream": stream})
            assert (answer.json, "content-encoding" in answer.headers) == ({"data": []}, False)


def test_the_servers_models_and_the_local_one():
    one = {"id": "org/theirs", "object": "model", "created": 1, "owned_by": "them", "extra": 5}
    missing = b'{"error":{"message":"no such","code":"model_not_found"}}'
    said = [b"<html>hello</html>", b"[]", b'{"data"', b"[" * 100_000, b'{"data": 5}']
    scripts = [json.dumps({"object": "list", "data": [one]}).encode(), json.dumps(one).encode()]
    scripts = [*map(scripted.answer, scripts), scripted.answer(missing, status="404 Not Found")]
    with upstream(*scripts, *map(scripted.answer, (*said, *said[:-1]))) as server, behind(server) as served:
        assert served.ask("/v1/models").json["data"] == [one]
        assert served.ask("/v1/models/org/theirs").json == one
        answer = served.ask("/v1/models/none")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        for path in ["/v1/models"] * len(said) + ["/v1/models/x"] * (len(said) - 1):
            answer = served.ask(path)
            assert (answer.status, answer.error["code"]) == (502, "bad_response")


def refusal(**error) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize("stream", [True, False])
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
def test_the_servers_errors_keep_status_and_words(status, body, kind, says, stream):
    script = scripted.answer(body, status=status, headers="Retry-After: 7\r\n")
    asked = {**CHAT, "prompt": "x", "stream": stream}
    with upstream(script) as server, behind(server) as served, sdk(served) as client:
        with pytest.raises(kind, match=re.escape(says)):
            client.post("/completions", cast_to=object, body=asked)
        for path in (COMPLETIONS, CHATS):
            answer = served.ask(path, asked)
            assert answer.status == int(status[:3])
            assert says in answer.error["message"]
            assert b"upstream-key" not in answer.body
            assert answer.headers["retry-after"] == "7"
            assert answer.headers["x-should-retry"] == "false"  # retrying has been done here


def test_a_server_that_is_not_there_or_silent_is_a_502_or_504():
    failures = [httpx2.ConnectError("nobody there")]

    def fail(request):
        raise failures[-1]

    def reaching(**more):
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(fail))
        there = {"base_url": "http://h.test/v1", "api_key": "k", "http_client": http, "max_retries": 0}
        return asking(simulated(**there, **more))

    with reaching(policy="balanced") as asked:  # the local model is still listed
        assert [m["id"] for m in asked("/v1/models").json["data"]] == ["local/device"]
        assert asked("/v1/models/local/device").json["owned_by"] == "this-machine"
    for expected in ((502, "connection_failed"), (504, "timeout")):
        with reaching(local=None, policy=PLAIN, price=(1, 1)) as asked:
            for path in (*BOTH, "/v1/models/x"):
                answer = asked(path, None if "models" in path else {**CHAT, "prompt": "x"})
                assert (answer.status, answer.error["code"]) == expected
        failures.append(httpx2.ReadTimeout("nothing said"))


@pytest.mark.parametrize("path", INPUTS)
@pytest.mark.parametrize("end", [scripted.RESET, "error object"])
def test_a_stream_that_breaks_ends_with_an_error_event(path, end):
    """Text before it arrives; then the plain client raises, as it would have at the server itself."""
    error = {"error": {"message": "overloaded", "type": "server_error", "code": "overloaded", "param": None}}
    last = end if end == scripted.RESET else scripted.piece(scripted.sse(error, done=False))
    script = [scripted.STREAM_HEAD, SALT, 0.1, last, scripted.STREAM_END]
    # With clocks of its own, disco asks for responses as chats where a server knows no others.
    chats = upstream(script, has_responses=False)
    with chats as server, behind(server, timeouts=Timeouts()) as served, sdk(served) as client:
        create = {
            CHATS: client.chat.completions.create,
            COMPLETIONS: client.completions.create,
            RESPONSES: client.responses.create,
        }[path]
        answer = served.ask(path, {"model": "m", "stream": True, **INPUTS[path]})
        *events, nothing = answer.body.decode().split("\n\n")
        assert (answer.status, nothing) == (200, "")
        assert any('"Salt"' in event for event in events)
        assert "data: [DONE]" not in events
        problem = json.loads(events[-1].rpartition("data: ")[2])
        if end != scripted.RESET:
            assert problem["error"]["code"] == "overloaded"
        if path == RESPONSES:
            numbers = [json.loads(event.partition("data: ")[2])["sequence_number"] for event in events]
            assert numbers == list(range(len(events)))
            assert events[-1].startswith("event: error\n")
            assert problem["type"] == "error"
            assert problem["message"]
        with pytest.raises(openai.APIError):
            list(create(model="m", stream=True, **INPUTS[path]))


QUOTE = b'{"error":{"message":"CANARYPROMPT by upstream-key","code":"CANARYPROMPT","type":"upstream-key"}}'
FAILED = "endpoint server failed: "
REFUSED = "/v1/chat/completions: refused with "
CUT = "refused in mid-answer, with 502 (connection_failed)"


@pytest.mark.parametrize(
    ("script", "with_device", "more", "says"),
    [
        ("401 Unauthorized", True, {}, {FAILED + "account", "refuses its key"}),
        ("500 Oops", True, {}, {FAILED + "server"}),
        ("500 Oops", False, {}, {FAILED + "server", REFUSED + "500 (InternalServerError)"}),
        ("503 Busy", False, {"n": 2}, {FAILED + "server", REFUSED + "503 (InternalServerError)"}),
        ([scripted.STREAM_HEAD, SALT, scripted.RESET], False, {"stream": True}, {FAILED + "connection", CUT}),
        ("400 Bad Request", False, {}, set()),  # the caller's mistake
    ],
    ids=["hidden 401", "hidden 500", "500", "passed through", "broken stream", "400"],
)
def test_failures_are_logged_whoever_answers(caplog, script, with_device, more, says):
    """And nothing of what the server quotes."""
    device = SimulatedEndpoint("device", SimulatedProfile(gap_s=0.001, answer_tokens=4), place="device")
    local = {"local": device if with_device else None, "continuation": "none"}
    asked = {"model": "m", "messages": [{"role": "user", "content": "CANARYPROMPT"}], **more}
    caplog.set_level("INFO", logger="disco")
    plays = scripted.answer(QUOTE, status=script) if isinstance(script, str) else script
    with upstream(plays) as server, behind(server, **local) as served:
        assert (served.ask(CHATS, asked).status == 200) == (with_device or "stream" in more)
        served.until(lambda: "n" in more or bool(served.routes))
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    for words in says:
        assert any(words in line for line in warned), warned
    assert len(warned) == len(says)
    assert "CANARYPROMPT" not in caplog.text
    assert "upstream-key" not in caplog.text


@pytest.mark.parametrize("path", INPUTS)
@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_closes_the_connection_to_the_server(path, stream):
    started = [scripted.STREAM_HEAD, SALT] if stream else []
    with upstream([*started, scripted.WAIT_FOR_CLOSE]) as server, behind(server) as served:
        raw = served.open(path, {"model": "m", **INPUTS[path], "stream": stream})
        if stream:
            until(raw, b"Salt")
        served.until(server.asked.is_set)
        raw.close()
        served.until(server.closed.is_set)
        if path != COMPLETIONS:
            served.until(lambda: bool(served.routes))
            assert served.routes[0].finish_reason == "cancelled"
        status = 200 if stream else 499
        counted = f'disco_http_requests_total{{path="{path}",status="{status}"}} 1.0'
        assert counted in served.ask("/metrics").body.decode()


def test_a_reader_who_does_not_read_does_not_stop_the_others():
    big = scripted.piece(scripted.sse(scripted.chunk("x" * 60_000), done=False))
    script = [scripted.STREAM_HEAD, *([big] * 200), scripted.WAIT_FOR_CLOSE]
    with upstream(script, scripted.stream(EVENTS)) as server, behind(server) as served:
        lazy = served.open(CHATS, {**CHAT, "stream": True})
        served.until(server.asked.is_set)
        answer = served.ask(CHATS, CHAT)
        assert answer.json["choices"][0]["message"]["content"] == "Salt water."
        lazy.close()
        served.until(lambda: len(served.routes) == 2)


def test_metrics_say_what_the_route_records_say():
    with (
        upstream(scripted.answer(b"{}", status="500 Oops"), scripted.stream(EVENTS)) as server,
        behind(server, max_retries=2) as served,
    ):
        for stream in (True, False):
            served.ask(CHATS, {**CHAT, "stream": stream})
        lines = served.ask("/metrics").body.decode().splitlines()
        routes = served.routes
    seen = {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}
    written = sum(c.completion_tokens for r in routes for c in r.ledger.charges if c.phase == "answer")
    assert len(routes) == 2
    assert written > 0
    expected = {
        'disco_answers_total{finish_reason="stop",winner="server"}': 2.0,
        'disco_bill_usd_total{endpoint="server"}': pytest.approx(sum(route.bill_usd for route in routes)),
        'disco_policy_cost_usd_total{endpoint="server"}': pytest.approx(sum(r.policy_cost for r in routes)),
        'disco_device_energy_joules_total{endpoint="server"}': 0.0,
        'disco_tokens_total{endpoint="server",kind="completion",phase="answer"}': written,
        'disco_attempt_failures_total{endpoint="server",failure="server"}': 1.0,
        'disco_time_to_first_token_seconds_count{stage="released"}': 2.0,
        'disco_time_per_output_token_seconds_count{stage="generated"}': 1.0,
        f'disco_http_requests_total{{path="{CHATS}",status="200"}}': 2.0,
        "disco_http_requests_in_flight": 0.0,
    }
    assert {name: seen[name] for name in expected} == expected
    assert not any(name.startswith("disco_failovers_total") for name in seen), "a retry is none"
