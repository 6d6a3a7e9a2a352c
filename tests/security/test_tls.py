"""Certificates are checked: a server that cannot prove its name is sent nothing."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import openai
import pytest
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Tell me about the sea."}]}
KEY = "sk-canary-0123456789"
SERVER_FIRST = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})


@dataclass
class TlsServer:
    """Attributes: port; certificate, a file; asked, the paths of the requests it could read."""

    port: int
    certificate: Path
    asked: list[str] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}/v1"

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, *arguments, seen: TlsServer):
        self.seen = seen
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self.seen.asked.append(self.path)
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(sse(chunk("The sea."), chunk(finish="stop")))

    def log_message(self, *_) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_) -> None:
        """A client that does not like the certificate hangs up in the handshake."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that only vouches for itself, and its private key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the command openssl, which is not installed here")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subject = ["-subj", "/CN=disco test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, *curve, *subject, *files], check=True, capture_output=True)
    return made, key


@pytest.fixture
def tls_server(certificate) -> Iterator[TlsServer]:
    seen = TlsServer(0, certificate[0])
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, seen=seen))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    # The handshake takes place in the thread of its connection, when that is first read.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    seen.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield seen
    server.shutdown()
    server.server_close()
    thread.join(5)


def device() -> SimulatedEndpoint:
    profile = SimulatedProfile(gap_s=0.001, answer="From the device.")
    return SimulatedEndpoint("device", profile, place="device")


def causes(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.anyio
async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_server):
    routes = []
    async with AsyncDisco(
        api_key=KEY, base_url=tls_server.base_url, max_retries=0, on_route=routes.append
    ) as client:
        await client.warm_up()
        with pytest.raises(openai.APIConnectionError) as caught:
            await client.chat.completions.create(**HELLO)
        assert "CERTIFICATE_VERIFY_FAILED" in " ".join(causes(caught.value))
        with pytest.raises(openai.APIConnectionError):
            await client.embeddings.create(model="m", input="hello")
    assert [attempt.failure for attempt in routes[0].attempts] == ["connection"]
    assert tls_server.asked == []


@pytest.mark.anyio
async def test_the_device_answers_in_its_place(tls_server):
    async with AsyncDisco(
        local=device(), policy=SERVER_FIRST, api_key=KEY, base_url=tls_server.base_url, max_retries=0
    ) as client:
        answer = await client.chat.completions.create(**HELLO)
    assert answer.choices[0].message.content == "From the device."
    assert [(t.endpoint, t.failure) for t in answer.route.attempts] == [
        ("server", "connection"),
        ("device", None),
    ]
    assert tls_server.asked == []


@pytest.mark.anyio
async def test_an_http_client_that_trusts_it_works(tls_server):
    http_client = httpx2.AsyncClient(verify=tls_server.trust())
    async with AsyncDisco(api_key=KEY, base_url=tls_server.base_url, http_client=http_client) as client:
        answer = await client.chat.completions.create(**HELLO)
    assert answer.choices[0].message.content == "The sea."
    assert tls_server.asked == ["/v1/chat/completions"]


@pytest.mark.anyio
async def test_a_certificate_for_another_name_is_refused(tls_server):
    """It is for 127.0.0.1, and trusted, but this asks for localhost."""
    http_client = httpx2.AsyncClient(verify=tls_server.trust())
    base_url = tls_server.base_url.replace("127.0.0.1", "localhost")
    async with AsyncDisco(api_key=KEY, base_url=base_url, http_client=http_client, max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            await client.chat.completions.create(**HELLO)
    assert "ostname mismatch" in " ".join(causes(caught.value))
    assert tls_server.asked == []


def test_the_same_without_an_event_loop(tls_server):
    with (
        Disco(api_key=KEY, base_url=tls_server.base_url, max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.chat.completions.create(**HELLO)
    assert tls_server.asked == []
    with (
        httpx2.Client(verify=tls_server.trust()) as http_client,
        Disco(api_key=KEY, base_url=tls_server.base_url, http_client=http_client) as client,
    ):
        assert client.chat.completions.create(**HELLO).choices[0].message.content == "The sea."


@pytest.mark.anyio
async def test_a_backup_has_to_prove_its_name_too(tls_server):
    backup = Backup(base_url=tls_server.base_url, api_key=KEY, model="m")
    nobody = "http://127.0.0.1:9/v1"
    async with AsyncDisco(api_key=KEY, base_url=nobody, backups=[backup], max_retries=0) as client:
        with contextlib.suppress(Exception):
            await client.warm_up()
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(**HELLO)
    assert tls_server.asked == []
