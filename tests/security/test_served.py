"""`disco serve` on the wire: odd requests. Bad ones: test_canary.py. Keys, names, pages: test_guards.py."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from itertools import permutations

import anyio
import pytest
from canaries import CALLERS_KEY, PROMPT, SECRETS, found_in
from serving import Served, serving

from disco import AsyncDisco
from disco.cli import main
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import http_protocol

pytestmark = pytest.mark.real

CHAT = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "disco": {"pace_tps": "off"}}


@pytest.fixture(scope="module")
def served():
    device = SimulatedEndpoint("device", SimulatedProfile(gap_s=0.001, answer_tokens=4), place="device")
    with serving(lambda **more: AsyncDisco(local=device, policy="private", **more), key=CALLERS_KEY) as one:
        yield one


def raw(served: Served, data: bytes, *, ends: bool = True) -> bytes:
    """Bytes as they are, and all that comes back until the server hangs up, or has nothing more to say."""
    with socket.create_connection(served.address, timeout=60) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it may hang up before it has read all
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
                if not ends:
                    break
    return answer


BEARER = b"Authorization: Bearer " + CALLERS_KEY.encode()


@pytest.mark.parametrize("given", [b"\xff\xfe", b"Bearer \xc3\xbc\xff", BEARER.partition(b" ")[2] + b"\xff"])
def test_a_key_of_any_bytes_is_only_a_wrong_one(served, given):
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: "
    assert raw(served, head + given + b"\r\n\r\n").startswith(b"HTTP/1.1 401 ")


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


def test_without_the_key_not_even_the_body_is_waited_for(served):
    answer = raw(served, START + b"Content-Length: 99999999999\r\n\r\n", ends=False)
    assert answer.startswith(b"HTTP/1.1 401 ")


CHUNKED = b"Transfer-Encoding: chunked\r\n"
CODINGS = (b"chunked", b"gzip", b"identity", b"xchunked", b"")
FRAMINGS = [
    *(
        b"Content-Length: " + length
        for length in (b"+5", b"-5", b"0x5", b"5 5", b"5, 5", b"1_0", b"", b"9" * 23)
    ),
    *(b"Content-Length: 5\r\nContent-Length: " + other for other in (b"5", b"3")),
    *(
        b"Transfer-Encoding: " + of
        for of in (b"xchunked", b"gzip, chunked", b"chunked, identity", b"\x0bchunked")
    ),
    *(
        b"Transfer-Encoding : chunked",
        CHUNKED + b"Transfer-Encoding: chunked",
        b"Transfer-Encoding:\r\n chunked",
    ),
    *(b"Transfer-Encoding: %s\r\nTransfer-Encoding: %s" % two for two in permutations(CODINGS, 2)),
    *(b"X: a\rY: b", b"X: a\0b", b"X\0: a", b"X: a\x01b", b"X: a\r\n b", b"X", b": a", b"X: a\nY: b"),
    *(b"Host: evil.test", b"X: " + b"a" * 200_000, b"".join(b"X-%d: 1\r\n" % n for n in range(50_000))),
]
TARGETS = [b"GET http://evil.test/health HTTP/1.1", b"OPTIONS * HTTP/1.1"]
TARGETS += [
    b"CONNECT %s HTTP/1.1" % to for to in (b"localhost:80", b"/x", b"/health", b"/v1/disco/layers/stream")
]
TARGETS += [b"CONNECT /x HTTP/1.0", b"CONNECT /x HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade"]
TARGETS += [b"GET /health HTTP/%s" % version for version in (b"0.9", b"1.2", b"2.0")]
TARGETS += [b"GET /a%s HTTP/1.1" % odd for odd in (b"\0", b"\xff", b" b", b"a" * 200_000)]
CHUNKS = [size + b"\r\nabc\r\n" for size in (b"zz", b"-1", b"0x3", b"f" * 17)] + [
    b"3\nabc\r\n",
    b"3\r\nabcXX",
]


def refused_once(answer: bytes) -> bool:
    """One refusal, and nothing after it; it may be lost where the server hangs up on bytes that it has not read."""
    return answer == b"" or (answer.startswith(b"HTTP/1.1 4") and answer.count(b"HTTP/1.1 ") == 1)


def test_what_proxies_might_read_otherwise_starts_no_work_and_nothing_after_it_is_read(served):
    """With the key and all, and a whole body in chunks."""
    body = json.dumps(CHAT).encode()
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for framing in FRAMINGS:
        assert refused_once(
            raw(served, START + BEARER + b"\r\n" + framing + b"\r\n\r\n" + chunks + SECOND)
        ), framing
    for target in TARGETS:
        assert refused_once(raw(served, target + b"\r\nHost: localhost\r\n\r\n" + SECOND)), target
    for odd in CHUNKS:
        answer = raw(served, START + BEARER + b"\r\n" + CHUNKED + b"\r\n" + odd + b"0\r\n\r\n" + SECOND)
        assert refused_once(answer), odd
    assert refused_once(raw(served, START.partition(b"Host")[0] + b"\r\n" + SECOND)), "no Host"
    for length in (0, 5, 10**6):
        lengths = [CHUNKED, b"Content-Length: %d\r\n" % length]
        for order in (lengths, lengths[::-1]):
            answer = raw(served, START + BEARER + b"\r\n" + b"".join(order) + b"\r\n" + chunks + SECOND)
            assert refused_once(answer)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert served.client.router.statistics.seen == len(served.routes) == 0


def test_trailers_prove_nothing_and_have_a_limit(served):
    head = START + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n"
    assert raw(served, head + BEARER + b"\r\n\r\n", ends=False).startswith(b"HTTP/1.1 401 ")
    keyed = START + BEARER + b"\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n"
    with socket.create_connection(served.address, timeout=60) as connection, contextlib.suppress(OSError):
        for part in (keyed, *[b"X: " + b"a" * 2**20] * 8):
            connection.sendall(part)
        assert refused_once(connection.recv(65536))


@pytest.mark.parametrize("per_chunk", [None, 1, 100_000])
def test_a_long_body_is_read_however_it_is_cut(served, per_chunk):
    body = json.dumps({"model": "m", "input": "x" * (30_000 if per_chunk == 1 else 3_000_000)}).encode()
    data, length = body, b"Content-Length: %d\r\n\r\n" % len(body)
    if per_chunk is not None:
        cut = (body[at : at + per_chunk] for at in range(0, len(body), per_chunk))
        data, length = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in cut) + b"0\r\n\r\n", CHUNKED + b"\r\n"
    head = (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        + BEARER
        + b"\r\n"
        + length
    )
    with socket.create_connection(served.address, timeout=60) as connection:
        connection.sendall(head)
        connection.sendall(data)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"no_eligible_endpoint" in answer


def closing(offer: bytes, version: bytes, body: bytes) -> bytes:
    """A request that ends its connection, and offers another protocol."""
    head = START.replace(b"HTTP/1.1", b"HTTP/" + version) + BEARER + b"\r\n" + offer
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("version", "offer"),
    [
        (b"1.1", b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"),
        (b"1.1", b"Connection: Upgrade\r\nConnection: close\r\nUpgrade: websocket\r\n"),
        (b"1.0", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
        (b"1.0", b"Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.0\r\n"),
    ],
)
def test_an_offer_on_a_connection_that_ends_is_declined_and_answered(served, version, offer):
    whole = closing(offer, version, json.dumps(CHAT).encode())
    for cut in (len(whole), len(whole) - 20):
        with socket.create_connection(served.address, timeout=60) as connection:
            connection.sendall(whole[:cut])
            if cut < len(whole):
                served.portal.call(anyio.sleep, 0.05)
                connection.sendall(whole[cut:])
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"chat.completion" in answer


def test_many_offers_in_one_piece_are_declined_one_by_one(served):
    offer = SECOND[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = SECOND[:-2] + b"Connection: close\r\n\r\n"
    with socket.create_connection(served.address, timeout=60) as connection:
        connection.sendall(2000 * offer + last)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 2001


STARTS = {
    "silent": b"",
    "line ends": b"\r\n\r\n",
    "half a head": START[:-4],
    "an offer, half": START + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n",
    "half a second one": SECOND + START[:-4],
    "the body of one that was refused": START + b"Content-Length: 1000000\r\n\r\nabc",
}


ENDS = dict.fromkeys(STARTS.values(), ((), (b"408",)))
ENDS[STARTS["half a second one"]] = ((b"200", b"408"), (b"200",))
ENDS[STARTS["the body of one that was refused"]] = ((b"401",),)


def test_a_connection_on_which_no_request_begins_has_an_end(served, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    with contextlib.ExitStack() as stack:
        opened = []
        for start in [*STARTS.values()] * 17:
            connection = stack.enter_context(socket.create_connection(served.address, timeout=60))
            connection.sendall(start)
            opened.append((start, connection))
        for start, connection in opened:
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):
                    answer += part
            statuses = tuple(re.findall(rb"HTTP/1.1 (\d+) ", answer))
            assert statuses in ENDS[start], start


def test_a_head_that_does_not_end_is_given_up(served, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.05)
    answer = raw(served, START[:-4], ends=False)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"headers_timeout" in answer


def test_an_offer_of_another_protocol_is_declined_and_the_request_is_answered(served):
    """Java's HTTP client makes one with every request over plain HTTP."""
    body = json.dumps(CHAT).encode()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    whole = START + BEARER + b"\r\n" + offer + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for data in (whole[:-20], whole):
        with socket.create_connection(served.address, timeout=60) as connection:
            connection.sendall(data)
            if data is not whole:
                served.portal.call(anyio.sleep, 0.05)
            connection.sendall(
                whole[len(data) :] + SECOND.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert b"chat.completion" in answer
