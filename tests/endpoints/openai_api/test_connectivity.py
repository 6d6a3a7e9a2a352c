"""Whether there is a way to the server: asked of the kernel, in no time, and wrong only on the careful side."""

from __future__ import annotations

import errno
import itertools
import shutil
import socket
import subprocess
import sys
from unittest.mock import MagicMock

import httpx2
import openai
import pytest

from disco.endpoints.openai_api import OpenAIEndpoint, connectivity
from disco.endpoints.openai_api.connectivity import connects_directly, has_route

NO_WAY = [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT]
NOT_KNOWN = [errno.EPERM, errno.EMFILE, errno.EINVAL]


@pytest.fixture
def connect(monkeypatch):
    """Of the kernel's sockets; at first there is no way to anywhere."""
    monkeypatch.setattr(connectivity, "_known", {})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    made = MagicMock()
    monkeypatch.setattr(connectivity.socket, "socket", made)
    connect = made.return_value.__enter__.return_value.connect
    connect.side_effect = OSError(errno.ENETUNREACH, "told to")
    yield connect
    # Anything else would send a packet.
    assert {kind for (_, kind), _ in made.call_args_list} <= {socket.SOCK_DGRAM}


def test_no_way_is_no_way_not_knowing_is_no_reason_and_this_machine_is_always_there(connect):
    for host in ("localhost", "db.localhost", "127.0.0.1", "127.8.8.8", "::1"):
        assert has_route(host, 8000)
    connect.assert_not_called()
    for number, host in itertools.product(
        [*NO_WAY, *NOT_KNOWN], ["api.example.com", "203.0.113.7", "2001:db8::7"]
    ):
        connectivity._known.clear()
        connect.side_effect = OSError(number, "told to")
        assert has_route(host, 443) is (number in NOT_KNOWN)


def test_an_address_is_asked_for_itself_and_the_answer_kept_for_a_second(connect, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(connectivity.time, "monotonic", lambda: now[0])
    assert not has_route("203.0.113.7", 8443)
    connect.side_effect = None
    now[0] += 0.9
    assert not has_route("203.0.113.7", 8443)
    connect.assert_called_once_with(("203.0.113.7", 8443))
    now[0] += 0.2
    assert has_route("203.0.113.7", 8443)


def test_a_client_that_goes_through_somebody_else_is_not_judged(connect, monkeypatch):
    def seen(**more):
        client = openai.AsyncOpenAI(api_key="k", base_url="https://api.example.com/v1", **more)
        return connects_directly(client), OpenAIEndpoint(client=client).has_route

    assert seen() == (True, False)
    for http in (
        httpx2.AsyncClient(verify=False, proxy="http://127.0.0.1:3128"),
        httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: httpx2.Response(200))),
        httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(verify=False, uds="/a/socket")),
    ):
        assert seen(http_client=http) == (False, True)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    assert seen() == (False, True)


def test_in_a_namespace_without_a_network_only_this_machine_is_there():
    apart = ["unshare", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("a network namespace takes root")
    module = "from disco.endpoints.openai_api.connectivity import has_route"
    hosts = ["127.0.0.1", "api.example.com", "203.0.113.7", "2001:db8::7"]
    program = f"{module}; print([has_route(host, 443) for host in {hosts}])"
    command = [*apart, sys.executable, "-c", program]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "[True, False, False, False]"
