"""`disco serve` on the wire: pages, odd requests, and what it says of them.

Keys, names and limits: tests/server/test_guards.py.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import pytest
from canaries import CALLERS_KEY, KEY, PROMPT, PROMPT_CANARY, SECRETS, found_in
from serving import Served, serving

from disco import AsyncDisco
from disco.cli import main
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

CHAT = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "disco": {"pace_tps": "off"}}
PAGE = "http://app.test:3000"


def simulated(**more: Any) -> AsyncDisco:
    profile = SimulatedProfile(gap_s=0.001, answer_tokens=4)
    device = SimulatedEndpoint("device", profile, place="device")
    return AsyncDisco(**{"local": device, "policy": "private", **more})


@pytest.fixture(scope="module")
def served():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        with serving(simulated, key=CALLERS_KEY, allow_origins=[PAGE]) as one:
            yield one


KEYED = {"Authorization": f"Bearer {CALLERS_KEY}"}


def raw(served: Served, data: bytes) -> bytes:
    """Bytes as they are, and all that comes back until the server hangs up, or has nothing more to say."""
    with socket.create_connection(served.address, timeout=10) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError, OSError):  # it may hang up before it has read all
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    return answer


# ---------------------------------------------------------------------- pages


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": f"{PAGE}.evil.test"},
        {"Origin": f"{PAGE}@evil.test"},
        {"Origin": "http://evil.test", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_page_elsewhere_starts_no_work(served, headers):
    """Nothing runs on this machine, and nothing is sent on, whatever kind of body the page can send unasked."""
    before = len(served.routes), served.client.router.statistics.seen
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions"):
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            answer = served.ask(path, CHAT, headers={**KEYED, **headers, "Content-Type": kind})
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
            assert list(found_in(answer.body, {"prompt": PROMPT_CANARY})) == []
    assert (len(served.routes), served.client.router.statistics.seen) == before


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health"])
def test_a_page_cannot_load_something_from_here_as_a_picture_or_script(served, path):
    """Such requests have no Origin."""
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert served.ask(path, headers={**KEYED, "Sec-Fetch-Site": site}).status == status
    allowed = {**KEYED, "Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    assert served.ask(path, headers=allowed).status == 200


def test_a_page_with_a_name_that_means_this_machine_starts_no_work(served):
    """DNS rebinding: for the browser such a page is of the same origin, so only the name gives it away."""
    before = len(served.routes)
    headers = {**KEYED, "Sec-Fetch-Site": "same-origin"}
    answer = served.ask("/v1/chat/completions", CHAT, headers=headers, at="evil.test:8642")
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert len(served.routes) == before


# ---------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "given", [b"\xff\xfe", b"Bearer \xc3\xbc\xff", b"Bearer " + CALLERS_KEY.encode() + b"\xff"]
)
def test_a_key_of_any_bytes_is_only_a_wrong_one(served, given):
    head = (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: "
        + given
        + b"\r\n\r\n"
    )
    assert raw(served, head).startswith(b"HTTP/1.1 401 ")


def test_without_the_key_not_even_the_body_is_waited_for(served):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    with socket.create_connection(served.address, timeout=10) as connection:
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    assert served.client.router.statistics.seen == len(served.routes)


@pytest.mark.parametrize("arguments", [["--key", CALLERS_KEY], [f"--key={CALLERS_KEY}"]])
def test_a_key_on_the_command_line_is_refused_and_not_repeated(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "DISCO_SERVER_KEY" in said
    assert list(found_in(said.encode(), SECRETS)) == []


# ---------------------------------------------------------------------- requests that want to be two

START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
SECOND = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        START + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        START + b"Content-Length: 3, 5\r\n\r\nabcde",
        START + b"Content-Length: -3\r\n\r\n",
        START + b"Content-Length: +3\r\n\r\nabc",
        START + b"Content-Length: 0x3\r\n\r\nabc",
        START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        START + b"Host: other\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/chat completions HTTP/1.1\r\nHost: localhost\r\n\r\n",
        START + b"X-Bad\x00: 1\r\n\r\n",
    ],
    ids=lambda head: repr(head[-40:]),
)
def test_a_request_of_unclear_length_is_refused_and_nothing_after_it_is_read(served, head):
    """What two programs in a row may read in two ways (a proxy, and this one), is not read at all."""
    answer = raw(served, head + SECOND)
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b'"status":"ok"' not in answer
    assert not answer.startswith(b"HTTP/1.1 2")


@pytest.mark.parametrize("length", [0, 5, 10**6])
def test_a_length_given_in_two_ways_starts_no_work(served, length):
    """A proxy may go by the other of the two. Whatever they say, this one is refused, with the key and all."""
    before = len(served.routes)
    body = json.dumps(CHAT).encode()
    lengths = [b"Transfer-Encoding: chunked\r\n", b"Content-Length: %d\r\n" % length]
    for order in (lengths, lengths[::-1]):
        head = START + b"Authorization: Bearer " + CALLERS_KEY.encode() + b"\r\n" + b"".join(order) + b"\r\n"
        answer = raw(served, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) + SECOND)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"unclear_length" in answer
    assert len(served.routes) == before


@pytest.mark.parametrize(
    "head",
    [b"X-Long: " + b"a" * 200_000, b"".join(b"X-%d: 1\r\n" % n for n in range(50_000))],
    ids=["long", "many"],
)
def test_a_head_without_end_is_refused(served, head):
    answer = raw(served, START + head)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


# ---------------------------------------------------------------------- what it says of bad requests

BAD: list[dict[str, Any]] = [
    {"messages": PROMPT},
    {"messages": [PROMPT]},
    {"messages": [{"role": PROMPT, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": PROMPT}]}]},
    {"messages": [{"role": "user", "content": {"x": PROMPT}}]},
    {"messages": [{"role": "tool", "content": PROMPT}]},
    {"messages": [{"role": "assistant", "tool_calls": PROMPT}]},
    {"stream": PROMPT},
    {"temperature": PROMPT},
    {"max_tokens": PROMPT},
    {"stop": {"x": PROMPT}},
    {"seed": PROMPT},
    {"logit_bias": {PROMPT: PROMPT}},
    {"tools": PROMPT},
    {"tools": [{"type": "function", "function": {"name": PROMPT, "parameters": PROMPT}}]},
    {"response_format": {"type": PROMPT}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": PROMPT}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"pattern": PROMPT}}}},
    {"disco": PROMPT},
    {"disco": {"pace_tps": PROMPT}},
    {"disco": {"deadline_s": PROMPT}},
    {"disco": {"budget_class": PROMPT}},
    {"n": PROMPT},
    {"modalities": PROMPT},
    {"stream_options": PROMPT},
]


@pytest.fixture(scope="module")
def real():
    """The real model here: most of what can be said of a request, it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        local = LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=512, threads=1)
        with serving(lambda **more: AsyncDisco(local=local, policy="private", **more)) as one:
            yield one
            one.portal.call(local.aclose)


def test_no_error_repeats_the_prompt(real, caplog):
    caplog.set_level("DEBUG", logger="disco")
    refused = 0
    for bad in BAD:
        response = {"input": bad.get("messages", PROMPT), "max_output_tokens": 2}
        for path, body in (
            ("/v1/chat/completions", {**CHAT, "max_tokens": 2, **bad}),
            ("/v1/responses", {"model": "m", **response, **bad}),
        ):
            answer = real.ask(path, body)
            assert answer.status in (200, 400), (bad, answer.body)
            refused += answer.status == 400
            if answer.status == 400:
                assert list(found_in(answer.body, {"prompt": PROMPT_CANARY})) == [], (bad, answer.body)
    assert refused > len(BAD)
    assert list(found_in(caplog.text.encode(), {"prompt": PROMPT_CANARY, "key": KEY})) == []
    assert PROMPT_CANARY not in real.ask("/metrics").body.decode()
