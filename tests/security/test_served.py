"""`disco serve` on the wire: odd requests. Bad ones: test_canary.py. Keys, names, pages: test_guards.py."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from canaries import CALLERS_KEY, PROMPT, SECRETS, found_in
from serving import Served, serving

from disco import AsyncDisco
from disco.cli import main
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

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


@pytest.mark.parametrize("length", [0, 5, 10**6])
def test_a_length_given_in_two_ways_starts_no_work_and_nothing_after_an_unclear_one_is_read(served, length):
    """A proxy may go by the other of the two. Whatever they say, this one is refused, with the key and all."""
    body = json.dumps(CHAT).encode()
    odd = (b"Content-Length: 3\r\nContent-Length: 5", b"Transfer-Encoding: xchunked", b"X: " + b"a" * 200_000)
    for unclear in (*odd, b"".join(b"X-%d: 1\r\n" % n for n in range(50_000))):
        answer = raw(served, START + unclear + b"\r\n\r\nabcde" + SECOND)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert answer.count(b"HTTP/1.1 ") <= 1
    lengths = [b"Transfer-Encoding: chunked\r\n", b"Content-Length: %d\r\n" % length]
    for order in (lengths, lengths[::-1]):
        head = START + BEARER + b"\r\n" + b"".join(order) + b"\r\n"
        answer = raw(served, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) + SECOND)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"unclear_length" in answer
    assert served.client.router.statistics.seen == len(served.routes) == 0
