"""Whether there is a way to the server: asked of the kernel, in no time, and wrong only on the careful side."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys

import httpx2
import openai
import pytest

from disco.endpoints.openai_api import OpenAIEndpoint, connectivity
from disco.endpoints.openai_api.connectivity import connects_directly, has_route


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(connectivity, "_known", {})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


class Kernel:
    """A routing table: `connect` fails with `number`; `asked` is what it was asked."""

    def __init__(self):
        self.number, self.asked = None, []

    def __call__(self, family, kind):
        assert kind == socket.SOCK_DGRAM, "anything else would send a packet"
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def connect(self, address):
        self.asked.append(address)
        if self.number is not None:
            raise OSError(self.number, "told to")


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(connectivity.socket, "socket", kernel)
    return kernel


NO_WAY = [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT]
NOT_KNOWN = [errno.EPERM, errno.EMFILE, errno.EINVAL]


@pytest.mark.parametrize("host", ["api.example.com", "203.0.113.7", "2001:db8::7"])
def test_no_way_is_no_way_and_not_knowing_is_no_reason(kernel, host, monkeypatch):
    for kernel.number in [*NO_WAY, *NOT_KNOWN]:
        monkeypatch.setattr(connectivity, "_known", {})
        assert has_route(host, 443) is (kernel.number in NOT_KNOWN)


@pytest.mark.parametrize("host", ["localhost", "db.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_this_machine_is_always_there_and_nobody_is_asked(kernel, host):
    kernel.number = errno.ENETUNREACH
    assert has_route(host, 8000)
    assert kernel.asked == []


def test_one_family_is_enough_and_an_address_is_asked_for_itself(kernel):
    assert has_route("203.0.113.7", 8443)
    assert kernel.asked == [("203.0.113.7", 8443)]


def test_the_answer_is_kept_for_a_second(kernel, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(connectivity.time, "monotonic", lambda: now[0])
    kernel.number = errno.ENETUNREACH
    assert not has_route("203.0.113.7", 443)
    kernel.number = None
    now[0] += 0.9
    assert not has_route("203.0.113.7", 443)
    now[0] += 0.2
    assert has_route("203.0.113.7", 443)


def test_a_client_that_goes_through_somebody_else_is_not_judged(kernel, monkeypatch):
    kernel.number = errno.ENETUNREACH

    def endpoint(**more):
        client = openai.AsyncOpenAI(api_key="k", base_url="https://api.example.com/v1", **more)
        return client, OpenAIEndpoint(client=client)

    client, direct = endpoint()
    assert connects_directly(client)
    assert not direct.has_route
    for http in (
        httpx2.AsyncClient(verify=False, proxy="http://127.0.0.1:3128"),
        httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: httpx2.Response(200))),
        httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(verify=False, uds="/a/socket")),
    ):
        client, elsewhere = endpoint(http_client=http)
        assert not connects_directly(client)
        assert elsewhere.has_route
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    client, elsewhere = endpoint()
    assert not connects_directly(client)
    assert elsewhere.has_route


PROGRAM = """
import json, sys
from disco.endpoints.openai_api.connectivity import has_route
print(json.dumps([has_route(host, 443) for host in sys.argv[1:]]))
"""


def test_in_a_namespace_without_a_network_only_this_machine_is_there():
    apart = ["unshare", "--net"]
    try:
        possible = subprocess.run([*apart, "true"], check=False, capture_output=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("there is no `unshare`")
    if possible.returncode:
        pytest.skip("a network namespace takes root")
    hosts = ["localhost", "127.0.0.1", "api.example.com", "203.0.113.7", "2001:db8::7"]
    ran = subprocess.run(
        [*apart, sys.executable, "-c", PROGRAM, *hosts],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert json.loads(ran.stdout) == [True, True, False, False, False]
